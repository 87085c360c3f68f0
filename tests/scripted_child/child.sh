#!/bin/sh
# A trial's child that plays a scenario: $SCRIPTED_CHILD, or $SCRIPTED_CHILD_<batch size> for trials of that batch size.
# It speaks the protocol of docs/child-protocol.md and is started as kiln-trial is: child.sh trial.yaml
file=$1
# The shell reads the file itself: tests start hundreds of these children, and a process for each key takes most of their time.
folder= trial= attempt= batch=
while read -r key rest; do
  rest=${rest#[\'\"]} rest=${rest%[\'\"]}
  case $key in
    folder:) folder=${folder:-$rest} ;;
    trial:) trial=${trial:-$rest} ;;
    attempt:) attempt=${attempt:-$rest} ;;
    batch_size:) batch=${batch:-$rest} ;;
  esac
done <"$file"
value() { sed -n "s/^ *$1: *//p" "$file" | head -n 1 | tr -d "'\""; }
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
# From here on the child waits for something: a signal, its parent's end, a file that the test makes.
at_work() { : >"$folder/at-work"; }
# Some time later; a child whose test failed finds its folder gone, and ends.
later() { sleep "$1"; [ -d "$folder" ] || exit 1; }
wait_for_release() { at_work; while [ ! -e "$SCRIPTED_CHILD_RELEASE" ]; do later 0.02; done; }
# Of many children each takes one file of the test's.
wait_for_turn() { at_work; until [ -e "$SCRIPTED_CHILD_RELEASE" ] && mv "$SCRIPTED_CHILD_RELEASE" "$folder/turn"; do later 0.02; done; }

# A process that nothing connects to this one: another session, another parent, no environment.
escape() {
  (env -i setsid sh -c 'echo $$ >"$0.new"; mv "$0.new" "$0"; exec sleep 300' "$folder/stray" &)
  while [ ! -e "$folder/stray" ]; do later 0.02; done
}

