//! The time that a launch may use (`kiln run --for`), and which trials still fit into it. Pure: the
//! time comes in.
//!
//! A trial fits if the longest trial like it, and the margin of workers in a job of Slurm more, fits
//! into the time that is left. The trials of a block begin only if all of it that is left fits.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Trial, TrialId},
    record::TrialRow,
    units::TimeSpan,
};

use super::{
    estimate::{KnownTimes, with_margin},
    idle::keeps_blocks,
};

/// The time that a launch may use.
#[derive(Debug)]
pub struct Budget {
    pub span: TimeSpan,
    /// When it began to run: several launches may share it.
    pub begun: Instant,
    /// The times of trials that have completed before the launch.
    pub known: KnownTimes,
}

/// The budget at the end of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetEnd {
    /// Number of trials that were not begun because of it.
    pub left: usize,
    /// Their ids; of a replacement that of the planned trial.
    pub ids: Vec<TrialId>,
    /// Number of those that may take longer than the whole budget.
    pub too_long: usize,
    /// The time that is left.
    pub rest: Duration,
    /// Time by which the launch took longer.
    pub over: Duration,
}

/// Which trials to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetVerdict {
    Begin,
    LeaveTrial,
    LeaveBlock,
}

/// Judges trials by what is known of their times.
#[derive(Debug)]
struct Judge {
    /// The time that was left at the first judgement; nothing longer can fit.
    most: Option<Duration>,
    known: KnownTimes,
    /// The blocks that have begun in this launch.
    begun: HashSet<u64>,
}

impl Judge {
    fn new(known: KnownTimes) -> Self {
        Self {
            most: None,
            known,
            begun: HashSet::new(),
        }
    }

    /// The time to have left for these trials, one after the other; those without an estimate need
    /// none.
    fn needed(&mut self, trials: &[&Trial]) -> Duration {
        let estimates = trials.iter().filter_map(|trial| self.known.estimate(trial));
        let seconds = estimates.fold(0.0, |sum, estimate| sum + estimate.highest);
        with_margin(seconds).unwrap_or(Duration::MAX)
    }

    /// Judges a trial that may start now. `block` has all trials of its block that are left, it
    /// included; it is empty if there is one block only. A block that needs more than was left when the
    /// launch began would never begin, so its trials are judged one by one.
    fn judge(&mut self, trial: &Trial, block: &[&Trial], left: Duration) -> BudgetVerdict {
        if left.is_zero() {
            return BudgetVerdict::LeaveTrial;
        }
        let most = *self.most.get_or_insert(left);
        if !self.begun.contains(&trial.block) {
            let needed = self.needed(block);
            if needed > left && needed <= most {
                return BudgetVerdict::LeaveBlock;
            }
        }
        if self.needed(&[trial]) > left {
            return BudgetVerdict::LeaveTrial;
        }
        self.begun.insert(trial.block);
        BudgetVerdict::Begin
    }
}

/// The budget of a launch that runs.
#[derive(Debug)]
pub(super) struct BudgetWatch<'b> {
    budget: &'b Budget,
    judge: Judge,
    left: Vec<TrialId>,
    too_long: usize,
}

impl<'b> BudgetWatch<'b> {
    pub(super) fn new(budget: &'b Budget) -> Self {
        Self {
            judge: Judge::new(budget.known.clone()),
            budget,
            left: Vec::new(),
            too_long: 0,
        }
    }

    /// As [`Judge::judge`].
    pub(super) fn judge(&mut self, trial: &Trial, block: &[&Trial], now: Instant) -> BudgetVerdict {
        self.judge.judge(trial, block, self.rest(now))
    }

    pub(super) fn is_used_up(&self, now: Instant) -> bool {
        self.rest(now).is_zero()
    }

    /// A trial has ended: it tells how long those like it take.
    pub(super) fn learn(&mut self, trial: &Trial, row: &TrialRow) {
        self.judge.known.learn(trial, row);
    }

    /// These trials are not begun.
    pub(super) fn leave<'t>(&mut self, trials: impl IntoIterator<Item = &'t Trial>) {
        for trial in trials {
            self.left.push(trial.planned().clone());
            self.too_long += usize::from(self.judge.needed(&[trial]) > self.budget.span.0);
        }
    }

    pub(super) fn end(&self, now: Instant) -> BudgetEnd {
        let used = now.saturating_duration_since(self.budget.begun);
        BudgetEnd {
            left: self.left.len(),
            ids: self.left.clone(),
            too_long: self.too_long,
            rest: self.rest(now),
            over: used.saturating_sub(self.budget.span.0),
        }
    }

    fn rest(&self, now: Instant) -> Duration {
        let used = now.saturating_duration_since(self.budget.begun);
        self.budget.span.0.saturating_sub(used)
    }
}

