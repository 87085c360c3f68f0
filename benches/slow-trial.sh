#!/bin/sh
# A trial program that is slower by about a tenth: the kiln-trial on the PATH, stopped for 10 of each 100 milliseconds.
# For a delay that `kiln compare` has to find:
#
#   PATH=$PWD/target/release:$PATH KILN_TRIAL=benches/slow-trial.sh kiln run experiments/verdict-spread.yaml \
#       --set sweep.repeats=20 --set name=verdict-slowed
kiln-trial "$@" &
trial=$!
trap 'kill -CONT $trial; kill -TERM $trial' TERM INT
while kill -0 $trial 2>/dev/null; do
  sleep 0.09
  kill -STOP $trial 2>/dev/null && sleep 0.01
  kill -CONT $trial 2>/dev/null
done
wait $trial
