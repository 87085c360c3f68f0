#!/usr/bin/env python3
"""Records what the clients of a real Slurm print in the situations that kiln meets, under tests/slurm/captures/.

    python3 tests/slurm/captures.py             every situation; make check-slurm does not rewrite them
    python3 tests/slurm/captures.py NAME …      some; the names are those of the functions below

A file holds commands with `$`, what each printed, what it wrote to standard error behind `stderr: `, its exit status
and, where it took longer than a second, how long. The cluster's folder is called /cluster, its host `login`.
"""

import pathlib
import platform
import shlex
import signal
import sys
import time

from cluster import Cluster, NODES, kill, wait_until

CAPTURES = pathlib.Path(__file__).parent / "captures"
SQUEUE = ["squeue", "-h", "-r", "-t", "all"]
# What can be asked for with one letter each; the number of restarts has none.
LETTERS = "%i|%T|%r|%N|%e|%S|%j|%P"
FIELDS = "JobArrayID:|,State:|,Reason:|,NodeList:|,EndTime:|,RestartCnt:|,exit_code:|"


class Capture:
    def __init__(self, cluster, name):
        self.cluster, self.name, self.parts = cluster, name, []

    def note(self, text):
        self.parts.append("# " + text + "\n")

    def run(self, *words, shown=None, **more):
        answer = self.cluster.run(*words, **more)
        lines = ["$ " + (shown or shlex.join(answer.words)) + "\n", answer.out]
        if answer.out and not answer.out.endswith("\n"):
            lines.append("\n")
        lines += ["stderr: %s\n" % line for line in answer.error.splitlines()]
        status = "none: still running" if answer.status is None else answer.status
        after = " after %.0f s" % answer.seconds if answer.seconds > 1 else ""
        lines.append("exit status %s%s\n" % (status, after))
        self.parts.append("".join(lines))
        return answer

    def look(self, *jobs):
        """Everything that tells of these jobs."""
        ids = ",".join(map(str, jobs))
        self.run(*SQUEUE, "-j", ids, "-o", LETTERS)
        self.run(*SQUEUE, "-j", ids, "-O", FIELDS)
        for job in jobs:
            self.run("scontrol", "--oneliner", "show", "job", job)
        self.run("sacct", "-n", "-P", "-j", ids, "-o", "JobID,State,ExitCode")

    def write(self):
        text = "\n".join(self.parts).replace(str(self.cluster.folder), "/cluster")
        text = text.replace("OS=Linux %s " % platform.release(), "OS=Linux 6.1.0 ")
        # The host's own name, where it stands as a word.
        for before, after in (("=", "login"), ("(", "login"), (" ", "login"), (":", "login")):
            text = text.replace(before + self.cluster.host + "\n", before + after + "\n")
            text = text.replace(before + self.cluster.host + "(", before + after + "(")
            text = text.replace(before + self.cluster.host + " ", before + after + " ")
            text = text.replace(before + self.cluster.host + ":", before + after + ":")
        CAPTURES.mkdir(exist_ok=True)
        (CAPTURES / (self.name + ".txt")).write_text(text)


def sleeper(cluster, seconds=300, *options, job="sleep"):
    """A submitted array task or job that sleeps; the shell is replaced, as `exec kiln worker` does."""
    script = cluster.folder / "sleep.sh"
    script.write_text("#!/bin/bash -l\nexec sleep %s\n" % seconds)
    return cluster.submit("--export=NONE", "--job-name=" + job, "--output=%s/%%x-%%a.log" % cluster.folder, "--requeue", *options, script)


def until(cluster, job, state, seconds=60):
    wait_until(
        "job %d is %s, it is %s" % (job, state, cluster.states(job)),
        lambda: cluster.states(job) and all(seen == state for seen in cluster.states(job).values()),
        seconds,
    )


def end(cluster, *jobs):
    cluster.run("scancel", *jobs)
    wait_until("jobs end", lambda: cluster.has_ended(*jobs))


# Situations: each is named as its file.


