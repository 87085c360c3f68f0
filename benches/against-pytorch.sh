#!/usr/bin/env bash
# Compares kiln's training step with PyTorch's, eager and through torch.compile: each model of a file of
# cases with the same shapes, batches, threads and optimizer. Each round runs the programs in turn, one
# process each, with five blocks of steps: one CSV row per block. Prints the ratios of the medians over
# the runs (the other's time / kiln's; above 1 kiln is faster) with their range over the rounds, and the
# peak memory of each program. If $PYTHON (default python3) has no torch, the script says that it skipped
# the table; kiln's programs do not need it.
#
#   benches/against-pytorch.sh [TABLE.csv]     variables select fewer or other cases:
#
#   MODELS="gpt lstm"       cases of the file (default: all except those whose names begin with tiny-)
#   PRECISIONS=f32          of f32 tf32 bf16 amp-bf16 amp-f16 (default: f32 amp-bf16 bf16; on cuda amp-bf16 tf32)
#   PROGRAMS="kiln eager"   of kiln kiln-graphs eager compile; default: all, but kiln-graphs on cuda alone
#   ROUNDS=1 THREADS=1      rounds (5), threads on the CPU (all cores)
#   DEVICE=cuda             cpu, or the first GPU that is visible
#   CASES=FILE              benches/step-speed-models.json; on cuda benches/step-speed-real.json
#   PEAK_TFLOPS=800         the device's peak, for kiln's MFU; without it only TFLOP/s are printed
#   STEP_SPEED=PROGRAM      the command of a built step-speed, one word per line; otherwise cargo builds it
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
device=${DEVICE:-cpu}
case $device in
  cpu) cases=benches/step-speed-models.json precisions="f32 amp-bf16 bf16" programs="kiln eager compile" ;;
  cuda) cases=benches/step-speed-real.json precisions="amp-bf16 tf32" programs="kiln kiln-graphs eager compile" ;;
  *) echo "against-pytorch.sh: DEVICE is \`$device\`; it must be cpu or cuda" >&2; exit 2 ;;
esac
cases=${CASES:-$cases}
precisions=${PRECISIONS:-$precisions}
programs=${PROGRAMS:-$programs}
rounds=${ROUNDS:-5}
threads=${THREADS:-$(nproc)}
table=${1:-${CARGO_TARGET_DIR:-target}/against-pytorch.csv}
NOTHING_COMPILED=4

wants() { [[ " $programs " == *" $1 "* ]]; }
for program in $programs; do
  [[ $program =~ ^(kiln|kiln-graphs|eager|compile)$ ]] || { echo "against-pytorch.sh: PROGRAMS names \`$program\`; there are kiln, kiln-graphs, eager and compile" >&2; exit 2; }
done
all=$(sed -n 's/^  "\([^"]*\)": {$/\1/p' "$cases")
models=${MODELS:-$(grep -v '^tiny-' <<< "$all" | xargs)}
for model in $models; do
  grep -qx "$model" <<< "$all" || { echo "against-pytorch.sh: $cases has no case \`$model\`; there are $(xargs <<< "$all")" >&2; exit 2; }
done
if wants eager || wants compile; then
  "$python" -c 'import torch' 2>/dev/null || { echo "skipped: speed against PyTorch (\`$python\` has no torch; PYTHON=… names one that has 2.11)"; exit 0; }
  if ! "$python" -c 'import transformers' 2>/dev/null; then
    t5=$("$python" -c 'import json, sys; print(*[name for name, case in json.load(open(sys.argv[1])).items() if "pairs" in case])' "$cases")
    echo "skipped: $t5 (\`$python\` has no transformers; these cases are compared with its T5)"
    for name in $t5; do models=$(tr ' ' '\n' <<< "$models" | grep -vx "$name" | xargs); done
  fi
fi
step_speed=()
if [ -n "${STEP_SPEED:-}" ]; then
  mapfile -t step_speed <<< "$STEP_SPEED"
elif wants kiln || wants kiln-graphs; then
  cargo build --quiet --workspace --release --example step-speed
  step_speed=("${CARGO_TARGET_DIR:-target}/release/examples/step-speed")
fi

run() {
  case $1 in
    kiln) "${step_speed[@]}" "$cases" "${@:2}" "$device" ;;
    # Steps replayed from CUDA graphs; on the CPU from closures, to test the same way.
    kiln-graphs) KILN_CUDA_BRANCHES=1 "${step_speed[@]}" "$cases" "${@:2}" "$device" --graphs ;;
    # PyTorch's side has no formula for FLOPs: an empty last column.
    *) "$python" benches/pytorch_models.py "$1" "$cases" "${@:2}" "$device" | sed 's/$/,/' ;;
  esac
}

