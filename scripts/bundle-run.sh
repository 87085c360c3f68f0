#!/usr/bin/env bash
# Starts kiln from its bundle with the libtorch of this host's Python: ./run.sh run experiments/quickstart.yaml
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${KILN_PYTHON:-python3}
lib=$("$python" -c 'import importlib.util, os; print(os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib"))') || {
  echo "run.sh: \`$python\` has no torch; set KILN_PYTHON to one that has torch 2.11" >&2
  exit 3
}
export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export KILN_DATA=${KILN_DATA:-$here/data}
exec "$here/kiln" "$@"
