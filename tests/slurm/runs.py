"""A run of kiln on the cluster: its experiment, its workers, and what must hold at its end.

Two ways start workers: `recipe`, an array of `exec kiln worker RUN` as docs/clusters.md shows it, and `slurm`,
`kiln run FILE --on slurm`.
"""

import csv
import hashlib
import os
import re
import subprocess
import time

from cluster import wait_until

FINAL = ("completed", "diverged", "oom", "timed-out", "skipped", "failed")
# A worker of another node whose heartbeat stands still for twenty of these is gone.
BEAT_SECONDS = "0.2"
ROUNDS = 4  # so often workers are started anew for what is left

COMMAND = """\
kiln: 1
name: x
model:
  kind: command
  argv: [sh, -c, '{command}']
  values: {{last: 3}}
  metrics: {{train_loss: {{line: 'loss ([0-9]+)'}}}}
sweep: {{grid: {{model.values.last: [{values}]}}}}
"""

# Trains for some ten seconds, with a checkpoint twice a second.
TRAINING = """\
kiln: 1
name: x
model: {kind: mlp, seq_len: 16, d_model: 64, hidden: 512}
data: {kind: generated, characters: 60000, num_workers: 1}
train: {steps: 1500, batch_size: 16, cpu_threads: 1, checkpoint: {every_steps: 50}}
measure: {warmup_steps: 2, warmup_seconds: 0.0, log_every: 5}
sweep: {repeats: 2}
"""


def commands(trials, seconds):
    """An experiment of so many trials of so many seconds."""
    values = ", ".join(str(value) for value in range(1, trials + 1))
    return COMMAND.format(command="sleep %s; echo loss $KILN_VALUE_LAST" % seconds, values=values)


