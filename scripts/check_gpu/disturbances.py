"""Parts that cause faults on purpose: memory runs out, a limit is reached, processes are killed."""

import dataclasses
import math
import os
import pathlib
import signal
import time

from check_gpu import trials
from check_gpu.setting import Checks, Failed, until
from check_gpu.tables import Run, losses_by_step

LADDER = trials.Trial(
    "oom-ladder",
    trials.TINY_GPT + ("model.vocabulary=64", "data.characters=400000", "sweep.grid.train.batch_size=[4, 4096, 2]", "run.memory_limit=320MiB"),
)
LIMITED = trials.Trial(
    "memory-limit",
    trials.TINY_GPT + ("data.characters=400000", "sweep.grid.train.batch_size=[4, 8192, 8]", "run.memory_limit=512MiB"),
)
RESUMED = trials.Trial("resume", trials.TINY_GPT + ("train.steps=240", "train.evaluate.every=80", "train.checkpoint.every_steps=20", "data.characters=20000"))
# Tolerance between the losses of two runs of one trial on CUDA: kernels add with atomics, and hundreds of updates magnify the difference.
SAME_LOSS_ON_CUDA = 2e-2


def oom_ladder(setting):
    """Increases the batch size until memory runs out; the trials after it must complete."""
    if setting.is_rehearsal:
        setting.note("memory runs out at `run.memory_limit` (320 MiB of the process)")
    run = trials.sweep(setting, "oom-ladder", drop_axis(setting, LADDER))
    rows = run.last_rows()
    outcomes = [row["outcome"] for row in rows]
    setting.note("; ".join(f"batch {row['batch_size']} {row['outcome']} {gibibytes(row)}" for row in rows))
    checks = Checks()
    checks.that(outcomes and outcomes[0] == "completed", f"the smallest batch did not complete: {reasons(rows)}")
    checks.that("oom" in outcomes, f"memory never ran out, up to batch {rows[-2]['batch_size'] if len(rows) > 1 else '?'}: make the ladder longer")
    checks.that(set(outcomes) <= {"completed", "oom"}, f"outcomes other than completed and oom: {reasons(rows)}")
    checks.that(outcomes[-1:] == ["completed"], f"the trial after out of memory did not complete: {reasons(rows)}")
    for row in rows:
        if row["outcome"] == "oom":
            checks.that("memory" in row["reason"], f"an oom whose reason does not speak of memory: {row['reason']}")
            if not setting.is_rehearsal:
                checks.that("GiB" in row["reason"] or "MiB" in row["reason"], f"an oom without an amount: {row['reason']}")
        elif not setting.is_rehearsal:
            checks.that(0 < row.number("peak_allocated_bytes") < row.number("memory_limit_bytes"), f"batch {row['batch_size']}: {gibibytes(row)}")
    checks.done()


def memory_limit(setting):
    run = trials.sweep(setting, "memory-limit", drop_axis(setting, LIMITED))
    rows = run.last_rows()
    checks = Checks()
    limit = 512 << 20 if setting.is_rehearsal else 4 << 30
    checks.that([row["outcome"] for row in rows] == ["completed", "oom", "completed"], f"outcomes: {reasons(rows)}")
    for row in rows:
        checks.that(row["memory_limit_bytes"] == str(limit), f"batch {row['batch_size']}: memory_limit_bytes is {row['memory_limit_bytes']!r}, not {limit}")
        if row["outcome"] == "completed" and not setting.is_rehearsal:
            checks.that(row.number("peak_reserved_bytes") <= limit, f"batch {row['batch_size']}: {row['peak_reserved_bytes']} B reserved, more than the limit")
    checks.done()


def drop_axis(setting, trial):
    """The rehearsal sets its own batch sizes on the axis: a plain `train.batch_size` would replace the axis."""
    tiny = tuple(one for one in trial.tiny if not one.startswith("train.batch_size"))
    return dataclasses.replace(trial, tiny=tiny)


def reasons(rows):
    return [(row["batch_size"], row["outcome"], row["reason"]) for row in rows]


def gibibytes(row):
    peak = row["peak_allocated_bytes"] or row["peak_resident_bytes"]
    return f"{int(peak) / 2**30:.2f} GiB" if peak else "unknown"


# Kills -------------------------------------------------------------------------------------------------------------------------------


