//! What a worker has of the Slurm job in which it runs: its task, its GPUs, its time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kiln_core::{
    record::{RunFolder, Submission, run_file::SlurmTask},
    spec::Slurm,
};
use kiln_hardware::VISIBLE_DEVICES;

use super::{client::Client, job::signal_seconds};

/// Slurm may send the signal before the end of a job's time earlier by so much (`sbatch --signal`).
const SIGNAL_EARLY: Duration = Duration::from_secs(60);

/// The task in which this process is a worker.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(in crate::schedule) task: SlurmTask,
    pub(in crate::schedule) slurm: Slurm,
    /// When its time is over; `None` without a limit.
    pub(in crate::schedule) ends: Option<Instant>,
    /// The time between SIGTERM and SIGKILL where Slurm ends the job; `None` if it did not say.
    pub(in crate::schedule) kill_wait: Option<Duration>,
}

impl Allocation {
    /// `None` outside of a job, and in one that kiln did not submit.
    pub fn here(run: &RunFolder, submission: Option<u64>) -> Option<Self> {
        let of = |name: &str| number(std::env::var(name).ok()?.as_str());
        let submission = Submission::read(run, submission?)?;
        let task = SlurmTask {
            job: of("SLURM_ARRAY_JOB_ID")?,
            task: u32::try_from(of("SLURM_ARRAY_TASK_ID")?).ok()?,
            restarts: of("SLURM_RESTART_COUNT")
                .map_or(0, |count| u32::try_from(count).unwrap_or(0)),
        };
        let left = of("SLURM_JOB_END_TIME")
            .and_then(left_until)
            .or_else(|| left_by_squeue(task))
            .or(submission.slurm.time.map(|time| time.0));
        Some(Self {
            task,
            ends: left.and_then(|left| Instant::now().checked_add(left)),
            kill_wait: submission.kill_wait_seconds.map(Duration::from_secs),
            slurm: submission.slurm,
        })
    }

    /// The time before its end at which Slurm sends SIGTERM because of the end.
    pub(in crate::schedule) fn warning(&self) -> Duration {
        let time = self.slurm.time.map(|time| time.0);
        Duration::from_secs(signal_seconds(time))
    }

    /// The longest time before the end at which it does that.
    pub(in crate::schedule) fn longest_warning(&self) -> Duration {
        self.warning() + SIGNAL_EARLY
    }

    /// Asks Slurm to start this task again; this process then gets SIGTERM.
    ///
    /// # Errors
    /// In words.
    pub fn requeue(&self) -> Result<(), String> {
        let asked = Client::new().ask("scontrol", &["requeue", &self.task.to_string()]);
        asked.map(drop).map_err(|error| error.to_string())
    }

    /// Whether Slurm may start this task again as far as the file says.
    pub fn may_requeue(&self) -> bool {
        u64::from(self.task.restarts) < self.slurm.resubmissions
    }

    /// Whether its job asks for GPUs.
    pub(in crate::schedule) fn asks_for_gpus(&self) -> Option<&str> {
        asks_for_gpus(&self.slurm)
    }
}

