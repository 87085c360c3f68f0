"""Parts that run the tests of kiln-trial on the device, and the speed programs."""

import csv
import json
import math
import os
import re
import shutil
import sys

from check_gpu.setting import Checks, Failed
from check_gpu.trials import peaks

# Tests that concern only the CPU or engine flex, by the beginning of their names; they are skipped on CUDA.
NOT_ON_CUDA = {
    "suite": (
        ("loader::", "the loader's threads on the host"),
        ("window::", "engine flex"),
        ("replicas::", "several devices, and one GPU is here"),
        ("checkpoint::on_flex", "engine flex"),
        ("checkpoint::kills_while_checkpoints", "engine flex"),
        ("checkpoint::a_torn_checkpoint", "engine flex"),
        ("checkpoint::a_checkpoint_of_another_model", "engine flex"),
        ("checkpoint::the_best_stays", "engine flex"),
        ("engine::tf32_is_refused_on_the_cpu", "the CPU"),
        ("kernels::", "the CPU, and a compiler"),
        ("operators::a_step_asks_for_as_many", "the CPU's operators by the ways meant for CUDA"),
        ("operators::buckets_of_positions", "the CPU's copies, of which CUDA's are other operators"),
        ("trial::the_command_line", "no device"),
    ),
    "alone": (
        ("checkpoint::stopped_trials_on_flex", "engine flex"),
        ("every_key::", "what a run on the CPU leaves behind"),
        ("pretrained::what_no_shape_shows", "engine flex"),
        ("pretrained::what_is_no_file", "engine flex"),
    ),
}
# The rehearsal runs the shortest of each group; `make test` runs all of them.
REHEARSED = {
    "parity": ["parity::the_first_steps_of_language_models"],
    "precision": ["engine::the_gradient_of_amp_f16"],
    "checkpoint": ["checkpoint::a_checkpoint_of_another_model"],
    "operations": ["operations::"],
    "suite": ["transposed::"],
    "alone": ["generator::"],
}


def test_part(program, group, filters):
    """A part that runs the tests of a program whose names begin with one of `filters` (all tests if there are no filters)."""

    def part(setting):
        wanted = REHEARSED[group] if setting.is_rehearsal else filters
        leave_out = [] if setting.is_rehearsal else NOT_ON_CUDA[program]
        for name, why in leave_out:
            print(f"left out on CUDA: {name}: {why}")
        # One at a time: TF32 is a switch of the process.
        command = [*setting.program(program), "--test-threads", "1", *wanted]
        command += [word for name, _ in leave_out for word in ("--skip", name)]
        said = setting.run(
            command, status=None, KILN_TEST_DEVICE=setting.device, KILN_TEST_FILES=str(setting.home), KILN_TEST_PROGRAMS=programs_folder(setting)
        )
        found = re.search(r"test result: (\w+)\. (\d+) passed; (\d+) failed", said)
        if not found:
            raise Failed(f"{program} ended before its tests did: {said.splitlines()[-1:]}")
        checks = Checks()
        failed = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", said, re.M)))
        checks.that(found.group(1) == "ok", f"{found.group(3)} tests failed: {' '.join(failed)}")
        checks.that(int(found.group(2)) > 0, f"no test of {program} begins with {wanted}")
        setting.note(f"{found.group(2)} tests of {program} passed, {len(leave_out)} names left out")
        checks.done()

    return part


def programs_folder(setting):
    """The folder in which tests find kiln and kiln-trial."""
    return str(setting.home if setting.is_bundle else setting.kiln.resolve().parent)


# Speed -------------------------------------------------------------------------------------------------------------------------------


OWN_PROGRAMS = "kiln kiln-graphs"


def speed_part(case, tiny_case, rehearsed=f"{OWN_PROGRAMS} eager"):
    """A part that measures kiln, operator by operator and by graphs, PyTorch and torch.compile in turns on
    one case of real size; the rehearsal leaves out programs that compile for a minute."""

    def part(setting):
        programs = chosen_programs(setting, case, rehearsed)
        table = setting.folder("tables") / f"speed-{case}.csv"
        name = tiny_case if setting.is_rehearsal else case
        said = setting.run([setting.file("benches", "against-pytorch.sh"), table], **choices(setting, name, programs))
        checks = Checks()
        with table.open(newline="") as read:
            rows = list(csv.DictReader(read))
        left_out = re.findall(rf"^left out: {name} in \S+ through torch\.(\w+)", said, re.M)
        for program in programs.split():
            own = [row for row in rows if row["program"] == program]
            checks.that(own or program in left_out, f"no row of {program}")
            for row in own:
                checks.that(float(row["step_seconds"]) > 0 and int(row["peak_memory_bytes"]) > 0, f"{program}: {row}")
                checks.that(row["device"] == setting.device, f"{program} ran on {row['device']}")
                checks.that(math.isfinite(float(row["loss"])), f"{program}: its loss is {row['loss']}")
        printed = [line for line in said.splitlines() if line.startswith((name, "left out"))]
        checks.that(any(line.startswith(name) for line in printed), f"the table of ratios has no line of {name}")
        for line in printed:
            setting.note(" ".join(line.split()))
        checks.done()

    return part


def chosen_programs(setting, case, rehearsed):
    python = setting.python_with_torch()
    if not python:
        setting.note("no Python with torch: kiln alone")
        return OWN_PROGRAMS
    if case.startswith("t5") and setting.run([python, "-c", "import importlib.util as u; print(bool(u.find_spec('transformers')))"]).strip() != "True":
        setting.note("no transformers: kiln alone")
        return OWN_PROGRAMS
    wanted = rehearsed if setting.is_rehearsal else f"{OWN_PROGRAMS} eager compile"
    # torch.compile generates C++ on the CPU, and a launcher in C for each kernel on a GPU.
    if "compile" in wanted and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "gcc", "cc"))):
        setting.note("no C++ compiler for torch.compile: kiln and eager alone")
        return f"{OWN_PROGRAMS} eager"
    return wanted


def choices(setting, name, programs):
    """The variables of against-pytorch.sh; on a GPU those of the environment take precedence."""
    found = {"PRECISIONS": "f32", "ROUNDS": "1", "THREADS": "1"}
    if not setting.is_rehearsal:
        found = {"PRECISIONS": "amp-bf16", "ROUNDS": "2", "THREADS": "4"}
        found = {key: os.environ.get(key, value) for key, value in found.items()}
    peak = peak_of(setting, found["PRECISIONS"].split()[0])
    return found | {
        "MODELS": name, "PROGRAMS": programs, "DEVICE": setting.device, "PYTHON": setting.python_with_torch() or sys.executable,
        "CASES": str(setting.file("benches", "step-speed-real.json")), "STEP_SPEED": "\n".join(setting.program("step-speed")),
        "PEAK_TFLOPS": f"{peak / 1e12:.3f}" if peak else "",
        # torch.compile's cache is not the user's own, and the second round reuses it.
        "TORCHINDUCTOR_CACHE_DIR": str(setting.folder("cache", "inductor")),
    }


def peak_of(setting, precision):
    """The peak that `kiln calibrate` measured, if it has run."""
    path = peaks(setting)
    measured = json.loads(path.read_text())["peaks"] if path.exists() else []
    return next((peak["flops"] for peak in measured if peak["precision"] == precision), None)
