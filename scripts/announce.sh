#!/usr/bin/env bash
# Prints the steps of `make sweep` and their approximate durations on this machine.
# Arguments: the experiment file, the program kiln.
set -euo pipefail
cd "$(dirname "$0")/.."
experiment=$1 kiln=$2
cores=$(nproc)
# A full build takes the first number of seconds on one core (docs/development.md); the second is added
# for the steps that cannot run in parallel.
BUILD_CORE_SECONDS=1000
BUILD_SERIAL_SECONDS=60

if [ -n "${LIBTORCH:-}" ]; then libtorch="yours, $LIBTORCH"
elif [ -e .libtorch/torch/lib/libtorch_cpu.so ]; then libtorch="here"
else libtorch="to find or fetch with pip: 540 MB for the CPU, 2.5 GB for CUDA; one to five minutes"
fi
if [ -x "$kiln" ] && [ -x "${kiln%/*}/kiln-trial" ]; then build="built before: seconds, or a minute after changes"
else build="from nothing: about $(((BUILD_CORE_SECONDS / cores + BUILD_SERIAL_SECONDS + 59) / 60)) minutes on $cores cores; once"
fi
case $experiment in
  experiments/quickstart.yaml) sweep="12 trials of seconds each: about a minute" ;;
  *) sweep="as long as its trials take; \`$kiln plan $experiment\` lists them" ;;
esac
{
  printf 'make sweep does three things:\n'
  printf '  1. libtorch  %s\n' "$libtorch"
  printf '  2. build     %s\n' "$build"
  printf '  3. sweep     %s, %s\n\n' "$experiment" "$sweep"
} >&2
