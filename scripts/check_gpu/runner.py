"""Starts each part in its own process with a time limit, stores its log and outcome, prints a summary, makes one archive.

A part's outcome is in `parts/NAME.json` of the results, its log in `logs/NAME.txt`. A part that passed runs again only if it is named.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback

from check_gpu import parts
from check_gpu.setting import Failed, Skipped, tail

PASSED, FAILED, SKIPPED = 0, 1, 77
# Time from SIGTERM to SIGKILL, in which kiln ends its children and writes its rows.
GRACE_SECONDS = 15
# No part starts with less time than this left.
LEAST_SECONDS = 5
# A lent machine returns files of at most 16 MiB.
LARGEST_ARCHIVE_BYTES = 15 << 20
LOG_LINES = 15


@dataclasses.dataclass
class Outcome:
    part: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    notes: list = dataclasses.field(default_factory=list)
    # Hash of the tested programs: shows whether an outcome is from another build.
    build: str = ""
    device: str = ""

    def is_good(self):
        return self.status in ("passed", "skipped")


def target_folder(home):
    return home / (os.environ.get("CARGO_TARGET_DIR") or "target")


def run_here(setting, part):
    """Runs one part in this process. Its reason and notes go into a file, its status is the exit status."""
    said, status = "", PASSED
    try:
        part.run(setting)
    except Skipped as reason:
        said, status = str(reason), SKIPPED
    except Failed as fault:
        said, status = str(fault), FAILED
        print(f"failed: {fault}", flush=True)
    except Exception:  # noqa: BLE001: every exception is an outcome of the part
        said, status = traceback.format_exc().strip().splitlines()[-1], FAILED
        traceback.print_exc()
    told = {"reason": said, "notes": setting.notes}
    (setting.folder("parts") / f"{part.name}.told.json").write_text(json.dumps(told))
    return status


def run_all(setting, named, seconds, second_place=None):
    started = time.monotonic()
    chosen = named or parts.ALL
    build = build_of(setting)
    print(f"check-gpu: {len(chosen)} parts on {setting.device}, build {build}, results in {setting.results}", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):
        setting.build()
    outcomes = []
    for part in chosen:
        before = read_outcome(setting, part)
        if not named and before and before.status == "passed" and before.device == setting.device:
            outcomes.append(before)
            say(f"{part.name}: passed before{'' if before.build == build else f', with build {before.build}'}")
            continue
        left = None if seconds is None else seconds - (time.monotonic() - started) - GRACE_SECONDS
        needed = LEAST_SECONDS if setting.is_rehearsal else max(LEAST_SECONDS, part.usual_seconds)
        if left is not None and left < needed:
            outcomes.append(Outcome(part.name, "not begun", reason=f"{max(left, 0):.0f} s were left (--seconds), and it takes {needed} s"))
            continue
        limit = part.rehearsal_seconds if setting.is_rehearsal else part.seconds
        outcome = run_apart(setting, part, limit if left is None else min(limit, left))
        outcome.build, outcome.device = build, setting.device
        (setting.folder("parts") / f"{part.name}.json").write_text(json.dumps(dataclasses.asdict(outcome), indent=1))
        say(f"{part.name}: {outcome.status}, {outcome.seconds:.0f} s{f': {first_line(outcome.reason)}' if outcome.reason else ''}")
        outcomes.append(outcome)
        if second_place:
            # Whoever is cut off, or loses the machine, has what there is.
            write_summary(setting, outcomes, started)
            archive(setting, second_place)
    text = write_summary(setting, outcomes, started)
    place, left_out = archive(setting, second_place)
    print(text, end="")
    print(f"archive: {place}, {place.stat().st_size / 2**20:.1f} MiB{f'; left out for its size: {left_out}' if left_out else ''}")
    return 0 if all(outcome.is_good() for outcome in outcomes) else 1


def write_summary(setting, outcomes, started):
    text = summary(setting, outcomes, time.monotonic() - started)
    (setting.results / "summary.txt").write_text(text)
    return text


def go_on_after(setting, earlier):
    """Begins with the results in an archive of an earlier call, whose machine may be gone."""
    try:
        with tarfile.open(earlier) as packed:
            for member in packed.getmembers():
                member.name = str(pathlib.PurePosixPath(*pathlib.PurePosixPath(member.name).parts[1:]))
                if member.name != ".":
                    packed.extract(member, setting.results, filter="data")
    except (OSError, tarfile.TarError) as fault:
        raise Failed(f"{earlier}: {fault}; --after takes the results.tar.gz of an earlier call") from fault


def run_apart(setting, part, limit):
    """Runs a part in its own process; all processes that it starts are in the same group."""
    log = setting.folder("logs") / f"{part.name}.txt"
    told = setting.folder("parts") / f"{part.name}.told.json"
    told.unlink(missing_ok=True)
    command = [sys.executable, "-m", "check_gpu", "--run-part", part.name, "--results", str(setting.results), "--kiln", str(setting.kiln)]
    command += ["--rehearse"] if setting.is_rehearsal else []
    started = time.monotonic()
    with log.open("w") as written:
        child = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            how = wait(child, limit)
        finally:
            # Even if this process is being stopped: processes that the part left running would keep the GPU busy.
            end_group(child.pid)
    outcome = Outcome(part.name, how, time.monotonic() - started)
    if told.exists():
        found = json.loads(told.read_text())
        outcome.reason, outcome.notes = found["reason"], found["notes"]
    if how.startswith("timed out"):
        outcome.reason = f"over its limit of {limit:.0f} s"
    return outcome


def wait(child, limit):
    """Waits until the part has ended, or ends it; returns its status as text."""
    try:
        ended = child.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE_SECONDS)
            # Its programs may still be writing their results.
            deadline = time.monotonic() + GRACE_SECONDS
            while is_group_alive(child.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            return "timed out" if not is_group_alive(child.pid) else "timed out, killed"
        except subprocess.TimeoutExpired:
            return "timed out, killed"
    if ended < 0:
        return f"ended by signal {-ended}"
    return {PASSED: "passed", FAILED: "failed", SKIPPED: "skipped"}.get(ended, f"ended with status {ended}")


def is_group_alive(group):
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def read_outcome(setting, part):
    try:
        return Outcome(**json.loads((setting.results / "parts" / f"{part.name}.json").read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def build_of(setting):
    """The first digits of the hash of the programs."""
    beside = setting.home if setting.is_bundle else setting.kiln.parent
    sums = [hashlib.sha256((beside / name).read_bytes()).digest() for name in ("kiln", "kiln-trial") if (beside / name).exists()]
    return hashlib.sha256(b"".join(sums)).hexdigest()[:10]


def summary(setting, outcomes, seconds):
    """Failures first, each with the end of its log; then the skipped parts, then those that passed."""
    bad = [outcome for outcome in outcomes if not outcome.is_good()]
    skipped = [outcome for outcome in outcomes if outcome.status == "skipped"]
    passed = [outcome for outcome in outcomes if outcome.status == "passed"]
    lines = [f"check-gpu on {setting.device}: {len(bad)} parts failed, {len(skipped)} skipped, {len(passed)} passed, in {seconds:.0f} s"]
    for outcome in bad:
        lines += ["", f"FAILED {outcome.part}: {outcome.status} after {outcome.seconds:.0f} s"]
        lines += [f"  {line}" for line in outcome.reason.splitlines()[:LOG_LINES]]
        log = setting.results / "logs" / f"{outcome.part}.txt"
        lines += [f"  | {line}" for line in tail(log, LOG_LINES)] if outcome.status != "not begun" else []
    lines += [""] if bad else []
    lines += [f"skipped {outcome.part}: {outcome.reason}" for outcome in skipped]
    for outcome in passed:
        lines += [f"passed  {outcome.part} ({outcome.seconds:.0f} s)"] + [f"        {note}" for note in outcome.notes]
    return "\n".join(lines) + "\n"


def archive(setting, second_place=None):
    """Packs the results without checkpoints, data and caches, and copies the archive to a second place. If it is too large, the largest files are left
    out and named."""
    place = setting.results / "results.tar.gz"
    place.unlink(missing_ok=True)
    files = [path for path in sorted(setting.results.rglob("*")) if path.is_file() and not path.is_symlink() and is_kept(path, setting.results)]
    left_out = []
    while True:
        with tarfile.open(place, "w:gz") as packed:
            for path in files:
                packed.add(path, pathlib.Path("check-gpu") / path.relative_to(setting.results))
        if place.stat().st_size <= LARGEST_ARCHIVE_BYTES or not files:
            break
        largest = max(files, key=lambda path: path.stat().st_size)
        left_out.append(str(largest.relative_to(setting.results)))
        files.remove(largest)
    if second_place:
        draft = second_place.with_name(second_place.name + ".new")
        shutil.copyfile(place, draft)
        draft.replace(second_place)
    return place, ", ".join(left_out)


def is_kept(path, results):
    inside = path.relative_to(results).parts
    if inside[-1] == "peaks.json":
        return True  # What MFU refers to.
    return not any(name in ("checkpoint", "cache", "locks", "generated") or name.endswith((".safetensors", ".lock", ".reserve")) for name in inside)


def first_line(text):
    return text.splitlines()[0] if text else ""


def say(text):
    print(f"check-gpu: {text}", file=sys.stderr, flush=True)
