"""A Slurm cluster of two nodes on one host, in one temporary folder.

munged, slurmctld and two slurmd run from a `slurm.conf` of their own; nothing under /etc or /var is touched. As root
each node has its own process, mount and host name space and its own boot id: kiln takes the two for two hosts, and
ending the first process of a node is a power cut. Without root both nodes are the same host. The user's login files
are empty there: `--export=NONE` and `bash -l` run them for each task, and a slow one would be measured with kiln.

Every daemon dies with this process (PR_SET_PDEATHSIG), also when it is killed.
"""

import ctypes
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

NODES = ("n1", "n2")
# Debian has the daemons in /usr/sbin, which is not in every user's path.
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
CLIENT_SECONDS = 60  # a client of Slurm that takes longer is counted as hanging
PR_SET_PDEATHSIG = 1

CONFIGURATION = """\
ClusterName=kiln
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# cred_expire: a requeued job waits so long before it may start again (120 s without it).
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/{task}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
# CR_LLN: tasks are spread over the nodes.
SelectTypeParameters=CR_CPU_Memory,CR_LLN
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
# A task that has ended is forgotten after 3 s.
MinJobAge=3
KillWait={kill_wait}
SlurmdTimeout=8
SlurmctldTimeout=8
MessageTimeout=5
MaxArraySize=101
# More CPUs and memory than the host has: a task sleeps most of its time.
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
{gres_types}NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_n1} CPUs=4 RealMemory=4000{gres} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_n2} CPUs=4 RealMemory=4000{gres} State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES State=UP
PartitionName=short Nodes=n1,n2 MaxTime=10 State=UP
PartitionName=requeued Nodes=n1,n2 PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=cancelled Nodes=n1,n2 PriorityTier=1 PreemptMode=CANCEL State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF State=UP
"""

# The first process of an isolated node: it starts slurmd, collects what ends, and stays.
FIRST_PROCESS = """\
mount --bind "$BOOT_ID" /proc/sys/kernel/random/boot_id
for file in .bash_profile .bash_login .profile .bashrc; do
  [ ! -f "$HOME/$file" ] || mount --bind "$LOGIN" "$HOME/$file"
done
hostname "$NODE"
trap '' TERM INT
slurmd -f "$SLURM_CONF" -N "$NODE"
while :; do sleep 3600 & wait $!; done
"""


class Answer:
    """The end of a command: its words, output, exit status and seconds."""

    def __init__(self, words, out, error, status, seconds):
        self.words, self.out, self.error = words, out, error
        self.status, self.seconds = status, seconds


def is_installed():
    return all(shutil.which(name, path=PATH) for name in ("munged", "slurmctld", "slurmd", "sbatch"))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def may_isolate():
    """Whether this user may make name spaces, and mount in them."""
    if os.geteuid() != 0:
        return False
    words = ["unshare", "--pid", "--fork", "--uts", "--mount-proc", "hostname", "n1"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def may_use_groups():
    """Whether slurmd may limit memory here; tried with version 1 of control groups only."""
    return os.geteuid() == 0 and os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.R_OK)


def groups_of_nodes():
    """Control groups that slurmd makes for its node."""
    return [folder for node in NODES for folder in pathlib.Path("/sys/fs/cgroup").glob("*/slurm_" + node)]


def remove_group(group):
    """Removes a control group and those in it; they are empty once all processes have ended."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass


def dies_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until(what, condition, seconds=60, pause=0.2):
    """Waits for the condition, and returns its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("waited %d s in vain: %s" % (seconds, what))
        time.sleep(pause)


