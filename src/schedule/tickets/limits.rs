//! When a worker in a job of Slurm ends although tickets are left: its time is too short for another
//! trial, or its node is bad.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{CollectedRows, RunFolder, TableRow},
    units::TimeSpan,
};

use crate::schedule::{clock::beat, estimate::with_margin, judge::JobTime, slurm::Allocation};

/// A trial may take so much longer than the longest one of any other point, and the margin more.
const OTHER_POINT: f64 = 2.0;
/// This share of a worker's whole time is enough to begin a trial, whatever its point took: a worker
/// that has just begun tries it.
const OF_POINT: f64 = 0.9;
/// As [`OF_POINT`], for a trial of whose point nothing is known and whose estimate from other points
/// is longer than a worker's whole time.
const OF_OTHERS: f64 = 0.5;
/// For the end of a trial, its row and the worker's last word, where Slurm does not end trials earlier.
const GRACE: Duration = Duration::from_secs(60);
/// A trial that resumes from a checkpoint is of use after so long.
const WITH_CHECKPOINT: Duration = Duration::from_secs(5 * 60);
/// Time that a worker reserves, before Slurm's SIGKILL, to write the rows of its trials and its own
/// end; at most half of `KillWait`.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Trials in a row that failed before they began, after which the node is to blame.
const MOST_FAILED: u32 = 2;
/// That number for commands, whose values may be at fault; it counts only before a trial has begun.
const MOST_FAILED_COMMANDS: u32 = 3;

/// The limits of one worker; without a job of Slurm it has none.
#[derive(Debug, Default)]
pub(in crate::schedule) struct WorkerLimits {
    is_in_slurm: bool,
    ends: Option<Instant>,
    /// The time until then when the worker began.
    whole: Duration,
    /// The time before `ends` in which no trial runs: Slurm has sent SIGTERM by then.
    reserve: Duration,
    /// The longest time before `ends` at which Slurm sends SIGTERM because of it.
    longest_warning: Duration,
    kill_wait: Option<Duration>,
    /// Seconds of the attempts that tell how long a trial is, and when they were read.
    seconds: Option<(Instant, HashMap<TrialId, f64>)>,
    failed: u32,
    /// Whether a trial has begun here.
    has_begun: bool,
}

impl WorkerLimits {
    pub(in crate::schedule) fn of(allocation: Option<&Allocation>) -> Self {
        let ends = allocation.and_then(|allocation| allocation.ends);
        Self {
            is_in_slurm: allocation.is_some(),
            whole: ends.map_or(Duration::ZERO, |ends| {
                ends.saturating_duration_since(Instant::now())
            }),
            ends,
            reserve: allocation.map_or(GRACE, |allocation| allocation.warning().max(GRACE)),
            longest_warning: allocation.map_or(Duration::ZERO, Allocation::longest_warning),
            kill_wait: allocation.and_then(|allocation| allocation.kill_wait),
            ..Self::default()
        }
    }

    /// Why a trial is not begun: the time that is left is too short. A trial of unknown length is
    /// begun.
    pub(in crate::schedule) fn too_short(
        &mut self,
        run: &RunFolder,
        trial: &Trial,
        trials: &[Trial],
    ) -> Option<String> {
        let left = self.ends?.saturating_duration_since(Instant::now());
        let is_old = |(read, _): &(Instant, _)| read.elapsed() >= beat();
        if self.seconds.as_ref().is_none_or(is_old) {
            // If a table cannot be read, its rows before the fault count.
            let mut seconds = HashMap::new();
            let _ = CollectedRows::read(run)
                .and_then(|rows| rows.each(&mut |row| add(&mut seconds, &row)));
            self.seconds = Some((Instant::now(), seconds));
        }
        let known = self.seconds.as_ref().map(|(_, known)| known)?;
        let needed = needed(trial, trials, known, (self.whole, self.reserve))?;
        (left < needed).then(|| {
            format!(
                "trial {} may take {}, and the job ends in {}",
                trial.id,
                whole(needed),
                whole(left)
            )
        })
    }

    /// The time of the job, if what is left of it is so short that a SIGTERM now may be Slurm's because of
    /// it.
    pub(in crate::schedule) fn last_seconds(&self) -> Option<JobTime> {
        self.left_at_the_end().map(|left| JobTime {
            left: whole(left),
            whole: whole(self.whole),
        })
    }

