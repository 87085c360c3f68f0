#!/usr/bin/env bash
# Prepares .libtorch/torch: a link to the libtorch that the build links and the programs load.
# Sources: $LIBTORCH (your own libtorch or torch folder), else a Python that already has torch 2.11, else pip.
# KILN_LIBTORCH=cpu|cuda selects the flavor that pip downloads; the default is cuda if an NVIDIA driver is found.
# KILN_PYTHON names the Python to use (default python3). Safe to run again, to run twice at once, and to kill.
# `libtorch.sh fetch cpu|cuda` only downloads that flavor with pip into .libtorch; the libtorch that the
# build links stays the same.
set -euo pipefail

VERSION=2.11.0
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.libtorch
python=${KILN_PYTHON:-python3}

fail() { printf 'libtorch.sh: %s\n' "$*" >&2; exit 1; }
say() { printf 'libtorch: %s\n' "$*" >&2; }

is_usable() { [ -e "$1/lib/libtorch_cpu.so" ] && [ -e "$1/lib/libc10.so" ] && [ -e "$1/lib/libtorch.so" ] && [ -d "$1/include/torch" ]; }

# Prints the version of a torch package or a libtorch archive, without the suffix of the flavor.
version_of() {
  { sed -n "s/^__version__ = ['\"]\([^'\"+]*\).*/\1/p" "$1/version.py" || sed 's/+.*//' "$1/build-version"; } 2>/dev/null | head -n 1
}

# The link changes by a rename, so a reader sees the old one or the new one. The programs contain the
# path of the folder that the link leads to, so `chosen` is written again when that changes:
# crates/trial/build.rs watches this file.
point_to() {
  ln -sfn "$1" "$home/torch.next.$$"
  mv -T "$home/torch.next.$$" "$home/torch"
  [ "$(cat "$home/chosen" 2>/dev/null || true)" = "$1" ] || printf '%s\n' "$1" > "$home/chosen"
}

# burn-tch offers CUDA only if it finds a libtorch_cuda.so when it is built. With an empty one in the
# CPU flavor, a program that is built with it also trains on a GPU when it runs with the CUDA flavor.
# kiln-trial distinguishes the empty file from the real one.
add_stand_in() {
  [ -e "$1/lib/libtorch_cuda.so" ] && return
  "${CC:-cc}" -shared -o "$1/lib/libtorch_cuda.so.$$" -Wl,-soname,libtorch_cuda.so -x c /dev/null
  mv -T "$1/lib/libtorch_cuda.so.$$" "$1/lib/libtorch_cuda.so"
}

wanted_flavour() {
  case "${KILN_LIBTORCH:-}" in
    cpu|cuda) printf '%s' "$KILN_LIBTORCH" ;;
    '') if [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then printf cuda; else printf cpu; fi ;;
    *) fail "KILN_LIBTORCH is \`$KILN_LIBTORCH\`; it must be cpu or cuda" ;;
  esac
}

# Prints the folder of a torch $VERSION that Python already has, of the wanted flavor (the CUDA flavor
# also serves if the user asked for none).
torch_of_python() {
  command -v "$python" >/dev/null 2>&1 || return 0
  "$python" - "$VERSION" "${KILN_LIBTORCH:-}" "$1" <<'PY' 2>/dev/null || true
import importlib.util, os, re, sys
version, asked, flavour = sys.argv[1:]
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    folder = os.path.dirname(spec.origin)
    found = re.search(r"__version__ = ['\"]([^'\"]+)", open(os.path.join(folder, "version.py")).read())
    has_cuda = os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so"))
    fits = has_cuda if flavour == "cuda" else (not has_cuda if asked else True)
    if found and found.group(1).split("+")[0] == version and fits:
        print(folder)
PY
}

check_pip() {
  command -v "$python" >/dev/null 2>&1 || fail "no \`$python\` found; install Python 3 with pip, or set LIBTORCH to a libtorch $VERSION folder"
  "$python" -m pip --version >/dev/null 2>&1 || fail "\`$python\` has no pip; install python3-pip, or set LIBTORCH to a libtorch $VERSION folder"
}

# Some distributions refuse pip outside a virtual environment even with --target, although the target
# is a folder of ours.
pip_install() { PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --no-compile "$@"; }