/// The trials of a plan that fit into a time on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FittingTrials {
    /// Number of trials with an estimate that fit.
    pub trials: usize,
    /// Seconds that they take.
    pub seconds: f64,
    /// Number of trials without an estimate that would begin if time is left.
    pub unknown: usize,
    /// Number of blocks of which all that is left has an estimate and fits; `None` if there is one block
    /// only.
    pub blocks: Option<usize>,
    /// Number of blocks with trials that are left.
    pub all_blocks: usize,
}

/// Judges the trials that are left of a plan as a launch would that begins now.
pub fn fitting_trials(
    plan: &[Trial],
    is_left: impl Fn(&Trial) -> bool,
    known: &KnownTimes,
    whole: Duration,
) -> FittingTrials {
    let left: Vec<&Trial> = plan.iter().filter(|trial| is_left(trial)).collect();
    let mut blocks: HashMap<u64, Vec<&Trial>> = HashMap::new();
    for &trial in &left {
        blocks.entry(trial.block).or_default().push(trial);
    }
    let has_blocks = keeps_blocks(plan);
    let mut fitting = FittingTrials {
        all_blocks: blocks.len(),
        ..FittingTrials::default()
    };
    let mut judge = Judge::new(known.clone());
    // Blocks of which nothing begins, and blocks of which not all begins.
    let (mut left_blocks, mut cut_blocks) = (HashSet::new(), HashSet::new());
    for trial in left {
        if left_blocks.contains(&trial.block) {
            continue;
        }
        let block = blocks.get(&trial.block).filter(|_| has_blocks);
        let block = block.map(Vec::as_slice).unwrap_or_default();
        let used = Duration::try_from_secs_f64(fitting.seconds).unwrap_or(Duration::MAX);
        match judge.judge(trial, block, whole.saturating_sub(used)) {
            BudgetVerdict::LeaveBlock => {
                left_blocks.insert(trial.block);
            }
            BudgetVerdict::LeaveTrial => {
                cut_blocks.insert(trial.block);
            }
            BudgetVerdict::Begin => match judge.known.estimate(trial) {
                Some(estimate) => {
                    fitting.trials += 1;
                    fitting.seconds += estimate.median;
                }
                None => {
                    fitting.unknown += 1;
                    cut_blocks.insert(trial.block);
                }
            },
        }
    }
    let is_whole = |block: &&u64| !left_blocks.contains(*block) && !cut_blocks.contains(*block);
    fitting.blocks = has_blocks.then(|| blocks.keys().filter(is_whole).count());
    fitting
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::Outcome;

    use super::*;
    use crate::schedule::estimate::tests::trials;

    /// Three rounds of two trials.
    const ROUNDS: &str = "grid: {train.batch_size: [1, 2]}, repeats: 3";

    fn took(seconds: f64) -> TrialRow {
        TrialRow {
            outcome: Outcome::Completed,
            trial_seconds: Some(seconds),
            ..TrialRow::default()
        }
    }

    /// Times of the first trials: those of the smaller batch, then of the larger.
    fn known(trials: &[Trial], seconds: &[f64]) -> KnownTimes {
        let mut known = KnownTimes::default();
        for (trial, seconds) in trials.iter().zip(seconds) {
            known.learn(trial, &took(*seconds));
        }
        known
    }

    fn fitting(sweep: &str, seconds: &[f64], whole: u64) -> FittingTrials {
        let trials = trials("steps: 10", sweep);
        let known = known(&trials, seconds);
        fitting_trials(&trials, |_| true, &known, Duration::from_secs(whole))
    }

    #[test]
    fn rounds_fit_as_a_whole_or_are_left() {
        let fits = |whole| {
            let found = fitting(ROUNDS, &[10.0, 20.0], whole);
            assert_eq!((found.unknown, found.all_blocks), (0, 3));
            (found.trials, found.blocks, found.seconds)
        };
        // A round takes 30 s, and 36 s have to be left for it.
        assert_eq!(fits(1000), (6, Some(3), 90.0));
        assert_eq!(fits(96), (6, Some(3), 90.0));
        assert_eq!(fits(95), (4, Some(2), 60.0));
        assert_eq!(fits(36), (2, Some(1), 30.0));
        assert_eq!(fits(0), (0, Some(0), 0.0));
        // No round can be whole: as many trials as fit.
        assert_eq!(fits(30), (2, Some(0), 20.0));
        assert_eq!(fits(11), (0, Some(0), 0.0));
    }

    #[test]
    fn a_plan_of_one_block_goes_trial_by_trial() {
        let sweep = "grid: {train.batch_size: [1, 2, 3]}";
        let found = fitting(sweep, &[10.0, 50.0, 10.0], 30);
        let fits = FittingTrials {
            trials: 2,
            seconds: 20.0,
            all_blocks: 1,
            ..FittingTrials::default()
        };
        assert_eq!(found, fits, "the long one is left");
    }

    #[test]
    fn trials_without_an_estimate_begin_while_time_is_left() {
        let fits = |whole| {
            let found = fitting(ROUNDS, &[10.0], whole);
            (found.trials, found.unknown)
        };
        assert_eq!(fits(1000), (3, 3));
        assert_eq!(fits(0), (0, 0));
    }

    #[test]
    fn a_block_that_has_begun_goes_on_as_far_as_its_trials_fit() {
        let trials = trials("steps: 10", ROUNDS);
        let mut judge = Judge::new(known(&trials, &[10.0, 20.0]));
        let at = |seconds| Duration::from_secs(seconds);
        let (first, second) = (&trials[0], &trials[1]);
        let both = [first, second];
        let other = judge.judge(&trials[2], &[&trials[2], &trials[3]], at(100));
        assert_eq!(other, BudgetVerdict::Begin);
        assert_eq!(judge.judge(first, &both, at(30)), BudgetVerdict::LeaveBlock);
        assert_eq!(judge.judge(first, &both, at(40)), BudgetVerdict::Begin);
        assert_eq!(judge.judge(second, &[second], at(24)), BudgetVerdict::Begin);
        assert_eq!(
            judge.judge(second, &[second], at(23)),
            BudgetVerdict::LeaveTrial
        );
        assert_eq!(judge.judge(first, &both, at(0)), BudgetVerdict::LeaveTrial);
    }

    #[test]
    fn a_round_for_which_too_little_was_left_at_the_start_goes_trial_by_trial() {
        let trials = trials("steps: 10", ROUNDS);
        let (both, at) = ([&trials[0], &trials[1]], Duration::from_secs);
        // A round needs 36 s, and some of the 36 s are over before the first trial.
        let mut judge = Judge::new(known(&trials, &[10.0, 20.0]));
        assert_eq!(judge.judge(both[0], &both, at(35)), BudgetVerdict::Begin);
        assert_eq!(
            judge.judge(both[1], &[both[1]], at(25)),
            BudgetVerdict::Begin
        );
    }

    #[test]
    fn trials_of_the_launch_become_the_estimates_of_those_like_them() {
        let trials = trials("steps: 10", ROUNDS);
        let begun = Instant::now();
        let budget = Budget {
            span: TimeSpan::from_secs(100),
            begun,
            known: KnownTimes::default(),
        };
        let mut watch = BudgetWatch::new(&budget);
        let at = |seconds| begun + Duration::from_secs(seconds);
        let block = |round: usize| [&trials[2 * round], &trials[2 * round + 1]];
        let judge = |watch: &mut BudgetWatch<'_>, round: usize, now| {
            watch.judge(&trials[2 * round], &block(round), at(now))
        };
        assert_eq!(judge(&mut watch, 0, 0), BudgetVerdict::Begin);
        watch.learn(&trials[0], &took(10.0));
        watch.learn(&trials[1], &took(20.0));
        assert_eq!(judge(&mut watch, 1, 64), BudgetVerdict::Begin);
        assert_eq!(judge(&mut watch, 2, 65), BudgetVerdict::LeaveBlock);
        watch.leave(block(2));
        assert!(!watch.is_used_up(at(99)) && watch.is_used_up(at(100)));
        let end = BudgetEnd {
            left: 2,
            ids: block(2).map(|trial| trial.id.clone()).to_vec(),
            too_long: 0,
            rest: Duration::ZERO,
            over: Duration::from_secs(7),
        };
        assert_eq!(watch.end(at(107)), end);
        watch.learn(&trials[0], &took(90.0));
        watch.leave([&trials[4]]);
        assert_eq!(watch.end(at(107)).too_long, 1);
    }
}
