"""What kiln has CUDA do, read from the trace of a CUDA that does nothing. See check-cuda-calls.sh.

The calls of one step are the difference between two trials that differ in their number of steps alone."""

import collections
import contextlib
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys

from check_gpu import generated
from check_gpu.setting import Checks

PRECISIONS = ["f32", "tf32", "amp-bf16", "amp-f16", "bf16"]
EXPERIMENTS = ["gpt", "lstm", "panel-lstm", "mlp", "resnet18", "resnet50", "seq2seq"]
# Axes of an experiment, of which one value is enough here.
ONE_VALUE = {"lstm": ["sweep.grid=null"], "seq2seq": ["sweep.grid=null", "train.evaluate.generate.beams=2"]}
FEW, MANY = 20, 60
# Tensors that go to the device in a step: those of a batch, for each of a T5's two.
BATCH_TENSORS = {"panel-lstm": 3, "seq2seq": 8}
# Recorded parts that are replayed in a step: a first batch, further ones, the update.
PARTS = {"seq2seq": 3}
# Losses are read together, here once in a trial.
LOG_EVERY = "measure.log_every=1000"
# Launches of a step from graphs: replays, and what brings the batch, the rate and the states to their places. A T5 has two batches of four.
MOST_BESIDE_GRAPHS = 20
# Blocks of steps that step-speed and PyTorch's program make.
BLOCKS = 5
# Steps of such a block, and runs of each program, in turns, that the host's time is taken of.
HOST_STEPS, HOST_ROUNDS = 40, 3
GIB = 1 << 30


class Trace:
    """The calls of one process, by kind."""

    def __init__(self, path):
        self.lines = [line.rstrip("\n").split("\t") for line in path.read_text().splitlines()]

    def count(self):
        """How often each kind of call was made that a step might make."""
        counted = collections.Counter()
        has_waited = False
        for kind, *what in self.lines:
            # Times of past steps are read together: work after such a wait would have been held up by it.
            if kind in ("kernel", "product", "cudnn", "graph"):
                counted["work after a wait"] += has_waited
            is_wait = kind == "wait" and what[0] != "earlier event"
            if kind in ("kernel", "product", "cudnn", "graph") or is_wait:
                has_waited = is_wait
            if kind == "copy":
                counted[f"copy from {what[0]} to {what[1]}"] += 1
            elif kind in ("wait", "fault"):
                counted[f"{kind} {what[0]}"] += 1
            elif kind == "product":
                counted[f"product of {what[1]}"] += 1
            elif kind == "cudnn":
                counted[f"cudnn {' '.join(what)}"] += 1
            elif kind not in ("captured", "event", "unknown"):
                counted[kind] += 1
        return counted

    def faults(self):
        return [" ".join(what) for kind, *what in self.lines if kind == "fault"]

    def captured(self):
        return [int(what[0]) for kind, *what in self.lines if kind == "capture"]


def launches(counted):
    """Work that the host starts: kernels, those of libraries, fills and copies on the device. A call of cuBLAS or cuDNN is one."""
    own = ("kernel", "fill", "graph", "nccl", "copy from device to device")
    return sum(count for kind, count in counted.items() if kind in own or kind.startswith(("product", "cudnn")))


