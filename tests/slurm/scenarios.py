"""What a cluster does to workers: each scenario is a function that disturbs a run and says what became of it.

Each gets a cluster of its own. It ends with `run.finish()`: every trial has a final row that counts, no attempt has
two rows, all tickets are done, no process is left, two collects are equal.
"""

import datetime
import json
import os
import random
import shutil
import signal
import threading
import time

import runs
from captures import sleeper
from cluster import kill, wait_until

SCENARIOS = {}
FAKE_DRIVER = "libfake_nvml.so"  # plays NVML from a file beside it


WAYS = ("recipe", "slurm")


def scenario(seconds=180, groups=False, small=0, gpus=0, ways=WAYS, asked=False):
    """Registers a function with its time limit; `groups`: Slurm uses control groups; `small`: bytes of the results' disk; `gpus`: of each node; `asked`: it
    is not among all, and runs only where it is named."""

    def register(function):
        function.seconds, function.groups, function.small, function.ways = seconds, groups, small, ways
        function.gpus, function.asked = gpus, asked
        SCENARIOS[function.__name__.replace("_", "-")] = function
        return function

    return register


def task(run, number):
    return "%d_%d" % (run.jobs[0], number)


def running_on(run, node):
    """Tasks that run on a node."""
    answer = run.cluster.run("squeue", "-h", "-r", "-t", "RUNNING", "-w", node, "-o", "%i")
    return answer.out.split()


def expect(run, outcome, least=1):
    counts = run.outcomes()
    assert counts.get(outcome, 0) >= least, "no row is `%s`: %s" % (outcome, counts)
    assert counts.get("completed", 0) >= run.trials, counts
    return summary(run)


def summary(run):
    counts = run.outcomes()
    launches = len(list(run.results.glob("launches/*/launch.json")))
    return ", ".join("%d %s" % (counts[name], name) for name in sorted(counts)) + "; %d launches" % launches


@scenario()
def undisturbed(start):
    run = start(runs.commands(12, 1), workers=4)
    run.finish()
    counts = run.outcomes()
    assert counts == {"completed": 12}, counts
    return summary(run)


@scenario(ways=("slurm",))
def doctor_with_a_probe(start):
    """`kiln doctor --on slurm --probe` after a run: two nodes race for tickets, and nothing stays."""
    run = start(runs.commands(2, 1))
    run.finish()
    answer = run.kiln("doctor", "--on", "slurm", "x.yaml", "--probe", "--json")
    assert answer.status == 0, answer.out + answer.error
    checks = {check["name"]: check for check in json.loads(answer.out)["checks"]}
    told = {name: "%s, %s" % (check["state"], check["evidence"]) for name, check in checks.items()}
    # Without name spaces both nodes are this host.
    both = "ok, n1 and n2" if run.cluster.isolated else "warning, n1 and n2, which are one host"
    assert told["probe-nodes"] == both, told
    for name in ("slurm-commands", "slurm-partition", "slurm-job", "probe-tickets", "probe-names", "probe-clocks"):
        assert checks[name]["state"] == "ok", told
    assert not list(run.folder.glob("results/.probe-*")), "the folder of the probe is still there"
    assert not run.cluster.processes_of_jobs(), run.cluster.processes_of_jobs()
    refused = run.kiln("doctor", "--on", "slurm", "x.yaml", "--set", "run.slurm.partition=nowhere")
    assert refused.status == 3 and "there is no partition nowhere" in refused.out, refused.out
    return told["probe-tickets"]


@scenario()
def scancel_running(start):
    """scancel of one task in the middle of a trial."""
    run = start(runs.commands(6, 3))
    run.wait_for_trials(2)
    run.wait_for_takers(2)
    run.cluster.run("scancel", task(run, 0))
    run.finish()
    return expect(run, "interrupted")


@scenario()
def scancel_waiting(start):
    """scancel of the tasks that wait while others work."""
    run = start(runs.commands(6, 2), workers=5, words=["--cpus-per-task=4"])
    run.wait_for_trials(2)
    waiting = [name for name, state in run.cluster.states(*run.jobs).items() if state == "PENDING"]
    assert waiting, run.cluster.states(*run.jobs)
    run.cluster.run("scancel", "--state=PENDING", *run.jobs)
    run.finish()
    counts = run.outcomes()
    assert counts == {"completed": 6}, counts
    return summary(run)


