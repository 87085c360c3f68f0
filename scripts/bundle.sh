#!/usr/bin/env bash
# Makes bundle/ and, unless --no-archive is given, bundle.tar.xz: stripped programs, test programs,
# speed programs, the GPU check, the experiments, and the small data sets on this machine. The bundle
# does not contain libtorch: it runs on a host with the same torch version, of either flavor. With
# --quick-archive the archive takes 13 s instead of 82 and is a tenth larger:
#
#   tar xf bundle.tar.xz; bundle/run.sh run experiments/quickstart.yaml; bundle/check-gpu.sh --rehearse
#
# The programs need only libtorch's CPU half to start; a trial on a GPU then loads the
# libtorch_cuda.so in the same folder.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
out=$root/bundle
archive=$root/bundle.tar.xz
target=${CARGO_TARGET_DIR:-$root/target}/release
# Limit for a file that is sent to a lent machine with the working tree; decimal, as sizes of
# downloads are given.
LARGEST_BYTES=30000000
# Data sets that are small and may be redistributed.
DATA=(wikitext-2 tinyshakespeare chatlm-mini-chinese stocknet-88)

fail() { printf 'bundle.sh: %s\n' "$*" >&2; exit 3; }

with_archive=yes preset=9
case ${1:-} in
  '') ;;
  --quick-archive) preset=1 ;;
  --no-archive) with_archive=no ;;
  *) printf 'usage: bundle.sh [--quick-archive | --no-archive]\n' >&2; exit 2 ;;
esac
if [ $with_archive = yes ]; then command -v xz >/dev/null || fail "no xz found; install xz-utils, or give --no-archive"; fi

scripts/libtorch.sh
torch=${LIBTORCH:-$root/.libtorch/torch}
[ -e "$torch/lib/libtorch_cuda.so" ] ||
  fail "$torch has no lib/libtorch_cuda.so, so burn-tch builds without CUDA; unset LIBTORCH (\`make libtorch\` then puts an empty stand-in there) or point it at the CUDA flavor"

# burn-tch compiles this sentence into a program if there is no libtorch_cuda.so at build time.
has_no_cuda() { grep -q 'No libtorch_cuda or libtorch_hip found' "$target/kiln-trial"; }
cargo build --release
if has_no_cuda; then
  cargo clean --release -p burn-tch
  cargo build --release
  ! has_no_cuda || fail "kiln-trial was built without CUDA although $torch/lib/libtorch_cuda.so is there; this is a fault of this script"
fi

# Test programs, the speed program and the fake driver, as cargo reports them: one `NAME PATH` per
# line.
built=$(PYTHONPATH=scripts PYTHONDONTWRITEBYTECODE=1 python3 - "$root" "$target/kiln" <<'PY'
import contextlib, sys, tempfile
from check_gpu.setting import Setting
with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
    places = Setting(sys.argv[1], place, sys.argv[2], is_rehearsal=True).cargo()
for name in ("suite", "alone", "step-speed", "libfake_nvml.so"):
    print(name, places[name])
PY
)

rm -rf "$out"
mkdir -p "$out/data" "$out/programs" "$out/scripts" "$out/benches" "$out/engines" "$out/tests/experiments" "$out/tests/scenarios" "$out/docs"
for program in kiln kiln-trial; do
  strip -o "$out/$program" "$target/$program"
done
while read -r name path; do
  strip -o "$out/programs/$name" "$path"
done <<< "$built"
cp -r experiments "$out/"
cp -r tests/experiments/gpu "$out/tests/experiments/"
cp tests/scenarios/h200.yaml "$out/tests/scenarios/"
cp docs/nvidia-smi-labels.csv "$out/docs/"
mkdir "$out/tests/reference"
cp tests/reference/*.csv tests/reference/*.safetensors "$out/tests/reference/"
cp benches/against-pytorch.sh benches/pytorch_models.py benches/step-speed-*.json "$out/benches/"
cp engines/*.py python/kiln_child.py "$out/engines/"
cp scripts/check-gpu.sh "$out/scripts/"
mkdir "$out/scripts/check_gpu"
cp scripts/check_gpu/*.py scripts/check_gpu/kernels.cpp "$out/scripts/check_gpu/"
for name in "${DATA[@]}"; do
  folder=${KILN_DATA:-data}/$name
  if [ -d "$folder" ]; then cp -rL "$folder" "$out/data/"; else printf 'bundle: without %s, which is not in %s\n' "$name" "${KILN_DATA:-data}" >&2; fi
done
chmod -R u+w "$out/data"

cp scripts/bundle-run.sh "$out/run.sh"
# A second run.sh beside a `kiln` that starts any program: kiln-trial, tests and speed programs then
# find libtorch in the same way.
cp scripts/bundle-run.sh "$out/programs/run.sh"
# shellcheck disable=SC2016
printf '#!/usr/bin/env bash\nexec "$@"\n' >"$out/programs/kiln"
# shellcheck disable=SC2016
printf '#!/usr/bin/env bash\nexec "$(dirname "$0")/scripts/check-gpu.sh" "$@"\n' >"$out/check-gpu.sh"
chmod +x "$out/programs/kiln" "$out/check-gpu.sh"

glibc=$(grep -aoh 'GLIBC_2\.[0-9]*' "$out/kiln" "$out/kiln-trial" "$out"/programs/{suite,alone,step-speed,libfake_nvml.so} | sort -uV | tail -1)
version=$(sed -n 's/^VERSION=//p' scripts/libtorch.sh)
{
  echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', changed')"
  echo "needs torch $version, glibc ${glibc#GLIBC_} or newer"
} >"$out/ABOUT"
cp "$out/ABOUT" "$out/programs/ABOUT"
printf 'bundle: %s MiB in %s, %s\n' "$(du -sm "$out" | cut -f1)" "$out" "$(tail -1 "$out/ABOUT")" >&2
[ $with_archive = yes ] || exit 0

# A large dictionary, because the programs share most of their code, and a filter for x86's jumps.
# The programs come first and next to each other.
rm -f "$archive"
names=(kiln-trial programs/suite programs/alone programs/step-speed kiln programs/libfake_nvml.so)
{ printf 'bundle/%s\n' "${names[@]}"; find bundle -type f | LC_ALL=C sort; } | awk '!seen[$0]++' |
  tar --create --owner=0 --group=0 --files-from=- | xz --x86 --lzma2=preset=$preset,dict=128MiB >"$archive"
size=$(stat -c %s "$archive")
printf 'bundle: %s, %s MB\n' "$archive" "$(awk -v size="$size" 'BEGIN { printf "%.1f", size / 1e6 }')" >&2
[ "$size" -le $LARGEST_BYTES ] || fail "the archive is larger than $((LARGEST_BYTES / 1000000)) MB; see what is in $out (\`du -a $out | sort -n | tail\`)"
