#!/usr/bin/env bash
# Checks that programs and tests share one build: after `make build`, `make test` compiles only test
# code. Asks cargo for the units of both builds and names each crate that they compile differently
# (with other features, usually because of a dev-dependency). Builds the units that are not built yet.
# Exit status 1 if a crate differs.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo build --release --message-format json >"$folder/programs"
cargo test --workspace --release --lib --test suite --test alone --test long --no-run --message-format json >"$folder/tests"
python3 - "$folder/programs" "$folder/tests" <<'PY'
import json, os, sys

def artifacts(path):
    """The file that each library and program is compiled to (its name has a hash of features and profile), and its features."""
    made = {}
    for line in open(path):
        unit = json.loads(line)
        if unit.get("reason") == "compiler-artifact" and not unit["profile"]["test"]:
            # The target distinguishes the build script of a crate from the crate itself; the file
            # distinguishes a crate built for the host from the same crate built for programs.
            key = (unit["package_id"], unit["target"]["name"], tuple(unit["target"]["kind"]))
            # For units that were requested by name, cargo reports the copy outside of deps/, which has
            # no hash in its name; the metadata file always has one.
            files = [os.path.basename(file) for file in unit["filenames"]]
            hashed = [file for file in files if file.endswith(".rmeta")] or files
            made.setdefault(key, {})[tuple(hashed)] = unit["features"]
        elif unit.get("reason") == "build-script-executed":
            made.setdefault((unit["package_id"], "output of its build script", ()), {})[(unit["out_dir"],)] = []
    return made

programs, tests = map(artifacts, sys.argv[1:])
faults = []
for key, files in tests.items():
    if key not in programs:
        continue  # a crate that only tests need
    package, target, _ = key
    name = package.rsplit("/", 1)[-1]
    for file, features in files.items():
        if file not in programs[key]:
            others = [set(of) for of in programs[key].values()]
            added = sorted(set(features) - set.union(*others)) if others else []
            faults.append(f"{name} ({target}): tests compile it again" + (f", with features {', '.join(added)}" if added else ""))
for fault in sorted(set(faults)):
    print("one-build:", fault, file=sys.stderr)
print(f"one-build: {len(programs)} units of the programs, {len(set(tests) - set(programs))} more of the tests, {len(set(faults))} compiled twice", file=sys.stderr)
sys.exit(1 if faults else 0)
PY
