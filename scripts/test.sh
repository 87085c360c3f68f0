#!/usr/bin/env bash
# Runs the tests: `test.sh short` (make test) or `test.sh long` (make test-all: more cases, kills and seconds, a browser, real data).
# Leaves out, and says so at the end, what this machine lacks: real data ($KILN_DATA), captures of nvidia-smi
# ($KILN_NVML_CAPTURES), a browser (KILN_BROWSER=none). More arguments go to `cargo test`, such as `--test suite -- compare::`.
set -euo pipefail
cd "$(dirname "$0")/.."
form=${1:?usage: test.sh short|long [arguments for cargo test]}
shift

skips=() left_out=()
leave_out() { skips+=(--skip "$1"); left_out+=("$2"); }
[ -n "${KILN_DATA:-}" ] || leave_out real_data "tests over real data: set KILN_DATA to a folder with the data sets (\`kiln data fetch\` makes one)"
[ -n "${KILN_NVML_CAPTURES:-}" ] || [ -d ../shared/nvml ] ||
  leave_out real_captures "tests over captures of nvidia-smi: set KILN_NVML_CAPTURES to a folder with captures"
if [ "$form" = long ] && [ "${KILN_BROWSER:-}" = none ]; then leave_out page:: "tests of the report's page in a browser: KILN_BROWSER is none"; fi

# Trainings of several tests share the cores. OpenMP's threads would spin while they wait for one another, and take ten times as long.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
status=0
run() { cargo test --workspace --release "$@" || status=$?; }

if [ $# -gt 0 ]; then
  run "$@"
else
  targets=(--lib --test suite --test alone)
  [ "$form" = short ] || export KILN_TESTS=long
  # Many tests wait for a process: more of them than cores.
  run --no-fail-fast "${targets[@]}" -- --test-threads "${KILN_TEST_THREADS:-$((2 * $(nproc)))}" ${skips[@]+"${skips[@]}"}
  # Examples in docs are compiled, so that they keep up with names.
  run --no-fail-fast --doc
  # These compare times or start a browser: one after another.
  [ "$form" = short ] || run --no-fail-fast --test long -- --test-threads 1 ${skips[@]+"${skips[@]}"}
fi
for what in ${left_out[@]+"${left_out[@]}"}; do printf 'left out: %s\n' "$what" >&2; done
exit $status
