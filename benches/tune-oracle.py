#!/usr/bin/env python3
"""Holds `kiln tune` against an exhaustive sweep of the same values, and reruns the two answers in turns.

    benches/tune-oracle.py FILE KEY FROM:TO:STEP [--repeats 2] [--rounds 5] [--results DIR] [--set KEY=VALUE ...]

FILE asks for a search over KEY. First the search runs, then every value of the range `--repeats` times (as often as the
search runs its contenders), then the search's answer and the sweep's best `--rounds` times each, interleaved. Prints CSV:
what each took, and the ratio of the answer's speed to the best one's with its 95 % interval (Welch on log values).
`slower` is an interval below 1 and a mean at least 3 % down, `not slower` an interval above 0.97; else they cannot be told apart. Needs `kiln` on the PATH or in $KILN.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
       2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
WORTH = 0.03


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("key")
    parser.add_argument("range")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", default="results")
    parser.add_argument("--set", action="append", default=[])
    return parser.parse_args()


def kiln(verb, args, *more):
    command = [os.environ.get("KILN", "kiln"), verb, args.file, "--results", args.results, "--quiet", "--fresh"]
    for setting in [*args.set, *more]:
        command += ["--set", setting]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL)
    if ended.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}")


def sweep(args, name, values, repeats):
    """Rows of a grid of these values."""
    kiln("run", args, "sweep.search=null", f"name={name}", f"sweep.grid={json.dumps({args.key: values})}", f"sweep.repeats={repeats}")
    return rows(args, name)


def rows(args, name):
    with open(pathlib.Path(args.results, name, "latest", "trials.csv"), newline="") as table:
        return list(csv.DictReader(table))


def speed(row):
    cell = row["tokens_per_second"] or row["samples_per_second"]
    return float(cell) if row["outcome"] == "completed" and cell else None


def by_value(table, key):
    speeds = {}
    for row in table:
        if (value := speed(row)) is not None:
            speeds.setdefault(json.loads(row[key]), []).append(value)
    return speeds


def seconds(table):
    return sum(float(row["trial_seconds"]) for row in table if row["trial_seconds"])


def welch(one, other):
    """Ratio of geometric means with its 95 % interval."""
    a, b = [math.log(x) for x in one], [math.log(x) for x in other]
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    difference = statistics.mean(a) - statistics.mean(b)
    if va + vb == 0:
        return math.exp(difference), math.exp(difference), math.exp(difference)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = T95[min(max(int(freedom), 1), 30) - 1] * math.sqrt(va + vb)
    return tuple(math.exp(x) for x in (difference, difference - half, difference + half))


def experiment_name(args):
    plan = subprocess.run([os.environ.get("KILN", "kiln"), "plan", args.file, "--json", "--set", "sweep.search=null",
                           *sum((["--set", setting] for setting in args.set), [])], capture_output=True, text=True, check=True)
    return json.loads(plan.stdout.splitlines()[0])["name"]


def main():
    args = arguments()
    low, high, step = (int(part) for part in args.range.split(":"))
    values = list(range(low, high + 1, step))
    name = experiment_name(args)
    kiln("tune", args)
    searched = rows(args, name)
    recommendation = pathlib.Path(args.results, name, "latest", "recommendation.md").read_text()
    chosen = recommendation.split(f"{args.key} ", 1)[1]
    answer = json.loads(chosen.split(".**", 1)[0].split(",", 1)[0])
    swept = sweep(args, f"{name}-grid", values, args.repeats)
    means = {value: statistics.mean(speeds) for value, speeds in by_value(swept, args.key).items() if len(speeds) == args.repeats}
    best = max(means, key=means.get)
    print("what,value,trials,seconds")
    print(f"search,{answer},{len(searched)},{seconds(searched):.1f}")
    print(f"grid,{best},{len(swept)},{seconds(swept):.1f}")
    if answer == best:
        print(f"rerun,the search's answer is the grid's best ({best}),0,0.0")
        return
    again = sweep(args, f"{name}-rerun", [answer, best], args.rounds)
    speeds = by_value(again, args.key)
    ratio, lowest, highest = welch(speeds[answer], speeds[best])
    is_slower = highest < 1 and ratio < 1 - WORTH
    verdict = "slower" if is_slower else "not slower" if lowest > 1 - WORTH else "cannot be told apart"
    print(f"rerun,{answer} / {best} = {ratio:.3f} ({lowest:.3f} to {highest:.3f}): {verdict},{len(again)},{seconds(again):.1f}")


main()
