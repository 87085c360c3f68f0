#!/usr/bin/env bash
# Runs the bundle in a root as bare as a GPU host: glibc, bash, coreutils and a Python, but no Rust,
# no compiler and no network. Checks an experiment, runs one, and rehearses the GPU check. The root is
# a folder of read-only mounts (unshare, chroot). If that is not allowed, the script says so and uses
# an empty environment instead, whose PATH is a folder of links to the same programs.
#
#   check-bundle.sh [--cheap] [--torch FOLDER]
#
# --cheap compresses less and rehearses a few parts; otherwise bundle.tar.xz is made as for a GPU host,
# and all parts are rehearsed. FOLDER contains torch/: a complete wheel (then run.sh finds it through
# Python, and PyTorch's speed is rehearsed too), or only libtorch (default: that of the build).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
PROGRAMS=(awk basename bash cat chmod cp cut date df dirname echo env find free grep head ln ls lscpu mkdir mktemp mv nproc rm sed seq sleep sort tail
  timeout touch tr uname uniq wc xargs)
FEW_PARTS=(versions examine snapshot gpt-f32 seq2seq tests-parity speed-gpt-28m oom-ladder kill-and-resume)

fail() { printf 'check-bundle.sh: %s\n' "$*" >&2; exit 1; }
say() { printf 'check-bundle: %s\n' "$*" >&2; }

is_cheap=no torch=
while [ $# -gt 0 ]; do
  case $1 in
    --cheap) is_cheap=yes ;;
    --torch) torch=$(realpath "${2:?--torch wants a folder}"); shift ;;
    *) printf 'usage: check-bundle.sh [--cheap] [--torch FOLDER]\n' >&2; exit 2 ;;
  esac
  shift
done

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
bare=$place/root
mkdir -p "$bare/work" "$bare/tmp"
if [ $is_cheap = yes ] && ! command -v xz >/dev/null; then
  say "no xz found, so the archive and its size are not checked"
  scripts/bundle.sh --no-archive
  cp -r bundle "$bare/work/"
else
  if [ $is_cheap = yes ]; then scripts/bundle.sh --quick-archive; else scripts/bundle.sh; fi
  tar xf bundle.tar.xz -C "$bare/work"
fi
if [ -z "$torch" ]; then
  torch=$(realpath "${LIBTORCH:-.libtorch/torch}")
  torch=${torch%/torch}
fi
[ -e "$torch/torch/lib/libtorch_cpu.so" ] || fail "$torch has no torch/lib/libtorch_cpu.so"

python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
python_lib=$(python3 -c 'import os, sys; print(os.path.realpath(sys.base_prefix) + "/lib")')
variables=(HOME=/tmp TMPDIR=/tmp LC_ALL=C.UTF-8 OMP_WAIT_POLICY=passive)

# The steps inside: the three commands that a user of a new GPU host runs.
cat >"$bare/work/inside.sh" <<'INSIDE'
set -euo pipefail
work=$1
shift
for absent in cargo rustc cc gcc c++ nvidia-smi curl; do
  if command -v "$absent" >/dev/null; then echo "check-bundle: found $absent, so this root is not bare" >&2; exit 1; fi
done
cd "$work/bundle"
cat ABOUT
./run.sh check experiments/quickstart.yaml tests/experiments/gpu/*.yaml
./run.sh run experiments/quickstart.yaml --device cpu --results "$work/results" --quiet --set train.steps=4 --set measure.warmup_steps=1 \
  --set measure.warmup_seconds=0.0 --set train.learning_rate_schedule.warmup_steps=1 --set sweep.repeats=1
[ "$(grep -c ',completed,' "$work/results/quickstart/latest/trials.csv")" -eq 4 ] || { echo "check-bundle: not every trial completed" >&2; exit 1; }
./check-gpu.sh --rehearse --results "$work/rehearsal" "$@"
status=0
./check-gpu.sh >/dev/null 2>&1 || status=$?
[ $status -eq 3 ] || { echo "check-bundle: without a GPU check-gpu.sh ended with $status, expected 3" >&2; exit 1; }
INSIDE
parts=()
[ $is_cheap = no ] || parts=("${FEW_PARTS[@]}")

torch_variables() { if [ -e "$torch/torch/__init__.py" ]; then printf 'PYTHONPATH=%s' "$1"; else printf 'LIBTORCH=%s/torch' "$1"; fi; }

can_chroot() { unshare --mount --net --pid --fork chroot / /bin/true 2>/dev/null; }

in_bare_root() {
  mkdir -p "$bare"/{proc,dev,bin,torch} "$bare$python_lib" "$bare/lib" "$bare/lib64" "$bare/usr/lib" "$bare/etc"
  local name
  for name in "${PROGRAMS[@]}"; do cp -L "$(type -P "$name")" "$bare/bin/"; done
  cp -L "$python" "$bare/bin/python3"
  mkdir -p "$bare$(dirname "$python")" "$bare/usr/bin"
  cp -L "$python" "$bare$(dirname "$python")/python3"
  # The first line of scripts names it.
  cp -L "$(type -P env)" "$bare/usr/bin/env"
  # In its own mount namespace, so nothing stays mounted when it ends.
  # shellcheck disable=SC2016
  unshare --mount --net --pid --fork bash -euo pipefail -c '
    bare=$1 python_lib=$2 torch=$3
    shift 3
    for folder in /lib /lib64 /usr/lib "$python_lib"; do
      [ -d "$folder" ] || continue
      mount --bind "$folder" "$bare$folder"
      mount -o remount,bind,ro "$bare$folder"
    done
    mount --bind "$torch" "$bare/torch"
    mount -o remount,bind,ro "$bare/torch"
    mount -t proc proc "$bare/proc"
    mount -t tmpfs tmpfs "$bare/dev"
    for node in null zero random urandom; do touch "$bare/dev/$node"; mount --bind "/dev/$node" "$bare/dev/$node"; done
    mkdir "$bare/dev/shm"
    exec env -i "$@"
  ' bash "$bare" "$python_lib" "$torch" PATH=/bin "${variables[@]}" "$(torch_variables /torch)" \
    "$(type -P chroot)" "$bare" /bin/bash /work/inside.sh /work ${parts[@]+"${parts[@]}"}
}

with_few_programs() {
  mkdir -p "$bare/bin"
  local name
  for name in "${PROGRAMS[@]}"; do ln -s "$(type -P "$name")" "$bare/bin/$name"; done
  ln -s "$python" "$bare/bin/python3"
  env -i PATH="$bare/bin" "${variables[@]}" "$(torch_variables "$torch")" bash "$bare/work/inside.sh" "$bare/work" ${parts[@]+"${parts[@]}"}
}

if can_chroot; then
  say "in a bare root without network, torch from $torch"
  in_bare_root
else
  say "unshare and chroot are not allowed here: using an empty environment with ${#PROGRAMS[@]} programs instead; the network stays available"
  with_few_programs
fi
say "the bundle runs with only a Python and torch"
