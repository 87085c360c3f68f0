//! What Slurm says of the tasks of a job array, and what that means for a worker without a last
//! word. Pure. The formats are those of Slurm 22.05; `tests/slurm/captures` has more of them.

use std::fmt;

use kiln_core::{
    plan::Outcome,
    record::run_file::SlurmTask,
    spec::Slurm,
    units::{ByteSize, TimeSpan},
};

/// Columns of `squeue -O`; each ends with the separator, so that no width cuts it.
pub(super) const SQUEUE_COLUMNS: &str =
    "JobArrayID:|,State:|,Reason:|,NodeList:|,RestartCnt:|,exit_code:|";
/// Columns of `sacct -o`.
pub(super) const SACCT_COLUMNS: &str = "JobID,State,ExitCode,NodeList";

/// A task of a job array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::schedule) struct TaskId {
    pub(in crate::schedule) job: u64,
    pub(in crate::schedule) task: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}", self.job, self.task)
    }
}

impl TaskId {
    /// The task of a start.
    pub(in crate::schedule) fn of(start: SlurmTask) -> Self {
        Self {
            job: start.job,
            task: start.task,
        }
    }

    /// `81234_3`; not `81234`, nor `81234_[3-7]` or `81234_3.batch`.
    fn parse(text: &str) -> Option<Self> {
        let (job, task) = text.split_once('_')?;
        Some(Self {
            job: job.parse().ok()?,
            task: task.parse().ok()?,
        })
    }
}

/// The report of Slurm on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schedule) struct TaskReport {
    pub(super) id: TaskId,
    /// `RUNNING`, `NODE_FAIL` and so on.
    pub(super) state: String,
    /// Why it waits.
    pub(super) reason: String,
    pub(super) node: String,
    /// How often Slurm has started it again; `None` if this answer does not tell.
    pub(super) restarts: Option<u32>,
    /// Exit status and signal, `1:0`.
    pub(super) exit: String,
}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    /// It runs, or may run: also in a state that is not known here.
    Running,
    Over,
}

impl TaskReport {
    pub(super) fn stage(&self) -> Stage {
        match self.state.as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
            | "RESV_DEL_HOLD" => Stage::Waiting,
            "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL"
            | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED" | "TIMEOUT" => Stage::Over,
            _ => Stage::Running,
        }
    }

    /// Whether Slurm itself will never start it: its node could not, and somebody must look.
    pub(super) fn is_held(&self) -> bool {
        self.stage() == Stage::Waiting && self.reason.contains("held")
    }

    /// Whether the cluster starts it no more, because it was started so often (`MaxBatchRequeue`).
    pub(super) fn is_worn_out(&self) -> bool {
        self.stage() == Stage::Waiting && self.reason == "JobHoldMaxRequeue"
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.state == "CANCELLED"
    }

    /// Whether the node is to blame.
    pub(super) fn is_lost_node(&self) -> bool {
        ["NODE_FAIL", "BOOT_FAIL"].contains(&self.state.as_str())
    }

    /// Whether its program said that all is well.
    pub(super) fn is_success(&self) -> bool {
        self.state == "COMPLETED"
    }

    /// `FAILED 97:0`
    pub(super) fn ending(&self) -> String {
        match self.exit.as_str() {
            "" | "0:0" => self.state.clone(),
            exit => format!("{} {exit}", self.state),
        }
    }

    /// What became of a worker that left no last word; `None` while it may go on. `restarts` is the
    /// count with which it began; `is_known_later` says whether a later start of its task is known, for
    /// an answer without that count.
    pub(in crate::schedule) fn fate(
        &self,
        restarts: u32,
        is_known_later: impl FnOnce() -> bool,
        slurm: &Slurm,
    ) -> Option<Fate> {
        let killed = |why: String| Some(Fate::killed(why));
        let interrupted = |why: String| Some(Fate::new(Outcome::Interrupted, why));
        match self.stage() {
            // While a requeued task is being ended, its worker may still say a last word.
            Stage::Running if self.state == "COMPLETING" => None,
            // A report from before the worker began may arrive after it.
            _ if self.restarts.is_some_and(|now| now < restarts) => None,
            _ if self.restarts.is_some_and(|now| now > restarts) => {
                killed("its job was requeued".to_owned())
            }
            // The later start is the one that ended.
            Stage::Over if self.restarts.is_none() && is_known_later() => {
                killed("its job was requeued".to_owned())
            }
            Stage::Running | Stage::Waiting => None,
            Stage::Over => match self.state.as_str() {
                "TIMEOUT" | "DEADLINE" => {
                    let limit = slurm.time.map_or(String::new(), in_parentheses::<TimeSpan>);
                    let why = format!("the job's time limit{limit} ended it");
                    Some(Fate {
                        is_out_of_time: true,
                        ..Fate::new(Outcome::Interrupted, why)
                    })
                }
                "PREEMPTED" => interrupted("its job was preempted".to_owned()),
                "CANCELLED" => interrupted("its job was cancelled".to_owned()),
                // Rows are committed, and the name of a node is an identity.
                "NODE_FAIL" | "BOOT_FAIL" => killed(format!("its node was lost ({})", self.state)),
                "OUT_OF_MEMORY" => {
                    let memory = slurm
                        .memory
                        .map_or(String::new(), |memory: ByteSize| format!(" {memory}"));
                    let why = format!(
                        "Slurm ended it because the job used more memory than it has \
                         (`run.slurm.memory`{memory})"
                    );
                    Some(Fate::new(Outcome::Oom, why))
                }
                _ => killed(format!("its job ended ({})", self.ending())),
            },
        }
    }
}

