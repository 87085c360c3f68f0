"""Parts that run experiments of tests/experiments/gpu: each model and precision, copies, products, MFU."""

import dataclasses
import json
import math
import re
import shutil

from check_gpu import generated
from check_gpu.setting import Checks, Failed, Skipped
from check_gpu.tables import Expected, Run, check_mfu, check_run

# Settings of every rehearsal: few steps, no waiting.
TINY = ("train.steps=10", "train.cpu_threads=1", "measure.warmup_steps=2")
TINY_GPT = ("model.d_model=32", "model.num_layers=1", "model.num_heads=2", "model.seq_len=32", "train.batch_size=4")
TINY_TEXT = ("data.characters=20000", "data.num_workers=1")
TINY_LSTM = ("model.d_model=16", "model.hidden=16", "model.seq_len=8", "train.batch_size=4", *TINY_TEXT)
TINY_RESNET50 = ("model.width=2", "data.images=80", "data.valid_images=10", "data.image_size=32", "data.num_workers=1", "train.batch_size=8")
TINY_T5 = (
    "model.d_model=16", "model.d_kv=8", "model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
    "model.vocabulary=63", "data.num_workers=1", "train.batch_size=4",
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """An experiment file, and its sizes in the rehearsal."""

    experiment: str
    tiny: tuple
    trials: int = 1
    sets: tuple = ()
    expected: dict = dataclasses.field(default_factory=dict)
    # In the rehearsal: fewer trials, because the CPU refuses one, and checks that ten steps of a tiny model need not pass.
    tiny_trials: int | None = None
    tiny_expected: dict = dataclasses.field(default_factory=dict)
    # The folder under KILN_DATA that the trial needs.
    data: str | None = None
    # Environment variables that the rehearsal sets.
    tiny_environment: dict = dataclasses.field(default_factory=dict)


# Steps run operator by operator, and from CUDA graphs; the rehearsal replays closures on the CPU.
GRAPHS = "sweep.grid.train.cuda_graph=[off, on]"
AS_ON_CUDA = {"KILN_CUDA_BRANCHES": "1"}

TRIALS = {
    "gpt": Trial("gpt", TINY_GPT + TINY_TEXT),
    "lstm-dropout": Trial("lstm", TINY_LSTM, trials=2),
    "panel-lstm": Trial("panel-lstm", ("model.hidden=16", "model.symbol_width=4", "model.num_layers=2", "train.batch_size=8"), expected={"learns": False}),
    "mlp": Trial("mlp", ("model.hidden=32", "model.seq_len=16", "train.batch_size=8", "data.characters=20000")),
    "resnet50": Trial(
        "resnet50",
        TINY_RESNET50,
        expected={"learns": False},
    ),
    "resnet18": Trial(
        "resnet18", ("model.width=4", "data.images=80", "data.valid_images=10", "data.image_size=16", "data.num_workers=1", "train.batch_size=8",
                     "train.optimizer.learning_rate=0.01"),
        tiny_expected={"learns": False},
    ),
    "seq2seq": Trial(
        "seq2seq",
        TINY_T5 + ("train.evaluate.generate.rows=4", "train.evaluate.generate.max_tokens=6"),
        trials=2,
    ),
    "shakespeare": Trial(
        "shakespeare",
        ("model.d_model=32", "model.num_layers=1", "model.num_heads=2", "model.seq_len=16", "train.batch_size=4", "data.num_workers=1",
         "train.sample.tokens=10", "train.learning_rate_schedule.warmup_steps=2"),
        data="tinyshakespeare",
    ),
    "wikitext2": Trial(
        "wikitext2",
        ("model.d_model=8", "model.num_layers=1", "model.num_heads=2", "model.seq_len=64", "model.vocabulary=256", "data.tokenizer=byte",
         "train.batch_size=32", "data.num_workers=1"),
        data="wikitext-2", expected={"learns": False},
    ),
    "chatlm": Trial(
        "chatlm",
        ("model.d_model=8", "model.d_kv=4", "model.d_ff=16", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
         "data.num_workers=1", "data.train_rows=60", "data.valid_rows=8", "train.batch_size=4", "train.evaluate.generate.rows=4",
         "train.evaluate.generate.max_tokens=4"),
        data="chatlm-mini-chinese", expected={"learns": False},
    ),
    "copies": Trial(
        "copies", ("model.width=2", "data.images=80", "data.valid_images=8", "data.image_size=16", "data.num_workers=1", "train.batch_size=8"),
        trials=2, expected={"learns": False},
    ),
    "graphs-gpt": Trial(
        "gpt", TINY_GPT + TINY_TEXT, trials=2, sets=(GRAPHS, "train.precision=amp-bf16", "train.batch_size=4"), tiny_environment=AS_ON_CUDA, expected={"learns": False}
    ),
    "graphs-resnet50": Trial(
        "resnet50",
        TINY_RESNET50,
        trials=2, sets=(GRAPHS,), tiny_environment=AS_ON_CUDA, expected={"learns": False},
    ),
    "graphs-lstm": Trial(
        "lstm", TINY_LSTM, trials=2,
        sets=("sweep.grid.train.precision=[amp-bf16]", GRAPHS), tiny_environment=AS_ON_CUDA, expected={"learns": False},
    ),
    # One length of prompts and responses, so that every batch has the shape that was recorded.
    "graphs-seq2seq": Trial(
        "seq2seq",
        TINY_T5,
        trials=2, sets=("sweep.grid.train.evaluate.generate.beams=[1]", "data.length_bucket=64", GRAPHS), tiny_environment=AS_ON_CUDA, expected={"learns": False},
    ),
    "products": Trial(
        "products", ("model.size=64", "sweep.grid.train.precision=[f32, bf16]"), trials=3, tiny_trials=2, expected={"trains": False, "copies": False}
    ),
    "measured": Trial(
        "measured", (*TINY_GPT, "model.vocabulary=64", "data.characters=20000", "sweep.grid.train.checkpoint=[null, {every_steps: 5, after: delete}]"),
        trials=2, expected={"learns": False, "copies": False}
    ),
    "gpt2-124m": Trial(
        "gpt2-124m", TINY_GPT + ("model.vocabulary=64", "data.characters=20000"), expected={"learns": False}
    ),
}

# Every model that another part trains in one precision or two, in each of them.
EVERY_PRECISION = "sweep.grid.train.precision=[f32, tf32, bf16, amp-bf16, amp-f16]"
EVERY_PRECISION_OF_A_CPU = EVERY_PRECISION.replace("tf32, ", "")
MODELS = {
    "lstm-dropout": (), "panel-lstm": (), "resnet18": (), "mlp": (),
    # Some steps are skipped before the scale of f16 fits so many layers, and at the rate of its experiment f16 diverges.
    "resnet50": ("train.optimizer.learning_rate=0.001", "train.steps=30"),
    "seq2seq": ("sweep.grid.train.evaluate.generate.beams=[1]",),
}
TRIALS |= {
    f"precisions-{name}": dataclasses.replace(
        TRIALS[name], trials=5, tiny_trials=4, sets=(*more, EVERY_PRECISION), tiny=(*TRIALS[name].tiny, *more, EVERY_PRECISION_OF_A_CPU)
    )
    for name, more in MODELS.items()
}


def sweep(setting, name, trial, *more, status=0, **environment):
    """Runs an experiment from its beginning; returns the run with its tables."""
    sets = (*trial.sets, *((*TINY, *trial.tiny) if setting.is_rehearsal else ()), *more)
    results = setting.folder("runs", name)
    command = [str(setting.kiln), "run", str(setting.experiment(trial.experiment)), "--fresh", "--results", str(results), "--progress", "plain"]
    command += ["--device", "cpu"] if setting.is_rehearsal else []
    setting.run([*command, *(word for one in sets for word in ("--set", one))], folder=work(setting), status=status, **environment)
    run = Run(results, f"gpu-{trial.experiment}")
    keep_table(setting, name, run)
    return run


def keep_table(setting, name, run):
    shutil.copyfile(run.folder / "trials.csv", setting.folder("tables") / f"{name}.csv")


def work(setting):
    """The working folder for experiments, with the data that their relative paths name."""
    place = setting.folder("generated")
    if not (place / "pairs" / "tokenizer.json").exists():
        generated.pairs(place / "pairs", 300 if setting.is_rehearsal else 2000)
    if not (place / "panel" / "S00.csv").exists():
        generated.panel(place / "panel", 3 if setting.is_rehearsal else 20, 240 if setting.is_rehearsal else 1500)
    return place


def expected(setting, trial):
    count = trial.tiny_trials if setting.is_rehearsal and trial.tiny_trials else trial.trials
    return Expected(setting.device, count, **(trial.expected | (trial.tiny_expected if setting.is_rehearsal else {})))


def trial_part(name, label=None, *more):
    """A part that runs a trial and checks its tables."""

    def part(setting):
        trial = TRIALS[name]
        if trial.data and not (setting.data / trial.data).is_dir():
            raise Skipped(f"{setting.data} has no {trial.data}/")
        checks = Checks()
        environment = trial.tiny_environment if setting.is_rehearsal else {}
        run = sweep(setting, label or name, trial, *more, **environment)
        check_run(checks, run, expected(setting, trial))
        EXTRA.get(name, lambda *_: None)(setting, checks, run)
        checks.done()

    return part


def tf32(setting):
    """The CPU has no TF32: the rehearsal checks that kiln refuses it."""
    trial = TRIALS["gpt"]
    if not setting.is_rehearsal:
        return trial_part("gpt", "gpt-tf32", "train.precision=tf32")(setting)
    setting.note("tf32 needs a GPU: the rehearsal checks that it is refused on the CPU with status 2")
    command = [str(setting.kiln), "run", str(setting.experiment(trial.experiment)), "--device", "cpu", "--set", "train.precision=tf32"]
    return setting.run([*command, "--results", str(setting.folder("runs", "gpt-tf32"))], folder=work(setting), status=2)


def check_responses(setting, checks, run):
    """Checks that both generation methods wrote a response to each requested prompt."""
    wanted = 4 if setting.is_rehearsal else 16
    for row in run.last_rows():
        path = run.attempt(row) / "responses.jsonl"
        found = len(path.read_text().splitlines()) if path.exists() else 0
        checks.that(found == wanted, f"trial {row['trial']}: {found} responses, expected {wanted}")
        checks.that(0 <= row.number("valid_chrf") <= 1, f"trial {row['trial']}: valid_chrf is {row['valid_chrf']!r}: {row['notes']}")


def check_sample(_, checks, run):
    for row in run.last_rows():
        path = run.attempt(row) / "sample.txt"
        checks.that(path.exists() and path.stat().st_size > 0, f"trial {row['trial']} wrote no text: {row['notes']}")


def check_copies(setting, checks, run):
    """Checks that equal batches give equal losses, whichever memory they come from."""
    losses = {}
    for row in run.last_rows():
        pinned = row["data.pin_memory"]
        losses[pinned] = [step.number("loss") for step in run.steps(row)]
        if setting.is_rehearsal:
            continue
        wanted, found = ("pinned" if pinned == "true" else "pageable"), row["copied_from"]
        checks.that(found == wanted, f"pin_memory {pinned}: copied from {found}, expected {wanted}: {row['notes']}")
    if setting.is_rehearsal:
        setting.note("a CPU copies nothing: which memory batches come from is not checked")
    checks.that(sorted(losses) == ["false", "true"], f"values of data.pin_memory: {sorted(losses)}")
    for step, (one, other) in enumerate(zip(*losses.values(), strict=True), 1):
        # Kernels that add with atomics differ in their last bits from run to run.
        checks.that(math.isclose(one, other, rel_tol=0 if setting.is_rehearsal else 1e-2), f"step {step}: losses {one} and {other}")


# Three steps of a shape come before its recording.
FIRST_REPLAYS = 8


def check_graphs(setting, checks, run):
    """Checks that equal seeds give equal losses, with kernels launched one by one or replayed; notes the speedup of the replay."""
    rows = {row["train.cuda_graph"]: row for row in run.last_rows()}
    checks.that(sorted(rows) == ["off", "on"], f"values of train.cuda_graph: {sorted(rows)}")
    if len(rows) != 2:
        return
    losses = {value: [step.number("loss") for step in run.steps(row)] for value, row in rows.items()}
    for step, (one, other) in enumerate(zip(*losses.values(), strict=True), 1):
        # Later steps magnify the last bits of kernels that add with atomics; a replay that does another thing shows at once.
        near = 0 if setting.is_rehearsal else 1e-3 if step <= FIRST_REPLAYS else 1e-2
        checks.that(math.isclose(one, other, rel_tol=near), f"step {step}: losses {losses['off'][step - 1]} and {losses['on'][step - 1]}")
    notes = rows["on"]["notes"]
    replayed = re.search(r"cuda_graph: (\d+) steps replayed from (CUDA graphs|closures)", notes)
    checks.that(replayed is not None and int(replayed[1]) > 0, f"no step was replayed: {notes}")
    seconds = {value: row.number("median_step_seconds") for value, row in rows.items()}
    setting.note(f"median step {seconds['off'] * 1e3:.3f} ms operator by operator, {seconds['on'] * 1e3:.3f} ms replayed: {seconds['off'] / seconds['on']:.2f} ×")


def check_precisions(_, checks, run):
    """Checks that the first loss, of equal weights and batches, and what the training made of it are nearly those in f32."""
    rows = [row for row in run.last_rows() if row["outcome"] == "completed"]
    losses = {row["precision"]: [step.number("loss") for step in run.steps(row)] for row in rows}
    if "f32" not in losses:
        return
    # A ResNet's norms over few images magnify small differences, and skipped steps leave a training behind.
    is_comparable = {row["precision"]: row["model_kind"] != "resnet" and not row.number("skipped_steps") > 0 for row in rows}
    begun, wanted = losses["f32"][0], moved(losses["f32"])
    for precision, found in losses.items():
        checks.that(math.isclose(found[0], begun, rel_tol=0.05), f"the first loss is {found[0]} in {precision}, and {begun} in f32")
        is_near = abs(moved(found) - wanted) < 0.25 * abs(wanted) + 0.05 * begun
        checks.that(is_near or not is_comparable[precision], f"the loss moves by {moved(found):.4f} in {precision}, and by {wanted:.4f} in f32")


def moved(losses):
    """From the first loss to the mean of the last five."""
    return sum(losses[-5:]) / len(losses[-5:]) - losses[0]


def check_products(setting, checks, run):
    for row in run.last_rows():
        rate = row.number("window_flops") / row.number("window_seconds")
        setting.note(f"matmul {row['precision']}: {rate / 1e12:.3f} TFLOP/s")
        checks.that(rate > 0, f"{row['precision']}: no rate of products")


def check_measured(setting, checks, run):
    """Checks the hardware columns of two trainings of which checkpoints cut one. A CPU has none: the rehearsal plants an H200's."""
    rows = run.last_rows()
    checks.that(len(rows) == 2, f"{len(rows)} rows, expected one without checkpoints and one with them")
    if setting.is_rehearsal:
        setting.note("a CPU has no such readings: planted rows are checked")
        rows = [planted(row) for row in rows]
    for row in rows:
        what = f"checkpoint {row['train.checkpoint'] or 'none'}"
        setting.note(f"{what}: " + ", ".join(f"{column} {row[column] or 'unknown'}" for column in READINGS))
        check_readings(checks, what, row)
    if len(rows) == 2:
        check_energy_of_cuts(setting, checks, *sorted(rows, key=lambda row: row["train.checkpoint"] != ""))


# What the summary tells of each row, whether it is within the limits or not: the limits are tightened by it.
READINGS = (
    "window_seconds", "mean_gpu_utilization", "mean_sm_active", "mean_power_watts", "idle_power_watts", "energy_counter_joules", "energy_integral_joules",
    "data_wait_fraction", "throttled_fraction", "peak_nvml_used_bytes", "peak_reserved_bytes",
)
# Not yet seen on a GPU with checkpoints, whose cuts the driver's counters may not follow at once.
LEAST_UTILIZATION, LEAST_UTILIZATION_OF_CUTS = 0.85, 0.8
MOST_ENERGY_APART = 0.08


def planted(row):
    readings = {
        "window_seconds": "18.0", "window_samples": "8040", "mean_gpu_utilization": "0.98", "mean_sm_active": "0.9", "mean_power_watts": "610.0",
        "energy_counter_joules": "10980.0", "energy_integral_joules": "" if row["train.checkpoint"] else "10900.0", "throttled_fraction": "0.1",
        "peak_nvml_used_bytes": "30000000000", "peak_nvml_process_bytes": "29000000000", "peak_reserved_bytes": "28000000000",
        "peak_allocated_bytes": "27000000000", "max_temperature_celsius": "61.0", "idle_power_watts": "75.0", "mean_sm_clock_megahertz": "1800.0",
        "data_wait_fraction": "0.0", "mean_reading_seconds": "0.005", "power_limit_watts": "700.0",
    }
    notes = "energy_integral_joules: evaluations and checkpoints cut the window into 4 pieces" if row["train.checkpoint"] else ""
    return type(row)({**row, **readings, "notes": notes}, row.table)


def check_readings(checks, what, row):
    checks.that(row.number("window_seconds") > 8, f"{what}: a window of {row['window_seconds']} s is too short for its readings")
    power, limit = row.number("mean_power_watts"), row.number("power_limit_watts")
    checks.that(row.number("idle_power_watts") < power <= 1.05 * limit, f"{what}: mean power {power} W, idle {row['idle_power_watts']} W, limit {limit} W")
    counted = row.number("energy_counter_joules")
    if row["energy_integral_joules"]:  # Else the mean power is that of the counter.
        integrated = row.number("energy_integral_joules")
        checks.that(math.isclose(counted, integrated, rel_tol=0.05), f"{what}: {counted} J by the counter, {integrated} J by the power readings")
    least = LEAST_UTILIZATION_OF_CUTS if row["train.checkpoint"] else LEAST_UTILIZATION
    checks.that(row.number("mean_gpu_utilization") > least, f"{what}: utilization is {row['mean_gpu_utilization']!r}: {row['notes']}")
    is_told = "mean_sm_active:" in row["notes"]
    checks.that(row.number("mean_sm_active") > 0.3 or is_told, f"{what}: mean_sm_active is {row['mean_sm_active']!r}: {row['notes']}")
    used, reserved = row.number("peak_nvml_used_bytes"), row.number("peak_reserved_bytes")
    checks.that(used >= reserved, f"{what}: {used:.0f} B used on the device, {reserved:.0f} B reserved by the allocator")
    checks.that(row.number("data_wait_fraction") < 0.1, f"{what}: it waits for data: {row['data_wait_fraction']}")
    checks.that(0 <= row.number("throttled_fraction") <= 1, f"{what}: throttled_fraction is {row['throttled_fraction']!r}")


def check_energy_of_cuts(setting, checks, whole, cut):
    """What checkpoints cut out of the window costs no energy in it: a sample needs as much as without them."""
    per_sample = [row.number("energy_counter_joules") / row.number("window_samples") for row in (whole, cut)]
    apart = per_sample[1] / per_sample[0] - 1
    told = f"joules per sample: {per_sample[0]:.4f} without checkpoints, {per_sample[1]:.4f} with them"
    setting.note(f"{told}, {apart:+.1%}")
    checks.that(abs(apart) < MOST_ENERGY_APART, told)
    checks.that(whole["energy_integral_joules"] != "", f"no integral of power without checkpoints: {whole['notes']}")
    checks.that("energy_integral_joules:" in cut["notes"], f"the integral of pieces of some seconds is {cut['energy_integral_joules']!r}: {cut['notes']}")


EXTRA = {
    "seq2seq": check_responses, "chatlm": check_responses, "mlp": check_sample, "shakespeare": check_sample, "copies": check_copies,
    "products": check_products, "measured": check_measured, **{name: check_graphs for name in TRIALS if name.startswith("graphs-")},
    **{name: check_precisions for name in TRIALS if name.startswith("precisions-")},
}


def calibrate(setting):
    """Measures the peak of matrix products, which MFU refers to; it is stored in the cache beside the results."""
    command = [str(setting.kiln), "calibrate"]
    command += ["--device", "cpu", "--cpu-threads", "1"] if setting.is_rehearsal else []
    said = setting.run(command)
    checks = Checks()
    wanted = ("f32", "amp-bf16", "amp-f16") if setting.is_rehearsal else ("f32", "tf32", "amp-bf16", "amp-f16")
    for precision in wanted:
        checks.that(any(precision in line.split() for line in said.splitlines()), f"calibrate tells nothing of {precision}")
    checks.that(peaks(setting).exists(), f"{peaks(setting)} was not written")
    if peaks(setting).exists():
        check_peaks(setting, checks, json.loads(peaks(setting).read_text()))
    checks.done()


def check_peaks(setting, checks, kept):
    """Checks that f32 is not TF32 in disguise and that mixed precision is as much faster as tensor cores are."""
    found = {peak["precision"]: peak["flops"] for peak in kept["peaks"]}
    setting.note("peaks in TFLOP/s: " + ", ".join(f"{name} {flops / 1e12:.3f}" for name, flops in sorted(found.items())))
    for precision in ("f32", "amp-bf16", "amp-f16"):
        checks.that(found.get(precision, 0) > 0, f"peaks.json has no peak of {precision}: {sorted(found)}")
    if setting.is_rehearsal:
        found = {"f32": 52e12, "tf32": 360e12, "amp-bf16": 700e12}
    single, tensor, half = (found.get(precision, math.nan) for precision in ("f32", "tf32", "amp-bf16"))
    checks.that(single < 0.5 * tensor, f"f32 has {single:.3g} FLOP/s beside {tensor:.3g} in tf32")
    checks.that(half > 1.3 * tensor, f"amp-bf16 has {half:.3g} FLOP/s beside {tensor:.3g} in tf32")


def peaks(setting):
    return setting.folder("cache") / "kiln" / "peaks.json"


def mfu(setting):
    if not peaks(setting).exists():
        calibrate(setting)
    trial = TRIALS["gpt2-124m"]
    run = sweep(setting, "mfu", trial)
    checks = Checks()
    check_run(checks, run, dataclasses.replace(expected(setting, trial), copies=False))
    rows = run.last_rows()
    if not rows:
        raise Failed("no row")
    check_mfu(checks, rows[0], setting.device)
    setting.note(f"GPT-2 124M {rows[0]['precision']}, batch {rows[0]['batch_size']}: {rows[0]['tokens_per_second']} tokens/s, mfu {rows[0]['mfu']}")
    checks.done()
