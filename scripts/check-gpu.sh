#!/usr/bin/env bash
# What only a GPU can show, in parts, what matters most first: readings, trials of every model and precision, the tests on CUDA, speed beside
# PyTorch, out of memory, kills. `check-gpu.sh --help` says how to choose; the parts are in check_gpu/parts.py.
#
#   check-gpu.sh [--rehearse] [--list] [--results FOLDER] [--kiln PROGRAM] [--seconds N] [PART…]
#
# Exit status 0 if every part passed, 1 if one did not, 2 for a bad command line, 3 where there is no GPU and no --rehearse, or no python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "check-gpu: no python3 found; it starts the parts and reads the tables" >&2; exit 3; }
PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 exec python3 -m check_gpu "$@"