fn in_parentheses<T: fmt::Display>(value: T) -> String {
    format!(" ({value})")
}

/// The end of a worker, and the outcome of the attempt that it left without a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schedule) struct Fate {
    pub(in crate::schedule) outcome: Outcome,
    pub(in crate::schedule) why: String,
    /// Whether the time of its job ended it.
    pub(in crate::schedule) is_out_of_time: bool,
}

impl Fate {
    pub(in crate::schedule) fn killed(why: String) -> Self {
        Self::new(Outcome::Killed, why)
    }

    fn new(outcome: Outcome, why: String) -> Self {
        Self {
            outcome,
            why,
            is_out_of_time: false,
        }
    }
}

/// Reads the answer of `squeue`; rows that are not tasks of an array are left out.
pub(super) fn of_squeue(text: &str) -> Vec<TaskReport> {
    let report = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [id, state, reason, node, restarts, exit, ..] = cells.as_slice() else {
            return None;
        };
        Some(TaskReport {
            id: TaskId::parse(id)?,
            state: (*state).to_owned(),
            reason: (*reason).to_owned(),
            node: (*node).to_owned(),
            restarts: restarts.parse().ok(),
            exit: exit.parse().map_or(String::new(), wait_status),
        })
    };
    text.lines().filter_map(report).collect()
}

/// `squeue` prints the number of wait(2): `256` is exit status 1.
fn wait_status(status: u32) -> String {
    format!("{}:{}", status >> 8 & 0xff, status & 0x7f)
}

/// Reads the answer of `sacct -P`.
pub(super) fn of_sacct(text: &str) -> Vec<TaskReport> {
    let report = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [id, state, exit, node, ..] = cells.as_slice() else {
            return None;
        };
        Some(TaskReport {
            id: TaskId::parse(id)?,
            // `CANCELLED by 1000`
            state: state.split(' ').next().unwrap_or_default().to_owned(),
            reason: String::new(),
            node: (*node).to_owned(),
            restarts: None,
            exit: (*exit).to_owned(),
        })
    };
    text.lines().filter_map(report).collect()
}