/// The option or the value that asks for GPUs: `gpu:2` in `gres`, or `--gpus-per-node=2` and
/// `--tres-per-task=gres/gpu:1` in `extra`.
fn asks_for_gpus(slurm: &Slurm) -> Option<&str> {
    let is_gpu = |part: &str| part == "gpu" || part.starts_with("gpu:");
    let gres = slurm.gres.as_deref();
    let gres = gres.filter(|gres| gres.split(',').any(is_gpu));
    let asks = |option: &&str| {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let is_of_gpus = name == "--gpus" || name.starts_with("--gpus-per-");
        // `--gpus-per-task=0` asks for none.
        let wants =
            |part: &str| is_gpu(part.trim_start_matches("gres/").trim_start_matches("gres:"));
        match name.starts_with("--tres-per-") {
            true => value.split(',').any(wants),
            false => is_of_gpus && value != "0",
        }
    };
    gres.or_else(|| slurm.extra.iter().map(String::as_str).find(asks))
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn left_until(end: u64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(Duration::from_secs(end).saturating_sub(now))
}

/// The time left, which needs no clock of another host and no time zone.
fn left_by_squeue(task: SlurmTask) -> Option<Duration> {
    let said = Client::new().ask("squeue", &["-h", "-o", "%L", "-j", &task.to_string()]);
    time_left(said.ok()?.trim())
}

/// Reads `1-02:03:04`, `2:03:04`, `3:04` or `4`; `None` for `UNLIMITED`, `NOT_SET` and `INVALID`.
pub(super) fn time_left(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let mut seconds = 0_u64;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    Some(Duration::from_secs(
        days.checked_mul(86_400)?.checked_add(seconds)?,
    ))
}

/// The value of `CUDA_VISIBLE_DEVICES` that holds in a job of Slurm: its own; else what the job was
/// given; else no GPU, whatever the driver lists. `None` outside of a job.
pub fn visible_in_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    variable("SLURM_JOB_ID")?;
    if let Some(visible) = variable(VISIBLE_DEVICES) {
        return Some(visible);
    }
    match (variable("SLURM_JOB_GPUS"), variable("SLURM_GPUS_ON_NODE")) {
        (Some(gpus), _) if !gpus.is_empty() => Some(gpus),
        (_, Some(count)) if number(&count).is_some_and(|count| count > 0) => None,
        _ => Some(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_read_as_squeue_prints_it() {
        let seconds = |text: &str| time_left(text).map(|left| left.as_secs());
        assert_eq!(seconds("1:30:00"), Some(5400));
        assert_eq!(seconds("2:00"), Some(120));
        assert_eq!(seconds("365-00:00:00"), Some(365 * 86_400));
        assert_eq!(seconds("0:07"), Some(7));
        for text in ["UNLIMITED", "NOT_SET", "INVALID", "", "N/A"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn gpus_are_asked_for_in_several_ways() {
        let asks = |gres: Option<&str>, extra: &[&str]| {
            let slurm = Slurm {
                gres: gres.map(str::to_owned),
                extra: extra.iter().map(|option| (*option).to_owned()).collect(),
                ..Slurm::default()
            };
            asks_for_gpus(&slurm).map(str::to_owned)
        };
        assert_eq!(
            asks(None, &["--qos=long", "--gpus-per-node"]).as_deref(),
            Some("--gpus-per-node")
        );
        for extra in [
            "--gpus=1",
            "--gpus-per-task=h100:2",
            "--tres-per-task=cpu=4,gres/gpu:1",
            "--tres-per-node=gres:gpu",
        ] {
            assert_eq!(asks(None, &[extra]).as_deref(), Some(extra));
        }
        for extra in [
            "--gpu-bind=none",
            "--gpus-per-task=0",
            "--tres-per-task=cpu=4",
            "--qos=gpu",
        ] {
            assert_eq!(asks(None, &[extra]), None, "{extra}");
        }
        assert_eq!(
            asks(Some("shard:1,gpu:h100:1"), &[]).as_deref(),
            Some("shard:1,gpu:h100:1")
        );
        assert_eq!(asks(Some("shard:1"), &[]), None);
    }

    #[test]
    fn a_job_has_the_gpus_that_it_was_given() {
        let visible = |variables: &[(&str, &str)]| {
            visible_in_job(&|name| {
                let mut known = variables.iter();
                let found = known.find(|(known, _)| *known == name)?;
                Some(found.1.to_owned())
            })
        };
        let none = Some(String::new());
        assert_eq!(visible(&[]), None);
        assert_eq!(visible(&[("SLURM_JOB_ID", "7")]), none);
        let own = [("SLURM_JOB_ID", "7"), ("CUDA_VISIBLE_DEVICES", "1,2")];
        assert_eq!(visible(&own), Some("1,2".to_owned()));
        let given = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "3")];
        assert_eq!(visible(&given), Some("3".to_owned()));
        let counted =
            |count: &str| visible(&[("SLURM_JOB_ID", "7"), ("SLURM_GPUS_ON_NODE", count)]);
        assert_eq!((counted("2"), counted("0")), (None, none));
    }
}
