#!/usr/bin/env bash
# Runs the tests: `test.sh short` (make test) or `test.sh long` (make test-all: more cases, kills and seconds, a browser, real data).
# Skips the tests that this machine cannot run, and lists them at the end: those that need real data
# ($KILN_DATA), captures of nvidia-smi ($KILN_NVML_CAPTURES), PyTorch ($KILN_PYTORCH), a compiler with
# sanitizers ($CXX), a control group ($KILN_TEST_GROUP) or a browser (KILN_BROWSER=none).
# Further arguments go to `cargo test`, such as `--test suite -- compare::`.
set -euo pipefail
cd "$(dirname "$0")/.."
form=${1:?usage: test.sh short|long [arguments for cargo test]}
shift

skips=() left_out=()
leave_out() { skips+=(--skip "$1"); left_out+=("$2"); }
[ -n "${KILN_DATA:-}" ] || leave_out real_data "tests over real data: set KILN_DATA to a folder with the data sets (\`kiln data fetch\` makes one)"
[ -n "${KILN_NVML_CAPTURES:-}" ] || [ -d ../shared/nvml ] ||
  leave_out real_captures "tests over captures of nvidia-smi: set KILN_NVML_CAPTURES to a folder with captures"
for shell in zsh fish; do
  command -v "$shell" >/dev/null || leave_out "real_$shell" "tests of completions in $shell: it is not installed"
done
"${KILN_PYTORCH:-.venv/bin/python}" -c 'import torch' 2>/dev/null ||
  leave_out real_pytorch "tests of the engine in PyTorch: \`make pytorch\` prepares a Python with it (or name one in KILN_PYTORCH)"
sanitizers=$(mktemp -d)
for sanitizer in thread address; do
  echo 'int main() { return 0; }' >"$sanitizers/none.cpp"
  "${CXX:-c++}" "-fsanitize=$sanitizer" "$sanitizers/none.cpp" -o "$sanitizers/none" 2>/dev/null && "$sanitizers/none" && continue
  leave_out real_sanitizers "tests of CUDA's kernels with sanitizers: ${CXX:-c++} cannot link ThreadSanitizer and AddressSanitizer here"
  break
done
rm -rf "$sanitizers"
# A control group in which a group with a memory limit can be made: this process's own (version 1), or
# the one above it (version 2). A name with real_groups is that of a test which makes one.
memory_group() {
  local line group
  while IFS= read -r line; do
    case $line in
      *:memory:*) group=/sys/fs/cgroup/memory${line#*:memory:} ;;
      0::*) group=/sys/fs/cgroup$(dirname "${line#0::}") ;;
      *) continue ;;
    esac
    if mkdir "$group/kiln-probe-$$" 2>/dev/null; then
      if [ -w "$group/kiln-probe-$$/memory.max" ] || [ -w "$group/kiln-probe-$$/memory.limit_in_bytes" ]; then
        rmdir "$group/kiln-probe-$$"
        printf '%s' "$group"
        return
      fi
      rmdir "$group/kiln-probe-$$"
    fi
  done </proc/self/cgroup
}
[ -n "${KILN_TEST_GROUP:-}" ] || KILN_TEST_GROUP=$(memory_group)
export KILN_TEST_GROUP
[ -n "$KILN_TEST_GROUP" ] || leave_out real_groups "tests in a control group of their own: none with a memory limit can be made here"
if [ "$form" = long ] && [ "${KILN_BROWSER:-}" = none ]; then leave_out page:: "tests of the report's page in a browser: KILN_BROWSER is none"; fi

# Several tests train at the same time on the same cores. If OpenMP's threads spun while they wait for
# each other, the tests would take ten times as long.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# A signal that is ignored here (nohup, a job in the background) would stay ignored in the programs
# that the tests send it to.
hearing=()
if env --default-signal=HUP true 2>/dev/null; then hearing=(env --default-signal=HUP --default-signal=INT); fi
status=0
run() { ${hearing[@]+"${hearing[@]}"} cargo test --workspace --release "$@" || status=$?; }

if [ $# -gt 0 ]; then
  run "$@"
else
  targets=(--lib --test suite --test alone)
  [ "$form" = short ] || export KILN_TESTS=long
  # More test threads than cores, because many tests wait for a process.
  run --no-fail-fast "${targets[@]}" -- --test-threads "${KILN_TEST_THREADS:-$((2 * $(nproc)))}" ${skips[@]+"${skips[@]}"}
  # Compiles the examples in the documentation, so that they use current names.
  run --no-fail-fast --doc
  # These compare times or start a browser, so they run one after another.
  [ "$form" = short ] || run --no-fail-fast --test long -- --test-threads 1 ${skips[@]+"${skips[@]}"}
fi
for what in ${left_out[@]+"${left_out[@]}"}; do printf 'left out: %s\n' "$what" >&2; done
exit $status