@scenario()
def scancel_all(start):
    """scancel of the whole array, twice."""
    run = start(runs.commands(6, 3))
    run.wait_for_trials(2)
    run.cluster.run("scancel", *run.jobs)
    run.cluster.run("scancel", *run.jobs)
    run.finish()
    return expect(run, "interrupted")


@scenario()
def requeue(start):
    """scontrol requeue of a task in the middle of a trial."""
    run = start(runs.commands(8, 3))
    run.wait_for_trials(2)
    run.wait_for_takers(2)
    answer = run.cluster.run("scontrol", "requeue", task(run, 0))
    assert answer.status == 0, answer.error
    run.finish()
    return expect(run, "interrupted")


@scenario(ways=("slurm",))
def requeue_hold(start):
    """scontrol requeuehold of one task: Slurm keeps it until somebody releases it, and nobody does."""
    run = start(runs.commands(6, 3))
    run.wait_for_trials(2)
    held = task(run, 1)
    run.cluster.run("scontrol", "requeuehold", held)
    run.finish()
    assert run.cluster.states(*run.jobs).get(held) != "REQUEUE_HOLD", "the task is left in Slurm's queue"
    return expect(run, "interrupted")


@scenario()
def suspend(start):
    """scontrol suspend for longer than a heartbeat may stand still: the ticket is taken back, the worker finds out."""
    run = start(runs.commands(4, 8))
    run.wait_for_trials(2)
    answer = run.cluster.run("scontrol", "suspend", task(run, 0))
    assert answer.status == 0, answer.error
    if run.way == "recipe":
        # kiln looks twenty times at least; its own seconds are those of a heartbeat.
        wait_until("the suspended worker counts as gone", lambda: any(row["outcome"] == "killed" for row in run.rows_of_launches()), 60)
    else:
        time.sleep(15)
    run.cluster.run("scontrol", "resume", task(run, 0))
    run.finish()
    if run.way == "recipe":
        # Its own word counts before that of who believed it gone.
        return expect(run, "interrupted")
    return summary(run)


def preempt(run):
    """Something urgent needs both nodes for a while."""
    run.wait_for_trials(2)
    urgent = sleeper(run.cluster, 4, "--array=0-1", "--partition=urgent", "--cpus-per-task=4", job="urgent")
    wait_until("what is urgent has run", lambda: run.cluster.has_ended(urgent), 90)


@scenario()
def preempted_requeue(start):
    """Preemption with PreemptMode=REQUEUE, without checkpoints."""
    run = start(runs.commands(4, 6), words=["--partition=requeued", "--cpus-per-task=4"])
    preempt(run)
    run.finish()
    return expect(run, "interrupted")


@scenario()
def preempted_cancel(start):
    """Preemption with PreemptMode=CANCEL: --requeue means nothing."""
    run = start(runs.commands(4, 6), words=["--partition=cancelled", "--cpus-per-task=4"])
    preempt(run)
    run.finish()
    return expect(run, "interrupted")


@scenario(seconds=240)
def preempted_checkpoints(start):
    """Preemption of trainings with checkpoints: the next attempt resumes."""
    run = start(runs.TRAINING, words=["--partition=requeued", "--cpus-per-task=4"])
    run.wait_for_trials(2)
    wait_until("a checkpoint is there", lambda: list(run.results.glob("trials/*/checkpoint/*")), 60)
    preempt(run)
    run.finish()
    resumed = [row["resumed_at_step"] for row in run.rows() if row["resumed_at_step"]]
    assert resumed and all(int(step) > 0 for step in resumed), "no attempt resumed: %s" % run.outcomes()
    return expect(run, "interrupted") + "; resumed at step " + ", ".join(resumed)


