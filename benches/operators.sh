#!/usr/bin/env bash
# Counts the libtorch operators of one training step, in kiln and in eager PyTorch, for each case of
# step-speed-models.json: one CSV row per model and precision. Only operators that compute count: no
# views and no tensors without values. If an operator calls others, those count instead of it.
#
#   benches/operators.sh [TABLE.csv]
#
# MODELS="gpt lstm" and PRECISIONS=f32 select fewer cases; PYTHON names a Python with torch 2.11.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
cases=benches/step-speed-models.json
table=${1:-${CARGO_TARGET_DIR:-target}/operators.csv}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "operators.sh: \`$python\` has no torch or no transformers; PYTHON=… names one that has both" >&2; exit 3; }
cargo build --quiet --workspace --release --example step-speed
step_speed=${CARGO_TARGET_DIR:-target}/release/examples/step-speed
all=$(sed -n 's/^  "\([^"]*\)": {$/\1/p' "$cases" | grep -v '^tiny-' | xargs)
{
  echo "kiln_table,model,precision,kiln_operators,pytorch_operators"
  for model in ${MODELS:-$all}; do
    for precision in ${PRECISIONS:-f32 amp-bf16}; do
      case=("$cases" "$model" "$precision" 1 cpu)
      kiln=$("$step_speed" "${case[@]}" --operators | wc -l)
      pytorch=$("$python" benches/pytorch_models.py operators "${case[@]}" 2>/dev/null | "$step_speed" --operators | wc -l)
      echo "operators/1,$model,$precision,$kiln,$pytorch"
    done
  done
} | tee "$table"
