#!/bin/sh
# A trial's child that plays a scenario: $SCRIPTED_CHILD, or $SCRIPTED_CHILD_<batch size> for trials of that batch size.
# It speaks the protocol of docs/child-protocol.md and is started as kiln-trial is: child.sh trial.yaml
file=$1
value() { sed -n "s/^ *$1: *//p" "$file" | head -n 1 | tr -d "'\""; }
folder=$(value folder)
trial=$(value trial)
attempt=$(value attempt)
batch=$(value batch_size)
eval "scenario=\${SCRIPTED_CHILD_$batch:-\${SCRIPTED_CHILD:-completes}}"

say() { printf '%s\n' "$1"; }
hello_of() { say "{\"event\":\"hello\",\"protocol\":$1,\"kiln_trial\":\"scripted\",\"pid\":$$}"; }
hello() { say "{\"event\":\"hello\",\"protocol\":1,\"kiln_trial\":\"scripted\",\"pid\":$$}"; say '{"event":"ready","parameters":7,"total_steps":10,"device_name":"script"}'; }
step() { say "{\"event\":\"progress\",\"step\":$1,\"total_steps\":10,\"loss\":2.5,\"samples_per_second\":64.0,\"data_wait_fraction\":0.1}"; }
finish() { # outcome [reason [samples per second]]
  reason=null; [ -n "$2" ] && reason="\"$2\""
  printf '{"kiln_trial_result":1,"trial":"%s","attempt":%s,"outcome":"%s","reason":%s,"steps":10,"left_out_steps":2,"window_seconds":1.5,"samples_per_second":%s,"train_loss":2.25,"device_name":"script","cpu_threads":1,"flags":{"tf32":"false"}}\n' \
    "$trial" "$attempt" "$1" "$reason" "${3:-64.0}" >"$folder/.trial.json.new" && mv "$folder/.trial.json.new" "$folder/trial.json" || exit 1
  say "{\"event\":\"finished\",\"outcome\":\"$1\",\"reason\":$reason}"
}
now() { sed 's/ .*//; s/\.//; s/^0*//; s/$/0000000/' /proc/uptime; }
measured() { # began ended: as finish, with a measured window
  printf '{"kiln_trial_result":1,"trial":"%s","attempt":%s,"outcome":"completed","reason":null,"steps":10,"left_out_steps":2,"window_seconds":0.5,"window_started_nanoseconds":%s,"window_ended_nanoseconds":%s,"samples_per_second":64.0,"train_loss":2.25,"device_name":"script","cpu_threads":1}\n' \
    "$trial" "$attempt" "$1" "$2" >"$folder/.trial.json.new" && mv "$folder/.trial.json.new" "$folder/trial.json" || exit 1
  say '{"event":"finished","outcome":"completed","reason":null}'
}
wait_for_release() { while [ ! -e "$SCRIPTED_CHILD_RELEASE" ]; do sleep 0.05; done; }

case $scenario in
  completes) hello; step 5; finish completed ;;
  takes_a_while) hello; step 5; sleep 0.15; finish completed ;;
  measures)
    hello; step 5; began=$(now); say "{\"event\":\"window_started\",\"step\":5,\"monotonic_nanoseconds\":$began}"; sleep 0.6
    ended=$(now); say "{\"event\":\"window_ended\",\"step\":10,\"monotonic_nanoseconds\":$ended}"; sleep 0.1; measured "$began" "$ended" ;;
  waits) hello; step 5; wait_for_release; finish completed ;;
  fails) hello; step 3; echo 'something went wrong here' >&2; exit 1 ;;
  fails_first) hello; [ "$attempt" -gt 1 ] || { echo 'not yet' >&2; exit 1; }; finish completed ;;
  says_failed) hello; finish failed 'the data is of no use'; exit 1 ;;
  tuned) # runs out of memory above $SCRIPTED_CHILD_FITS; fastest at a batch of 24
    hello; [ "$batch" -le "${SCRIPTED_CHILD_FITS:-1000000}" ] || { finish oom 'device memory ran out'; exit 4; }
    step 5; sleep "${SCRIPTED_CHILD_SLEEP:-0}"; rate=$(echo "$batch" | awk '{ print 1000 * $1 / (24 + $1 + $1 * $1 / 24) }')
    finish completed "" "$rate" ;;
  diverges) hello; step 4; finish diverged 'loss is NaN at step 4' ;;
  runs_out) hello; step 2; finish oom 'device memory ran out'; exit 4 ;;
  cuda_oom) hello; echo 'CUDA out of memory. Tried to allocate 20.00 GiB' >&2; exit 1 ;;
  aborts) hello; step 3; kill -ABRT $$ ;;
  segfaults) hello; step 3; kill -SEGV $$ ;;
  is_killed) hello; step 3; kill -KILL $$ ;;
  no_finished) hello; step 10; exit 0 ;;
  no_result_file) hello; say '{"event":"finished","outcome":"completed"}' ;;
  crashes_after) hello; finish completed; kill -SEGV $$ ;;
  hangs) hello; step 3; while :; do sleep 0.2; step 4; done ;;
  silent) hello; step 3; sleep 300 ;;
  ignores_term) trap '' TERM; hello; while :; do sleep 0.2; done ;;
  obeys_term) trap 'finish interrupted; exit 130' TERM; hello; step 3; while :; do sleep 0.05; done ;;
  garbage) hello; echo 'not a message'; head -c 100000 /dev/zero | tr '\0' x; echo; printf '\377\376\n'; echo '{"event":"of a newer child"}'; finish completed ;;
  huge_stderr) hello; head -c 8000000 /dev/zero | tr '\0' e >&2; echo >&2; echo 'the end of it' >&2; exit 1 ;;
  grandchild) hello; sleep 300 & echo $! >"$folder/grandchild"; finish completed ;;
  grandchild_waits) hello; sleep 300 & echo $! >"$folder/grandchild"; step 1; wait ;;
  environment) hello; env >"$folder/environment"; finish completed ;;
  speaks_2) hello_of 2; finish completed ;;
  speaks_2_on_and_on) say '{"event":"hello","protocol":2}'; while :; do sleep 0.2; step 4; done ;;
  bad_file) echo 'trial.yaml: unknown key' >&2; exit 2 ;;
  names_a_path) hello; finish failed "cannot read $PWD/data/x.txt of $HOME/x.yaml"; exit 1 ;;
  says_no_device) hello; finish failed 'CUDA is not usable here'; exit 3 ;;
  no_device) echo 'libtorch is not there' >&2; exit 3 ;;
  *) echo "no such scenario: $scenario" >&2; exit 1 ;;
esac