@scenario(seconds=420)
def time_limit(start):
    """The time limit ends workers in the middle of trials, SIGTERM comes 20 s before; kiln's own jobs stop in time."""
    limit = ["--time=1", "--signal=B:TERM@20"]
    if start.way == "slurm":
        # A worker leaves room for 2.4 times the longest trial and for a minute of grace.
        limit = ["--time=2"]
    run = start(runs.commands(12, 11), words=limit)
    run.finish()
    if start.way == "slurm":
        counts = run.outcomes()
        assert counts == {"completed": 12}, counts
        return summary(run)
    return expect(run, "interrupted")


@scenario(seconds=420, ways=("recipe",))
def time_limit_unannounced(start):
    """Without --signal SIGTERM comes at the limit (a minute, looked at each 30 s), SIGKILL after KillWait (5 s)."""
    run = start(runs.commands(4, 50), words=["--time=1"])
    run.finish()
    return expect(run, "interrupted")


@scenario(seconds=600, ways=("slurm",))
def longer_than_its_jobs(start):
    """Two jobs of a minute end before a trial of 70 s: its point is held, and runs once it is asked for with more time."""
    text = runs.commands(1, 70).replace("sweep: {", "sweep: {repeats: 2, ")
    run = start(text, words=["--time=1"], workers=1)
    wait_until("nobody attends", lambda: run.attendant.poll() is not None, 300)
    assert run.attendant.returncode == 1, run.attendant.returncode
    assert all(name.endswith(".held") for name in run.queue()), run.queue()
    assert "2 tickets are held, because the time of 2 jobs ended before a trial" in run.told(), run.told()
    counts = run.outcomes()
    assert counts == {"interrupted": 2}, counts
    assert all("job_time: " in row["notes"] for row in run.rows()), [row["notes"] for row in run.rows()]
    run.words = ["--time=4"]
    run.rewrite()
    run.attend("run", "x.yaml", "--on", "slurm", "--rerun", "interrupted")
    wait_until("kiln submits a job", lambda: len(run.job_ids()) > len(run.jobs), 30)
    run.finish()
    return expect(run, "interrupted", 2)


@scenario()
def node_down(start):
    """An administrator sets a node down; its tasks are requeued."""
    run = start(runs.commands(6, 4))
    run.wait_for_trials(2)
    assert running_on(run, "n1"), run.cluster.states(*run.jobs)
    run.cluster.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    run.finish()
    return expect(run, "interrupted")


@scenario(seconds=240)
def slurmd_killed(start):
    """kill -9 of slurmd and its slurmstepd: Slurm thinks the node is lost, and the worker goes on."""
    run = start(runs.commands(6, 6))
    run.wait_for_trials(2)
    cluster = run.cluster
    victims = cluster.daemons_of("n1", "slurmd") + cluster.daemons_of("n1", "slurmstepd")
    assert len(victims) >= 2, victims
    for pid in victims:
        kill(pid, signal.SIGKILL)
    wait_until("the node is down", lambda: cluster.node_states()["n1"].startswith("DOWN"), 60)
    cluster.end_slurmd("n1")
    cluster.start_slurmd("n1")
    run.finish()
    return summary(run)


@scenario(seconds=240)
def stepd_killed(start):
    """kill -9 of one slurmstepd: its worker goes on without Slurm, which starts the task a second time half a minute later."""
    run = start(runs.commands(18, 5))
    run.wait_for_trials(2)
    victims = run.cluster.daemons_of("n1", "slurmstepd")
    assert victims, "no slurmstepd on n1"
    kill(victims[0], signal.SIGKILL)
    run.finish()
    return summary(run)


@scenario(seconds=240)
def worker_killed(start):
    """kill -9 of one worker: its trial ends with the task."""
    run = start(runs.commands(6, 4))
    run.wait_for_trials(2)
    workers = [pid for pid, line in run.cluster.processes_of_jobs().items() if "/kiln worker " in line]
    assert workers, run.cluster.processes_of_jobs()
    kill(workers[0], signal.SIGKILL)
    run.finish()
    return expect(run, "killed")


@scenario(seconds=240)
def power_cut(start):
    """All processes of a node end at once; it boots again later."""
    run = start(runs.commands(6, 4))
    run.wait_for_trials(2)
    run.cluster.cut_power("n1")
    wait_until("the node is down", lambda: run.cluster.node_states()["n1"].startswith("DOWN"), 60)
    run.cluster.start_node("n1")
    run.finish()
    return expect(run, "killed")


