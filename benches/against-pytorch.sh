#!/usr/bin/env bash
# kiln's training step against eager PyTorch's, on the CPU: each model of step-speed-models.json in f32, amp-bf16 and bf16, with the same
# shapes, batches, threads and optimizer. Five rounds of process runs, kiln and PyTorch in turn, five blocks of steps each: one CSV row
# per block. Prints the ratio of medians over the runs (PyTorch's time / kiln's; above 1 kiln is faster) and its spread over the rounds.
# Says that it skipped the table where $PYTHON (default python3) has no torch; nothing else of kiln needs it.
#
#   benches/against-pytorch.sh [TABLE.csv]     MODELS="gpt lstm" PRECISIONS=f32 ROUNDS=1 THREADS=1 choose less
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
models=${MODELS:-gpt lstm panel-lstm seq2seq seq2seq-adafactor resnet18 resnet50 mlp}
precisions=${PRECISIONS:-f32 amp-bf16 bf16}
rounds=${ROUNDS:-5}
threads=${THREADS:-$(nproc)}
table=${1:-${CARGO_TARGET_DIR:-target}/against-pytorch.csv}

"$python" -c 'import torch' 2>/dev/null || { echo "skipped: speed against PyTorch (\`$python\` has no torch; PYTHON=… names one that has 2.11)"; exit 0; }
if ! "$python" -c 'import transformers' 2>/dev/null; then
  echo "skipped: seq2seq (\`$python\` has no transformers, whose T5 it is held against)"
  models=$(tr ' ' '\n' <<< "$models" | grep -v '^seq2seq' | xargs)
fi
cargo build --quiet --release -p kiln-trial --example step-speed
step_speed=${CARGO_TARGET_DIR:-target}/release/examples/step-speed

run() {
  case $1 in
    kiln) "$step_speed" "${@:2}" ;;
    pytorch) "$python" benches/pytorch_models.py "${@:2}" ;;
  esac
}

echo "kiln_table,program,model,precision,threads,round,block,step_seconds,cpu_seconds,loss" > "$table"
for round in $(seq "$rounds"); do
  # Whoever runs second finds a warmer machine: the two take turns at that.
  order=(kiln pytorch)
  if (( round % 2 == 0 )); then order=(pytorch kiln); fi
  for model in $models; do
    for precision in $precisions; do
      for program in "${order[@]}"; do
        run "$program" "$model" "$precision" "$threads" | sed "s|^|step-speed/1,$program,$model,$precision,$threads,$round,|" >> "$table"
      done
    done
  done
done

"$python" - "$table" <<'PY'
import collections, csv, statistics, sys
runs, losses = collections.defaultdict(list), {}
for row in csv.DictReader(open(sys.argv[1])):
    case = row["model"], row["precision"]
    runs[case, row["program"], row["round"]].append(float(row["step_seconds"]))
    losses[case, row["program"]] = float(row["loss"])
print("model              precision  kiln [s/step]  PyTorch [s/step]  ratio (its rounds)      last losses")
for case in dict.fromkeys(case for case, _ in losses):
    rounds = sorted({key[2] for key in runs if key[0] == case})
    ours, theirs = ([statistics.median(runs[case, program, round]) for round in rounds] for program in ("kiln", "pytorch"))
    ratios = [their / our for our, their in zip(ours, theirs)]
    our, their = statistics.median(ours), statistics.median(theirs)
    spread = f"{their / our:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    print(f"{case[0]:18} {case[1]:9} {our:14.4f} {their:17.4f}  {spread:23} {losses[case, 'kiln']:.3f} {losses[case, 'pytorch']:.3f}")
print(f"written to {sys.argv[1]}")
PY
