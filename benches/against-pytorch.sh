#!/usr/bin/env bash
# kiln's training step against eager PyTorch's: same GPT, same threads, fused AdamW and SDPA, f32 and amp-bf16, ROUNDS rounds of
# interleaved process runs. Writes one CSV row per run and prints the ratio of medians (PyTorch's time / kiln's; above 1: kiln is
# faster). Needs a Python with torch 2.11 ($PYTHON, default python3); nothing else of kiln does.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
rounds=${ROUNDS:-5}
steps=${STEPS:-30}
threads=${THREADS:-$(nproc)}
out=${1:-${CARGO_TARGET_DIR:-target}/against-pytorch.csv}

cargo build --quiet --release -p kiln-trial --example step-speed
ours=${CARGO_TARGET_DIR:-target}/release/examples/step-speed
"$python" -c 'import torch' || { echo "\`$python\` has no torch; set PYTHON to one that has torch 2.11" >&2; exit 3; }

echo "program,precision,vocabulary,batch_size,threads,round,median_step_milliseconds,cpu_milliseconds,loss" > "$out"
for round in $(seq "$rounds"); do
  for case in "f32 1024 8" "amp-bf16 1024 8" "f32 8192 8" "amp-bf16 8192 8"; do
    read -r precision vocabulary batch <<< "$case"
    for program in kiln pytorch; do
      case $program in
        kiln) result=$("$ours" "$precision" "$vocabulary" "$batch" "$steps" "$threads") ;;
        pytorch) result=$("$python" benches/pytorch_gpt.py "$precision" "$vocabulary" "$batch" "$steps" "$threads") ;;
      esac
      echo "$program,$precision,$vocabulary,$batch,$threads,$round,${result// /,}" >> "$out"
    done
  done
done

"$python" - "$out" <<'PY'
import collections, csv, statistics, sys
times = collections.defaultdict(list)
for row in csv.DictReader(open(sys.argv[1])):
    times[row["precision"], row["vocabulary"], row["program"]].append(float(row["median_step_milliseconds"]))
for precision, vocabulary in sorted({key[:2] for key in times}):
    ours, theirs = (statistics.median(times[precision, vocabulary, program]) for program in ("kiln", "pytorch"))
    print(f"{precision:9} vocabulary {vocabulary:>6}: kiln {ours:8.2f} ms, PyTorch {theirs:8.2f} ms, ratio {theirs / ours:.3f}")
PY