@scenario()
def slurmctld_restarted(start):
    """slurmctld ends by SIGTERM in the middle of trials, is away for some seconds, and comes back."""
    return undisturbed_by(away(start, "slurmctld", signal.SIGTERM))


@scenario(seconds=240)
def slurmctld_killed(start):
    """The same by SIGKILL. What it has not saved it forgets: running tasks wait again for it, and it starts them anew."""
    run = away(start, "slurmctld", signal.SIGKILL)
    return summary(run)


@scenario()
def munge_stopped(start):
    """munged is away for some seconds: no client of Slurm works meanwhile."""
    return undisturbed_by(away(start, "munged", signal.SIGTERM))


def away(start, name, number):
    run = start(runs.commands(8, 3))
    run.wait_for_trials(2)
    run.cluster.end_daemon(name, number)
    time.sleep(8)
    getattr(run.cluster, "start_" + name)()
    run.cluster.wait_for_nodes()
    run.finish()
    return run


def undisturbed_by(run):
    counts = run.outcomes()
    assert counts == {"completed": 8}, counts
    return summary(run)


@scenario(seconds=240, small=20 << 20)
def full_disk(start):
    """The results lie on a disk of 20 MB that somebody fills, and empties later."""
    run = start(runs.commands(6, 4))
    run.wait_for_trials(2)
    filler = run.results.parent / "filler"
    fill(filler)
    run.wait_until_idle()
    filler.unlink()
    run.start_workers()
    run.finish()
    return expect(run, "interrupted")


def fill(path):
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


@scenario(groups=True)
def out_of_memory(start):
    """One trial needs more memory than its task asked for (control groups)."""
    command = 'test $KILN_VALUE_LAST = 2 && exec python3 -c "x = bytearray(900 << 20)"; sleep 1; echo loss $KILN_VALUE_LAST'
    text = runs.COMMAND.format(command=command, values="1, 2, 3, 4")
    run = start(text, workers=2, words=["--mem=400"])
    run.finish()
    of = {row["model.values.last"]: row["outcome"] for row in run.rows()}
    assert of == {"1": "completed", "2": "oom", "3": "completed", "4": "completed"}, of
    return summary(run)


@scenario(ways=("slurm",))
def attendance_killed(start):
    """kill -9 of `kiln run --on slurm` in the middle: workers go on, and `kiln wait` attends again."""
    run = start(runs.commands(8, 3))
    run.wait_for_trials(2)
    run.stop()
    run.attend("wait", "x")
    run.finish()
    counts = run.outcomes()
    assert counts == {"completed": 8}, counts
    return summary(run)


@scenario(ways=("slurm",))
def two_at_once(start):
    """A second `kiln run --on slurm` attends the first one's workers, and submits none."""
    run = start(runs.commands(8, 3))
    run.wait_for_trials(2)
    second = run.kiln("run", "x.yaml", "--on", "slurm")
    assert second.status == 0, second.out + second.error
    run.finish()
    assert len(list(run.results.glob("submit/*/job.sh"))) == 1, "jobs were submitted twice"
    counts = run.outcomes()
    assert counts == {"completed": 8}, counts
    return summary(run)


@scenario(ways=("slurm",))
def stop_now(start):
    """`kiln stop --now` ends running workers and cancels waiting tasks; the same command goes on later."""
    run = start(runs.commands(8, 4), workers=4, words=["--cpus-per-task=4"])
    run.wait_for_trials(2)
    answer = run.kiln("stop", "x", "--now")
    assert answer.status == 0, answer.out + answer.error
    wait_until("every task has ended", lambda: run.cluster.has_ended(*run.jobs), 60)
    wait_until("who attends leaves", lambda: run.attendant.poll() is not None, 60)
    assert not run.is_done(), "nothing was left to stop"
    run.start_workers()
    run.finish()
    return expect(run, "interrupted")


