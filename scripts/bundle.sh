#!/usr/bin/env bash
# Makes bundle/: stripped programs, the experiments, the GPU check, and what small data is at hand. It carries no libtorch: it
# runs on a host that has the same torch version, of either flavour: `bundle/run.sh run experiments/quickstart.yaml`.
# The programs need only libtorch's CPU half to start; a trial on a GPU loads the libtorch_cuda.so that lies beside it then.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=$root/bundle
target=${CARGO_TARGET_DIR:-$root/target}/release
LARGEST_MIB=60

fail() { printf 'bundle.sh: %s\n' "$*" >&2; exit 3; }

scripts/libtorch.sh
torch=${LIBTORCH:-$root/.libtorch/torch}
[ -e "$torch/lib/libtorch_cuda.so" ] ||
  fail "$torch has no lib/libtorch_cuda.so, so burn-tch builds without CUDA; unset LIBTORCH (\`make libtorch\` then puts an empty stand-in there) or point it at the CUDA flavour"

# burn-tch compiles this sentence into a program that was built where there was no libtorch_cuda.so.
has_no_cuda() { grep -q 'No libtorch_cuda or libtorch_hip found' "$target/kiln-trial"; }
cargo build --release
if has_no_cuda; then
  cargo clean --release -p burn-tch
  cargo build --release
  ! has_no_cuda || fail "kiln-trial was built without CUDA although $torch/lib/libtorch_cuda.so is there; this is a fault of this script"
fi

rm -rf "$out"
mkdir -p "$out/data"
for program in kiln kiln-trial; do
  strip -o "$out/$program" "$target/$program"
done
cp -r experiments "$out/"
for folder in "${KILN_DATA:-data}"/wikitext-2 "${KILN_DATA:-data}"/tinyshakespeare; do
  [ ! -d "$folder" ] || cp -rL "$folder" "$out/data/"
done
cp scripts/bundle-run.sh "$out/run.sh"
cp scripts/check-gpu.sh "$out/check-gpu.sh"

glibc=$(grep -aoh 'GLIBC_2\.[0-9]*' "$out/kiln" "$out/kiln-trial" | sort -uV | tail -1)
version=$(sed -n 's/^VERSION=//p' scripts/libtorch.sh)
{
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', changed')"
  echo "needs torch $version, glibc ${glibc#GLIBC_} or newer"
} >"$out/ABOUT"
size=$(du -sm "$out" | cut -f1)
printf 'bundle: %s MiB in %s, %s\n' "$size" "$out" "$(tail -1 "$out/ABOUT")" >&2
[ "$size" -le "$LARGEST_MIB" ] || fail "the bundle is larger than $LARGEST_MIB MiB; see what is in $out"
