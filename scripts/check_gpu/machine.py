"""Parts that examine the machine: versions, `kiln doctor`, `kiln-trial --examine`, `kiln snapshot` beside nvidia-smi,
`kiln watch` under load."""

import csv
import io
import json
import platform
import shutil
import signal
import subprocess
import time

from check_gpu import captures, trials
from check_gpu.pages import FAULT, KNOWN, MOVING
from check_gpu.setting import Checks, until
from check_gpu.tables import Row

WATCH_LOOKS = 6


def versions(setting):
    """Prints all versions that a reader of the results needs; only kiln's own output can fail."""
    checks = Checks()
    said = setting.run([setting.kiln, "--version"])
    checks.that(said.startswith("kiln "), f"kiln --version says {said!r}")
    said = setting.run([*setting.program("kiln-trial"), "--version"])
    checks.that(said.startswith("kiln-trial "), f"kiln-trial --version says {said!r}")
    python = setting.python_with_torch()
    if python:
        show = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.is_available())"
        said = setting.run([python, "-c", show]).split()
        checks.that(setting.is_rehearsal or said[-1] == "True", f"torch of {python} sees no GPU: {said}")
    else:
        setting.note("no Python with torch was found: speed is measured of kiln alone")
    about = setting.home / "ABOUT"
    print(about.read_text() if setting.is_bundle else "not a bundle")
    print(platform.platform(), platform.libc_ver(), platform.python_version())
    for command in (["nvidia-smi"], ["nvidia-smi", "--version"], ["nvidia-smi", "topo", "-m"], ["nvcc", "--version"], ["ldconfig", "-p"], ["lscpu"], ["free", "-g"], ["df", "-h"]):
        if shutil.which(command[0]):
            setting.run(command, status=None)
        else:
            print(f"no {command[0]} here")
    checks.done()


def doctor(setting):
    checks = Checks()
    said = setting.run([setting.kiln, "doctor"], status=None)
    (setting.folder("tables") / "doctor.txt").write_text(said)
    found = json.loads(setting.run([setting.kiln, "doctor", "--json"]))
    states = {}
    for check in found["checks"]:
        states.setdefault(check["name"], []).append((check["state"], check["evidence"]))
    checks.that(found["can_run"] is True, "doctor says that no trial can run")
    products = [said for name, found_of in states.items() if name.startswith("product") for said in found_of]
    checks.that(len(products) >= (2 if setting.is_rehearsal else 4), f"products of doctor: {products}")
    for state, evidence in products:
        checks.that(state == "ok", f"product: {state}: {evidence}")
    if not setting.is_rehearsal:
        checks.that(found["usable_gpus"] >= 1, f"doctor finds {found['usable_gpus']} usable GPUs")
        checks.that(found["problems"] == 0, f"doctor finds {found['problems']} problems; see tables/doctor.txt")
        for name in ("driver", "libtorch", "cuda"):
            checks.that(states.get(name, [("missing", "")])[0][0] == "ok", f"{name}: {states.get(name)}")
    checks.done()


def examine(setting):
    """The child's findings on libtorch, CUDA and matrix products."""
    checks = Checks()
    lines = setting.run([*setting.program("kiln-trial"), "--examine"], CUDA_VISIBLE_DEVICES="" if setting.is_rehearsal else "0").splitlines()
    findings = [json.loads(line) for line in lines]
    kinds = [finding["finding"] for finding in findings]
    checks.that(kinds[:1] == ["build"] and kinds[-1:] == ["done"], f"findings: {kinds}")
    checks.that("product" in kinds and "cuda" in kinds, f"findings: {kinds}")
    build = findings[0]
    checks.that(build["libtorch"]["loaded"] == build["libtorch"]["compiled"], f"another libtorch than it was compiled with: {build['libtorch']}")
    if not setting.is_rehearsal:
        cuda = next((finding for finding in findings if finding["finding"] == "cuda"), {})
        checks.that(cuda.get("devices", 0) >= 1 and not cuda.get("fault"), f"CUDA: {cuda}")
        checks.that(build["libtorch"].get("cudnn"), f"no cuDNN: {build['libtorch']}")
    checks.done()