/// Reads the answer of `scontrol --oneliner show job`.
pub(super) fn of_scontrol(text: &str) -> Vec<TaskReport> {
    let report = |line: &str| {
        let value = |key| value(line, key);
        Some(TaskReport {
            id: TaskId {
                job: value("ArrayJobId")?.parse().ok()?,
                task: value("ArrayTaskId")?.parse().ok()?,
            },
            state: value("JobState")?.to_owned(),
            reason: value("Reason").unwrap_or_default().to_owned(),
            node: value("NodeList").unwrap_or_default().to_owned(),
            restarts: value("Restarts").and_then(|count| count.parse().ok()),
            exit: value("ExitCode").unwrap_or_default().to_owned(),
        })
    };
    text.lines().filter_map(report).collect()
}

/// Reads the number of a job that `sbatch --parsable` made: `81234` or `81234;cluster`.
pub(super) fn of_sbatch(text: &str) -> Option<u64> {
    // Sites print notices before it.
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    line.trim().split(';').next()?.parse().ok()
}

/// Reads `MaxArraySize` of `scontrol show config`.
pub(super) fn most_tasks(config: &str) -> Option<u64> {
    let size: u64 = setting(config, "MaxArraySize")?.parse().ok()?;
    Some(size.saturating_sub(1))
}

/// The seconds between SIGTERM and SIGKILL of a job that the cluster ends, by `scontrol show config`.
pub(super) fn kill_wait(config: &str) -> Option<u64> {
    seconds(setting(config, "KillWait")?)
}

/// Reads `30 sec`.
pub(super) fn seconds(text: &str) -> Option<u64> {
    text.strip_suffix(" sec")?.trim().parse().ok()
}

/// Reads a line `name = value` of `scontrol show config`.
pub(super) fn setting<'a>(config: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = config.lines().filter_map(|line| line.split_once('='));
    pairs.find_map(|(key, value)| (key.trim() == name).then(|| value.trim()))
}