class Run:
    """One experiment on a cluster. `words` are options of sbatch, as `--cpus-per-task=4`."""

    def __init__(self, cluster, programs, way, text, workers=2, words=(), environment=(), setup=None, patience=30, resubmissions=10, devices="cpu"):
        self.cluster, self.programs, self.way = cluster, programs, way
        self.workers, self.words, self.resubmissions = workers, list(words), resubmissions
        self.variables, self.devices = dict(environment), devices
        self.folder = cluster.folder / "work"
        self.folder.mkdir(exist_ok=True)
        self.text, self.trials = text, count_of(text)
        self.jobs = []
        self.patience = patience  # seconds for kiln's first answer
        self.attendant = None
        self.rewrite(setup)

    def rewrite(self, setup=None):
        """Writes the experiment's file, with one more line of `run.slurm.setup`."""
        run = "run:\n  devices: %s\n" % self.devices + (self.slurm_keys(setup) if self.way == "slurm" else "")
        (self.folder / "x.yaml").write_text(self.text + run)

    def slurm_keys(self, setup):
        keys = {"partition": "partition", "cpus-per-task": "cpus", "mem": "memory", "time": "time", "gres": "gres"}
        lines = ["    workers: %d" % self.workers, "    resubmissions: %d" % self.resubmissions]
        extra = []
        for word in self.words:
            name, _, value = word.lstrip("-").partition("=")
            if name == "time":
                value += "m"
            if name == "mem":
                value += "MiB"
            if name in keys:
                lines.append("    %s: %s" % (keys[name], value))
            elif name != "signal":
                extra.append('"%s"' % word)
        if extra:
            lines.append("    extra: [%s]" % ", ".join(extra))
        exports = ["'export %s=\"%s\"'" % item for item in self.exports().items()]
        exports += ["'%s'" % setup] if setup else []
        lines.append("    setup: [%s]" % ", ".join(exports))
        return "  slurm:\n" + "\n".join(lines) + "\n"

    def exports(self):
        locks = "%s/locks-$SLURMD_NODENAME" % self.cluster.folder
        return {"KILN_LOCKS": locks, "KILN_BEAT_SECONDS": BEAT_SECONDS, **self.variables}

    def kiln(self, *words, seconds=120):
        environment = {"KILN_LOCKS": str(self.cluster.folder / "locks"), "KILN_BEAT_SECONDS": BEAT_SECONDS}
        return self.cluster.run(self.programs / "kiln", *words, seconds=seconds, folder=self.folder, **environment)

    # Start and end.

    def begin(self):
        """Makes the run, starts its workers, and attends."""
        if self.way == "recipe":
            answer = self.kiln("run", "x.yaml", "--on", "workers", "--detach")
            assert answer.status == 0, answer.out + answer.error
            line = re.search(r"(\S+/kiln) worker (\S+)", answer.out + answer.error)
            assert line, "no line to start a worker in: " + answer.out + answer.error
            script = ["#!/bin/bash -l"]
            script += ["#SBATCH --job-name=sweep --array=0-%d --requeue" % (self.workers - 1)]
            script += ["#SBATCH --open-mode=append --export=NONE --output=%s/task-%%a.log" % self.folder]
            script += ["#SBATCH " + word for word in self.words]
            script += ['export %s="%s"' % item for item in self.exports().items()]
            script += ["exec %s worker %s" % line.groups()]
            (self.folder / "workers.sh").write_text("\n".join(script) + "\n")
        self.start_workers()

    def start_workers(self):
        """Starts workers, also for what is left; returns the ids of jobs that are new."""
        if self.way == "recipe":
            self.jobs.append(self.cluster.submit("workers.sh", folder=self.folder))
            self.attend("wait", "x", "--quiet")
            return
        self.attend("run", "x.yaml", "--on", "slurm")
        known = set(self.jobs)
        wait_until("kiln submits a job", lambda: set(self.job_ids()) - known or self.attendant.poll() is not None, self.patience)
        self.jobs = self.job_ids()

    def job_ids(self):
        """All jobs that kiln has submitted."""
        ids = {int(found) for found in re.findall(r"\bjob (\d+):", self.told())}
        return sorted(ids)

    def attend(self, *words):
        if self.attendant and self.attendant.poll() is None:
            return
        environment = {"KILN_LOCKS": str(self.cluster.folder / "locks"), "KILN_BEAT_SECONDS": BEAT_SECONDS}
        with open(self.folder / "attendant.log", "ab") as log:
            self.attendant = subprocess.Popen(
                [str(self.programs / "kiln"), *words],
                env={**self.cluster.environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self):
        """Waits until workers have ended, and starts them anew while there is something left."""
        for _ in range(ROUNDS):
            self.wait_for_workers()
            if self.is_done():
                break
            self.start_workers()
        self.must_be_whole()

    def wait_for_workers(self):
        """Until every task of all jobs has ended; with `--on slurm` until who attends has left, too."""

        def have_ended():
            self.cluster.administer(*self.jobs)
            if self.way == "slurm":
                self.jobs = self.job_ids() or self.jobs
                if self.attendant.poll() is None:
                    return False
            if not self.cluster.has_ended(*self.jobs):
                return False
            # A ticket of a dead worker is open again only when who attends has taken it back.
            return self.is_done() or not any(".taken-" in name for name in self.queue())

        wait_until("workers have ended: %s, %s" % (self.cluster.states(*self.jobs) if self.jobs else "no job", self.queue()), have_ended, 240)

    def wait_until_idle(self):
        """Until no task works any more, and nobody attends."""
        wait_until("workers end", lambda: self.cluster.has_ended(*self.jobs) and not self.cluster.processes_of_jobs(), 120)
        self.stop()

    def stop(self):
        if self.attendant and self.attendant.poll() is None:
            self.attendant.kill()
        if self.attendant:
            self.attendant.wait()

    # Looks.

    @property
    def results(self):
        return (self.folder / "results/x/latest").resolve()

    def queue(self):
        try:
            return sorted(name for name in os.listdir(self.results / "queue") if name[:4].isdigit())
        except OSError:
            return []

    def is_done(self):
        names = self.queue()
        return bool(names) and all(name.endswith(".done") for name in names)

    def rows(self):
        """The collected rows."""
        with open(self.results / "trials.csv", newline="") as file:
            return list(csv.DictReader(file))

    def rows_of_launches(self):
        """Rows as each launch wrote them, before they are collected."""
        found = []
        for table in sorted(self.results.glob("launches/*/trials.csv")):
            with open(table, newline="") as file:
                found += list(csv.DictReader(file))
        return found

    def begun(self):
        """Attempts that workers have begun."""
        return sorted(self.results.glob("trials/*/*/attempt.json"))

    def told(self):
        """What who attends has said."""
        try:
            return (self.folder / "attendant.log").read_text(errors="replace")
        except OSError:
            return ""

    def logs(self):
        """The last lines of each task, and of who attends."""
        text = []
        for log in [self.folder / "attendant.log", *sorted(self.folder.glob("task-*.log")), *sorted(self.folder.glob("results/x/*/submit/*/*.log"))]:
            if log.exists():
                lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
                text += ["--- " + log.name] + lines[-25:]
        return "\n".join(text)

    def wait_for_trials(self, count, seconds=60):
        """Until so many attempts have begun; then some of them run."""
        wait_until("%d attempts have begun, %d have" % (count, len(self.begun())), lambda: len(self.begun()) >= count, seconds)
        time.sleep(0.5)

    def wait_for_takers(self, count, seconds=60):
        """Until so many workers are at a trial."""
        wait_until("%d workers are at a trial" % count, lambda: sum(".taken-" in name for name in self.queue()) >= count, seconds)

    # The end.

    def collect(self):
        answer = self.kiln("wait", "x", "--once")
        assert answer.status in (0, 1), "kiln wait --once: %s %s%s" % (answer.status, answer.out, answer.error)
        return hashlib.sha256((self.results / "trials.csv").read_bytes()).hexdigest()

    def must_be_whole(self):
        """What holds at the end of each scenario, whatever happened (tests/workers.rs has the same)."""
        assert self.is_done(), "tickets that are not done: %s" % self.queue()
        wait_until("processes of jobs end: %s" % self.cluster.processes_of_jobs(), lambda: not self.cluster.processes_of_jobs(), 30)
        assert self.collect() == self.collect(), "two collects differ"
        rows = self.rows()
        keys = [(row["trial"], row["attempt"]) for row in rows]
        assert len(set(keys)) == len(keys), "an attempt has two rows: %s" % sorted(keys)
        last = {row["trial"]: row["outcome"] for row in rows}
        assert len(last) == self.trials, "%d trials have rows, of %d" % (len(last), self.trials)
        assert all(outcome in FINAL for outcome in last.values()), "a trial without a final row: %s" % last
        for attempt in self.begun():
            key = (attempt.parent.parent.name, attempt.parent.name)
            assert key in keys, "attempt %s of %s has no row" % (key[1], key[0])

    def outcomes(self):
        """How many rows have each outcome."""
        counts = {}
        for row in self.rows():
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
        return counts


def count_of(text):
    grid = re.search(r"grid: .*\[(.*)\]", text)
    repeats = re.search(r"repeats: (\d+)", text)
    return (len(grid.group(1).split(",")) if grid else 1) * (int(repeats.group(1)) if repeats else 1)
