"""Checks the tables of a run. Input: the folder of the run and the expected values; output: faults in a `Checks`."""

import csv
import dataclasses
import json
import math

from check_gpu.setting import Failed

OUTCOMES = ("completed", "oom", "diverged", "failed", "timed-out", "skipped", "killed", "interrupted")
LIBRARIES = {"cpu": ("libtorch",), "cuda": ("libtorch", "cudnn", "cublas", "cudart")}


def rows(path):
    """The rows of a table; using a column that it lacks is an error."""
    if not path.exists():
        raise Failed(f"{path} is not there")
    with path.open(newline="") as read:
        return [Row(row, path.name) for row in csv.DictReader(read)]


class Row(dict):
    def __init__(self, cells, table):
        super().__init__(cells)
        self.table = table

    def __missing__(self, column):
        raise Failed(f"{self.table} has no column `{column}`")

    def number(self, column):
        """The number in a cell; NaN if it is empty, which fails every comparison."""
        return float(self[column] or "nan")


class Run:
    """The newest run of an experiment under a folder of results."""

    def __init__(self, results, name):
        self.folder = (results / name / "latest").resolve()
        self.rows = rows(self.folder / "trials.csv")

    def last_rows(self):
        """The last row of each trial, in the order of the plan."""
        last = {}
        for row in self.rows:
            last[row["trial"]] = row
        return sorted(last.values(), key=lambda row: int(row["number"]))

    def attempt(self, row):
        return self.folder / "trials" / row["trial"] / row["attempt"]

    def steps(self, row):
        return rows(self.attempt(row) / "steps.csv")

    def result(self, row):
        """The trial's own file with its measurements."""
        path = self.attempt(row) / "trial.json"
        if not path.exists():
            raise Failed(f"{path} is not there")
        return json.loads(path.read_text())

    def launch(self):
        return json.loads((self.folder / "run.json").read_text())["launches"][-1]


@dataclasses.dataclass
class Expected:
    """The expected values of every row of a run."""

    device: str
    trials: int
    # Whether the model trains: `matmul` does not.
    trains: bool = True
    # Whether the mean of the last losses must lie below the first one.
    learns: bool = True
    # Whether batches are copied to the device; a synthetic one is made once.
    copies: bool = True


def check_run(checks, run, expected):
    """Checks that every trial completed on the expected device, with possible figures."""
    last = run.last_rows()
    checks.that(len(last) == expected.trials, f"{len(last)} trials have rows, expected {expected.trials}")
    for row in last:
        what = f"trial {row['trial']} ({row['precision']}, batch {row['batch_size']})"
        if row["outcome"] != "completed":
            checks.that(False, f"{what}: {row['outcome']}: {row['reason']}")
            continue
        print(
            f"{what}: {row['median_step_seconds']} s/step, {row['samples_per_second']} samples/s, loss {row['train_loss']}, "
            f"valid {row['valid_loss']}, peak allocated {row['peak_allocated_bytes'] or 'unknown'} B, mfu {row['mfu'] or 'unknown'}, "
            f"notes {row['notes'] or 'none'}"
        )
        check_device(checks, what, row, expected.device)
        check_timing(checks, what, run, row)
        check_precision(checks, what, run, row, expected)
        if expected.trains:
            check_losses(checks, what, run, row, expected)
        if expected.copies and expected.trains:
            checks.that(0 < row.number("transfer_fraction") < 1, f"{what}: transfer_fraction is {row['transfer_fraction']!r}")
    libraries = run.launch().get("libraries", {})
    for library in LIBRARIES[expected.device]:
        checks.that(library in libraries, f"run.json names no {library} among its libraries: {sorted(libraries)}")


def check_device(checks, what, row, device):
    uuid = row["device_uuid"]
    if device == "cuda":
        checks.that(uuid.startswith(("GPU-", "MIG-")), f"{what}: it did not run on a GPU: device_uuid is {uuid!r}")
        checks.that(row.number("peak_allocated_bytes") > 0, f"{what}: no peak of the allocator")
        checks.that(row.number("peak_reserved_bytes") >= row.number("peak_allocated_bytes"), f"{what}: less memory reserved than allocated")
        checks.that(row["driver"] != "", f"{what}: no driver's version")
        # Without them libtorch's own kernels train, and nothing else shows it.
        checks.that("cuda_kernels:" not in row["notes"], f"{what}: not by kiln's own kernels: {row['notes']}")
    else:
        checks.that(uuid == "" and row["device_name"] != "", f"{what}: not on the CPU: {row['device_name']!r} {uuid!r}")
        checks.that(row.number("peak_resident_bytes") > 0, f"{what}: no peak of host memory")