def running(c, cluster):
    job = sleeper(cluster, 300, "--array=0-1", "--time=4:00:00")
    until(cluster, job, "RUNNING")
    c.look(job)
    c.run(*SQUEUE, "-j", "%d_1" % job, "-o", "%i %T %e")
    c.run("squeue", "-h", "-j", job, "-o", "%i %T")
    c.run("scontrol", "show", "job", "%d_1" % job)
    c.run(*SQUEUE, "-n", "sleep", "-o", "%i|%F|%K|%A|%j|%u")
    end(cluster, job)


def pending(c, cluster):
    """Tasks that wait, with the reasons for it."""
    full = sleeper(cluster, 300, "--array=0-1", "--cpus-per-task=4", "--time=10", job="full")
    until(cluster, full, "RUNNING")
    waits = sleeper(cluster, 300, "--array=0-3", "--cpus-per-task=4", "--time=10", job="waits")
    c.note("both nodes are full")
    wait_until("a reason", lambda: set(cluster.reasons(waits).values()) - {"None"})
    time.sleep(2)
    c.look(waits)
    c.note("without -r what waits is one row")
    c.run("squeue", "-h", "-t", "all", "-j", waits, "-o", LETTERS)
    end(cluster, waits)
    for words in (["--hold"], ["--begin=now+1hour"], ["--dependency=afterok:%d" % full], ["--partition=short", "--time=60"], ["--mem=3900", "--array=0-1%1"]):
        job = sleeper(cluster, 300, *words)
        time.sleep(2)
        c.note("sbatch " + shlex.join(words))
        c.run(*SQUEUE, "-j", job, "-o", LETTERS)
        end(cluster, job)
    end(cluster, full)
    cluster.run("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")
    job = sleeper(cluster, 300)
    time.sleep(2)
    c.note("both nodes are drained")
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    c.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    cluster.run("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
    end(cluster, job)
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = sleeper(cluster, 300)
    time.sleep(2)
    c.note("the partition is down")
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    end(cluster, job)


def completing(c, cluster):
    """A task whose program does not end at SIGTERM, after scancel."""
    script = cluster.folder / "deaf.sh"
    script.write_text("#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    job = cluster.submit("--array=0-0", "--output=/dev/null", script)
    until(cluster, job, "RUNNING")
    time.sleep(1)
    cluster.run("scancel", job)
    wait_until("it completes", lambda: "COMPLETING" in cluster.states(job).values(), 10)
    c.look(job)
    wait_until("it is cancelled", lambda: cluster.has_ended(job))
    c.note("after KillWait (5 s)")
    c.look(job)


def cancelled_running(c, cluster):
    job = sleeper(cluster, 300, "--array=0-1")
    until(cluster, job, "RUNNING")
    c.run("scancel", "%d_1" % job)
    wait_until("it is cancelled", lambda: cluster.states(job)["%d_1" % job] == "CANCELLED")
    c.look(job)
    end(cluster, job)
    c.note("what a cancelled task has in its log")
    c.run("cat", cluster.folder / "sleep-1.log")


def cancelled_waiting(c, cluster):
    """Tasks cancelled while they wait; some of an array, then a whole one."""
    job = sleeper(cluster, 300, "--array=0-3", "--cpus-per-task=4")
    wait_until("two run", lambda: list(cluster.states(job).values()).count("RUNNING") == 2)
    c.run("scancel", "%d_3" % job)
    c.look(job)
    c.run("scancel", "--state=PENDING", job)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    time.sleep(1)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    held = sleeper(cluster, 300, "--array=0-3", "--hold")
    c.note("an array of which no task was started")
    c.run("scancel", held)
    c.look(held)
    time.sleep(6)
    c.note("6 s later (MinJobAge 3)")
    c.run(*SQUEUE, "-j", held, "-o", LETTERS)
    c.note("scancel again, and of a job that never was")
    c.run("scancel", held)
    c.run("scancel", 99999)
    c.run("scancel", "-v", 99999)
    end(cluster, job)


def requeued(c, cluster):
    """scontrol requeue from outside, and from within the task."""
    job = sleeper(cluster, 300, "--array=0-1")
    until(cluster, job, "RUNNING")
    c.run("scontrol", "requeue", "%d_1" % job)
    wait_until("it waits again", lambda: cluster.states(job)["%d_1" % job] == "PENDING")
    c.look(job)
    wait_until("it runs again", lambda: cluster.states(job)["%d_1" % job] == "RUNNING", 200)
    c.look(job)
    end(cluster, job)
    c.run("cat", cluster.folder / "sleep-1.log")
    script = cluster.folder / "itself.sh"
    script.write_text(
        "#!/bin/bash -l\ntrap 'echo got TERM' TERM\necho restart ${SLURM_RESTART_COUNT-unset}\n"
        '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'
        "scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; echo exit status $?\nsleep 1; echo goes on; exit 7\n"
    )
    own = cluster.submit("--array=0-0", "--export=NONE", "--requeue", "--open-mode=append", "--output=%s/itself.log" % cluster.folder, script)
    wait_until("it is requeued", lambda: cluster.states(own).get("%d_0" % own) == "PENDING", 20)
    c.note("a task that requeues itself: " + repr(script.read_text()))
    c.look(own)
    wait_until("it has ended", lambda: cluster.has_ended(own), 200)
    c.look(own)
    c.run("cat", cluster.folder / "itself.log")
    c.note("what cannot be requeued")
    done = sleeper(cluster, 0, "--array=0-0", "--no-requeue")
    wait_until("it has ended", lambda: cluster.has_ended(done), 20)
    c.run("scontrol", "requeue", done)
    c.run("scontrol", "requeue", 99999)
    waits = sleeper(cluster, 300, "--hold")
    c.run("scontrol", "requeue", waits)
    end(cluster, waits)


def timeout(c, cluster):
    job = sleeper(cluster, 300, "--array=0-0", "--time=1")
    until(cluster, job, "RUNNING")
    c.run("squeue", "-h", "-o", "%i %e", "-j", job)
    wait_until("its time is over", lambda: set(cluster.states(job).values()) & {"TIMEOUT"}, 150)
    c.look(job)
    c.run("cat", cluster.folder / "sleep-0.log")


def signalled(c, cluster):
    """When a batch script gets SIGTERM, with and without `--signal`, and what comes at the end."""
    script = cluster.folder / "hears.sh"
    script.write_text(
        "#!/bin/bash\nbegan=$SECONDS\nfor name in TERM CONT INT USR1; do trap \"echo $name after \\$((SECONDS - began)) s\" $name; done\n"
        "while :; do sleep 1 & wait $!; done\n"
    )
    of = {}
    for name, words in (("with", ["--signal=B:TERM@30"]), ("without", [])):
        log = cluster.folder / ("hears-%s.log" % name)
        of[name] = cluster.submit("--array=0-0", "--time=1", "--output=%s" % log, *words, script)
    wait_until("both have ended", lambda: all(cluster.has_ended(job) for job in of.values()), 180)
    c.note("--time=1 --signal=B:TERM@30, KillWait 5; the script writes what it gets")
    c.run(*SQUEUE, "-j", of["with"], "-o", LETTERS)
    c.run("cat", cluster.folder / "hears-with.log")
    c.note("--time=1 without --signal")
    c.run("cat", cluster.folder / "hears-without.log")
    job = cluster.submit("--array=0-0", "--output=%s" % (cluster.folder / "hears-cancel.log"), script)
    until(cluster, job, "RUNNING")
    time.sleep(2)
    cluster.run("scancel", job)
    wait_until("it has ended", lambda: cluster.has_ended(job), 60)
    c.note("scancel")
    c.run("cat", cluster.folder / "hears-cancel.log")
    job = cluster.submit("--array=0-0", "--output=%s" % (cluster.folder / "hears-batch.log"), script)
    until(cluster, job, "RUNNING")
    time.sleep(2)
    c.run("scancel", "--signal=TERM", "--batch", job)
    time.sleep(2)
    c.run("cat", cluster.folder / "hears-batch.log")
    c.run("scancel", "--signal=TERM", job)
    time.sleep(2)
    c.run("cat", cluster.folder / "hears-batch.log")
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    end(cluster, job)
    c.note("preempted by PreemptMode=REQUEUE, then scontrol requeue of a running one")
    job = cluster.submit("--array=0-0", "--requeue", "--output=%s" % (cluster.folder / "hears-requeue.log"), script)
    until(cluster, job, "RUNNING")
    time.sleep(2)
    cluster.run("scontrol", "requeue", job)
    time.sleep(7)
    c.run("cat", cluster.folder / "hears-requeue.log")
    end(cluster, job)


def node_fail(c, cluster):
    """The node of a task is set down; the task may be requeued, or may not."""
    again = sleeper(cluster, 300, "--array=0-0", "--nodelist=n1", job="again")
    never = sleeper(cluster, 300, "--array=0-0", "--nodelist=n1", "--no-requeue", job="never")
    until(cluster, again, "RUNNING")
    until(cluster, never, "RUNNING")
    c.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    wait_until("it waits again", lambda: "PENDING" in cluster.states(again).values())
    c.look(again, never)
    c.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    time.sleep(6)
    c.look(never)
    cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    end(cluster, again)


def node_lost(c, cluster):
    """The power of a node is cut; slurmctld finds out after SlurmdTimeout (8 s)."""
    again = sleeper(cluster, 300, "--array=0-0", "--nodelist=n2", job="again")
    never = sleeper(cluster, 300, "--array=0-0", "--nodelist=n2", "--no-requeue", job="never")
    until(cluster, again, "RUNNING")
    until(cluster, never, "RUNNING")
    cluster.cut_power("n2")
    c.run(*SQUEUE, "-j", "%d,%d" % (again, never), "-o", LETTERS)
    wait_until("the node is down", lambda: cluster.node_states()["n2"].startswith("DOWN"), 120)
    c.look(again, never)
    c.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    cluster.start_node("n2")
    cluster.wait_for_nodes()
    end(cluster, again)


def stepd_killed(c, cluster):
    """kill -9 of the slurmstepd of a task: its program goes on without Slurm."""
    again = sleeper(cluster, 300, "--array=0-0", "--nodelist=n1", job="again")
    until(cluster, again, "RUNNING")
    time.sleep(1)
    for pid in cluster.daemons_of("n1", "slurmstepd"):
        kill(pid, signal.SIGKILL)
    began = time.monotonic()
    for _ in range(120):
        time.sleep(1)
        if "RUNNING" not in cluster.states(again).values():
            break
    c.note("%d s after slurmstepd was killed" % (time.monotonic() - began))
    c.look(again)
    c.note("what is left of its job: %s" % sorted(cluster.processes_of_jobs().values()))
    end(cluster, again)
    for pid in cluster.processes_of_jobs():
        kill(pid, signal.SIGKILL)
    c.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")


def preempted(c, cluster):
    """A task of PreemptMode=CANCEL, and one of PreemptMode=REQUEUE."""
    lost = sleeper(cluster, 300, "--array=0-0", "--partition=cancelled", "--nodelist=n1", "--cpus-per-task=4", job="lost")
    again = sleeper(cluster, 300, "--array=0-0", "--partition=requeued", "--nodelist=n2", "--cpus-per-task=4", job="again")
    until(cluster, lost, "RUNNING")
    until(cluster, again, "RUNNING")
    urgent = sleeper(cluster, 300, "--array=0-1", "--partition=urgent", "--cpus-per-task=4", job="urgent")
    until(cluster, urgent, "RUNNING")
    c.look(lost)
    c.look(again)
    c.run("cat", cluster.folder / "lost-0.log", cluster.folder / "again-0.log")
    end(cluster, urgent)
    until(cluster, again, "RUNNING", 200)
    c.look(again)
    end(cluster, again)


def failed(c, cluster):
    jobs = []
    for line in ("exit 1", "exit 97", "kill -9 $$", "kill -11 $$", "exec /nowhere/kiln worker", "exit 0"):
        script = cluster.folder / "fails.sh"
        script.write_text("#!/bin/bash\n%s\n" % line)
        jobs.append(cluster.submit("--array=0-0", "--output=/dev/null", script))
        wait_until("it has ended", lambda: cluster.has_ended(jobs[-1]), 20)
        c.note(line)
        c.run(*SQUEUE, "-j", jobs[-1], "-o", LETTERS)
        c.run(*SQUEUE, "-j", jobs[-1], "-O", FIELDS)
        c.run("scontrol", "--oneliner", "show", "job", jobs[-1])


def unstartable(c, cluster):
    """The log's folder, or the folder to run in, is missing on the node; a program that is no script."""
    for words in (["--output=/nowhere/x/%a.log"], ["--chdir=/nowhere", "--output=/tmp/kiln-slurm-%a.log"]):
        script = cluster.folder / "ends.sh"
        script.write_text("#!/bin/bash\npwd\n")
        job = cluster.submit("--array=0-0", *words, script)
        for _ in range(10):
            time.sleep(1)
            if cluster.has_ended(job):
                break
        c.note("sbatch " + shlex.join(words))
        c.look(job)
        if "chdir" in words[0]:
            c.run("cat", "/tmp/kiln-slurm-0.log")
            pathlib.Path("/tmp/kiln-slurm-0.log").unlink(missing_ok=True)
        end(cluster, job)
        c.run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    script.write_text("echo no interpreter line\n")
    c.run("sbatch", "--array=0-0", script)


def vanished(c, cluster):
    """Jobs that Slurm has forgotten (MinJobAge), beside one that it knows."""
    gone = sleeper(cluster, 0, "--array=0-1", job="gone")
    wait_until("it is forgotten", lambda: not cluster.states(gone), 60)
    c.look(gone)
    job = sleeper(cluster, 300, "--array=0-1")
    until(cluster, job, "RUNNING")
    c.note("%d is forgotten, %d runs" % (gone, job))
    c.run(*SQUEUE, "-j", "%d,%d" % (gone, job), "-o", LETTERS)
    c.note("one task of an array has ended and is forgotten")
    cluster.run("scancel", "%d_0" % job)
    wait_until("it is forgotten", lambda: len(cluster.states(job)) == 1, 60)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    c.run(*SQUEUE, "-j", "%d_0" % job, "-o", LETTERS)
    c.run("scontrol", "show", "job", "%d_0" % job)
    c.run("scontrol", "show", "job", job)
    c.note("a job that never was, and no job at all")
    c.run(*SQUEUE, "-j", 99999, "-o", LETTERS)
    c.run(*SQUEUE, "-j", "99999,99998", "-o", LETTERS)
    c.run(*SQUEUE, "-n", "no-such-name", "-o", LETTERS)
    c.run("sacct", "-n", "-P", "-j", 99999)
    end(cluster, job)


def slurmctld_away(c, cluster):
    """Every client while slurmctld is down; then what a running task has met."""
    job = sleeper(cluster, 300, "--array=0-0")
    until(cluster, job, "RUNNING")
    cluster.end_daemon("slurmctld", signal.SIGKILL)
    script = cluster.folder / "sleep.sh"
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    c.run("squeue", "-h", "-o", "%i %e", "-j", job)
    c.run("scontrol", "show", "job", job)
    c.run("scontrol", "requeue", job)
    c.run("scontrol", "ping")
    c.run("scancel", job)
    c.run("sinfo", "-h")
    c.run("sacct", "-n", "-P", "-j", job)
    c.run("sbatch", "--array=0-0", script)
    cluster.start_slurmctld()
    cluster.wait_for_nodes()
    c.note("slurmctld is back")
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    end(cluster, job)


def slurmctld_frozen(c, cluster):
    """slurmctld is stopped: it accepts connections and does not answer (MessageTimeout 5 s; 10 s where not set)."""
    job = sleeper(cluster, 300, "--array=0-0")
    until(cluster, job, "RUNNING")
    cluster.daemons["slurmctld"].send_signal(signal.SIGSTOP)
    try:
        c.run(*SQUEUE, "-j", job, "-o", LETTERS, seconds=150)
        c.run("scancel", job, seconds=150)
        c.run("sbatch", "--array=0-0", cluster.folder / "sleep.sh", seconds=180)
    finally:
        cluster.daemons["slurmctld"].send_signal(signal.SIGCONT)
    time.sleep(3)
    c.note("slurmctld goes on: was the job submitted?")
    c.run("squeue", "-h", "-r", "-t", "all", "-o", LETTERS)
    cluster.run("scancel", "--user=root")


def munge_away(c, cluster):
    job = sleeper(cluster, 300, "--array=0-0")
    until(cluster, job, "RUNNING")
    cluster.end_daemon("munged")
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    c.run("scancel", job)
    c.run("scontrol", "requeue", job)
    c.run("sbatch", "--array=0-0", cluster.folder / "sleep.sh")
    cluster.start_munged()
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    end(cluster, job)


def refused(c, cluster):
    """What sbatch refuses, and how; with what it accepts although it can never run."""
    script = cluster.folder / "sleep.sh"
    script.write_text("#!/bin/bash\nexec sleep 1\n")
    for words in (
        ["--parsable", "--array=0-1"],
        ["--array=0-1"],
        ["--array=0-101"],
        ["--array=0-5000"],
        ["--partition=nowhere"],
        ["--gres=gpu:h200:1"],
        ["--constraint=nvlink"],
        ["--cpus-per-task=64"],
        ["--mem=1T"],
        ["--partition=short", "--time=1-0"],
        ["--time=soon"],
        ["--mem=much"],
        ["--nodelist=n7"],
        ["--exclude=n7"],
        ["--exclude=n1,n2"],
        ["--account=nobody"],
        ["--qos=long"],
        ["--chdir=/nowhere"],
        ["--no-such-option"],
        ["--signal=B:NOPE@30"],
        ["--dependency=afterok:99999"],
    ):
        c.run("sbatch", *words, script)
    c.run("sbatch", cluster.folder / "missing.sh")
    cluster.run("scancel", "--user=root")
    c.note("--test-only: the answer is on standard error")
    c.run("sbatch", "--test-only", "--array=0-3", script)
    c.run("sbatch", "--test-only", "--partition=nowhere", script)
    c.run("sbatch", "--test-only", "--cpus-per-task=64", script)
    time.sleep(2)
    cluster.run("scontrol", "update", "PartitionName=main", "State=INACTIVE")
    c.note("the partition is inactive")
    c.run("sbatch", script)
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")


def environment(c, cluster):
    """The variables of a batch script, first and after a requeue; those of the submitter are not there."""
    script = cluster.folder / "says.sh"
    script.write_text(
        "#!/bin/bash -l\necho restart ${SLURM_RESTART_COUNT-unset}\nenv | grep -E '^(SLURM|SBATCH|CUDA|TMPDIR|LEAKED)' | sort\n"
        "echo cwd $PWD; ulimit -n\n[ -n \"$SLURM_RESTART_COUNT\" ] || sleep 300\n"
    )
    log = cluster.folder / "says.log"
    job = cluster.submit(
        "--array=2-3", "--export=NONE", "--open-mode=append", "--requeue", "--time=10", "--cpus-per-task=2", "--mem=200",
        "--output=%s/says-%%a.log" % cluster.folder, script, LEAKED="1",
    )
    until(cluster, job, "RUNNING")
    time.sleep(1)
    cluster.run("scontrol", "requeue", "%d_3" % job)
    wait_until("task 3 has ended", lambda: cluster.states(job).get("%d_3" % job) in (None, "COMPLETED"), 200)
    c.note("SLURM_JOB_END_TIME is not among them in 22.05; slurmd on an isolated node")
    c.run("cat", log.with_name("says-2.log"))
    c.run("cat", log.with_name("says-3.log"))
    end(cluster, job)


def unlimited(c, cluster):
    """%e and %L of a running task without a time limit, of one with a limit, and of one that waits."""
    free = sleeper(cluster, 300, "--array=0-0")
    bound = sleeper(cluster, 300, "--array=0-0", "--time=90", job="bound")
    held = sleeper(cluster, 300, "--array=0-0", "--time=90", "--hold", job="held")
    until(cluster, free, "RUNNING")
    until(cluster, bound, "RUNNING")
    c.run("date", "+%Y-%m-%dT%H:%M:%S")
    c.run(*SQUEUE, "-j", "%d,%d,%d" % (free, bound, held), "-o", "%i|%T|%e|%l|%L|%S|%V")
    c.run("scontrol", "--oneliner", "show", "job", "%d_0" % bound)
    c.run("scontrol", "update", "JobId=%d_0" % bound, "TimeLimit=120")
    c.run(*SQUEUE, "-j", bound, "-o", "%i|%T|%e|%l|%L|%S|%V")
    c.run(*SQUEUE, "-j", bound, "-o", "%e", SLURM_TIME_FORMAT="%s")
    end(cluster, free, bound, held)


def suspended(c, cluster):
    job = sleeper(cluster, 300, "--array=0-0")
    until(cluster, job, "RUNNING")
    c.run("scontrol", "suspend", "%d_0" % job)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    cluster.run("scontrol", "resume", "%d_0" % job)
    c.run("scancel", "--signal=STOP", "--batch", job)
    time.sleep(1)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    c.run("scontrol", "requeuehold", "%d_0" % job)
    time.sleep(8)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    end(cluster, job)


def configuration(c, cluster):
    """What `kiln doctor` may read."""
    for words in (["--version"], ["show", "config"], ["show", "partition", "main"], ["--oneliner", "show", "partition", "short"], ["show", "node", "n1"], ["ping"]):
        c.run("scontrol", *words)
    c.run("sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%G|%c|%m")
    c.run("sinfo", "-h", "-p", "nowhere")
    c.run("sacct", "-n", "-P", "-j", 1)
    c.run("sbatch", "--version")
    c.run("squeue", "--version")


def out_of_memory(c, cluster):
    """A batch script that needs more memory than it asked for (a cluster with control groups)."""
    job = greedy(cluster)
    wait_until("it has ended", lambda: cluster.has_ended(job), 30)
    c.look(job)
    c.run("cat", cluster.folder / "greedy.log")


def greedy(cluster):
    script = cluster.folder / "greedy.sh"
    script.write_text("#!/bin/bash\nexec python3 -c 'block = bytearray(300 << 20); print(len(block))'\n")
    return cluster.submit("--array=0-0", "--mem=50", "--output=%s/greedy.log" % cluster.folder, script)


def login_hangs(c, cluster):
    """--export=NONE makes slurmd run the user's login files (`su - USER`) before each task; here they hang."""
    job = sleeper(cluster, 300, "--array=0-0")
    until(cluster, job, "RUNNING")
    c.look(job)
    began = time.monotonic()
    wait_until("it is held", lambda: any("held" in reason for reason in cluster.reasons(job).values()), 300)
    c.note("%d s later" % (time.monotonic() - began))
    c.look(job)
    time.sleep(8)
    c.look(job)
    c.run("scontrol", "release", job)
    c.run(*SQUEUE, "-j", job, "-o", LETTERS)
    end(cluster, job)


IN_GROUPS = [out_of_memory]
AFTER_LOGIN = [login_hangs]
SITUATIONS = [
    running, pending, completing, cancelled_running, cancelled_waiting, requeued, failed, unstartable, vanished, preempted, node_fail, environment,
    unlimited, refused, suspended, configuration, munge_away, slurmctld_away, slurmctld_frozen, stepd_killed, node_lost, timeout, signalled,
]  # fmt: skip


def record(cluster, situations):
    bad = 0
    for situation in situations:
        capture = Capture(cluster, situation.__name__.replace("_", "-"))
        if situation.__doc__:
            capture.note(situation.__doc__)
        began = time.monotonic()
        said = "written"
        try:
            situation(capture, cluster)
        except AssertionError as error:
            said, bad = "FAILED: %s" % error, bad + 1
        capture.write()
        print("%-20s %4.0f s  %s" % (capture.name, time.monotonic() - began, said), flush=True)
    return bad


def main():
    names = sys.argv[1:]
    known = {situation.__name__.replace("_", "-"): situation for situation in SITUATIONS + IN_GROUPS + AFTER_LOGIN}
    for name in names:
        if name not in known:
            sys.exit("captures.py: `%s` is not a situation; they are: %s" % (name, ", ".join(known)))
    chosen = [known[name] for name in names] or SITUATIONS + IN_GROUPS + AFTER_LOGIN
    bad = 0
    for own, more in ((SITUATIONS, {}), (IN_GROUPS, {"groups": True}), (AFTER_LOGIN, {"login": "sleep 600\n"})):
        here = [each for each in chosen if each in own]
        if here:
            cluster = Cluster(**more)
            try:
                cluster.start()
                bad += record(cluster, here)
            finally:
                cluster.stop()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
