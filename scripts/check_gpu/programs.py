"""Parts that run the tests of kiln-trial on the device, and the speed programs."""

import csv
import glob
import json
import math
import os
import pathlib
import re
import shutil
import sys

from check_gpu.setting import Checks, Failed, Skipped
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
        ("checkpoint::a_checkpoint_to_continue", "engine flex"),
        ("checkpoint::an_attempt_after_an_early_stop", "engine flex"),
        ("engine::tf32_is_refused_on_the_cpu", "the CPU"),
        ("kernels::", "the CPU, and a compiler"),
        ("operators::a_step_asks_for_as_many", "the CPU's operators by the ways meant for CUDA"),
        ("operators::buckets_of_positions", "the CPU's copies, of which CUDA's are other operators"),
        ("trial::the_command_line", "no device"),
    ),
    "alone": (
        ("checkpoint::stopped_trials_on_flex", "engine flex"),
        ("checkpoint::continued_trials_on_flex", "engine flex"),
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


# Tests that have parts of their own, and how these parts are called.
OTHER_PARTS = tuple(
    (f"{group}::", f"a part of its own, tests-{part}")
    for group, part in (("parity", "parity"), ("operations", "operations"), ("amp", "precision"), ("engine", "precision"), ("checkpoint", "checkpoint"))
)


def test_part(program, group, filters, done=()):
    """A part that runs the tests of a program whose names begin with one of `filters` (all tests if there are no filters), but for those of other
    parts, `done`."""

    def part(setting):
        wanted = REHEARSED[group] if setting.is_rehearsal else filters
        leave_out = [] if setting.is_rehearsal else [*NOT_ON_CUDA[program], *done]
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


# kiln's kernels beside the loss that a step must have: of a GPT's blocks, and of a ResNet's batch norms.
KERNELS_OF_BLOCKS = ("layer_norm_forward", "layer_norm_backward", "gelu_backward", "heads_side_by_side")
KERNELS_OF_BATCH_NORMS = ("norm_statistics", "norm_apply", "norm_backward_sums", "norm_backward_apply")


def rehearsed_totals(own):
    """What kernels.cpp would have written of two steps."""
    lines = ["2\t3000\tloss_forward", "2\t50000\tvoid at::native::some_kernel<float, 4>(int)", "1\t500\tmemcpy", *(f"4\t10000\t{name}" for name in own)]
    return "".join(f"{line}\n" for line in lines)


def kernels_part(case, tiny_case, own):
    """A part that adds up, with CUPTI, how long each kernel of a training step of kiln takes on the GPU. `own` are kiln's kernels beside the loss that it
    must have."""

    def part(setting):
        totals = setting.folder("kernels") / f"{case}.txt"
        cases, device = setting.file("benches", "step-speed-real.json"), setting.device
        if setting.is_rehearsal:
            setting.run([*setting.program("step-speed"), cases, tiny_case, "f32", "1", device])
            totals.write_text(rehearsed_totals(own))
            setting.note("no kernel was traced")
        else:
            library = traced_by(setting)
            command = [*setting.program("step-speed"), cases, case, "amp-bf16", "4", device]
            setting.run(command, CUDA_INJECTION64_PATH=str(library), KILN_KERNELS=str(totals))
            if not totals.exists():
                raise Failed(f"CUDA's driver did not load {library}, or it wrote no {totals}")
        checks = Checks()
        kernels = kernels_of_a_step(totals.read_text(), checks)
        there = {name for _, _, name in kernels}
        for name in own:
            checks.that(name in there, f"no {name} among the kernels: kiln's own was not used")
        with (setting.folder("tables") / f"kernels-{case}.csv").open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["program", "model", "kernel", "count", "microseconds"])
            table.writerows(["kiln", case, name, f"{count:.2f}", f"{microseconds:.1f}"] for count, microseconds, name in kernels)
        # The first copies bring the weights to the device, and are of no step.
        computing = [kernel for kernel in kernels if kernel[2] not in ("memcpy", "memset")]
        setting.note(f"{case}: {sum(microseconds for _, microseconds, _ in computing) / 1e3:.2f} ms of kernels a step")
        for count, microseconds, name in computing[:20]:
            setting.note(f"{microseconds:9.1f} us a step, {count:g} times: {name[:90]}")
        checks.done()

    return part


def kernels_of_a_step(totals, checks):
    """The number, microseconds and name of each kernel of one step, the longest first, from what kernels.cpp wrote of all steps."""
    lines = [line.split("\t", 2) for line in totals.splitlines()]
    for count, _, name in lines:
        checks.that(count != "fault", f"CUPTI: {name}")
    found = [(int(count), int(nanoseconds) / 1e3, name) for count, nanoseconds, name in lines if count != "fault"]
    # There is one a step if the program trains with kiln's own kernels, and none if NVRTC failed.
    steps = next((count for count, _, name in found if name == "loss_forward"), 0)
    checks.that(steps > 0, "no loss_forward among the kernels: kiln's own were not used")
    if not steps:
        checks.done()
    return sorted(((count / steps, microseconds / steps, name) for count, microseconds, name in found), key=lambda kernel: -kernel[1])


def traced_by(setting):
    """kernels.cpp, compiled against the CUPTI of this host."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if not compiler:
        raise Skipped("no C++ compiler to build the library that CUPTI calls")
    folders = [pathlib.Path("/usr/local/cuda"), pathlib.Path("/usr/local/cuda/extras/CUPTI"), *map(pathlib.Path, glob.glob("/usr/local/cuda-*"))]
    python = setting.python_with_torch()
    if python:
        packages = pathlib.Path(setting.run([python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"]).strip()).parents[1]
        folders += [*packages.glob("nvidia/*"), packages / "triton/backends/nvidia"]
    headers = next((folder / "include" for folder in folders if (folder / "include" / "cupti.h").is_file()), None)
    found = (library for folder in folders for place in ("lib64", "lib", "lib/cupti") for library in (folder / place).glob("libcupti.so*"))
    # Triton's, which is older, comes last.
    cupti = next(found, None)
    if not headers or not cupti:
        raise Skipped(f"no CUPTI (cupti.h: {headers}, libcupti.so: {cupti}) in {', '.join(map(str, folders))}")
    # cuda.h may be in another place than cupti.h.
    includes = [word for folder in folders if (folder / "include" / "cuda.h").is_file() for word in ("-I", folder / "include")]
    library = setting.folder("kernels") / "libkernels.so"
    setting.run(
        [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-I", headers, *includes, setting.file("scripts", "check_gpu", "kernels.cpp"), "-o", library, cupti,
         f"-Wl,-rpath,{cupti.parent}"]
    )
    return library


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
