"""Slurm's programs over a folder, for tests: sbatch really starts the tasks of a job array.

FAKE_SLURM names the folder. Files in it make things go wrong:
  hold            tasks wait until it is gone
  fault-PROGRAM   `refuse: WORDS` (exit status 1), `hang`, or for sbatch `lose: WORDS`: the job is made, the reply is not
  accounting      there is an accounting: sacct answers
  forgetful       the controller forgets a task as soon as it is over
  most            MaxArraySize (1001 without it)
  kill-wait       KillWait in seconds (30 without it)
  slow-sbatch     seconds until sbatch makes a job
A task is one JSON file. `fake end JOB_TASK STATE [NODE]` ends one as a cluster would: its processes get SIGKILL.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path(os.environ["FAKE_SLURM"])
OVER = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")


def refuse(program, words, status=1):
    print("%s: error: %s" % (program, words), file=sys.stderr)
    sys.exit(status)


class Locked:
    def __enter__(self):
        self.file = open(FOLDER / "lock", "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.file.close()


def path(job, task):
    return FOLDER / "jobs" / str(job) / ("%d.json" % task)


def read(job, task):
    return json.loads(path(job, task).read_text())


def write(task):
    to = path(task["job"], task["task"])
    draft = to.with_suffix(".new%d" % os.getpid())
    draft.write_text(json.dumps(task))
    draft.rename(to)


def change(job, number, **more):
    with Locked():
        task = read(job, number)
        task.update(more)
        write(task)
        return task


def all_tasks(known=True):
    folders = sorted((FOLDER / "jobs").glob("*"), key=lambda folder: int(folder.name)) if (FOLDER / "jobs").exists() else []
    tasks = [json.loads(file.read_text()) for folder in folders for file in sorted(folder.glob("*.json"))]
    forgets = known and (FOLDER / "forgetful").exists()
    # A task that is cancelled while it waits vanishes.
    return [task for task in tasks if not (forgets and task["state"] in OVER) and not task.get("vanished")]


def options(script):
    found = {}
    for line in pathlib.Path(script).read_text().splitlines():
        if line.startswith("#SBATCH --"):
            name, _, value = line[len("#SBATCH --") :].partition("=")
            found[name] = value.strip('"').replace("%%", "%")
    return found


def sbatch(arguments):
    if "--test-only" in arguments:
        print("sbatch: Job 7 to start at 2026-11-26T10:00:00 using 1 processors on nodes n1 in partition main", file=sys.stderr)
        return
    time.sleep(setting("slow-sbatch", 0))
    script = arguments[-1]
    asked = options(script)
    first, last = (int(number) for number in asked["array"].split("-"))
    if last >= setting("most", 1001):
        refuse("sbatch", "Batch job submission failed: Invalid job array specification")
    with Locked():
        (FOLDER / "jobs").mkdir(exist_ok=True)
        job = 100 + len(list((FOLDER / "jobs").iterdir()))
        (FOLDER / "jobs" / str(job)).mkdir()
        for number in range(first, last + 1):
            write({"job": job, "task": number, "name": asked["job-name"], "state": "PENDING", "reason": "Priority",
                   "node": "", "restarts": 0, "exit": 0, "pid": 0, "script": script})
    for number in range(first, last + 1):
        subprocess.Popen([sys.executable, __file__, "step", str(job), str(number)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    lost = fault("sbatch", "lose")
    if lost:
        refuse("sbatch", lost)
    print(job)


def step(job, number):
    """The life of a task: waits, runs its script, and again if it is requeued."""
    while True:
        while (FOLDER / "hold").exists():
            time.sleep(0.02)
        if not FOLDER.exists():
            return
        with Locked():
            task = read(job, number)
            if task["state"] != "PENDING":
                return
            asked = options(task["script"])
            excluded = asked.get("exclude", "").split(",")
            node = next(node for node in ("n%d" % each for each in range(1, 100)) if node not in excluded)
            environment = {name: os.environ[name] for name in ("PATH", "HOME", "FAKE_SLURM") if name in os.environ}
            environment.update(SLURM_JOB_ID=str(job * 1000 + number), SLURM_ARRAY_JOB_ID=str(job), SLURM_ARRAY_TASK_ID=str(number),
                               SLURMD_NODENAME=node)
            if task["restarts"]:
                environment["SLURM_RESTART_COUNT"] = str(task["restarts"])
            log = open(asked["output"].replace("%a", str(number)), "ab")
            child = subprocess.Popen(["bash", task["script"]], cwd=asked["chdir"], env=environment, stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log, start_new_session=True)
            task.update(state="RUNNING", node=node, pid=child.pid)
            write(task)
        status = child.wait()
        with Locked():
            task = read(job, number)
            if task.pop("requeue", False):
                task.update(state="PENDING", reason="BeginTime", node="", pid=0)
                write(task)
                continue
            if "ending" in task:
                task.update(state=task["ending"], pid=0)
                write(task)
            elif task["state"] not in OVER:
                ended = status << 8 if status >= 0 else -status
                task.update(state="COMPLETED" if status == 0 else "FAILED", exit=ended, pid=0)
                write(task)
            return


def group(pid, number):
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def chosen(arguments):
    """The tasks that `-j` or `-n` names."""
    tasks = all_tasks()
    if "-n" in arguments:
        name = arguments[arguments.index("-n") + 1]
        return [task for task in tasks if task["name"] == name]
    named = arguments[arguments.index("-j") + 1].split(",")
    found = [task for task in tasks if str(task["job"]) in named or "%d_%d" % (task["job"], task["task"]) in named]
    if not found and len(named) == 1:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        sys.exit(1)
    return found


def squeue(arguments):
    for task in chosen(arguments):
        if "-o" in arguments:
            print("UNLIMITED")
        else:
            print("{job}_{task}|{state}|{reason}|{node}|{restarts}|{exit}|".format(**task))


def sacct(arguments):
    if not (FOLDER / "accounting").exists():
        print("Slurm accounting storage is disabled", file=sys.stderr)
        sys.exit(1)
    if "--name" in arguments:
        name = arguments[arguments.index("--name") + 1]
        tasks = [task for task in all_tasks(False) if task["name"] == name]
    else:
        named = arguments[arguments.index("-j") + 1].split(",")
        tasks = [task for task in all_tasks(False) if str(task["job"]) in named]
    for task in tasks:
        print("%d_%d|%s|%d:%d|%s" % (task["job"], task["task"], task["state"], task["exit"] >> 8, task["exit"] & 127, task["node"]))


def scontrol(arguments):
    if arguments[:2] == ["show", "config"]:
        print("AccountingStorageType   = accounting_storage/%s" % ("slurmdbd" if (FOLDER / "accounting").exists() else "none"))
        print("JobRequeue              = 1\nKillWait                = %d sec\nMaxArraySize            = %d" % (setting("kill-wait", 30), setting("most", 1001)))
        print("MinJobAge               = 300 sec\nPreemptMode             = REQUEUE")
    elif arguments[:3] == ["--oneliner", "show", "partition"]:
        print("PartitionName=main AllowGroups=ALL Default=YES MaxTime=1-00:00:00 State=UP TotalCPUs=8 TotalNodes=2")
    elif arguments[0] == "requeue":
        job, number = (int(part) for part in arguments[1].split("_"))
        task = read(job, number)
        change(job, number, requeue=True, restarts=task["restarts"] + 1, state="COMPLETING")
        group(task["pid"], signal.SIGTERM)
    else:
        for task in chosen(["-j", arguments[-1]]):
            print("JobId=%d ArrayJobId=%d ArrayTaskId=%d JobState=%s Reason=%s Restarts=%d ExitCode=%d:%d NodeList=%s" % (
                task["job"] * 1000 + task["task"], task["job"], task["task"], task["state"], task["reason"], task["restarts"],
                task["exit"] >> 8, task["exit"] & 127, task["node"]))


def scancel(arguments):
    named = arguments[-1]
    state = next((word.split("=")[1] for word in arguments if word.startswith("--state=")), None)
    if "--name" in arguments:
        tasks = [task for task in all_tasks() if task["name"] == named]
    else:
        tasks = [task for task in all_tasks() if named in (str(task["job"]), "%d_%d" % (task["job"], task["task"]))]
    if not tasks:
        refuse("scancel", "Kill job error on job id %s: Invalid job id specified" % named)
    for task in tasks:
        if task["state"] in OVER or state not in (None, task["state"]):
            continue
        if "--signal=TERM" in arguments:
            # Its worker may have ended a moment ago.
            with contextlib.suppress(ProcessLookupError):
                if task["pid"]:
                    os.kill(task["pid"], signal.SIGTERM)
            continue
        if task["state"] == "PENDING":
            change(task["job"], task["task"], state="CANCELLED", vanished=True)
        else:
            change(task["job"], task["task"], state="COMPLETING", ending="CANCELLED")
            group(task["pid"], signal.SIGTERM)


def end(job, number, state, node=None):
    more = {}
    if state == "REQUEUE_HOLD":
        more = {"ending": state, "reason": "JobHoldMaxRequeue", "restarts": read(job, number)["restarts"] + 1}
    task = change(job, number, state=state, **more)
    group(task["pid"], signal.SIGKILL)


def setting(name, otherwise):
    file = FOLDER / name
    return float(file.read_text()) if file.exists() else otherwise


def fault(program, kind):
    file = FOLDER / ("fault-" + program)
    text = file.read_text().strip() if file.exists() else ""
    return re.sub("^%s:? *" % kind, "", text) or "it is lost" if text.startswith(kind) else None


def main():
    program, arguments = sys.argv[1], sys.argv[2:]
    with open(FOLDER / "calls", "a") as calls:
        calls.write(" ".join([program] + arguments) + "\n")
    if fault(program, "hang"):
        time.sleep(600)
    words = fault(program, "refuse")
    if words:
        refuse(program, words)
    if arguments == ["--version"]:
        print("slurm-wlm 22.05.8")
    elif program == "step":
        step(int(arguments[0]), int(arguments[1]))
    elif program == "fake":
        job, number = (int(part) for part in arguments[1].split("_"))
        end(job, number, *arguments[2:])
    else:
        {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scontrol": scontrol, "scancel": scancel}[program](arguments)


main()
