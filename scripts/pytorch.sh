#!/usr/bin/env bash
# Prepares .venv: a Python with the PyTorch of scripts/libtorch.sh's version, for engines/gpt_pytorch.py. Kept
# if it is there; 5 GB on disk, as pip's wheels hold the CUDA libraries. torch.compile also needs a C++
# compiler and Python's headers. KILN_PYTHON names the Python to use (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'pytorch.sh: %s\n' "$*" >&2; exit 1; }

python=${KILN_PYTHON:-python3}
version=$(sed -n 's/^VERSION=//p' scripts/libtorch.sh)
found() { .venv/bin/python -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null || true; }

if [ "$(found)" != "$version" ]; then
  [ -e .venv/bin/python ] || "$python" -m venv .venv || fail "\`$python\` cannot make a virtual environment; install python3-venv, or name another Python in KILN_PYTHON"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$version" numpy
fi
[ "$(found)" = "$version" ] || fail "torch $version was installed into .venv and cannot be imported; see \`.venv/bin/python -c 'import torch'\`"
headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || printf 'pytorch: no %s/Python.h: torch.compile will fail; install python3-dev\n' "$headers" >&2
printf 'pytorch: torch %s in .venv\n' "$version" >&2
