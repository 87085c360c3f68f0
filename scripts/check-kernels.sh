#!/usr/bin/env bash
# Compiles kiln's own CUDA kernels with NVRTC, as a trial does, for several generations of GPUs; needs no GPU and no CUDA
# libtorch. Fetches NVRTC with pip, 90 MB. Argument: the path of kiln-trial. Exit status 1 if they do not compile.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
trial=${1:?usage: check-kernels.sh KILN-TRIAL}
# The version that comes with the CUDA flavor of libtorch.
VERSION=13.0.88
folder=$root/.libtorch/nvrtc-$VERSION
if [ ! -e "$folder" ]; then
  rm -rf "$folder.partial"
  PIP_BREAK_SYSTEM_PACKAGES=1 "${KILN_PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder.partial" "nvidia-cuda-nvrtc==$VERSION"
  mv -T "$folder.partial" "$folder"
fi
lib=$folder/nvidia/cu13/lib
# The compiler opens its built-in library by its bare name.
table=$(LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$trial" --check-cuda-flavour --kernels-by "$lib/libnvrtc.so.13")
printf '%s\n' "$table"
checked=$(printf '%s\n' "$table" | grep -c '^own kernels sm_[0-9]*,passed,' || true)
failed=$(printf '%s\n' "$table" | grep -c ',failed,' || true)
[ "$failed" -eq 0 ] && [ "$checked" -ge 5 ] || { printf 'check-kernels: %s passed, %s failed\n' "$checked" "$failed" >&2; exit 1; }
