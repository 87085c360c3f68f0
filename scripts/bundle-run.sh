#!/usr/bin/env bash
# Starts kiln from its bundle with the libtorch of this host: ./run.sh run experiments/quickstart.yaml
# It needs a folder with libtorch_cpu.so: that of $LIBTORCH (…/lib), else one in LD_LIBRARY_PATH,
# else that of a Python's torch ($KILN_PYTHON, default python3). Exit status 3 if there is none or
# if its version differs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${KILN_PYTHON:-python3}
fail() { printf 'run.sh: %s\n' "$*" >&2; exit 3; }

torch_lib() {
  if [ -n "${LIBTORCH:-}" ]; then printf '%s/lib' "$LIBTORCH"; return; fi
  local folder; local -a folders
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in ${folders[@]+"${folders[@]}"}; do
    [ ! -e "$folder/libtorch_cpu.so" ] || { printf '%s' "$folder"; return; }
  done
  command -v "$python" >/dev/null || return 0
  "$python" -c 'import importlib.util, os; spec = importlib.util.find_spec("torch"); print(os.path.join(os.path.dirname(spec.origin), "lib") if spec else "", end="")'
}

lib=$(torch_lib)
[ -n "$lib" ] || fail "no libtorch found: \`$python\` has no torch, LD_LIBRARY_PATH names no folder with libtorch_cpu.so; set LIBTORCH to a torch folder, or KILN_PYTHON to a Python that has it ($(tail -1 "$here/ABOUT"))"
[ -e "$lib/libtorch_cpu.so" ] || fail "$lib has no libtorch_cpu.so"
wanted=$(sed -n 's/^needs torch \([^,]*\),.*/\1/p' "$here/ABOUT")
found=$(sed -n "s/^__version__ = ['\"]\([^'\"+]*\).*/\1/p" "$lib/../version.py" 2>/dev/null || true)
[ -z "$found" ] || [ "$found" = "$wanted" ] || fail "$lib is torch $found; this bundle was built for $wanted, and libtorch's C++ interface changes between versions"
# In Python, pip's torch loads the libraries of NVIDIA's packages itself. Here they must be on the
# search path, because some of them look for others by their bare names.
search=$lib
for folder in "$lib"/../../nvidia/*/lib; do
  [ ! -d "$folder" ] || search=$search:$(cd "$folder" && pwd)
done
export LD_LIBRARY_PATH=$search${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export KILN_DATA=${KILN_DATA:-$here/data}
exec "$here/kiln" "$@"
