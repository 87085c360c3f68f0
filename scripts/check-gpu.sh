#!/usr/bin/env bash
# What only a GPU can show: quickstart, a short WikiText-2 sweep and calibrate on CUDA, each checked by its tables.
# In: the path of kiln (a bundle's run.sh serves as well). Says what it skipped; exit status 3 where there is no GPU.
set -euo pipefail
kiln=${1:?usage: check-gpu.sh KILN}
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "check-gpu: no NVIDIA GPU found; every GPU check is skipped" >&2
  exit 3
fi
results=${RESULTS:-$(mktemp -d)}
passed=0
skipped=0

# One run on CUDA: every row completed, on a GPU, with a measured window.
sweep_on_gpu() {
  local name=$1 file=$2
  shift 2
  "$kiln" run "$file" --fresh --results "$results" "$@"
  python3 - "$results/$name/latest/trials.csv" <<'PY'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert rows, "no rows"
for row in rows:
    assert row["outcome"] == "completed", (row["trial"], row["outcome"], row["reason"])
    assert row["device_uuid"].startswith("GPU-"), (row["trial"], row["device_uuid"])
    assert float(row["samples_per_second"]) > 0 and int(row["peak_allocated_bytes"]) > 0, row["trial"]
print(f"check-gpu: {len(rows)} trials on {rows[0]['device_name']}")
PY
  passed=$((passed + 1))
}

"$kiln" calibrate
sweep_on_gpu quickstart experiments/quickstart.yaml
sweep_on_gpu device-matmul experiments/device-matmul.yaml
if [ -n "${KILN_DATA:-}" ] && [ -d "$KILN_DATA/wikitext-2" ]; then
  sweep_on_gpu wikitext2-gpt-batch experiments/wikitext2-gpt-batch.yaml --set train.epochs=null --set train.steps=300
else
  echo "check-gpu: skipped the WikiText-2 sweep: KILN_DATA holds no wikitext-2/" >&2
  skipped=$((skipped + 1))
fi
echo "check-gpu: $passed sweeps passed, $skipped skipped; tables in $results"