    fn left_at_the_end(&self) -> Option<Duration> {
        let left = self.ends?.saturating_duration_since(Instant::now());
        (left <= self.longest_warning).then_some(left)
    }

    /// The time that trials may take to stop if Slurm has sent SIGTERM now: SIGKILL ends this worker
    /// too. `None` if it is not known when.
    pub(in crate::schedule) fn grace(&self) -> Option<Duration> {
        // Before the end of its time a job gets SIGTERM early, and again at the end.
        let until_kill = self.kill_wait? + self.left_at_the_end().unwrap_or_default();
        Some(until_kill.saturating_sub(LAST_WORDS).max(until_kill / 2))
    }

    pub(in crate::schedule) fn is_in_slurm(&self) -> bool {
        self.is_in_slurm
    }

    /// A trial has ended here: its time is known at once.
    pub(in crate::schedule) fn note(&mut self, row: &TableRow) {
        if let Some((_, known)) = &mut self.seconds {
            add(known, row);
        }
    }

    /// A trial has ended; returns whether the node is to blame for the last ones.
    pub(in crate::schedule) fn has_bad_node(
        &mut self,
        outcome: Outcome,
        was_ready: bool,
        is_command: bool,
    ) -> bool {
        let has_failed = outcome == Outcome::Failed && !was_ready;
        self.has_begun |= !has_failed;
        self.failed = if has_failed { self.failed + 1 } else { 0 };
        let is_bad = match is_command {
            true => self.failed >= MOST_FAILED_COMMANDS && !self.has_begun,
            false => self.failed >= MOST_FAILED,
        };
        self.is_in_slurm && is_bad
    }
}

fn whole(span: Duration) -> TimeSpan {
    TimeSpan(Duration::from_secs(span.as_secs()))
}

/// Adds a row to the longest time of each trial that ran to an end, or that was stopped: it needs
/// more than that.
fn add(longest: &mut HashMap<TrialId, f64>, row: &TableRow) {
    if let (Outcome::Completed | Outcome::Diverged | Outcome::Interrupted, Some(seconds)) =
        (row.fixed.outcome, row.fixed.trial_seconds)
    {
        let known = longest.entry(row.fixed.trial.clone()).or_default();
        *known = known.max(seconds);
    }
}

/// The time that a trial may need; `None` if no trial has run to an end. It is never longer than the
/// `whole` time of a worker, or the trial would never be tried.
fn needed(
    trial: &Trial,
    trials: &[Trial],
    known: &HashMap<TrialId, f64>,
    (whole, reserve): (Duration, Duration),
) -> Option<Duration> {
    let and_more = |seconds: f64| Some(with_margin(seconds)? + reserve);
    let of_point = trials.iter().filter(|other| other.point == trial.point);
    let of_point = of_point.filter_map(|other| known.get(&other.id).copied());
    let needed = match of_point.reduce(f64::max) {
        Some(seconds) => and_more(seconds)?.min(whole.mul_f64(OF_POINT)),
        None => {
            let any = known.values().copied().reduce(f64::max)?;
            let needed = and_more(any * OTHER_POINT)?;
            if needed > whole {
                whole.mul_f64(OF_OTHERS)
            } else {
                needed
            }
        }
    };
    Some(match trial.keeps_checkpoints() {
        true => needed.min(WITH_CHECKPOINT),
        false => needed,
    })
}

#[cfg(test)]
mod tests {
    use kiln_core::spec::Experiment;

    use super::*;