def check_timing(checks, what, run, row):
    checks.that(row.number("samples_per_second") > 0, f"{what}: no rate")
    checks.that(row.number("median_step_seconds") > 0, f"{what}: steps were not timed: {row['notes']}")
    # Steps by the device's clock must fill the window by the host's clock, or one of them is wrong.
    timed = sum(step.number("step_seconds") for step in run.steps(row) if step["is_warmup"] == "false")
    window = row.number("window_seconds")
    share = timed / window
    # The window of a few tiny steps on a CPU is so short that one moment in which the process does not run shows.
    is_paused = row["device_uuid"] == "" and share > 0.3 and window - timed < 0.03
    checks.that(0.9 < share < 1.1 or is_paused, f"{what}: timed steps make up {share:.3f} of the window of {window} s")


def check_precision(checks, what, run, row, expected):
    flags = run.result(row)["flags"]
    wanted = "true" if row["precision"] == "tf32" else "false"
    for flag in ("tf32_matmul", "tf32_cudnn"):
        checks.that(flags.get(flag) == wanted, f"{what}: {flag} is {flags.get(flag)}, expected {wanted}")
    has_scale = row["precision"] == "amp-f16" and expected.trains
    checks.that((row["skipped_steps"] != "") == has_scale, f"{what}: skipped_steps is {row['skipped_steps']!r}")
    if has_scale:
        checks.that(row.number("skipped_steps") < row.number("steps") / 2, f"{what}: {row['skipped_steps']} of {row['steps']} steps were skipped")


def check_losses(checks, what, run, row, expected):
    steps = run.steps(row)
    losses = [step.number("loss") for step in steps]
    checks.that(len(steps) == int(row["steps"]), f"{what}: {len(steps)} rows of steps, and {row['steps']} steps")
    checks.that(all(map(math.isfinite, losses)), f"{what}: a loss is no number: {losses}")
    checks.that(math.isfinite(row.number("valid_loss")), f"{what}: no validation loss: {row['notes']}")
    if expected.learns and losses:
        end = losses[-max(1, len(losses) // 5) :]
        checks.that(sum(end) / len(end) < losses[0], f"{what}: nothing is learned: from {losses[0]} to {end}")


def check_mfu(checks, row, device):
    """Checks that the MFU agrees with the other figures of the row and is possible for a machine."""
    mfu, flops, seconds, peak = (row.number(column) for column in ("mfu", "window_flops", "window_seconds", "peak_flops"))
    again = flops / seconds / peak
    checks.that(abs(mfu / again - 1) < 1e-3, f"mfu is {mfu}, and its parts give {again}")
    least = 0.05 if device == "cuda" else 1e-6
    # A processor without instructions for bf16 emulates its products, at another speed than the peak's.
    most = 1 if device == "cuda" or row["peak_dtype"] == "f32" else math.inf
    checks.that(least < mfu <= most, f"mfu is {mfu}, not between {least} and {most}: {row['peak_dtype']} peak {peak} from {row['peak_source']}")
    checks.that(row["peak_source"] == "measured", f"the peak is from {row['peak_source']!r}, and `kiln calibrate` was run before")


def losses_by_step(run, row):
    """The loss of each step of a trial, from the last attempt that made the step."""
    found = {}
    for attempt in range(1, int(row["attempt"]) + 1):
        path = run.folder / "trials" / row["trial"] / str(attempt) / "steps.csv"
        if path.exists():
            # The last line of a killed attempt may be incomplete.
            with path.open(newline="") as read:
                for step in csv.DictReader(line for line in read if line.endswith("\n")):
                    if step["loss"]:
                        found[int(step["step"])] = float(step["loss"])
    return found
