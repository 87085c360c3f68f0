"""The command line of check-gpu.sh. See __init__.py."""

import argparse
import pathlib
import shutil
import subprocess
import sys

from check_gpu import parts, runner
from check_gpu.setting import Failed, Setting


def has_gpu():
    if any(pathlib.Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
        return True
    return bool(shutil.which("nvidia-smi")) and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def arguments(home):
    parser = argparse.ArgumentParser(
        prog="check-gpu.sh", description="Checks that need a GPU, in parts. Parts that passed before run again only if they are named."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="the parts to run, even if they passed before; without names, all parts")
    parser.add_argument("--rehearse", action="store_true", help="run every part on the CPU with tiny sizes, to find errors in the checks")
    parser.add_argument("--list", action="store_true", help="print the parts with their time limits and exit")
    parser.add_argument("--results", type=pathlib.Path, help="the folder for logs, tables and outcomes (default: check-gpu-results; a rehearsal empties and uses check-gpu-rehearsal)")
    parser.add_argument("--kiln", type=pathlib.Path, help="the program kiln (default: that of the bundle, or target/release/kiln)")
    parser.add_argument("--seconds", type=int, help="total time: start no part after it and stop the last one early, so that the summary and the archive are made in time")
    parser.add_argument("--archive", type=pathlib.Path, metavar="FILE", help="a second place for results.tar.gz, written after each part: what a lent machine gives back")
    parser.add_argument("--after", type=pathlib.Path, metavar="FILE", help="the results.tar.gz of an earlier call: parts that passed then run only if they are named")
    parser.add_argument("--run-part", metavar="PART", help=argparse.SUPPRESS)
    found = parser.parse_args()
    unknown = [name for name in found.parts if name not in parts.BY_NAME]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {' '.join(parts.BY_NAME)}")
    is_bundle = (home / "ABOUT").is_file()
    found.kiln = found.kiln or (home / "run.sh" if is_bundle else runner.target_folder(home) / "release" / "kiln")
    if not found.results:
        name = "check-gpu-rehearsal" if found.rehearse else "check-gpu-results"
        found.results = (home if is_bundle else runner.target_folder(home)) / name
        if found.rehearse and not found.list:
            # An old result does not count for this check.
            shutil.rmtree(found.results, ignore_errors=True)
    return found


def main():
    home = pathlib.Path(__file__).resolve().parents[2]
    asked = arguments(home)
    if asked.list:
        for part in parts.ALL:
            print(f"{part.name:22} {part.seconds:4} s  {part.about}")
        return 0
    if not asked.rehearse and not has_gpu():
        print("check-gpu: no NVIDIA GPU found, so nothing was checked; --rehearse runs every part on the CPU with tiny sizes", file=sys.stderr)
        return 3
    if not asked.kiln.is_file():
        print(f"check-gpu: {asked.kiln} does not exist; run `make build`, or name another program with --kiln", file=sys.stderr)
        return 2
    setting = Setting(home, asked.results.resolve(), asked.kiln.resolve(), asked.rehearse)
    if asked.run_part:
        return runner.run_here(setting, parts.BY_NAME[asked.run_part])
    try:
        if asked.after:
            runner.go_on_after(setting, asked.after)
        return runner.run_all(setting, [parts.BY_NAME[name] for name in asked.parts], asked.seconds, asked.archive)
    except Failed as fault:
        print(f"check-gpu: {fault}", file=sys.stderr)
        return 1


sys.exit(main())
