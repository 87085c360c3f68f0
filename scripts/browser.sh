#!/usr/bin/env bash
# Prepares the tests of the report's page: finds or installs a Chromium, and downloads axe, which
# checks the accessibility of a page. $KILN_BROWSER names your own Chromium, or is `none` to skip
# these tests. If PATH has no Chromium, the script installs Debian's, provided that this needs no
# password. pip downloads the Python wheel that contains axe into .browser/. Safe to run again.
set -euo pipefail

AXE=axe_playwright_python==0.1.8
root=$(cd "$(dirname "$0")/.." && pwd)
home=$root/.browser
python=${KILN_PYTHON:-python3}

say() { printf 'browser: %s\n' "$*" >&2; }

if [ "${KILN_BROWSER:-}" = none ]; then
  say "KILN_BROWSER is none: tests that need a browser are skipped"
  exit 0
fi

has_browser() {
  [ -n "${KILN_BROWSER:-}" ] && return
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && return
  done
  return 1
}

install_browser() {
  command -v apt-get >/dev/null 2>&1 || return 1
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  say "installing Debian's chromium: about 100 MB"
  "${as_root[@]}" apt-get update -qq && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >&2
}

if ! has_browser && ! { install_browser && has_browser; }; then
  say "no Chromium found, and none could be installed: install chromium or Google Chrome, name one in KILN_BROWSER, or set KILN_BROWSER=none"
  say "to skip the tests that need it"
  exit 3
fi

if [ ! -s "$home/axe.min.js" ]; then
  mkdir -p "$home"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" "$AXE" >&2
  "$python" - "$folder" "$home/axe.min.js.$$" <<'PY'
import glob, sys, zipfile
folder, place = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
name = next(name for name in wheel.namelist() if name.endswith("axe.min.js"))
open(place, "wb").write(wheel.read(name))
PY
  mv -T "$home/axe.min.js.$$" "$home/axe.min.js"
fi