/// Reads `key=value` from a line of `scontrol --oneliner`.
pub(super) fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: &str, restarts: u32) -> TaskReport {
        let line = format!("81234_3|{state}|None|gpu021|{restarts}|256|");
        of_squeue(&line).remove(0)
    }

    fn fate(state: &str) -> Option<(Outcome, String)> {
        let slurm = Slurm {
            time: Some(TimeSpan::from_secs(4 * 3600)),
            memory: Some(ByteSize(64 << 30)),
            ..Slurm::default()
        };
        let fate = report(state, 0).fate(0, || false, &slurm);
        fate.map(|fate| (fate.outcome, fate.why))
    }

    #[test]
    fn each_state_has_its_meaning_and_an_unknown_one_means_nothing() {
        use Outcome::{Interrupted, Killed, Oom};
        for state in [
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "STOPPED",
            "CONFIGURING",
            "BRAND_NEW",
            "PENDING",
        ] {
            assert_eq!(fate(state), None, "{state}");
        }
        let told = |state: &str, outcome: Outcome, why: &str| {
            assert_eq!(fate(state), Some((outcome, why.to_owned())), "{state}");
        };
        told("TIMEOUT", Interrupted, "the job's time limit (4h) ended it");
        told("PREEMPTED", Interrupted, "its job was preempted");
        told("CANCELLED", Interrupted, "its job was cancelled");
        told("NODE_FAIL", Killed, "its node was lost (NODE_FAIL)");
        told("FAILED", Killed, "its job ended (FAILED 1:0)");
        told(
            "OUT_OF_MEMORY",
            Oom,
            "Slurm ended it because the job used more memory than it has (`run.slurm.memory` \
             64GiB)",
        );
        // Started again, or about to be.
        let slurm = Slurm::default();
        let again = report("RUNNING", 1).fate(0, || false, &slurm);
        let requeued = Some(Fate::killed("its job was requeued".to_owned()));
        assert_eq!(again, requeued);
        assert_eq!(report("PENDING", 1).fate(0, || false, &slurm), requeued);
        assert_eq!(report("RUNNING", 1).fate(1, || false, &slurm), None);
        // Of an earlier start.
        assert_eq!(report("TIMEOUT", 0).fate(1, || false, &slurm), None);
        assert_eq!(report("COMPLETING", 1).fate(0, || false, &slurm), None);
        // The end of a later start says nothing of an earlier one.
        assert_eq!(
            report("OUT_OF_MEMORY", 1).fate(0, || false, &slurm),
            requeued
        );
        assert_eq!(report("TIMEOUT", 2).fate(1, || false, &slurm), requeued);
        let accounted = |is_later: bool| {
            let found = of_sacct("81234_3|OUT_OF_MEMORY|0:125|gpu021\n").remove(0);
            found.fate(0, || is_later, &slurm).map(|fate| fate.outcome)
        };
        assert_eq!([false, true].map(accounted), [Some(Oom), Some(Killed)]);
    }

    // As Slurm 22.05 printed it.

    #[test]
    fn answers_of_squeue_are_read() {
        let text = "5_0|PENDING|Resources||0|0|\n16_0|FAILED|NonZeroExitCode|n1|0|256|\n\
                    17_0|FAILED|NonZeroExitCode|n1|0|24832|\n1_2|RUNNING|None|n1|1|0|\n\
                    4|PENDING|JobHeldUser||0|0|\nslurm_load_jobs error\n";
        let read = of_squeue(text);
        let shown: Vec<(String, Stage, String)> = read
            .iter()
            .map(|task| (task.id.to_string(), task.stage(), task.ending()))
            .collect();
        let row = |id: &str, stage: Stage, ending: &str| (id.to_owned(), stage, ending.to_owned());
        assert_eq!(
            shown,
            [
                row("5_0", Stage::Waiting, "PENDING"),
                row("16_0", Stage::Over, "FAILED 1:0"),
                row("17_0", Stage::Over, "FAILED 97:0"),
                row("1_2", Stage::Running, "RUNNING"),
            ]
        );
        assert_eq!(
            (read[0].reason.as_str(), read[3].restarts),
            ("Resources", Some(1))
        );
    }

    #[test]
    fn answers_of_scontrol_and_sacct_are_read() {
        let text = "JobId=3 ArrayJobId=1 ArrayTaskId=1 JobName=kiln-x-abc UserId=root(0) \
                    JobState=CANCELLED Reason=None Dependency=(null) Requeue=1 Restarts=0 \
                    BatchFlag=1 Reboot=0 ExitCode=130:0 ReqNodeList=(null) ExcNodeList=(null) \
                    NodeList=n2 BatchHost=n2\n\
                    JobId=5 ArrayJobId=5 ArrayTaskId=0-3 JobName=waits JobState=PENDING\n\
                    JobId=4 JobName=foo JobState=PENDING\n";
        let read = of_scontrol(text);
        assert_eq!(read.len(), 1);
        assert_eq!(
            (read[0].id.to_string(), read[0].ending()),
            ("1_1".to_owned(), "CANCELLED 130:0".to_owned())
        );
        assert_eq!((read[0].node.as_str(), read[0].restarts), ("n2", Some(0)));
        let read = of_sacct(
            "81234_3|CANCELLED by 1000|0:15|gpu017\n81234_[4-7]|PENDING|0:0|None assigned\n\
             81234_1|OUT_OF_MEMORY|0:125|gpu018\n",
        );
        let ids: Vec<(String, bool)> = read
            .iter()
            .map(|task| (task.id.to_string(), task.is_cancelled()))
            .collect();
        assert_eq!(
            ids,
            [("81234_3".to_owned(), true), ("81234_1".to_owned(), false)]
        );
    }

    #[test]
    fn the_number_of_a_job_and_the_limit_of_arrays_are_read() {
        assert_eq!(of_sbatch("81234\n"), Some(81234));
        assert_eq!(of_sbatch("Welcome to gpu.\n81234;main\n"), Some(81234));
        assert_eq!(of_sbatch("Submitted batch job 81234\n"), None);
        assert_eq!(of_sbatch(""), None);
        let config = "MailProg                = /bin/true\nMaxArraySize            = 1001\n";
        assert_eq!(most_tasks(config), Some(1000));
        assert_eq!(most_tasks("nothing"), None);
        assert_eq!(kill_wait("KillWait                = 30 sec\n"), Some(30));
        assert_eq!(kill_wait("KillWait                = INFINITE\n"), None);
    }
}
