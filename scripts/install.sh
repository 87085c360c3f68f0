#!/usr/bin/env bash
# Installs the built programs, their libtorch, shell completions and manual pages below PREFIX (default ~/.local):
#   bin/kiln, bin/kiln-trial          lib/kiln/torch           share/{bash-completion,zsh,fish}           share/man/man1
# A libtorch that `make libtorch` downloaded is hard-linked file by file (copied if PREFIX is on another
# disk), so the installed programs keep working without the checkout. For your own libtorch, a link to
# its folder is made. `install.sh --remove` removes all installed files.
# Argument: the folder with the built programs, or --remove.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-$HOME/.local}
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
case $prefix in /*) ;; *) fail "PREFIX is \`$prefix\`; give an absolute path, such as $HOME/.local" ;; esac
pages=$prefix/share/man/man1

remove() {
  rm -f "$prefix"/bin/kiln "$prefix"/bin/kiln-trial "$prefix/share/bash-completion/completions/kiln" "$prefix/share/zsh/site-functions/_kiln" "$prefix/share/fish/vendor_completions.d/kiln.fish"
  rm -f "$pages"/kiln.1 "$pages"/kiln-*.1
  rm -rf "$prefix/lib/kiln"
}

if [ "${1:-}" = --remove ]; then
  remove
  printf 'removed kiln from %s\n' "$prefix" >&2
  exit 0
fi
target=${1:?usage: install.sh FOLDER | --remove}
for program in kiln kiln-trial; do [ -x "$target/$program" ] || fail "$target/$program is not built; run \`make build\`"; done

# The folder that the build used: the link leads to `…/torch`, which is ours or that of a Python.
torch=$(realpath "${LIBTORCH:-$root/.libtorch/torch}") || fail "no libtorch found; run \`make libtorch\`"
mkdir -p "$prefix/bin" "$prefix/lib/kiln"
rm -rf "$prefix/lib/kiln/libtorch.next"
case $torch in
  "$root"/.libtorch/*)
    # CUDA's own libraries are in folders beside `torch`, and are found relative to it.
    cp -al "${torch%/torch}" "$prefix/lib/kiln/libtorch.next" 2>/dev/null ||
      { rm -rf "$prefix/lib/kiln/libtorch.next"; cp -a "${torch%/torch}" "$prefix/lib/kiln/libtorch.next"; }
    rm -rf "$prefix/lib/kiln/libtorch"
    mv -T "$prefix/lib/kiln/libtorch.next" "$prefix/lib/kiln/libtorch"
    ln -sfn libtorch/torch "$prefix/lib/kiln/torch"
    ;;
  *) ln -sfn "$torch" "$prefix/lib/kiln/torch" ;;
esac

for program in kiln kiln-trial; do
  # By a rename, so that a running program is not written to.
  install -m 755 "$target/$program" "$prefix/bin/$program.next"
  mv -f "$prefix/bin/$program.next" "$prefix/bin/$program"
done
kiln=$prefix/bin/kiln
completion() { mkdir -p "$(dirname "$2")"; "$kiln" completions "$1" >"$2"; }
completion bash "$prefix/share/bash-completion/completions/kiln"
completion zsh "$prefix/share/zsh/site-functions/_kiln"
completion fish "$prefix/share/fish/vendor_completions.d/kiln.fish"
mkdir -p "$pages"
"$kiln" man --to "$pages"

printf 'installed %s and kiln-trial, libtorch in %s\n' "$kiln" "$prefix/lib/kiln/torch" >&2
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) printf 'add it to the PATH of your shell:  export PATH="%s/bin:$PATH"\n' "$prefix" >&2 ;;
esac