case $scenario in
  completes) hello; step 5; finish completed ;;
  measures)
    hello; step 5; began=$(now); say "{\"event\":\"window_started\",\"step\":5,\"monotonic_nanoseconds\":$began}"; sleep 2.1
    ended=$(now); say "{\"event\":\"window_ended\",\"step\":10,\"monotonic_nanoseconds\":$ended}"; sleep 0.1; measured "$began" "$ended" ;;
  waits) hello; step 5; wait_for_release; finish completed ;;
  waits_for_turn) hello; step 5; wait_for_turn; finish completed ;;
  tells_and_waits) hello; step 5; say '{"event":"notice","text":"a notice between two drawings"}'; wait_for_turn; finish completed ;;
  fails) hello; step 3; echo 'something went wrong here' >&2; exit 1 ;;
  fails_first) hello; [ "$attempt" -gt 1 ] || { echo 'not yet' >&2; exit 1; }; finish completed ;;
  says_failed) hello; finish failed 'the data is of no use'; exit 1 ;;
  tuned) # runs out of memory above $SCRIPTED_CHILD_FITS; fastest at a batch of 24
    hello; [ "$batch" -le "${SCRIPTED_CHILD_FITS:-1000000}" ] || { finish oom 'device memory ran out'; exit 4; }
    step 5; [ -z "$SCRIPTED_CHILD_TURNS" ] || wait_for_turn
    # 1000 b / (24 + b + b² / 24), in millionths.
    finish completed "" "$((24000000000 * batch / (576 + 24 * batch + batch * batch)))e-6" ;;
  diverges) hello; step 4; finish diverged 'loss is NaN at step 4' ;;
  runs_out) hello; step 2; finish oom 'device memory ran out'; exit 4 ;;
  cuda_oom) hello; echo 'CUDA out of memory. Tried to allocate 20.00 GiB' >&2; exit 1 ;;
  aborts) hello; step 3; kill -ABRT $$ ;;
  segfaults) hello; step 3; kill -SEGV $$ ;;
  is_killed) hello; step 3; kill -KILL $$ ;;
  no_finished) hello; step 10; exit 0 ;;
  no_result_file) hello; say '{"event":"finished","outcome":"completed"}' ;;
  unread_result) hello; finish completed; ln -sf /proc/self/mem "$folder/trial.json" ;;
  crashes_after) hello; finish completed; kill -SEGV $$ ;;
  hangs) hello; step 3; at_work; while :; do later 0.2; step 4; done ;;
  silent) hello; step 3; sleep 300 ;;
  resumes_and_hangs) hello; say '{"event":"resumed","step":4}'; step 5; while :; do later 0.02; done ;;
  ignores_term) trap '' TERM; hello; at_work; while :; do later 0.2; done ;;
  obeys_term) trap 'finish interrupted; exit 130' TERM; hello; step 3; at_work; while :; do later 0.02; done ;;
  garbage) hello; echo 'not a message'; head -c 100000 /dev/zero | tr '\0' x; echo; printf '\377\376\n'; echo '{"event":"of a newer child"}'; finish completed ;;
  huge_stderr) hello; head -c 8000000 /dev/zero | tr '\0' e >&2; echo >&2; echo 'the end of it' >&2; exit 1 ;;
  grandchild) hello; sleep 300 & echo $! >"$folder/grandchild"; finish completed ;;
  grandchild_waits) hello; sleep 300 & step 1; at_work; wait ;;
  escapes) hello; step 1; escape; finish completed ;;
  escapes_and_waits) hello; step 1; escape; at_work; while :; do later 0.2; step 1; done ;;
  says_version_2) hello; finish completed; sed -i 's/"kiln_trial_result":1/"kiln_trial_result":2/' "$folder/trial.json" ;;
  says_another_trial) hello; finish completed; sed -i "s/$trial/deadbeef00/" "$folder/trial.json" ;;
  says_two_outcomes) hello; finish completed; sed -i 's/completed/diverged/' "$folder/trial.json" ;;
  says_skipped) hello; finish skipped ;;
  completes_and_fails) hello; finish completed; exit 1 ;;
  no_room) hello; step 3; echo 'OSError: [Errno 28] No space left on device' >&2; exit 1 ;;
  eats_its_group) # moves to the control group $SCRIPTED_CHILD_GROUP and takes all of its memory
    hello; echo $$ >"$SCRIPTED_CHILD_GROUP/cgroup.procs"; step 4; wait_for_release; exec tail /dev/zero ;;
  environment) hello; env >"$folder/environment"; finish completed ;;
  speaks_2) hello_of 2; finish completed ;;
  speaks_2_on_and_on) say '{"event":"hello","protocol":2}'; while :; do later 0.2; step 4; done ;;
  bad_file) echo 'trial.yaml: unknown key' >&2; exit 2 ;;
  names_a_path) hello; finish failed "cannot read $PWD/data/x.txt of $HOME/x.yaml"; exit 1 ;;
  says_no_device) hello; finish failed 'CUDA is not usable here'; exit 3 ;;
  no_device) echo 'libtorch is not there' >&2; exit 3 ;;
  sampled) # a measured window of $SCRIPTED_CHILD_LOOKS looks of the sampler (2 if not set), and as many once it has made $SCRIPTED_CHILD_MAKES
    hello; step 5; anchor=$(value run_anchor_nanoseconds); devices=$(value devices_per_trial)
    looks() { # since: how many looks at all of the trial's devices began after this moment
      awk -F, -v trial="$trial" -v since="$1" -v anchor="$anchor" -v devices="${devices:-1}" \
        '$4 "" == trial "" && $3 * 1e9 + anchor > since + 0 { rows++ } END { print int(rows / devices) }' "$folder/../../../samples.csv"
    }
    await() { # event since count: says the event, at which kiln looks at once, until so many looks are in the table
      while [ "$(looks "$2")" -lt "$3" ]; do say "{\"event\":\"$1\",\"step\":5,\"monotonic_nanoseconds\":0}"; later 0.02; done
    }
    moment() { sleep 0.02; now; } # the clock counts hundredths of a second
    count=${SCRIPTED_CHILD_LOOKS:-2}
    await window_started 0 1; began=$(moment); await window_started "$began" "$count"
    [ -z "$SCRIPTED_CHILD_MAKES" ] || { : >"$SCRIPTED_CHILD_MAKES"; await window_started "$(moment)" "$count"; }
    # A shorter window has no energy.
    while [ $(($(now) - began)) -lt 2100000000 ]; do later 0.02; done
    ended=$(moment); await window_ended "$ended" 1; measured "$began" "$ended" ;;
  *) echo "no such scenario: $scenario" >&2; exit 1 ;;
esac
