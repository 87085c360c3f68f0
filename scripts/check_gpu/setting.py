"""The setting in which a part runs: paths, programs, device, environment; starting programs and collecting faults."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time


class Failed(Exception):
    """The faults that a part found, one per line."""


class Skipped(Exception):
    """The reason why a part cannot run here."""


class Checks:
    """Collects faults, so that a part reports all of them at once."""

    def __init__(self):
        self.made, self.faults = 0, []

    def that(self, holds, fault):
        self.made += 1
        if not holds:
            self.faults.append(fault)
            print(f"FAULT: {fault}", flush=True)

    def done(self):
        if not self.made:
            raise Failed("nothing was checked, which is a fault of this part")
        if self.faults:
            raise Failed("\n".join(self.faults))
        print(f"{self.made} checks hold", flush=True)


class Setting:
    """`home` is the repository or an unpacked bundle; `results` keeps all files that a part writes."""

    def __init__(self, home, results, kiln, is_rehearsal):
        self.home, self.results, self.is_rehearsal = pathlib.Path(home), pathlib.Path(results), is_rehearsal
        self.is_bundle = (self.home / "ABOUT").is_file()
        self.kiln = pathlib.Path(kiln)
        self.device = "cpu" if is_rehearsal else "cuda"
        self.notes = []

    def note(self, text):
        """Adds a line to the summary: what a rehearsal replaced, or a measured figure."""
        print(f"note: {text}", flush=True)
        self.notes.append(text)

    # Places ----------------------------------------------------------------------------------------------------------------------

    def folder(self, *names):
        made = self.results.joinpath(*names)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def file(self, *names):
        """A file of the repository or bundle; it must exist."""
        path = self.home.joinpath(*names)
        if not path.exists():
            raise Failed(f"{path} is not there")
        return path

    def experiment(self, name):
        return self.file("tests", "experiments", "gpu", f"{name}.yaml")

    @property
    def data(self):
        named = os.environ.get("KILN_DATA")
        return pathlib.Path(named) if named else self.home / "data"

    # Programs --------------------------------------------------------------------------------------------------------------------

    def environment(self, **more):
        """The environment of every program: caches and locks are beside the results, so no file of the user's is read or written."""
        found = dict(os.environ, XDG_CACHE_HOME=str(self.folder("cache")), KILN_DATA=str(self.data), TZ="UTC")
        if self.is_rehearsal:
            # Two trials share two cores; and a rehearsal must not see a GPU of this machine.
            found.update(OMP_WAIT_POLICY="passive", CUDA_VISIBLE_DEVICES="", KILN_LOCKS=str(self.folder("locks")))
        for name in ("KILN_TRIAL", "FAKE_NVML_SCENARIO", "KILN_NVML_LIB", "KILN_TESTS"):
            found.pop(name, None)
        found.update(more)
        return found

    def program(self, name):
        """The command of a program beside kiln or of the tests; in a bundle `run.sh` starts it with the libtorch that it finds."""
        if self.is_bundle:
            path = self.file("programs", name) if name != "kiln-trial" else self.file("kiln-trial")
            return [str(self.file("programs", "run.sh")), str(path)]
        path = self.kiln.resolve().with_name(name)
        if name == "kiln-trial":
            return [str(path)]
        return [str(self.built(name))]

    def build(self):
        """Compiles tests, examples and the fake driver if necessary, and stores the paths that cargo reports. It runs before
        all parts, so that no part's time is spent on a compiler. A bundle contains these programs."""
        if not self.is_bundle:
            self.folder()
            (self.results / "cargo.json").write_text(json.dumps(self.cargo(), indent=1))

    def built(self, name):
        kept = self.results / "cargo.json"
        places = json.loads(kept.read_text()) if kept.exists() else {}
        if name not in places:
            raise Failed(f"cargo named no program `{name}`: {kept} has {sorted(places)}")
        return pathlib.Path(places[name])

    def cargo(self):
        """Test programs of kiln-trial, the speed program and the fake driver, by name."""
        places = {}
        for command in (["test", "--no-run", "--lib", "--test", "suite", "--test", "alone"], ["build", "--example", "step-speed"]):
            lines = self.run(
                ["cargo", command[0], "--workspace", "--release", "--message-format=json", *command[1:]], folder=self.home, is_quiet=True
            )
            for message in map(json.loads, lines.splitlines()):
                if message.get("reason") != "compiler-artifact":
                    continue
                target, package = message["target"]["name"], pathlib.Path(message["manifest_path"]).parent.name
                if message.get("executable") and package == "trial":
                    places[target] = message["executable"]
                for made in message["filenames"]:
                    if made.endswith("libfake_nvml.so"):
                        places["libfake_nvml.so"] = made
        return places

    def fake_driver(self):
        """The environment in which kiln sees an invented H200 instead of a real driver."""
        library = self.file("programs", "libfake_nvml.so") if self.is_bundle else self.built("libfake_nvml.so")
        scenario = self.file("tests", "scenarios", "h200.yaml")
        return {"KILN_NVML_LIB": str(library), "FAKE_NVML_SCENARIO": str(scenario), "KILN_NVML_PATIENCE": "60"}

    def run(self, command, *, folder=None, status=0, is_quiet=False, **environment):
        """Runs a command to its end and copies its output to the log at once. Returns its standard output.

        Raises Failed if it ends with another status; `status=None` accepts any.
        """
        child = self.start(command, folder=folder, stdout=subprocess.PIPE, **environment)
        lines = []
        for line in child.stdout:
            lines.append(line)
            if not is_quiet:
                print(line, end="", flush=True)
        ended = child.wait()
        if status is not None and ended != status:
            how = f"was ended by signal {-ended}" if ended < 0 else f"ended with status {ended}"
            raise Failed(f"`{shlex.join(map(str, command))}` {how}, expected {status}")
        return "".join(lines)

    def start(self, command, *, folder=None, stdout=None, **environment):
        print(f"$ {shlex.join(map(str, command))}", flush=True)
        return subprocess.Popen(
            [str(word) for word in command], cwd=folder or self.folder("work"), env=self.environment(**environment), stdout=stdout,
            stdin=subprocess.DEVNULL, text=True, errors="replace",
        )

    def python_with_torch(self):
        """A Python that has torch, or None. torch is found but not loaded, because loading takes seconds; a broken one
        fails when it is used."""
        look = "import importlib.util, sys; spec = importlib.util.find_spec('torch'); sys.exit(not (spec and spec.origin))"
        for python in filter(None, (os.environ.get("PYTHON"), os.environ.get("KILN_PYTHON"), sys.executable)):
            found = shutil.which(python)
            if found and subprocess.run([found, "-c", look], capture_output=True, check=False).returncode == 0:
                return found
        return None


def until(what, found, runner):
    """Calls `found` until it returns a true value, and returns that; fails after 90 s, or if `kiln run` ends first."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        if runner.poll() is not None:
            raise Failed(f"kiln run ended with status {runner.returncode} before {what}")
        time.sleep(0.005)
    raise Failed(f"{what}: not in 90 s")


def tail(path, lines):
    """The last lines of a log."""
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