class Cluster:
    """munged, slurmctld, and slurmd on n1 and n2."""

    def __init__(self, groups=False, kill_wait=5, login="", gpus=0):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-slurm-"))
        self.folder.chmod(0o755)  # munge refuses a folder that others cannot enter
        self.isolated = may_isolate()
        self.configuration = self.folder / "slurm.conf"
        self.daemons = {}
        self.mounts = []
        self.host = socket.gethostname()
        port, port_n1, port_n2 = free_ports(3)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        self.configuration.write_text(
            CONFIGURATION.format(
                host=self.host,
                folder=self.folder,
                user=user,
                port=port,
                port_n1=port_n1,
                port_n2=port_n2,
                proctrack="cgroup" if groups else "linuxproc",
                task="cgroup" if groups else "none",
                kill_wait=kill_wait,
                gres_types="GresTypes=gpu\n" if gpus else "",
                gres=" Gres=gpu:%d" % gpus if gpus else "",
            )
        )
        if gpus:
            self.write_gpus(gpus)
        self.groups_before = set(groups_of_nodes())
        if groups:
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n")
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / ("spool-" + node)).mkdir()
        (self.folder / "login.sh").write_text(login)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "KILN_"))}
        self.environment.update(PATH=PATH, SLURM_CONF=str(self.configuration), LC_ALL="C.UTF-8")

    def write_gpus(self, count):
        """So many GPUs for each node, as far as Slurm is concerned: it wants devices, and looks at their names."""
        lines = ["AutoDetect=off"]
        for node in NODES:
            for index in range(count):
                (self.folder / ("%s-gpu%d" % (node, index))).symlink_to("/dev/null")
            files = "%s/%s-gpu[0-%d]" % (self.folder, node, count - 1)
            lines.append("NodeName=%s Name=gpu File=%s" % (node, files))
        (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")

    # Daemons.

    def start(self):
        self.start_munged()
        self.start_slurmctld()
        for node in NODES:
            self.start_node(node)
        self.wait_for_nodes()

    def daemon(self, name, words, **environment):
        log = open(self.folder / (name + ".out"), "ab")
        self.daemons[name] = subprocess.Popen(
            words,
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent,
        )
        log.close()
        return self.daemons[name]

    def start_munged(self):
        of = {name: str(self.folder / ("munged." + name)) for name in ("log", "pid", "seed")}
        words = ["munged", "--foreground", "--force", "--socket=%s/munge.socket" % self.folder, "--key-file=%s/munge.key" % self.folder]
        words += ["--log-file=" + of["log"], "--pid-file=" + of["pid"], "--seed-file=" + of["seed"]]
        self.daemon("munged", words)
        wait_until("munged has its socket", (self.folder / "munge.socket").exists, 10)

    def start_slurmctld(self):
        self.daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.configuration)])
        wait_until("slurmctld answers", lambda: self.run("scontrol", "ping").out.count("UP"), 30)

    def start_node(self, node):
        """Boots a node."""
        if not self.isolated:
            self.daemon(node, ["slurmd", "-D", "-f", str(self.configuration), "-N", node])
            return
        boot_id = self.folder / ("boot-id-" + node)
        boot_id.write_text(str(uuid.uuid4()) + "\n")
        words = ["unshare", "--pid", "--fork", "--uts", "--mount", "--mount-proc", "--kill-child", "sh", "-c", FIRST_PROCESS]
        self.daemon(node, words, NODE=node, BOOT_ID=str(boot_id), LOGIN=str(self.folder / "login.sh"))

    def start_slurmd(self, node):
        """Starts slurmd on a node that runs without it."""
        if not self.isolated:
            self.start_node(node)
            return
        words = ["nsenter", "--all", "--target", str(self.first_process(node))]
        words += ["slurmd", "-f", str(self.configuration), "-N", node]
        subprocess.run(words, env=self.environment, check=True, capture_output=True, cwd=self.folder)

    def end_slurmd(self, node):
        """After slurmd was killed: forgets it where it was this process's own child."""
        if not self.isolated:
            self.end_daemon(node, signal.SIGKILL)

    def first_process(self, node):
        """The process that is number 1 on an isolated node, as this host numbers it."""
        parent = self.daemons[node].pid
        children = pathlib.Path("/proc/%d/task/%d/children" % (parent, parent)).read_text().split()
        return int(children[0])

    def wait_for_nodes(self, nodes=NODES, seconds=60):
        """Waits until nodes take jobs."""

        def all_up():
            states = self.node_states()
            return all(states.get(node) in ("IDLE", "MIXED", "ALLOCATED") for node in nodes)

        wait_until("%s take jobs: %s" % (", ".join(nodes), self.node_states()), all_up, seconds)

    def node_states(self):
        # `-N` repeats a node for each of its partitions.
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").out.upper().split("\n")
        return {line.split()[0].lower(): line.split()[1] for line in lines if line.strip()}

    def administer(self, *jobs):
        """As an administrator does after Slurm took nodes out of service, or holds tasks that it could not start."""
        for node, state in self.node_states().items():
            if state.startswith("DRAIN"):
                self.run("scontrol", "update", "NodeName=" + node, "State=RESUME")
        for task, reason in (self.reasons(*jobs) if jobs else {}).items():
            if reason == "launch failed requeued held":
                self.run("scontrol", "release", task)

    def end_daemon(self, name, number=signal.SIGTERM):
        """Ends munged, slurmctld or a node's first process, and waits for its end."""
        daemon = self.daemons.pop(name, None)
        if daemon is None:
            return
        if daemon.poll() is None:
            daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(20)

    def cut_power(self, node):
        """Ends all processes of a node at once."""
        if self.isolated:
            os.kill(self.first_process(node), signal.SIGKILL)
        else:
            for pid in self.processes(node):
                kill(pid, signal.SIGKILL)
        self.end_daemon(node, signal.SIGKILL)

    def stop(self):
        """Ends every process and removes the folder."""
        for node in NODES:
            if self.isolated and node in self.daemons:
                self.cut_power(node)
            self.end_daemon(node, signal.SIGKILL)
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        for name in ("slurmctld", "munged"):
            self.end_daemon(name)
        # slurmctld's helper process, a terminated one's children.
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        for mount in reversed(self.mounts):
            subprocess.run(["umount", "--lazy", str(mount)], check=False)
        for group in set(groups_of_nodes()) - self.groups_before:
            remove_group(group)
        shutil.rmtree(self.folder, ignore_errors=True)

    def mount_small(self, folder, size):
        """A tmpfs of so many bytes on a folder; before the nodes are started, for they see mounts of that moment."""
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", str(folder)], check=True)
        self.mounts.append(folder)

    # Processes.

    def processes(self, node=None):
        """Ids of processes of this cluster: all, or those that a job or slurmd of a node started."""
        marks = [b"SLURM_CONF=" + str(self.configuration).encode()]
        if node:
            marks.append(b"SLURMD_NODENAME=" + node.encode())
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words = environment_of(entry)
                if all(mark in words for mark in marks):
                    found.append(int(entry.name))
        return found

    def processes_of_jobs(self):
        """Ids and command lines of all that jobs have started and that lives."""
        mark = b"SLURM_CONF=" + str(self.configuration).encode()
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                words = environment_of(entry)
                if mark in words and any(word.startswith(b"SLURM_JOB_ID=") for word in words):
                    found[int(entry.name)] = command_line(entry)
        return found

    def daemons_of(self, node, name):
        """Ids of `slurmd` or `slurmstepd` on a node, as this host numbers them."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            line = command_line(entry) if entry.name.isdigit() else ""
            if name == "slurmd" and "slurmd -" in line and line.endswith("-N " + node) and str(self.configuration) in line:
                # Without a name space of its own `slurmd -D` is the daemon itself.
                if not line.startswith(("sh -c", "unshare")):
                    found.append(int(entry.name))
            if name == "slurmstepd" and line.startswith("slurmstepd: ") and self.is_on(entry, node):
                found.append(int(entry.name))
        return found

    def is_on(self, entry, node):
        if not self.isolated:
            spool = str(self.folder / ("spool-" + node))
            return any(spool in target for target in links(entry / "fd"))
        try:
            first = self.first_process(node)
            return os.readlink(entry / "ns/pid") == os.readlink("/proc/%d/ns/pid" % first)
        except OSError:
            return False

    # Clients.

    def run(self, *words, seconds=CLIENT_SECONDS, folder=None, **environment):
        """Runs a client of Slurm, or kiln, and returns its answer; a hanging one has the status None."""
        began = time.monotonic()
        try:
            ended = subprocess.run(
                [str(word) for word in words],
                env={**self.environment, **environment},
                cwd=folder or self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
            out, error, status = ended.stdout, ended.stderr, ended.returncode
        except subprocess.TimeoutExpired as expired:
            out, error = ((text or b"").decode() for text in (expired.stdout, expired.stderr))
            status = None
        return Answer([str(word) for word in words], out, error, status, time.monotonic() - began)

    def submit(self, *words, **more):
        """`sbatch`; returns the id of the job."""
        answer = self.run("sbatch", "--parsable", *words, **more)
        if answer.status != 0:
            raise AssertionError("%s: %s" % (shlex.join(answer.words), answer.error))
        return int(answer.out.split(";")[0])

    def states(self, *jobs):
        """Each task that squeue lists, by `81234_3`, with its state; empty if none is known any more."""
        answer = self.run("squeue", "-h", "-r", "-t", "all", "-j", ",".join(map(str, jobs)), "-o", "%i %T")
        return dict(line.split() for line in answer.out.split("\n") if line.strip())

    def reasons(self, *jobs):
        answer = self.run("squeue", "-h", "-r", "-t", "all", "-j", ",".join(map(str, jobs)), "-o", "%i|%r")
        return dict(line.split("|") for line in answer.out.split("\n") if line.strip())

    def has_ended(self, *jobs):
        """Whether no task of these jobs waits, runs or is being ended."""
        return all(
            state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD", "RESIZING")
            for state in self.states(*jobs).values()
        )


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def environment_of(entry):
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_line(entry):
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def links(folder):
    try:
        return [os.readlink(entry) for entry in folder.iterdir()]
    except OSError:
        return []
