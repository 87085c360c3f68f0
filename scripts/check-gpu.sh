#!/usr/bin/env bash
# What only a GPU can show, each part checked by its tables: calibrate, quickstart, matrix products, pinned copies, each precision, a short
# WikiText-2 sweep. Some minutes. In: the path of kiln (in a bundle: its run.sh, the default). A part that fails does not stop
# the others. Exit status 1 if one failed, 3 where there is no GPU or no python3, which reads the tables.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -d "$here/experiments" ]; then home=$here; else home=$(dirname "$here"); fi
kiln=$(realpath "${1:-$home/run.sh}") || { echo "usage: check-gpu.sh KILN" >&2; exit 2; }
cd "$home" || exit 2
say() { printf 'check-gpu: %s\n' "$*" >&2; }

if ! { [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || nvidia-smi -L >/dev/null 2>&1; }; then
  say "no NVIDIA GPU found; every GPU check is skipped"
  exit 3
fi
command -v python3 >/dev/null || { say "no python3 found; it reads the tables"; exit 3; }
results=${RESULTS:-$(mktemp -d)}
data=${KILN_DATA:-$home/data}
passed=() failed=() skipped=()

part() {
  local name=$1 started=$SECONDS
  shift
  if "$@"; then passed+=("$name"); else failed+=("$name"); fi
  say "$name: $((SECONDS - started)) s"
}

# A run on CUDA: every row completed on a GPU with times by the device's clock, the libraries as loaded are told.
# In: results folder, experiment's name, `pinned` or `pageable` or `none` (no data).
check_tables() {
  python3 - "$@" <<'PY'
import csv, glob, json, os, sys
folder, name, copied = sys.argv[1:]
run = os.path.join(folder, name, "latest")
faults = []
def want(holds, what):
    if not holds:
        faults.append(what)
rows = list(csv.DictReader(open(os.path.join(run, "trials.csv"))))
want(rows, "no rows")
for row in rows:
    trial = row["trial"]
    number = lambda column: float(row[column] or "nan")
    if row["outcome"] != "completed":
        faults.append(f"{trial}: {row['outcome']}: {row['reason']}")
        continue
    want(row["device_uuid"].startswith("GPU-"), f"{trial}: device {row['device_uuid']!r} is no GPU")
    want(number("samples_per_second") > 0 and number("peak_allocated_bytes") > 0, f"{trial}: no rate or no memory peak")
    # Steps by the device's clock must fill the window by the host's clock, or one of them is wrong.
    want(number("median_step_seconds") > 0, f"{trial}: steps were not timed: {row['notes']}")
    steps = list(csv.DictReader(open(os.path.join(run, "trials", trial, row["attempt"], "steps.csv"))))
    timed = sum(float(step["step_seconds"] or "nan") for step in steps if step["is_warmup"] == "false")
    share = timed / number("window_seconds")
    want(0.9 < share < 1.1, f"{trial}: timed steps make up {share:.3f} of the window")
    result = json.load(open(os.path.join(run, "trials", trial, row["attempt"], "trial.json")))
    tf32 = "true" if row["precision"] == "tf32" else "false"
    want(result["flags"].get("tf32_matmul") == tf32, f"{trial}: precision {row['precision']} with flags {result['flags']}")
    want((row["skipped_steps"] != "") == (row["precision"] == "amp-f16" and copied != "none"), f"{trial}: {row['skipped_steps']!r} skipped steps")
    if copied != "none":
        want(0 < number("transfer_fraction") < 1, f"{trial}: transfer_fraction {row['transfer_fraction']!r}: {row['notes']}")
        want(result.get("copied_from") == copied, f"{trial}: copied from {result.get('copied_from')}, {copied} was asked for: {row['notes']}")
libraries = json.load(open(os.path.join(run, "run.json")))["launches"][-1].get("libraries", {})
for library in ("libtorch", "cudnn", "cublas", "cudart"):
    want(library in libraries, f"run.json does not tell {library}")
for fault in faults:
    print(f"check-gpu: {name}: {fault}", file=sys.stderr)
if rows:
    print(f"check-gpu: {name}: {len(rows)} trials on {rows[0]['device_name']}, {libraries}", file=sys.stderr)
sys.exit(1 if faults else 0)
PY
}

# In: what to copy from, experiment's name, its file, more arguments for `kiln run`.
sweep() {
  local copied=$1 name=$2 file=$3
  shift 3
  "$kiln" run "$file" --fresh --results "$results/$copied" "$@" && check_tables "$results/$copied" "$name" "$copied"
}

one_trial=(--set train.batch_size=32 --set data.num_workers=2 --set sweep.repeats=1)
part calibrate "$kiln" calibrate
part quickstart sweep pageable quickstart experiments/quickstart.yaml
part "pinned copies" sweep pinned quickstart experiments/quickstart.yaml "${one_trial[@]}" --set data.pin_memory=true
for precision in tf32 bf16 amp-bf16 amp-f16; do
  part "$precision" sweep pageable quickstart experiments/quickstart.yaml "${one_trial[@]}" --set train.precision=$precision
done
if [ -d "$data/wikitext-2" ]; then
  export KILN_DATA=$data
  part wikitext2 sweep pinned wikitext2-gpt-batch experiments/wikitext2-gpt-batch.yaml --set train.steps=300
else
  skipped+=("wikitext2: $data holds no wikitext-2/")
fi
part products sweep none device-matmul experiments/device-matmul.yaml

say "${#passed[@]} parts passed, ${#failed[@]} failed, ${#skipped[@]} skipped; tables in $results"
for name in ${failed[@]+"${failed[@]}"}; do say "failed: $name"; done
for name in ${skipped[@]+"${skipped[@]}"}; do say "skipped: $name"; done
[ ${#failed[@]} -eq 0 ]