@scenario(ways=("slurm",))
def setup_fails(start):
    """A line of run.slurm.setup fails on every node: attendance ends with 3 and says which line, and nothing is torn."""
    run = start(runs.commands(4, 1), setup="test -e /nowhere")
    wait_until("who attends gives up", lambda: run.attendant.poll() is not None, 120)
    assert run.attendant.returncode == 3, (run.attendant.returncode, run.told())
    assert "ended with 1" in run.told(), run.told()
    assert not run.begun(), run.begun()
    run.rewrite(setup=None)
    run.start_workers()
    run.finish()
    counts = run.outcomes()
    assert counts == {"completed": 4}, counts
    return summary(run)


@scenario(ways=("slurm",))
def refused(start):
    """sbatch refuses the job: exit status 3 and Slurm's words."""
    run = start(runs.commands(4, 1), words=["--partition=nowhere"])
    wait_until("kiln gives up", lambda: run.attendant.poll() is not None, 60)
    assert run.attendant.returncode == 3, (run.attendant.returncode, run.told())
    assert "invalid partition specified: nowhere" in run.told(), run.told()
    run.words = []
    run.rewrite()
    run.start_workers()
    run.finish()
    return summary(run)


@scenario(seconds=240, ways=("slurm",))
def submission_unanswered(start):
    """slurmctld is stopped while kiln submits: sbatch gets no reply and fails, and the job runs. kiln must come to know it."""
    cluster = start.cluster
    slurmctld = cluster.daemons["slurmctld"]
    slurmctld.send_signal(signal.SIGSTOP)
    wakes = threading.Timer(12, slurmctld.send_signal, [signal.SIGCONT])
    wakes.start()
    run = start(runs.commands(8, 4), patience=60)
    wakes.join()
    named = wait_until("the job is there", lambda: cluster.run("squeue", "-h", "-t", "all", "-o", "%F").out.split(), 30)
    if run.attendant.poll() is not None:
        run.start_workers()
    run.finish()
    files = run.results.glob("submit/*/submission.json")
    known = [json.loads(file.read_text()).get("job") for file in files]
    for job in set(named):
        assert int(job) in known, "kiln does not know its job %s, only %s" % (job, known)
    counts = run.outcomes()
    assert counts == {"completed": 8}, counts
    return summary(run)


SOAK_MINUTES = float(os.environ.get("KILN_SOAK_MINUTES", "60"))
SOAK_SECONDS_OF_A_TRIAL = 8
# About as many as four workers complete in that time while they are disturbed.
SOAK_TRIALS = int(SOAK_MINUTES * 15)


@scenario(seconds=int(SOAK_MINUTES * 60 * 2 + 600), ways=("slurm",), asked=True)
def soak(start):
    """For $KILN_SOAK_MINUTES (60) a random disturbance each 5 to 15 s: scancel, requeue, kills of workers, of slurmd and of slurmctld."""
    chance = random.Random(1)
    run = start(runs.commands(SOAK_TRIALS, SOAK_SECONDS_OF_A_TRIAL), workers=4, resubmissions=10000)
    cluster, until, counts = run.cluster, time.monotonic() + SOAK_MINUTES * 60, {}
    disturbances = {
        "scancel of a running task": lambda: signal_task(run, chance, "scancel"),
        "requeue of a running task": lambda: signal_task(run, chance, "scontrol", "requeue"),
        "SIGKILL of a worker": lambda: kill_one(chance, [pid for pid, line in cluster.processes_of_jobs().items() if "/kiln worker " in line]),
        "SIGKILL of a slurmstepd": lambda: kill_one(chance, cluster.daemons_of(chance.choice(["n1", "n2"]), "slurmstepd")),
        "SIGKILL of a slurmd and its slurmstepd": lambda: kill_slurmd(run, chance.choice(["n1", "n2"])),
        "slurmctld away for 5 s": lambda: leave_for_a_while(run),
        "who attends leaves": lambda: run.stop() or True,
    }
    while time.monotonic() < until and not run.is_done():
        time.sleep(chance.uniform(5, 15))
        name = chance.choice(sorted(disturbances))
        if disturbances[name]():
            counts[name] = counts.get(name, 0) + 1
        cluster.administer(*run.jobs)
        # Who attends ends when somebody cancelled all workers; a user would come back.
        if not run.is_done():
            run.attend("run", "x.yaml", "--on", "slurm")
            run.jobs = run.job_ids() or run.jobs
    minutes = (time.monotonic() - until) / 60 + SOAK_MINUTES
    told = "%d trials, disturbed for %.0f min (%s)" % (
        run.trials, minutes, ", ".join("%d × %s" % (counts[name], name) for name in sorted(counts))
    )
    # Said before what may fail.
    print(told, flush=True)
    wait_until("the rest is done", lambda: settle(run), SOAK_MINUTES * 60 + 300, pause=2)
    # Slurm may hold a task after who attends has left, as of a node whose daemon was killed at the very end.
    run.kiln("stop", str(run.results))
    run.finish()
    return "%s: %s" % (told, summary(run))


