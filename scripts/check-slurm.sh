#!/usr/bin/env bash
# kiln on a real Slurm (make check-slurm): a cluster of two nodes in a temporary folder of this host, and what clusters do
# to their jobs. Installs Debian's packages where they are missing and it may (root); says so and ends with 0 where Slurm
# is not installed. --install installs them, and ends with 3 where it cannot;
# --if-able says so and ends with 0 where that cannot be done, or no cluster starts. --programs: the folder of kiln's.
# The other arguments go to tests/slurm/check.py: --way recipe|slurm|both, --list, --keep, names of scenarios.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${CARGO_TARGET_DIR:-target}/release
arguments=() install='' if_able=''
while [ $# -gt 0 ]; do
  case $1 in
    --install) install=yes ;;
    --if-able) if_able=yes; arguments+=("$1") ;;
    --programs) programs=${2:?check-slurm: --programs needs a folder}; shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

policy=/usr/sbin/policy-rc.d
PATH=$PATH:/usr/sbin:/sbin
missing() {
  local program
  for program in munged slurmctld slurmd sbatch; do
    command -v "$program" >/dev/null || { printf '%s' "$program"; return; }
  done
}

install_packages() {
  command -v apt-get >/dev/null || { echo "check-slurm: --install needs apt-get; install slurmctld, slurmd and munge by hand" >&2; return 3; }
  [ "$(id -u)" = 0 ] || { echo "check-slurm: --install needs root; try: sudo $0 --install" >&2; return 3; }
  # The packages start no daemon of their own: the cluster brings its own configuration.
  local packages=(slurm-wlm munge) status=0 own=''
  # One of an earlier try that was cut off is this script's own, too.
  if [ ! -e $policy ] || grep -q kiln $policy; then
    own=yes
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\n# of kiln, scripts/check-slurm.sh\nexit 101\n' >$policy; chmod +x $policy
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get install --yes --no-install-recommends "${packages[@]}" ||
    { apt-get update && apt-get install --yes --no-install-recommends "${packages[@]}"; } || status=3
  [ -z "$own" ] || rm -f $policy
  return $status
}

if [ -n "$install" ]; then
  if [ -n "$(missing)" ] && ! install_packages; then
    [ -n "$if_able" ] || exit 3
    echo "check-slurm: skipped, Slurm's packages cannot be installed here"
    exit 0
  fi
fi
lacks=$(missing)
if [ -n "$lacks" ] && [ -z "$install" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  install_packages || true
  lacks=$(missing)
fi
[ -z "$lacks" ] || { echo "check-slurm: skipped, $lacks is not installed (scripts/check-slurm.sh --install, on Debian as root)"; exit 0; }
for program in kiln kiln-trial; do
  [ -x "$programs/$program" ] || { echo "check-slurm: no $programs/$program found; run \`make build\` first, or name their folder by --programs" >&2; exit 3; }
done
[ ${#arguments[@]} -gt 0 ] && exec python3 tests/slurm/check.py --programs "$programs" "${arguments[@]}"
exec python3 tests/slurm/check.py --programs "$programs"