class Stub:
    """Starts programs on the stub; `work` has it, and keeps data, traces and results."""

    def __init__(self, kiln, packages, work):
        self.kiln, self.packages, self.work, self.runs = kiln, packages, work, 0
        self.experiments = pathlib.Path("tests/experiments/gpu").resolve()
        # A path of an experiment's data is relative to the folder in which kiln is started.
        generated.pairs(work / "pairs", 300)
        generated.panel(work / "panel", 6, 400)

    def environment(self, trace, **more):
        libraries = [str(self.work), str(self.packages / "torch" / "lib")]
        own = {
            "LD_PRELOAD": str(self.work / "libcuda.so.1"), "LD_LIBRARY_PATH": ":".join(libraries), "STUB_CUDA_TRACE": str(trace / "trace"),
            "XDG_CACHE_HOME": str(self.work / "cache"), "KILN_LOCKS": str(self.work / "locks"), "LC_ALL": "C",
        }
        return {**os.environ, **own, **more}

    def python_path(self):
        return os.pathsep.join([str(self.packages), os.environ.get("PYTHONPATH", "")])

    def folder(self):
        self.runs += 1
        made = self.work / str(self.runs)
        made.mkdir()
        return made

    def run(self, command, folder, **more):
        done = subprocess.run(
            command, env=self.environment(folder, **more), cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, timeout=600, check=False,
        )
        # Programs that start none of CUDA's have empty traces.
        traces = [Trace(path) for path in sorted(folder.glob("trace.*")) if path.stat().st_size > 0]
        return done, traces

    @contextlib.contextmanager
    def nvml(self, change):
        """NVML tells what `change` makes of its scenario."""
        scenario = self.work / "libnvidia-ml.so.1.yaml"
        before = scenario.read_text()
        scenario.write_text(change(before))
        yield
        scenario.write_text(before)

    def trials(self, name, sets, **more):
        """Runs an experiment. Returns its rows in the order of the plan, the traces of its trials, and what the trials wrote to
        standard error."""
        folder = self.folder()
        words = [word for text in (*ONE_VALUE.get(name, ()), LOG_EVERY, *sets) for word in ("--set", text)]
        command = [self.kiln, "run", self.experiments / f"{name}.yaml", "--fresh", "--progress", "plain", "--results", folder / "results", *words]
        done, traces = self.run(command, folder, **more)
        tables = list(folder.glob("results/*/*/trials.csv"))
        if not tables:
            sys.exit(f"`{' '.join(map(str, command))}` left no table: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        with tables[0].open(newline="") as table:
            rows = list(csv.DictReader(table))
        said = "".join(path.read_text() for path in sorted(tables[0].parent.glob("trials/*/*/stderr.txt")))
        return rows, traces, said


def per_step(few, many, steps):
    """Counts of one step, without those that are the same in both."""
    return {kind: (many[kind] - few[kind]) / steps for kind in set(few) | set(many) if many[kind] != few[kind]}


def one_trial(stub, checks, name, precision, sets, where, **more):
    """The calls of one step, the last trial's row and its trace; checks what holds of every trial."""
    counted = []
    for steps in (FEW, MANY):
        rows, traces, said = stub.trials(name, [f"train.precision={precision}", f"train.steps={steps}", *sets], **more)
        row, trace = rows[0], traces[0] if len(traces) == 1 else None
        checks.that(row["outcome"] == "completed", f"{where}: {row['outcome']}: {row['reason']}")
        checks.that(trace is not None, f"{where}: {len(traces)} programs called CUDA")
        if trace is None:
            return {}, row, None
        checks.that(not trace.faults(), f"{where}: {trace.faults()[:3]}")
        checks.that(not said, f"{where}: standard error has {said[:300]!r}")
        counted.append(trace.count())
    return per_step(*counted, MANY - FEW), row, trace


def reads(step):
    """Copies to the host, and waits for the device that hold the host up."""
    return sum(count for kind, count in step.items() if kind.startswith("copy from device to p") or kind == "work after a wait")


def operator_by_operator(stub, checks, table, name):
    for precision in PRECISIONS:
        where = f"{name} in {precision}"
        step, row, trace = one_trial(stub, checks, name, precision, [], where)
        if trace is None:
            continue
        checks.that(launches(step) > 10, f"{where}: a step starts {launches(step)} kernels")
        checks.that(launches(step) % 1 == 0, f"{where}: steps differ: {launches(step)} kernels on average")
        checks.that(reads(step) == 0, f"{where}: a step reads or waits {reads(step)} times: {step}")
        checks.that(step.get("copy from pageable to device", 0) == 0, f"{where}: copies from pageable memory: {step}")
        checks.that(step.get("allocate", 0) == 0, f"{where}: a step allocates: {step}")
        narrow = precision not in ("f32", "tf32")
        # A product of f32 in a narrow format would be one that was forgotten: libtorch's attention without a fused kernel, for one.
        wide = {kind: count for kind, count in step.items() if kind.startswith("product of ") and kind.endswith("f32")}
        own = set() if narrow else {f"product of {precision}"}
        checks.that(set(wide) == own, f"{where}: {wide}")
        # Batch norms have none in any precision, and do not say so.
        layers = [kind for kind in trace.count() if kind.startswith("cudnn") and "Normalization" not in kind]
        wrong = sorted(kind for kind in layers if ("without tensor cores" in kind) != (precision == "f32"))
        checks.that(not wrong, f"{where}: {wrong}")
        copies = step.get("copy from pinned to device", 0)
        checks.that(copies == BATCH_TENSORS.get(name, 2), f"{where}: {copies} tensors go to the device")
        table.append(("trial", name, precision, "kiln", launches(step), copies, reads(step), row["peak_allocated_bytes"], ""))


def from_graphs(stub, checks, table, name):
    """Returns the number of operations of the first recorded part, by precision."""
    recorded = {}
    for precision in ("f32", "amp-bf16", "amp-f16"):
        where = f"{name} in {precision}, from graphs"
        step, row, trace = one_trial(stub, checks, name, precision, ["train.cuda_graph=on"], where)
        if trace is None or not trace.captured():
            checks.that(trace is None, f"{where}: nothing was captured")
            continue
        checks.that("replayed" in row["notes"] and "operator by operator" not in row["notes"], f"{where}: notes are {row['notes']}")
        checks.that(step.get("graph", 0) == PARTS.get(name, 2), f"{where}: {step}")
        checks.that(launches(step) % 1 == 0 and launches(step) <= MOST_BESIDE_GRAPHS, f"{where}: a step starts {launches(step)}: {step}")
        checks.that(reads(step) == 0, f"{where}: a step reads or waits {reads(step)} times: {step}")
        table.append(("trial", name, precision, "kiln-graphs", launches(step), "", reads(step), row["peak_allocated_bytes"], f"captures of {' + '.join(map(str, trace.captured()))}"))
        recorded[precision] = trace.captured()[0]
    return recorded


def not_recordable(stub, checks, name, recorded):
    """A step that cannot be recorded is trained operator by operator, whatever the failed capture left behind."""
    for precision in recorded.keys() & {"f32", "amp-f16"}:
        sets = [f"train.precision={precision}", f"train.steps={FEW}", "train.cuda_graph=on"]
        # In the forward pass, in the backward pass, and in the next part: the update, or a further batch.
        for place in ("1:5", f"1:{recorded[precision] - 3}", "2:0"):
            where = f"{name} in {precision}, which cannot be recorded at {place}"
            rows, traces, _ = stub.trials(name, sets, STUB_CUDA_CAPTURE=place)
            checks.that(rows[0]["outcome"] == "completed", f"{where}: {rows[0]['outcome']}: {rows[0]['reason']}")
            checks.that("operator by operator because" in rows[0]["notes"], f"{where}: notes are {rows[0]['notes']}")
            faults = [trace.faults() for trace in traces]
            checks.that(faults == [["an operation that may not be captured"]], f"{where}: {faults}")


def too_large_to_record(stub, checks, table):
    """A graph for which there is room once what the steps before it cached is given back, and one beside which there is none for an evaluation."""
    sets = ["train.steps=12", "train.cuda_graph=on"]
    for gib, words in ((9, "8 steps replayed from CUDA graphs"), (8, "operator by operator because")):
        where = f"a graph in {gib} GiB"
        rows, traces, _ = stub.trials("gpt2-124m", sets, STUB_CUDA_MEMORY=str(gib * GIB))
        checks.that(rows[0]["outcome"] == "completed", f"{where}: {rows[0]['outcome']}: {rows[0]['reason']}")
        checks.that(words in rows[0]["notes"], f"{where}: notes are {rows[0]['notes']}")
        checks.that(not traces[0].faults(), f"{where}: {traces[0].faults()[:3]}")
        table.append(("memory", "gpt2-124m", "amp-bf16", "kiln-graphs", "", "", "", "", rows[0]["notes"].split(";")[0]))


def out_of_memory(stub, checks, table):
    """A batch that does not fit, and one after it; with an NVML that answers libtorch, and, as on a part of a GPU, one that does not."""
    sets = ["sweep.grid.train.batch_size=[4, 64, 8]"]
    for answer, words in (("    nvmlDeviceGetComputeRunningProcesses: []\n", "asked for "), ("", "NVML does not answer")):
        with stub.nvml(lambda text: text.replace("    nvmlDeviceGetComputeRunningProcesses: []\n", answer)):
            rows, traces, _ = stub.trials("oom-ladder", sets, STUB_CUDA_MEMORY=str(16 * GIB))
        outcomes = [row["outcome"] for row in rows]
        checks.that(outcomes == ["completed", "oom", "completed"], f"out of memory: {outcomes}: {[row['reason'] for row in rows]}")
        checks.that(words in rows[1]["reason"], f"out of memory: {rows[1]['reason']}")
        checks.that(not any(trace.faults() for trace in traces), f"out of memory: {[trace.faults()[:3] for trace in traces]}")
        table.append(("memory", "gpt2-124m", "amp-bf16", "kiln", "", "", "", "", rows[1]["reason"]))


def other_devices(stub, checks, table):
    """GPUs with other kernels: without bf16, with less shared memory, newer."""
    for capability in (75, 80, 86, 120):
        for name in EXPERIMENTS:
            for precision in PRECISIONS:
                where = f"{name} in {precision} on compute capability {capability / 10}"
                sets = [f"train.precision={precision}", "train.steps=4"]
                rows, traces, said = stub.trials(name, sets, STUB_CUDA_CAPABILITY=str(capability))
                if (capability, precision) == (75, "tf32"):
                    checks.that("needs a GPU of compute capability 8.0" in rows[0]["reason"], f"{where}: {rows[0]['outcome']}: {rows[0]['reason']}")
                    continue
                checks.that(rows[0]["outcome"] == "completed", f"{where}: {rows[0]['outcome']}: {rows[0]['reason']}")
                checks.that(len(traces) == 1 and not traces[0].faults() and not said, f"{where}: {[trace.faults()[:3] for trace in traces]}, {said[:300]!r}")


def several_devices(stub, checks, table):
    """A trial on two: gradients are added up on the devices, and nothing waits."""
    eight = pathlib.Path("tests/scenarios/8-h100.yaml").read_text()
    for name in ("gpt", "resnet18"):
        for precision in ("f32", "amp-bf16"):
            where = f"{name} in {precision} on two devices"
            with stub.nvml(lambda _: eight):
                step, row, trace = one_trial(stub, checks, name, precision, ["run.devices_per_trial=2"], where, STUB_CUDA_DEVICES="2")
            if trace is not None:
                checks.that(step.get("nccl", 0) >= 2, f"{where}: {step}")
                checks.that(reads(step) == 0, f"{where}: a step reads or waits {reads(step)} times: {step}")
                table.append(("two devices", name, precision, "kiln", launches(step), "", reads(step), row["peak_allocated_bytes"], f"{step.get('nccl', 0)} sums"))


def races(stub, checks):
    """The stub finds a host that touches memory too early: without that, no fault in a trial would mean nothing."""
    program = pathlib.Path("scripts/cuda_stub/races.py").resolve()
    for name, early, late in (("there", "5.0", "1.0"), ("back", "0.0", "1.0"), ("back_on_another_stream", "0.0", "1.0")):
        for order, value, faults in (("waits", late, 0), ("does not wait", early, 1)):
            done, traces = stub.run([sys.executable, "-W", "ignore", program, name, order], stub.folder(), PYTHONPATH=stub.python_path())
            checks.that(done.stdout.strip() == value, f"a host that {order}, {name}: {done.stdout}{done.stderr[-300:]}")
            found = [trace.faults() for trace in traces]
            checks.that([len(texts) for texts in found] == [faults], f"a host that {order}, {name}: {found}")


def sized_run(stub, file, name, precision, program, **more):
    """Steps of a case of real size, by kiln's program (`kiln`, `kiln-graphs`) or PyTorch's."""
    command = [pathlib.Path(stub.kiln).parent / "examples" / "step-speed"]
    if not program.startswith("kiln"):
        command = [sys.executable, "-W", "ignore", pathlib.Path("benches/pytorch_models.py").resolve(), program]
        more["PYTHONPATH"] = stub.python_path()
    graphs = ["--graphs"] if program == "kiln-graphs" else []
    return stub.run([*command, file, name, precision, "2", "cuda", *graphs], stub.folder(), STUB_CUDA_MEMORY=str(140 * GIB), **more)


def sized_step(stub, checks, files, name, precision, program, steps):
    """The calls of one step of a case of real size, and the allocator's peak in bytes; `None` if the program failed."""
    where, counted = f"{name} in {precision}, {program}", []
    for file in files:
        done, traces = sized_run(stub, file, name, precision, program)
        checks.that(done.returncode == 0 and len(traces) == 1, f"{where}: {done.stderr[-300:]}")
        if done.returncode != 0 or len(traces) != 1:
            return None
        checks.that(not traces[0].faults(), f"{where}: {traces[0].faults()[:3]}")
        counted.append(traces[0].count())
    return per_step(*counted, steps), int(done.stdout.splitlines()[-1].split(",")[4])


def real_sizes():
    cases = json.loads(pathlib.Path("benches/step-speed-real.json").read_text())
    return {name: case for name, case in cases.items() if not name.startswith("tiny-")}


def has_transformers():
    return subprocess.run([sys.executable, "-c", "import transformers"], capture_output=True, check=False).returncode == 0


def host_times(stub, place):
    """Seconds that the host takes for a step, on a device that takes none."""
    rows, file = [], stub.work / "cases-host.json"
    # Most of an image model's would be the copies of its batches, which the stub makes on the host.
    cases = {name: dict(case, block_steps=HOST_STEPS) for name, case in real_sizes().items() if "images" not in case}
    file.write_text(json.dumps(cases))
    for name, case in cases.items():
        programs = ["kiln", "kiln-graphs"] + (["eager"] if "pairs" not in case or has_transformers() else [])
        for precision in ("f32", "amp-bf16"):
            found = {program: [] for program in programs}
            for _ in range(HOST_ROUNDS):
                for program in programs:
                    done, _ = sized_run(stub, file, name, precision, program, STUB_CUDA_TRACE="", STUB_CUDA_INSTANT="1")
                    if done.returncode != 0:
                        sys.exit(f"{name} in {precision}, {program}: {done.stderr[-300:]}")
                    found[program].append(statistics.median(float(line.split(",")[1]) for line in done.stdout.splitlines()))
            for program, seconds in found.items():
                rows.append((name, precision, program, *(f"{figure(seconds) * 1e3:.3f}" for figure in (statistics.median, min, max))))
                print(f"{name} in {precision}, {program}: {rows[-1][3]} ms of the host a step", file=sys.stderr)
    write(place, ("model", "precision", "program", "host_ms_per_step", "lowest_round", "highest_round"), rows)


def write(place, columns, rows):
    with open(place, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def beside_pytorch(stub, checks, table):
    """Kernels and memory of a step at real sizes."""
    cases = real_sizes()
    files = [stub.work / f"cases-{times}.json" for times in (1, 2)]
    for times, file in enumerate(files, 1):
        file.write_text(json.dumps({name: dict(case, block_steps=case["block_steps"] * times) for name, case in cases.items()}))
    for name, case in cases.items():
        programs = ["kiln", "eager"]
        if "pairs" in case and not has_transformers():
            print(f"skipped: {name} in PyTorch (`{sys.executable}` has no transformers)", file=sys.stderr)
            programs.remove("eager")
        for precision in ("f32", "amp-bf16"):
            found = {}
            for program in programs:
                measured = sized_step(stub, checks, files, name, precision, program, BLOCKS * case["block_steps"])
                if measured is not None:
                    step, peak = measured
                    found[program] = (launches(step), peak)
                    table.append(("size", name, precision, program, round(launches(step), 2), "", round(reads(step), 2), peak, ""))
            if len(found) == 2:
                (own, own_memory), (other, other_memory) = found["kiln"], found["eager"]
                checks.that(own_memory <= other_memory * 1.01, f"{name} in {precision}: {own_memory} B at the most, PyTorch {other_memory}")
                print(f"{name} in {precision}: {own:.0f} kernels a step, PyTorch {other:.0f}; {own_memory / GIB:.2f} GiB, PyTorch {other_memory / GIB:.2f}", file=sys.stderr)


def main():
    kiln, packages, work, place, *of_host = sys.argv[1:]
    stub, checks, table = Stub(kiln, pathlib.Path(packages), pathlib.Path(work)), Checks(), []
    models = os.environ.get("MODELS", "").split()
    unknown = set(models) - set(EXPERIMENTS)
    if unknown:
        sys.exit(f"MODELS names {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    for name in models or EXPERIMENTS:
        operator_by_operator(stub, checks, table, name)
        recorded = from_graphs(stub, checks, table, name)
        not_recordable(stub, checks, name, recorded)
    if not models:
        out_of_memory(stub, checks, table)
        too_large_to_record(stub, checks, table)
        other_devices(stub, checks, table)
        several_devices(stub, checks, table)
        races(stub, checks)
        beside_pytorch(stub, checks, table)
    columns = ("kind", "model", "precision", "program", "launches", "copies_from_host", "reads_and_waits", "peak_allocated_bytes", "evidence")
    write(place, columns, table)
    for file in of_host if not models else ():
        host_times(stub, file)
    print(f"check-cuda-calls: {checks.made} checks, {len(checks.faults)} failed; {place}", file=sys.stderr)
    sys.exit(1 if checks.faults else 0)


main()
