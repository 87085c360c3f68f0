#!/usr/bin/env bash
# Checks without a GPU what kiln has CUDA do: trains every model in every precision with libtorch's CUDA
# half on a CUDA that does nothing (cuda_stub/stub.h), and reads from its trace the kernels, products,
# copies and waits of a step, what a capture would refuse, and how a lack of memory ends. Compares the
# number of kernels and the memory of a step with PyTorch's on the same stub. Numbers that are computed
# mean nothing here. Downloads libtorch's CUDA flavor (2.5 GB, 4.7 GB on disk). Arguments: the program
# kiln, the file for the table, and, to measure the host's time of a step too (4 minutes, alone on the
# machine), a file for that. MODELS="gpt lstm" selects experiments, and leaves out memory, other GPUs,
# PyTorch and the host's time. Exit status 1 if a check failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage='usage: check-cuda-calls.sh KILN TABLE [HOST_TABLE]'
kiln=$(realpath "${1:?$usage}") table=${2:?$usage}
python=${KILN_PYTHON:-python3}
"$root/scripts/libtorch.sh" fetch cuda
version=$(sed -n 's/^VERSION=//p' "$root/scripts/libtorch.sh")
packages=$root/.libtorch/cuda-$version

cd "$root"
cargo build --quiet --workspace --release
cargo build --quiet --workspace --release --example step-speed
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Under the name of the driver's library, so that libtorch, which opens that by its name, finds it loaded.
"${CXX:-g++}" -std=c++17 -O1 -fPIC -shared -I scripts/cuda_stub -isystem "$packages/nvidia/cu13/include" -isystem "$packages/nvidia/cudnn/include" \
  -Wl,-soname,libcuda.so.1 scripts/cuda_stub/{runtime,libraries,dnn}.cpp -o "$work/libcuda.so.1"
# What NVML would tell, to kiln and to libtorch, which asks it who uses the memory when that has run out.
cp "$(dirname "$kiln")/libfake_nvml.so" "$work/libnvidia-ml.so.1"
sed 's/^    nvmlDeviceGetComputeRunningProcesses_v3: \[\]$/&\n    nvmlDeviceGetComputeRunningProcesses: []/' tests/scenarios/h200.yaml > "$work/libnvidia-ml.so.1.yaml"
PYTHONPATH=$root/scripts${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 "$python" scripts/check_cuda_calls.py "$kiln" "$packages" "$work" "$table" ${3:+"$3"}
