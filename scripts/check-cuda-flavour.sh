#!/usr/bin/env bash
# Checks the CUDA flavor of libtorch without a GPU: downloads it (2.5 GB to download, 4.7 GB on disk;
# the build keeps its own), starts the ordinary kiln-trial with it, as a bundle does, and checks the
# output. Arguments: the path of kiln-trial, and the file for the table (check, outcome, evidence).
# Exit status 1 if a check failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
trial=$(realpath "${1:?usage: check-cuda-flavour.sh KILN-TRIAL TABLE}") table=${2:?usage: check-cuda-flavour.sh KILN-TRIAL TABLE}
python=${KILN_PYTHON:-python3}
scripts/libtorch.sh fetch cuda
version=$(sed -n 's/^VERSION=//p' scripts/libtorch.sh)

"$python" - "$trial" "$root/.libtorch/cuda-$version" "$table" <<'PY'
import csv, glob, json, os, re, subprocess, sys

program, packages, table = sys.argv[1:]
lib = os.path.join(packages, "torch", "lib")
# As in the bundle's run.sh, but without the folders of NVIDIA's packages: kiln must find the
# libraries that it needs there by itself.
environment = {**os.environ, "LD_LIBRARY_PATH": lib, "LC_ALL": "C"}
lines = []

def say(check, holds, evidence):
    outcome = holds if isinstance(holds, str) else "passed" if holds else "failed"
    evidence = evidence.replace(packages + "/", "").replace("\n", " ").strip()
    lines.append((check, outcome, evidence))
    print(f"{outcome:9} {check}: {evidence}", file=sys.stderr)

def ask(*arguments):
    done = subprocess.run([program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    how = "exit status 0" if done.returncode == 0 else f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"
    say(" ".join(["kiln-trial", *arguments]), done.returncode == 0, how)
    return done.stdout

def package(name):
    """The version of a package as pip installed it."""
    found = glob.glob(os.path.join(packages, f"{name}-*.dist-info"))
    return re.search(r"-([0-9.]+)\.dist-info$", found[0]).group(1) if len(found) == 1 else None

# The examination that `kiln doctor` reads.
findings = {}
for line in ask("--examine", "--quick").splitlines():
    finding = json.loads(line)
    findings[finding["finding"]] = finding
libtorch = findings["build"]["libtorch"]
said = open(os.path.join(packages, "torch", "version.py")).read()
wanted = re.search(r"cuda[^=\n]*= '([^']+)'", said).group(1)
say("examine: path", os.path.realpath(libtorch["path"]) == os.path.realpath(os.path.join(lib, "libtorch_cpu.so")), libtorch["path"])
say("examine: CUDA half", libtorch["cuda_fault"] is None and libtorch["cuda"] is not None, libtorch["cuda_fault"] or "loaded")
say("examine: CUDA", libtorch["cuda"] == wanted, f"{libtorch['cuda']}; torch/version.py says {wanted}")
say("examine: cuDNN", libtorch["cudnn"] is not None, str(libtorch["cudnn"]))
# PyTorch 2.11 leaves `NVCC architecture flags` of its description empty; only libtorch_python.so has
# the list.
say("examine: GPU code", "recorded", " ".join(libtorch["architectures"]) or "this libtorch does not say what its GPU code is for")
cuda = findings["cuda"]
if cuda["devices"]:
    say("examine: devices", "passed", "there is a GPU")
else:
    fault = cuda["fault"] or ""
    say("examine: devices", "no NVIDIA driver" in fault and "cannot load" not in fault, f"none: {fault.split('.')[0]}")

# Packages whose version the library itself must report.
MAKERS = {"cudnn": "nvidia_cudnn_cu13", "cublas": "nvidia_cublas", "nccl": "nvidia_nccl_cu13", "cudart": "nvidia_cuda_runtime", "nvrtc": "nvidia_cuda_nvrtc", "libtorch": "torch"}
missing = set(MAKERS)
for row in csv.DictReader(ask("--check-cuda-flavour").splitlines()):
    name = row["check"].removeprefix("version ")
    if row["outcome"] == "recorded" and name in MAKERS:
        missing.discard(name)
        installed = package(MAKERS[name]) or "none"
        say(row["check"], (installed + ".").startswith(row["evidence"] + "."), f"{row['evidence']}; the package is {installed}")
    else:
        say(row["check"], row["outcome"], row["evidence"])
for name in sorted(missing):
    say(f"version {name}", False, "not recorded")

# The converse: if kiln does not load NVRTC, the same kernels do not compile. A CUDA toolkit of the
# system would hide that.
for row in csv.DictReader(ask("--check-cuda-flavour", "--without-compiler").splitlines()):
    if row["check"].startswith("nvrtc"):
        shown = row["outcome"] == "failed" and "libnvrtc-builtins" in row["evidence"]
        hidden = row["outcome"] == "passed" and any("libnvrtc-builtins" in line for line in os.popen("ldconfig -p"))
        say(f"without kiln's loading, {row['check']} fails", "skipped" if hidden else shown, "the system has a libnvrtc-builtins" if hidden else row["evidence"])

with open(table, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("check", "outcome", "evidence"))
    writer.writerows(lines)
failed = [check for check, outcome, _ in lines if outcome == "failed"]
print(f"check-cuda-flavour: {len(lines)} checks, {len(failed)} failed; {table}", file=sys.stderr)
sys.exit(1 if failed else 0)
PY