fetch_cpu() {
  pip_install --no-deps --target "$1" "torch==$VERSION" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  local lib=$1/torch/lib
  rm -f "$lib"/libtorch_cuda*.so "$lib"/libtorch_nvshmem.so "$lib"/libtorch_python.so "$lib"/libc10_cuda.so "$lib"/libcaffe2_nvrtc.so "$lib"/libshm.so "$lib"/libtorch.so
  # The linker needs a libtorch.so. The real one only depends on the other libraries, so an empty one is
  # enough, and the linker drops the dependency on it.
  "${CC:-cc}" -shared -o "$lib/libtorch.so" -Wl,-soname,libtorch.so -x c /dev/null
  add_stand_in "$1/torch"
  # Removes the files that only Python needs.
  find "$1/torch" -mindepth 1 -maxdepth 1 ! -name lib ! -name include ! -name share ! -name version.py -exec rm -rf {} +
}

# Prints the size of the download every 15 s until it is killed: pip prints no progress without a
# terminal.
tell_progress() {
  while sleep 15; do say "$(du -sm "$1" 2>/dev/null | cut -f1) MB there after $((SECONDS - started)) s"; done
}

fetch_cuda() { pip_install --target "$1" "torch==$VERSION"; }

# Downloads a flavor with pip, unless it is there.
fetch() {
  local flavour=$1 folder=$home/$1-$VERSION
  [ ! -e "$folder/torch" ] || return 0
  check_pip
  case $flavour in
    cpu) say "fetching torch $VERSION with pip, CPU flavor: about 540 MB to download, 640 MB on disk, a minute or two" ;;
    cuda) say "fetching torch $VERSION with pip, CUDA flavor: about 2.5 GB to download, 4.7 GB on disk, several minutes" ;;
  esac
  local partial=$home/partial.$$ started=$SECONDS
  mkdir -p "$partial/tmp"
  tell_progress "$partial" 9>&- &
  local ticker=$!
  trap 'kill "$ticker" 2>/dev/null || true' EXIT
  # pip gets no handle on the lock, so it cannot hold the lock if it outlives this script. Its downloads
  # go into the folder whose size is printed.
  TMPDIR=$partial/tmp "fetch_$flavour" "$partial" 9>&-
  kill "$ticker" 2>/dev/null || true
  trap - EXIT
  rm -rf "$partial/tmp"
  is_usable "$partial/torch" || fail "pip's torch $VERSION lacks the libraries that kiln links; see $partial"
  rm -rf "$folder"
  mv -T "$partial" "$folder"
  say "ready after $((SECONDS - started)) s: $(du -sh "$folder" | cut -f1) in .libtorch/$flavour-$VERSION"
}

main() {
  case "${1:-}/${2:-}" in
    / | fetch/cpu | fetch/cuda) ;;
    *) fail "got \`$*\`; it takes nothing, or \`fetch cpu\`, or \`fetch cuda\`" ;;
  esac
  mkdir -p "$home"
  exec 9>"$home/lock"
  flock -n 9 || { say "waiting for another fetch (\`fuser $home/lock\` names it)"; flock 9; }
  rm -rf "$home"/partial.* "$home"/torch.next.*
  if [ "${1:-}" = fetch ]; then fetch "$2"; return; fi

  if [ -n "${LIBTORCH:-}" ]; then
    case $LIBTORCH in /*) ;; *) fail "LIBTORCH is \`$LIBTORCH\`; give its whole path, because builds start in other folders" ;; esac
    is_usable "$LIBTORCH" || fail "LIBTORCH is \`$LIBTORCH\`, which lacks lib/libtorch_cpu.so or include/torch; point it at a libtorch $VERSION folder or unset it"
    local version; version=$(version_of "$LIBTORCH")
    [ "$version" = "$VERSION" ] || fail "LIBTORCH is \`$LIBTORCH\`, libtorch ${version:-of unknown version}; kiln is written for $VERSION: unset LIBTORCH to fetch it"
    [ "$(realpath "$LIBTORCH")" = "$(realpath -m "$home/torch")" ] || point_to "$(realpath "$LIBTORCH")"
    return
  fi

  local flavour; flavour=$(wanted_flavour)
  local chosen=$home/$flavour-$VERSION/torch
  if [ ! -e "$chosen" ]; then
    local found; found=$(torch_of_python "$flavour")
    if [ -n "$found" ] && is_usable "$found"; then
      [ "$(readlink "$home/torch" 2>/dev/null || true)" = "$found" ] || say "using torch $VERSION of $python"
      point_to "$found"
      return
    fi
    fetch "$flavour"
  fi
  [ "$flavour" = cuda ] || add_stand_in "$chosen"
  point_to "$flavour-$VERSION/torch"
}
main "$@"
