#!/usr/bin/env bash
# Checks that need a GPU, in parts, the most important first: readings, what no GPU has run yet,
# trials of every model and precision, the tests on CUDA, out of memory, kills, speed compared with
# PyTorch.
# `check-gpu.sh --help` explains the selection; the parts are in check_gpu/parts.py.
#
#   check-gpu.sh [--rehearse] [--list] [--results FOLDER] [--kiln PROGRAM] [--seconds N] [PART…]
#
# Exit status 0 if every part passed, 1 if one did not, 2 for a bad command line, 3 if there is no GPU
# and --rehearse is not given, or if there is no python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "check-gpu: no python3 found; it starts the parts and reads the tables" >&2; exit 3; }
PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 exec python3 -m check_gpu "$@"
