#!/bin/sh
# A trial program that is slower by about a tenth: the kiln-trial on the PATH, stopped for 10 of every
# 100 milliseconds. It causes a real delay, which `kiln compare` must find:
#
#   PATH=$PWD/target/release:$PATH kiln compare --rerun experiments/verdict-spread.yaml experiments/verdict-spread.yaml \
#       --set sweep.repeats=12 --new-program benches/slow-trial.sh
kiln-trial "$@" &
trial=$!
trap 'kill -CONT $trial; kill -TERM $trial' TERM INT
while kill -0 $trial 2>/dev/null; do
  sleep 0.09
  kill -STOP $trial 2>/dev/null && sleep 0.01
  kill -CONT $trial 2>/dev/null
done
wait $trial
