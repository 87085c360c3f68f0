#!/usr/bin/env bash
# Builds the programs. Without a terminal, where cargo draws no progress bar, prints every 30 s what is being compiled. Further arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
EVERY_SECONDS=30

# Prints the crates that compilers of this user are compiling.
at_work() {
  local process line
  for process in /proc/[0-9]*; do
    [ -O "$process" ] || continue
    line=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
    case $line in
      *rustc*--crate-name*) line=${line#*--crate-name } && printf '%s\n' "${line%% *}" ;;
      *cc1plus*) printf 'C++\n' ;;
    esac
  done | sort -u | paste -sd ' '
}

if [ ! -t 2 ]; then
  (
    while sleep "$EVERY_SECONDS"; do
      busy=$(at_work)
      [ -z "$busy" ] || printf 'build: %s min %02d s, compiling %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$busy" >&2
    done
  ) &
  ticker=$!
  trap 'kill "$ticker" 2>/dev/null || true' EXIT
fi
cargo build --release "$@"
