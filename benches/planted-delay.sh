#!/bin/sh
# A delay that is really there, for `kiln compare` to find: the same small training as it is and stopped for a tenth of the time
# (benches/slow-trial.sh), run in turns, so that what drifts on the machine hits both alike.
#
#   PATH=$PWD/target/release:$PATH benches/planted-delay.sh [RUNS [RESULTS]]
set -e
runs=${1:-12} results=${2:-results} file=experiments/verdict-spread.yaml
here=$(dirname "$0")
once() { # NAME ID, and variables before it
  kiln run "$file" --results "$results" --set sweep.repeats="$runs" --set name="$1" --only "$2" --quiet >/dev/null
}
ids=$(kiln plan "$file" --set sweep.repeats="$runs" --json | sed 's/"id":"/\n&/g' | sed -n 's/^"id":"\([0-9a-f]*\)".*/\1/p')
for id in $ids; do
  once verdict-plain "$id"
  KILN_TRIAL=$here/slow-trial.sh once verdict-slowed "$id"
done
kiln compare "$results/verdict-plain" "$results/verdict-slowed"