def settle(run):
    """Attends while there is something left, as a user would who comes back; returns whether all is done."""
    run.cluster.administer(*run.jobs)
    if not run.is_done():
        is_left_held = all(name.endswith((".done", ".held")) for name in run.queue())
        run.attend("run", "x.yaml", "--on", "slurm", *(["--rerun", "killed"] if is_left_held else []))
        run.jobs = run.job_ids() or run.jobs
    return run.is_done()


def signal_task(run, chance, *words):
    tasks = [name for node in ("n1", "n2") for name in running_on(run, node)]
    return bool(tasks) and run.cluster.run(*words, chance.choice(tasks)).status == 0


def kill_one(chance, pids):
    if pids:
        kill(chance.choice(sorted(pids)), signal.SIGKILL)
    return bool(pids)


def kill_slurmd(run, node):
    for pid in run.cluster.daemons_of(node, "slurmd") + run.cluster.daemons_of(node, "slurmstepd"):
        kill(pid, signal.SIGKILL)
    time.sleep(6)
    run.cluster.end_slurmd(node)
    run.cluster.start_slurmd(node)
    return True


def leave_for_a_while(run):
    run.cluster.end_daemon("slurmctld", signal.SIGTERM)
    time.sleep(5)
    run.cluster.start_slurmctld()
    return True


# One GPU of a driver that is played, in the form of fake-nvml.
GPU = """\
- calls:
    nvmlDeviceGetIndex: {index}
    nvmlDeviceGetName: {name}
    nvmlDeviceGetUUID: GPU-5ca1ab1e-0000-4000-8000-0000000000{node}{index}
    nvmlDeviceGetMinorNumber: {index}
    nvmlDeviceGetPciInfo_v3: {{domain: 0, bus: {bus}, device: 0, pciDeviceId: 805245150, pciSubSystemId: 448532702, busId: "00000000:{bus:02X}:00.0"}}
    nvmlDeviceGetMemoryInfo_v2: {{total: 150754820096, reserved: 643825664, used: 0, free: 150110994432}}
    nvmlDeviceGetComputeRunningProcesses_v3: []
    nvmlDeviceGetTemperature/0: 38
    nvmlDeviceGetUtilizationRates: {{gpu: 0, memory: 0}}
"""
BOARDS = {"n1": "NVIDIA H200", "n2": "NVIDIA A100-SXM4-80GB"}


def install_driver(run_folder, programs, nodes):
    """A driver with two GPUs for each of the nodes; returns the variables with which kiln finds it."""
    for node in nodes:
        folder = run_folder / ("driver-" + node)
        folder.mkdir()
        shutil.copy(programs / FAKE_DRIVER, folder / "libnvidia-ml.so.1")
        calls = ["nvmlSystemGetDriverVersion: \"590.99.01\"", "nvmlSystemGetNVMLVersion: \"13.590.99.01\"", "nvmlSystemGetCudaDriverVersion_v2: 13010"]
        text = "description: a node\ncalls:\n" + "".join("  %s\n" % call for call in calls) + "devices:\n"
        for index in range(2):
            text += GPU.format(index=index, name=BOARDS[node], node=node[1:], bus=16 + index)
        (folder / "libnvidia-ml.so.1.yaml").write_text(text)
    return {"KILN_NVML_LIB": "%s/driver-$SLURMD_NODENAME/libnvidia-ml.so.1" % run_folder}