    fn plan(more: &str) -> Vec<Trial> {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp}}, data: {{kind: generated}}, train: {{steps: \
             10{more}}}, sweep: {{grid: {{train.batch_size: [1, 2]}}, repeats: 2}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        kiln_core::plan::expand(&experiment, &|_| None)
            .unwrap()
            .trials
    }

    #[test]
    fn a_trial_needs_what_its_point_took_and_some_more() {
        let trials = plan("");
        let of_point = |point: u64| trials.iter().find(|trial| trial.point == point).unwrap();
        let (one, other) = (of_point(0), of_point(1));
        let known = |seconds: f64| HashMap::from([(one.id.clone(), seconds)]);
        let whole = Duration::from_secs(4 * 3600);
        assert_eq!(needed(one, &trials, &HashMap::new(), (whole, GRACE)), None);
        let needs = |trial: &Trial, seconds| {
            let needed = needed(trial, &trials, &known(seconds), (whole, GRACE));
            needed.unwrap().as_secs()
        };
        assert_eq!(needs(one, 1000.0), 1260);
        assert_eq!(needs(other, 1000.0), 2460);
        // What other points say is more than any worker has.
        assert_eq!(needs(other, 9000.0), 2 * 3600);
        // Slurm's warning comes earlier.
        let warned = (whole, Duration::from_secs(120));
        let needs_more = needed(one, &trials, &known(1000.0), warned);
        assert_eq!(needs_more, Some(Duration::from_secs(1320)));
        // So does the point itself.
        assert_eq!(needs(one, 10_000.0), 12_060);
        assert_eq!(needs(one, 12_000.0), 12_960);
        assert_eq!(needs(one, 90_000.0), 12_960);
        let resumed = plan(", checkpoint: {every_steps: 5}");
        let needs = needed(
            &resumed[0],
            &resumed,
            &HashMap::from([(resumed[0].id.clone(), 1e4)]),
            (whole, GRACE),
        );
        assert_eq!(needs, Some(WITH_CHECKPOINT));
        let mut of_command = trials[0].clone();
        let model =
            "{kind: command, argv: [x], checkpoints: true, metrics: {loss: {line: 'x (.)'}}}";
        of_command.model = serde_yaml::from_str(model).unwrap();
        let long = HashMap::from([(of_command.id.clone(), 1e4)]);
        assert_eq!(
            needed(&of_command, &trials, &long, (whole, GRACE)),
            Some(WITH_CHECKPOINT)
        );
    }

    #[test]
    fn two_failures_before_the_beginning_are_the_nodes() {
        use Outcome::{Completed, Failed};
        let all = |is_in_slurm: bool, ends: &[(Outcome, bool)]| {
            let mut limits = WorkerLimits {
                is_in_slurm,
                ..WorkerLimits::default()
            };
            ends.iter().fold(false, |_, (outcome, was_ready)| {
                limits.has_bad_node(*outcome, *was_ready, false)
            })
        };
        assert!(all(true, &[(Failed, false), (Failed, false)]));
        assert!(!all(false, &[(Failed, false), (Failed, false)]));
        assert!(!all(
            true,
            &[(Failed, false), (Completed, true), (Failed, false)]
        ));
        assert!(!all(true, &[(Failed, false), (Failed, true)]));
        let commands = |ends: &[(Outcome, bool)]| {
            let mut limits = WorkerLimits {
                is_in_slurm: true,
                ..WorkerLimits::default()
            };
            ends.iter().fold(false, |_, (outcome, was_ready)| {
                limits.has_bad_node(*outcome, *was_ready, true)
            })
        };
        let failed = (Failed, false);
        assert!(commands(&[failed; 3]) && !commands(&[failed; 2]));
        // One ran here: the values of the others are at fault.
        assert!(!commands(&[(Completed, true), failed, failed, failed]));
    }

    #[test]
    fn only_a_stop_shortly_before_the_end_of_a_job_may_be_because_of_it() {
        let last = |left: u64| {
            let limits = WorkerLimits {
                ends: Instant::now().checked_add(Duration::from_secs(left)),
                longest_warning: Duration::from_secs(180),
                ..WorkerLimits::default()
            };
            limits.last_seconds().map(|time| time.left.0.as_secs())
        };
        assert_eq!(last(0), Some(0));
        assert!(last(170).is_some_and(|left| (168..=170).contains(&left)));
        assert_eq!(last(200), None);
        assert_eq!(WorkerLimits::default().last_seconds(), None);
    }

    #[test]
    fn trials_are_stopped_before_slurm_kills_the_worker() {
        let grace = |kill_wait: u64, left: u64| {
            let limits = WorkerLimits {
                ends: Instant::now().checked_add(Duration::from_secs(left)),
                longest_warning: Duration::from_secs(180),
                kill_wait: Some(Duration::from_secs(kill_wait)),
                ..WorkerLimits::default()
            };
            limits.grace().map(|grace| grace.as_secs_f64().ceil())
        };
        // Preempted or cancelled in the middle of its time.
        assert_eq!(grace(30, 3600), Some(25.0));
        assert_eq!(grace(8, 3600), Some(4.0));
        assert_eq!(grace(0, 3600), Some(0.0));
        // Told two minutes before the end, and without a warning.
        assert_eq!(grace(30, 120), Some(145.0));
        assert_eq!(grace(30, 0), Some(25.0));
        assert_eq!(WorkerLimits::default().grace(), None);
    }
}