echo "kiln_table,program,device,model,precision,threads,round,block,step_seconds,cpu_seconds,loss,peak_memory_bytes,step_flops" > "$table"
read -ra order <<< "$programs"
declare -A left_out=()
failed=()
for round in $(seq "$rounds"); do
  for model in $models; do
    for precision in $precisions; do
      for program in "${order[@]}"; do
        [ -z "${left_out[$program $model $precision]:-}" ] || continue
        status=0
        lines=$(run "$program" "$model" "$precision" "$threads") || status=$?
        if [ "$program" = compile ] && [ $status -eq $NOTHING_COMPILED ]; then
          left_out[$program $model $precision]=yes
          echo "left out: $model in $precision through torch.compile, which compiles nothing of it"
          continue
        fi
        if [ $status -ne 0 ]; then
          # The other cases still run.
          failed+=("$program $model $precision: status $status")
          left_out[$program $model $precision]=yes
          continue
        fi
        sed "s|^|step-speed/2,$program,$device,$model,$precision,$threads,$round,|" <<< "$lines" >> "$table"
      done
    done
  done
  # A program that runs after another one finds a warmer machine, so each round starts with another
  # program.
  order=("${order[@]:1}" "${order[0]}")
done

"$python" - "$table" "${PEAK_TFLOPS:-}" <<'PY'
import collections, csv, statistics, sys

runs, losses, peaks, flops = collections.defaultdict(list), {}, {}, {}
for row in csv.DictReader(open(sys.argv[1])):
    case = row["model"], row["precision"]
    runs[case, row["program"], row["round"]].append(float(row["step_seconds"]))
    losses[case, row["program"]] = float(row["loss"])
    peaks[case, row["program"]] = max(int(row["peak_memory_bytes"]), peaks.get((case, row["program"]), 0))
    if row["step_flops"]:
        flops[case] = int(row["step_flops"])
peak = float(sys.argv[2]) if sys.argv[2] else None
PROGRAMS = [name for name in ("kiln", "kiln-graphs", "eager", "compile") if any(key[1] == name for key in runs)]


def ratio(medians, program):
    """The program's time divided by kiln's, with the lowest and the highest of the rounds."""
    if not medians.get("kiln") or not medians[program]:
        return "-"
    rounds = [medians[program][at] / medians["kiln"][at] for at in medians["kiln"] if at in medians[program]]
    whole = statistics.median(medians[program].values()) / statistics.median(medians["kiln"].values())
    return f"{whole:.3f} ({min(rounds):.3f} to {max(rounds):.3f})"


def of_each(values, form):
    return " ".join(form(values[program]) if program in values else "-" for program in PROGRAMS)


others = [name for name in PROGRAMS if name != "kiln"]
of_others = " ".join(f"{f'{name} / kiln (its rounds)':32}" for name in others)
print(f"{'model':18} {'precision':9} {'seconds per step: ' + ', '.join(PROGRAMS):52} {of_others} {'GiB: each':23} {'TFLOP/s':16} last losses")
for case in dict.fromkeys(case for case, _ in losses):
    rounds = sorted({key[2] for key in runs if key[0] == case})
    medians = {
        program: {at: statistics.median(runs[case, program, at]) for at in rounds if (case, program, at) in runs} for program in PROGRAMS
    }
    seconds = {program: statistics.median(found.values()) for program, found in medians.items() if found}
    rate = flops[case] / seconds["kiln"] / 1e12 if case in flops and "kiln" in seconds else None
    share = f" mfu {rate / peak:.3f}" if rate and peak else ""
    memory = of_each({program: peaks[case, program] for program in seconds}, lambda value: f"{value / 2**30:.2f}")
    print(
        f"{case[0]:18} {case[1]:9} {of_each(seconds, lambda value: f'{value:.5f}'):52} {' '.join(f'{ratio(medians, name):32}' for name in others)} "
        f"{memory:23} {(f'{rate:.3f}' if rate else '-') + share:16} {of_each({program: losses[case, program] for program in seconds}, lambda value: f'{value:.3f}')}"
    )
print(f"written to {sys.argv[1]}")
PY
for case in ${failed[@]+"${failed[@]}"}; do echo "against-pytorch.sh: failed: $case" >&2; done
[ ${#failed[@]} -eq 0 ]