def overlap(rows):
    """Two attempts that ran on one device at the same time, or None."""

    def begun(row):
        return datetime.datetime.fromisoformat(row["started_utc"].replace("Z", "+00:00")).timestamp()

    spans = sorted((row["device_uuid"], begun(row), begun(row) + float(row["trial_seconds"])) for row in rows)
    pairs = zip(spans, spans[1:])
    return next((pair for pair in pairs if pair[0][0] == pair[1][0] and pair[0][2] > pair[1][1] + 0.005), None)


SEES = runs.COMMAND.format(
    command="sleep 2; echo sees $CUDA_VISIBLE_DEVICES; echo loss $KILN_VALUE_LAST", values=", ".join(str(value) for value in range(1, 13))
)


@scenario(gpus=2)
def gpus(start):
    """Two nodes with two GPUs each, of two kinds: each worker has one, which Slurm gave it, and no other."""
    variables = install_driver(start.cluster.folder, start.programs, BOARDS)
    run = start(SEES, workers=4, words=["--gres=gpu:1"], environment=variables, devices="all")
    run.wait_for_takers(4)
    run.finish()
    rows = run.rows()
    assert run.outcomes() == {"completed": 12}, run.outcomes()
    used = {row["device_uuid"]: row["device_name"] for row in rows}
    assert len(used) == 4 and sorted(used.values()) == sorted(2 * list(BOARDS.values())), used
    assert overlap(rows) is None, "two trials at a time on one GPU: %s" % (overlap(rows),)
    for row in rows:
        said = (run.results / "trials" / row["trial"] / row["attempt"] / "stdout.txt").read_text()
        assert "sees %s\n" % row["device_uuid"] in said, "%s of %s: %s" % (row["trial"], row["device_uuid"], said)
    snapshots = (run.results / "snapshots.csv").read_text()
    assert all(uuid in snapshots for uuid in used), "a device is not in snapshots.csv"
    report = run.kiln("report", "x").out
    assert all("rows on " + board in report for board in BOARDS.values()), report
    return summary(run)


@scenario(gpus=2)
def gpus_whole_node(start):
    """A worker with both GPUs of its node runs two trials at a time."""
    variables = install_driver(start.cluster.folder, start.programs, BOARDS)
    run = start(SEES, workers=2, words=["--gres=gpu:2"], environment=variables, devices="all")
    run.finish()
    rows = run.rows()
    assert run.outcomes() == {"completed": 12}, run.outcomes()
    assert len({row["device_uuid"] for row in rows}) == 4, rows
    assert overlap(rows) is None, "two trials at a time on one GPU: %s" % (overlap(rows),)
    assert any(row["concurrent_trials"] == "2" for row in rows), "no two trials ran at the same time"
    return summary(run)


@scenario(gpus=2, ways=("slurm",))
def gpu_driver_lost(start):
    """The driver of a node answers no more: its workers take no ticket, and no other one is asked for there."""
    variables = install_driver(start.cluster.folder, start.programs, ["n1"])
    run = start(SEES, workers=4, words=["--gres=gpu:1"], environment=variables, devices="all")
    run.finish()
    assert run.outcomes() == {"completed": 12}, run.outcomes()
    assert {row["device_name"] for row in run.rows()} == {BOARDS["n1"]}, run.rows()
    assert "no more workers are asked for on node n2" in run.told(), run.told()
    return summary(run)


@scenario(gpus=2, ways=("slurm",))
def gpus_not_given(start):
    """The file asks for GPUs on nodes that have them, and the job's own options give none: never the CPU."""
    variables = install_driver(start.cluster.folder, start.programs, BOARDS)
    variables.update(CUDA_VISIBLE_DEVICES="", SLURM_JOB_GPUS="", SLURM_GPUS_ON_NODE="0")
    run = start(SEES, workers=2, words=["--gres=gpu:1"], environment=variables, devices="all")
    wait_until("who attends says why", lambda: "asks for GPUs (`gpu:1`), but this worker has none" in run.told(), 60)
    run.wait_until_idle()
    assert not run.begun(), "a trial ran without a GPU"
    return "ended with the reason"