def kill_and_resume(setting):
    """Kills a child and then the runner in the middle of trials; after a restart the sweep must end like an undisturbed one."""
    trial = drop_axis(setting, RESUMED)
    undisturbed = trials.sweep(setting, "undisturbed", trial)
    results = setting.folder("runs", "killed")
    first = start(setting, trial, results, "--fresh")
    kill_child_at(results, 1, first)
    ended_child = wait_for_row(results, "killed", first)
    print(f"the row of the killed child: {ended_child['trial']} {ended_child['reason']}")
    kill_runner_at(results, 2, first)
    before = (results / "gpu-resume" / "latest" / "trials.csv").read_text()
    again = start(setting, trial, results)
    ended = again.wait()
    checks = Checks()
    checks.that(ended == 0, f"the second launch ended with status {ended}")
    run = Run(results, "gpu-resume")
    trials.keep_table(setting, "killed", run)
    after = (run.folder / "trials.csv").read_text()
    checks.that(after.startswith(before), "rows of the first launch changed")
    check_rows(checks, run, undisturbed)
    tolerance = 0.0 if setting.is_rehearsal else SAME_LOSS_ON_CUDA
    for row, other in zip(run.last_rows(), undisturbed.last_rows(), strict=False):
        check_same_losses(checks, f"batch {row['batch_size']}", losses_by_step(run, row), losses_by_step(undisturbed, other), tolerance)
    checks.done()


def check_rows(checks, run, undisturbed):
    last = run.last_rows()
    checks.that(
        [row["trial"] for row in last] == [row["trial"] for row in undisturbed.last_rows()], f"trials: {[row['trial'] for row in last]}"
    )
    checks.that(all(row["outcome"] == "completed" for row in last), f"outcomes: {reasons(last)}")
    for row in last:
        completed = [other for other in run.rows if other["trial"] == row["trial"] and other["outcome"] == "completed"]
        checks.that(len(completed) == 1, f"trial {row['trial']} has {len(completed)} completed rows")
    killed = [row for row in run.rows if row["outcome"] == "killed"]
    checks.that(len(killed) == 2, f"{len(killed)} rows of killed attempts, expected 2: {reasons(run.rows)}")
    checks.that(any(row["resumed_at_step"] for row in last), "no attempt went on from a checkpoint")


def check_same_losses(checks, what, found, expected, tolerance):
    checks.that(found.keys() == expected.keys() and found, f"{what}: {len(found)} steps, undisturbed {len(expected)}")
    apart = [(step, found[step], expected[step]) for step in found if step in expected and not math.isclose(found[step], expected[step], rel_tol=tolerance)]
    checks.that(not apart, f"{what}: {len(apart)} losses differ by more than {tolerance}, the first at {apart[:1]}")


def start(setting, trial, results, *more):
    sets = (*trials.TINY, *trial.tiny) if setting.is_rehearsal else ()
    command = [str(setting.kiln), "run", str(setting.experiment(trial.experiment)), "--results", str(results), "--progress", "plain", *more]
    command += ["--device", "cpu"] if setting.is_rehearsal else []
    return setting.start([*command, *(word for one in sets for word in ("--set", one))], folder=trials.work(setting))


def folder_of(results, number):
    """The folder of the trial with this number in the plan, if it exists; trials run in the order of the plan."""
    begun = sorted(results.glob("gpu-resume/latest/trials/*/1/attempt.json"), key=lambda path: path.stat().st_mtime_ns)
    return begun[number - 1].parents[1] if len(begun) >= number else None


def has_checkpoint(results, number):
    folder = folder_of(results, number)
    return folder and any(entry.name.isdigit() for entry in (folder / "checkpoint").glob("*"))


def children(pid):
    """The children of this process."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain any character.
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found.append(int(status.parent.name))
    return found


def kill_child_at(results, number, runner):
    until(f"trial {number} has a checkpoint", lambda: has_checkpoint(results, number), runner)
    for child in children(runner.pid):
        os.kill(child, signal.SIGKILL)


def wait_for_row(results, outcome, runner):
    def row():
        table = results / "gpu-resume" / "latest" / "trials.csv"
        return next((row for row in Run(results, "gpu-resume").rows if row["outcome"] == outcome), None) if table.exists() else None

    return until(f"a row has the outcome {outcome}", row, runner)


def kill_runner_at(results, number, runner):
    until(f"trial {number} has a checkpoint", lambda: has_checkpoint(results, number), runner)
    orphans = children(runner.pid)
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 30
    while any(pathlib.Path(f"/proc/{orphan}").exists() for orphan in orphans):
        if time.monotonic() > deadline:
            raise Failed(f"children {orphans} of the killed runner are still there after 30 s")
        time.sleep(0.02)
