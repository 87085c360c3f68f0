#!/usr/bin/env bash
# Builds the programs. Without a terminal cargo draws no progress bar, so this script prints the
# crates that are being compiled every 30 s. Further arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
EVERY_SECONDS=30

# Prints the crates that this user's compilers are working on.
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
