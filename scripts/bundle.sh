#!/usr/bin/env bash
# Makes bundle/: stripped programs built against the CUDA flavour of libtorch, the experiments, and what small data is at hand.
# Runs on a host that has the same torch version in its Python: `bundle/run.sh run experiments/quickstart.yaml`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=$root/bundle

# The CUDA flavour is linked into a target folder of its own: burn-tch decides at build time which libraries a program needs.
if [ -n "${LIBTORCH:-}" ]; then
  cuda=$LIBTORCH
else
  before=$(readlink .libtorch/torch 2>/dev/null || true)
  KILN_LIBTORCH=cuda scripts/libtorch.sh
  cuda=$(realpath .libtorch/torch)
  [ -z "$before" ] || { ln -sfn "$before" .libtorch/torch.next && mv -T .libtorch/torch.next .libtorch/torch; }
fi
[ -e "$cuda/lib/libtorch_cuda.so" ] || { echo "bundle.sh: $cuda has no lib/libtorch_cuda.so; a bundle is for GPU hosts and needs the CUDA flavour" >&2; exit 3; }

target=${KILN_BUNDLE_TARGET:-$root/target/cuda}
LIBTORCH=$cuda CARGO_TARGET_DIR=$target cargo build --workspace --release

rm -rf "$out"
mkdir -p "$out/data"
for program in kiln kiln-trial; do
  cp "$target/release/$program" "$out/"
  strip "$out/$program"
done
cp -r experiments benches "$out/"
for folder in "${KILN_DATA:-data}"/wikitext-2 "${KILN_DATA:-data}"/tinyshakespeare; do
  [ ! -d "$folder" ] || cp -r "$folder" "$out/data/"
done
cp scripts/bundle-run.sh "$out/run.sh"
du -sh "$out" | cut -f1 | sed 's/^/bundle: /' >&2
