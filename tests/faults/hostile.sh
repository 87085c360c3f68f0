#!/bin/sh
# A child that does not keep to docs/child-protocol.md, in the way that $HOSTILE names: hostile.sh trial.yaml
file=$1
folder= trial= attempt=
while read -r key rest; do
  rest=${rest#[\'\"]} rest=${rest%[\'\"]}
  case $key in
    folder:) folder=${folder:-$rest} ;;
    trial:) trial=${trial:-$rest} ;;
    attempt:) attempt=${attempt:-$rest} ;;
  esac
done <"$file"
say() { printf '%s\n' "$1"; }
hello() { say "{\"event\":\"hello\",\"protocol\":1,\"kiln_trial\":\"hostile\",\"pid\":$$}"; say '{"event":"ready","parameters":7,"total_steps":10,"device_name":"script"}'; }
result() { # version trial attempt outcome reason device notes
  printf '{"kiln_trial_result":%s,"trial":"%s","attempt":%s,"outcome":"%s","reason":%s,"steps":10,"samples_per_second":64.0,"train_loss":2.25,"device_name":"%s","notes":%s}\n' \
    "$1" "$2" "$3" "$4" "$5" "${6:-script}" "${7:-{\}}" >"$folder/trial.json"
}
finished() { say "{\"event\":\"finished\",\"outcome\":\"$1\",\"reason\":${2:-null}}"; }
good() { result 1 "$trial" "$attempt" completed null "$@"; finished completed; }

# A process that has left the group before the child ends.
away=': >"$0"; exec sleep 302'
until_away() { until [ -e "$folder/away" ]; do sleep 0.01; done; }

case $HOSTILE in
  result_of_version_2) hello; result 2 "$trial" "$attempt" completed null; finished completed ;;
  result_of_another_trial) hello; result 1 t0123456789 "$attempt" completed null; finished completed ;;
  result_of_another_attempt) hello; result 1 "$trial" 7 completed null; finished completed ;;
  result_says_failed) hello; result 1 "$trial" "$attempt" failed '"it failed"'; finished completed ;;
  result_is_a_list) hello; say '[]' >"$folder/trial.json"; finished completed ;;
  result_is_huge) hello; head -c 300000000 /dev/zero | tr '\0' ' ' >"$folder/trial.json"; finished completed ;;
  result_is_a_fifo) hello; mkfifo "$folder/trial.json"; finished completed ;;
  result_is_a_device) hello; ln -s /dev/zero "$folder/trial.json"; finished completed ;;
  result_is_deep) hello; { head -c 200000 /dev/zero | tr '\0' '['; } >"$folder/trial.json"; finished completed ;;
  no_result) hello; finished completed ;;
  nul_in_device_name) hello; good 'a\u0000b' ;;
  nul_in_notes) hello; good script '{"train_loss":"a\u0000b"}' ;;
  nul_in_reason) hello; result 1 "$trial" "$attempt" failed '"a\u0000b"'; finished failed '"a\u0000b"' ;;
  escapes) hello; say '{"event":"notice","text":"\u001b[2J\u001b]0;x\u0007\r\n\u202e"}'; good '\u001b[31m\r\n,\"x' '{"train_loss":"\u001b[2J,\"\n"}' ;;
  not_utf8) hello; printf '{"event":"notice","text":"\377\376"}\n'; printf '\377\376' >&2; good ;;
  a_line_of_200_mb) hello; head -c 200000000 /dev/zero | tr '\0' x; echo; good ;;
  many_lines) hello; yes '{"event":"notice","text":"again"}' | head -n 200000; good ;;
  much_stderr) hello; head -c 200000000 /dev/zero | tr '\0' e >&2; good ;;
  closes_stdout) hello; exec >&- 2>&-; sleep 0.1; exit 0 ;;
  closes_stdout_and_stays) hello; exec >&- 2>&-; sleep 300 ;;
  never_ends) hello; finished completed; exec sleep 300 ;;
  forks) hello; sleep 300 & sleep 301 & good ;;
  daemon) hello; setsid sh -c "$away" "$folder/away" & until_away; good ;;
  daemon_without_mark) hello; env -u KILN_ATTEMPT setsid sh -c "$away" "$folder/away" & until_away; good ;;
  stops_itself) hello; kill -STOP $$ ;;
  kills_its_group) hello; kill -KILL 0 ;;
  rewrites_the_table) hello; echo garbage >>"$folder/../../../trials.csv"; good ;;
  empties_the_table) hello; : >"$folder/../../../trials.csv"; good ;;
  removes_its_folder) hello; rm -r "$folder"; finished completed ;;
  steps_is_a_fifo) hello; mkfifo "$folder/steps.csv" "$folder/epochs.csv"; good ;;
  *) echo "no such scenario: $HOSTILE" >&2; exit 1 ;;
esac
