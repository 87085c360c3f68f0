#!/usr/bin/env bash
# Runs the fault suite (make test-faults): at most five minutes, or hours with KILN_FAULTS=long.
# Prints its figures at the end; they and the violations are tables in the target folder.
# Further arguments go to the tests, such as `kills`. KILN_FAULTS_ONLY=TEXT runs only the cases with this text in their name.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
command -v "${CC:-cc}" >/dev/null || { echo "test-faults: no C compiler \`${CC:-cc}\` found; install gcc or clang, or name one in CC" >&2; exit 3; }
rm -f "$target/faults.csv" "$target/faults-found.csv"
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# The same packages as in scripts/test.sh, so that nothing is compiled again with other features; the trial's own suite brings
# the program kiln-trial.
cargo test --workspace --release --no-run --test suite --test faults
status=0
hearing=()
if env --default-signal=HUP true 2>/dev/null; then hearing=(env --default-signal=HUP --default-signal=INT); fi
${hearing[@]+"${hearing[@]}"} cargo test --workspace --release --test faults -- --test-threads "${KILN_TEST_THREADS:-2}" "$@" || status=$?
if [ -f "$target/faults.csv" ]; then
  echo
  # One row for all tests.
  awk -F, -v OFS=, 'NR > 1 { for (i = 3; i <= NF; i++) sum[i] += $i; form = $2; fields = NF }
    { print }
    END { line = "all" OFS form; for (i = 3; i <= fields; i++) line = line OFS sum[i]; print line }' "$target/faults.csv" | { column -s, -t 2>/dev/null || cat "$target/faults.csv"; }
  echo "written: $target/faults.csv"
  [ ! -f "$target/faults-found.csv" ] || echo "each violation: $target/faults-found.csv"
fi
exit $status
