#!/usr/bin/env python3
"""kiln on a real Slurm: one cluster on this host per scenario (scripts/check-slurm.sh, `make check-slurm`).

    python3 tests/slurm/check.py --programs target/release              every scenario
    python3 tests/slurm/check.py --programs target/release NAME …      some
    … --way slurm       through `kiln run --on slurm`; `--way recipe` through the array of docs/clusters.md
    … --list            the names and what they do
    … --keep            keeps the folder of a scenario that failed
    … --if-able         says so and ends with 0 where Slurm does not start, as in a container without its rights

Exit status 1 if a scenario failed.
"""

import argparse
import os
import pathlib
import shutil
import signal
import sys
import time

import runs
from cluster import Cluster, is_installed, may_use_groups
from scenarios import FAKE_DRIVER, SCENARIOS, WAYS


class OutOfTime(Exception):
    pass


def out_of_time(_number, _frame):
    raise OutOfTime


def interrupted(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def play(function, way, programs, keep):
    """Runs one scenario on a cluster of its own; returns whether it held, and a line about it."""
    if function.small and os.geteuid() != 0:
        return None, "skipped: only root can mount a small disk"
    if function.groups and not may_use_groups():
        return None, "skipped: it needs root and control groups of version 1 with a memory controller"
    if function.gpus and not (programs / FAKE_DRIVER).exists():
        return None, "skipped: there is no %s beside the programs (`cargo build --release -p fake-nvml`)" % FAKE_DRIVER
    cluster = Cluster(groups=function.groups, gpus=function.gpus)
    begun = []

    def start(text, **more):
        run = runs.Run(cluster, programs, way, text, **more)
        begun.append(run)
        run.begin()
        return run

    start.way, start.cluster, start.programs = way, cluster, programs
    held, line = False, ""
    signal.alarm(function.seconds)
    try:
        if function.small:
            cluster.mount_small(cluster.folder / "work/results/x", function.small)
        cluster.start()
        line = function(start)
        held = True
    except OutOfTime:
        line = "not at its end after %d s" % function.seconds
    except AssertionError as error:
        line = str(error)
    finally:
        signal.alarm(0)
        if line and not held and begun:
            tell(begun[-1])
        for run in begun:
            run.stop()
        if keep and not held:
            kept = "/tmp/kiln-slurm-kept-%d" % time.time()
            shutil.copytree(cluster.folder, kept, symlinks=True, ignore=shutil.ignore_patterns("*.socket*", ".programs"))
            print("  kept: " + kept)
        cluster.stop()
    return held, line


def why_unable():
    """Why no cluster starts on this host; empty if one does."""
    cluster = Cluster(groups=False)
    signal.alarm(90)
    try:
        cluster.start()
        return ""
    except OutOfTime:
        return "no cluster after 90 s"
    except (AssertionError, OSError) as error:
        return str(error)
    finally:
        signal.alarm(0)
        cluster.stop()


def tell(run):
    """What is known of a run that went wrong."""
    try:
        print("  tasks: %s" % (run.cluster.states(*run.jobs) if run.jobs else "none"))
        print("  reasons: %s; attends: %s" % (run.cluster.reasons(*run.jobs), run.attendant and run.attendant.poll() is None))
        print("  queue: %s" % run.queue())
        print("  processes of jobs: %s" % run.cluster.processes_of_jobs())
        print("  nodes: %s" % run.cluster.node_states())
        for row in run.rows_of_launches():
            print("  row: trial %s attempt %s launch %s %s" % tuple(row[name] for name in ("trial", "attempt", "launch", "outcome")))
    except (OSError, AssertionError, KeyError) as error:
        print("  %s" % error)
    print("  " + run.logs().replace("\n", "\n  "))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="the folder of kiln and kiln-trial")
    parser.add_argument("--way", choices=(*WAYS, "both"), default="both")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--if-able", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args()
    if asked.list:
        for name, function in SCENARIOS.items():
            print("%-24s %s" % (name, (function.__doc__ or "").split("\n")[0]))
        return
    if not is_installed():
        print("check-slurm: skipped, slurmctld is not installed (scripts/check-slurm.sh --install, on Debian)")
        return
    for name in asked.names:
        if name not in SCENARIOS:
            sys.exit("check-slurm: `%s` is not a scenario; they are: %s" % (name, ", ".join(SCENARIOS)))
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    unable = why_unable() if asked.if_able else ""
    if unable:
        print("check-slurm: skipped, Slurm does not start on this host: " + unable)
        return
    results = []
    try:
        for way in WAYS if asked.way == "both" else (asked.way,):
            for name in asked.names or [name for name in SCENARIOS if not SCENARIOS[name].asked]:
                if way not in SCENARIOS[name].ways:
                    continue
                began = time.monotonic()
                held, line = play(SCENARIOS[name], way, asked.programs.resolve(), asked.keep)
                word = {True: "ok", False: "FAILED", None: "-"}[held]
                results.append((way, name, word, time.monotonic() - began, line))
                print("%-7s %-24s %-6s %4.0f s  %s" % results[-1], flush=True)
    except KeyboardInterrupt:
        print("check-slurm: interrupted; the cluster is removed")
        sys.exit(130)
    print("\n%-7s %-24s %-6s %6s" % ("way", "scenario", "result", "time"))
    for way, name, word, seconds, _ in results:
        print("%-7s %-24s %-6s %4.0f s" % (way, name, word, seconds))
    words = [word for _, _, word, _, _ in results]
    print("%d scenarios: %d ok, %d failed, %d skipped" % (len(words), words.count("ok"), words.count("FAILED"), words.count("-")))
    sys.exit(1 if "FAILED" in words else 0)


if __name__ == "__main__":
    main()
