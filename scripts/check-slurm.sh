#!/usr/bin/env bash
# kiln on a real Slurm (make check-slurm): a cluster of two nodes in a temporary folder of this host, and what clusters do
# to their jobs. Says so and ends with 0 where Slurm is not installed; --install installs Debian's packages (root).
# The other arguments go to tests/slurm/check.py: --way recipe|slurm|both, --list, --keep, names of scenarios.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${CARGO_TARGET_DIR:-target}/release
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --install)
      command -v apt-get >/dev/null || { echo "check-slurm: --install needs apt-get; install slurmctld, slurmd and munge by hand" >&2; exit 3; }
      [ "$(id -u)" = 0 ] || { echo "check-slurm: --install needs root; try: sudo $0 --install" >&2; exit 3; }
      # The packages start no daemon of their own: the cluster brings its own configuration.
      policy=/usr/sbin/policy-rc.d
      if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
      fi
      apt-get install --yes --no-install-recommends slurm-wlm munge
      [ $# -gt 1 ] || exit 0 ;;
    --programs) programs=${2:?check-slurm: --programs needs a folder}; shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || { echo "check-slurm: skipped, $program is not installed (scripts/check-slurm.sh --install, on Debian as root)"; exit 0; }
done
for program in kiln kiln-trial; do
  [ -x "$programs/$program" ] || { echo "check-slurm: no $programs/$program found; run \`make build\` first, or name their folder by --programs" >&2; exit 3; }
done
[ ${#arguments[@]} -gt 0 ] && exec python3 tests/slurm/check.py --programs "$programs" "${arguments[@]}"
exec python3 tests/slurm/check.py --programs "$programs"