def snapshot(setting):
    """Takes kiln's page, properties and table and nvidia-smi's, one right after the other; keeps them and compares
    the values that do not change in all forms, and every line and property of the others within a tolerance."""
    driver = {}
    nvidia_smi = ["nvidia-smi"]
    if setting.is_rehearsal:
        driver = setting.fake_driver()
        nvidia_smi = captures.stand_in(setting, driver)
        setting.note("nvidia-smi and the driver are stand-ins with an invented H200")
    taken = captures.take(setting, nvidia_smi, driver)
    checks = Checks()
    captures.compare(checks, taken)
    # Checks the comparison itself: it must fail if one number is changed.
    other = Checks()
    captures.compare(other, captures.with_another_memory(taken))
    checks.that(other.faults, "the comparison did not see that one side has another amount of memory")
    captures.keep(setting, taken)
    differing = list(captures.differences(setting, taken))
    (setting.folder("captures") / "unlike.txt").write_text("".join(f"{kind}: {line}\n" for kind, line in differing))
    for kind, line in differing:
        checks.that(kind != FAULT, line)
    page_fields = sum(1 for line in taken.page.splitlines() if " : " in line)
    checks.that(page_fields > 100, f"kiln's page has only {page_fields} fields")
    counts = {kind: sum(1 for found, _ in differing if found == kind) for kind in (MOVING, KNOWN)}
    setting.note(
        f"{page_fields} fields on kiln's page and {len(taken.wide_fields)} properties; beside nvidia-smi's, {counts[MOVING]} have moved within reason and "
        f"{counts[KNOWN]} differ as docs/nvidia-smi-labels.csv says (captures/unlike.txt)"
    )
    checks.done()


def watch(setting):
    """Runs `kiln watch` beside a trial: as lines, as a table, as properties. Then it stops the trial."""
    trial = trials.Trial("load", trials.TINY_GPT + ("train.steps=1000000", "model.vocabulary=64", "data.characters=20000"))
    results = setting.folder("runs", "watch")
    sets = (*trials.TINY, *trial.tiny) if setting.is_rehearsal else ()
    command = [str(setting.kiln), "run", str(setting.experiment("load")), "--fresh", "--results", str(results), "--progress", "plain"]
    command += ["--device", "cpu"] if setting.is_rehearsal else []
    child = setting.start([*command, *(word for one in sets for word in ("--set", one))], folder=trials.work(setting))
    checks = Checks()
    try:
        at_work = until("a trial writes its steps", lambda: next(results.glob("gpu-load/*/trials/*/1/steps.csv"), None), child)
        print(f"at work: {at_work}")
        # The device's counters cover the last second.
        time.sleep(0.5 if setting.is_rehearsal else 5)
        look(setting, checks)
        checks.that(child.poll() is None, f"the trial that was watched ended with status {child.returncode}")
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            ended = child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            ended = child.wait()
    checks.that(ended == 130, f"kiln run ended with status {ended} after SIGTERM, expected 130")
    checks.done()


def look(setting, checks):
    driver = setting.fake_driver() if setting.is_rehearsal else {}
    table = setting.folder("tables") / "watch.csv"
    table.unlink(missing_ok=True)
    setting.run([setting.kiln, "watch", "-l", "0.5", "--count", WATCH_LOOKS, "--host", "--csv", table], **driver)
    rows = [Row(row, "watch.csv") for row in csv.DictReader(table.open(newline=""))]
    hosts = [row for row in rows if row["device"] == "host"]
    gpus = [row for row in rows if row["device"].startswith(("GPU-", "MIG-"))]
    checks.that(len(hosts) == WATCH_LOOKS, f"{len(hosts)} rows of the host in {WATCH_LOOKS} looks: {sorted({row['device'] for row in rows})}")
    checks.that(len(gpus) >= WATCH_LOOKS, f"{len(gpus)} rows of GPUs in {WATCH_LOOKS} looks")
    checks.that(all(row.number("host_cpu_fraction") >= 0 for row in hosts), "a look without the host's load")
    busiest = max((row.number("gpu_utilization") for row in gpus if row["gpu_utilization"]), default=float("nan"))
    checks.that(busiest >= 0 if setting.is_rehearsal else busiest > 0.5, f"highest gpu_utilization under load: {busiest}")
    checks.that(all(row.number("power_watts") > 0 for row in gpus), "a look without power")
    queried = setting.run([setting.kiln, "watch", "-l", "0.2", "--count", "2", "--query", "timestamp,name,utilization.gpu,memory.used"], **driver)
    header, *lines = list(csv.reader(io.StringIO(queried)))
    checks.that(len(header) == 4 and len(lines) >= 2, f"watch --query printed {queried!r}")
