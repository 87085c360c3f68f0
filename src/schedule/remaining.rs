//! Finds the remaining trials of a plan from the existing rows. Pure.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{AttemptEnd, CutOff},
    spec::OnOom,
    units::few,
};

/// The selection of trials on the command line.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only these ids; empty for all.
    pub only: Vec<TrialId>,
    /// Retry trials with these outcomes.
    pub rerun: Vec<Outcome>,
}

impl Selection {
    /// Whether a trial, or the one that it replaces, is selected.
    pub fn wants(&self, trial: &Trial) -> bool {
        let is_named = |id: &TrialId| self.only.contains(id);
        self.only.is_empty() || is_named(&trial.id) || is_named(trial.planned())
    }
}

/// Progress of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanProgress {
    /// Number of trials that need no further attempt.
    pub settled: usize,
    /// Number of those without a result.
    pub failed: usize,
}

impl PlanProgress {
    fn plus(self, other: Self) -> Self {
        Self {
            settled: self.settled + other.settled,
            failed: self.failed + other.failed,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            settled: self.settled - other.settled,
            failed: self.failed - other.failed,
        }
    }
}

/// The progress of a plan whose attempts end one by one, without a look at every trial each time.
#[derive(Debug, Default)]
pub(super) struct PlanCount {
    /// Number of trials that are counted; more may be added to the plan.
    counted: usize,
    progress: PlanProgress,
}

impl PlanCount {
    /// Adds the end of an attempt to the history, and returns [`History::standing`]. The trial is in
    /// the plan once, and the history has changed by this only since the first call.
    pub(super) fn add(
        &mut self,
        history: &mut History,
        end: &AttemptEnd,
        trials: &[Trial],
        retries: u64,
    ) -> PlanProgress {
        let new = trials.get(self.counted..).unwrap_or_default();
        let before = self.progress.plus(history.standing(new, retries));
        let of_trial = history.progress(&end.trial, retries);
        history.add(end);
        self.counted = trials.len();
        self.progress = before
            .minus(of_trial)
            .plus(history.progress(&end.trial, retries));
        self.progress
    }
}

/// The ended attempts of every trial, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct History(HashMap<TrialId, Vec<EndedAttempt>>);

#[derive(Clone, Debug)]
struct EndedAttempt {
    attempt: u64,
    outcome: Outcome,
    cut_off: Option<CutOff>,
    gpu: Option<Arc<str>>,
    memory_limit_bytes: Option<u64>,
    is_read_again: bool,
}

/// Where a trial ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OomEnd<'h> {
    /// As in the table; `None` on the CPU.
    pub(super) device_uuid: Option<&'h str>,
    pub(super) memory_limit_bytes: Option<u64>,
}

impl History {
    /// The history of these ended attempts. Their order does not matter: whoever finds a lost attempt
    /// may give it its row after a later attempt has ended.
    pub(super) fn of<'e>(ends: impl IntoIterator<Item = &'e AttemptEnd>) -> Self {
        let mut history = Self::default();
        ends.into_iter().for_each(|end| history.add(end));
        history
    }

    /// If the attempt has a row already, the history keeps the one with the higher [`Outcome::weight`].
    pub(super) fn add(&mut self, end: &AttemptEnd) {
        let ended = EndedAttempt {
            attempt: end.attempt,
            outcome: end.outcome,
            cut_off: end.cut_off,
            gpu: end.device_uuid.clone(),
            memory_limit_bytes: end.memory_limit_bytes,
            is_read_again: end.is_read_again,
        };
        let attempts = self.0.entry(end.trial.clone()).or_default();
        let place = attempts.partition_point(|known| known.attempt < ended.attempt);
        match attempts.get_mut(place) {
            Some(known) if known.attempt == ended.attempt => {
                if ended.outcome.weight() > known.outcome.weight() {
                    *known = ended;
                }
            }
            _ => attempts.insert(place, ended),
        }
    }

    /// Outcome of the trial's last attempt; `None` if there was none.
    pub(super) fn last(&self, trial: &TrialId) -> Option<Outcome> {
        self.0.get(trial)?.last().map(|ended| ended.outcome)
    }

    /// Where its last attempt ran out of memory; `None` if it did not.
    pub(super) fn oom(&self, trial: &TrialId) -> Option<OomEnd<'_>> {
        let last = self.0.get(trial)?.last();
        let last = last.filter(|ended| ended.outcome == Outcome::Oom)?;
        Some(OomEnd {
            device_uuid: last.gpu.as_deref(),
            memory_limit_bytes: last.memory_limit_bytes,
        })
    }

    /// Number of the trial's last attempt; 0 if there was none.
    pub(super) fn last_attempt(&self, trial: &TrialId) -> u64 {
        self.newest(trial, 0)
            .next()
            .map_or(0, |ended| ended.attempt)
    }

    /// Whether a trial has a final outcome.
    pub(super) fn has_final(&self) -> bool {
        let mut all = self.0.values().flatten();
        all.any(|ended| ended.outcome.is_final())
    }

    /// A GPU on which the trial ran.
    pub(super) fn gpu(&self, trial: &TrialId) -> Option<&str> {
        let mut all = self.0.get(trial)?.iter();
        all.find_map(|ended| ended.gpu.as_deref())
    }

    /// Whether the trial was completed on the CPU. Rows of other outcomes may be without a device because
    /// nobody knows it.
    pub(super) fn completed_on_cpu(&self, trial: &TrialId) -> bool {
        let mut all = self.0.get(trial).into_iter().flatten();
        all.any(|ended| ended.gpu.is_none() && ended.outcome == Outcome::Completed)
    }

    /// How many of its last attempts were killed one after another; those up to number `after` do not
    /// count.
    pub(super) fn killed_in_a_row(&self, trial: &TrialId, after: u64) -> usize {
        let newest = self.newest(trial, after);
        newest
            .take_while(|ended| ended.outcome == Outcome::Killed)
            .count()
    }

    /// The launches whose jobs' time ended its last attempts one after another, without a new
    /// checkpoint in any of them. One that had little of that time says nothing. Those up to number
    /// `after` do not count.
    pub(super) fn cut_off_by(&self, trial: &TrialId, after: u64) -> Vec<u64> {
        let newest = self.newest(trial, after);
        let telling = newest.filter(|ended| ended.cut_off.is_none_or(|cut| cut.had_most));
        telling
            .map_while(|ended| ended.cut_off.map(|cut| cut.launch))
            .collect()
    }

    /// Whether the time of this launch's job, of which it had most, ended the trial's last attempt.
    pub(super) fn is_cut_off_by(&self, trial: &TrialId, launch: u64) -> bool {
        let last = self.newest(trial, 0).next().and_then(|ended| ended.cut_off);
        last.is_some_and(|cut| cut.launch == launch && cut.had_most)
    }

    fn newest(&self, trial: &TrialId, after: u64) -> impl Iterator<Item = &EndedAttempt> {
        let attempts = self.0.get(trial).map(Vec::as_slice).unwrap_or_default();
        let newest = attempts.iter().rev();
        // A row without an attempt has number 0.
        newest.take_while(move |ended| after == 0 || ended.attempt > after)
    }

    /// Whether the trial needs no further attempt: it has a final outcome, and for `failed` no
    /// retry is left, or its metrics were read again: a retry does not mend their patterns.
    pub(super) fn is_settled(&self, trial: &TrialId, retries: u64) -> bool {
        self.is_settled_after(trial, retries, 0)
    }

    /// As [`History::is_settled`], by the attempts with a number above `after` only; 0 for all.
    pub(super) fn is_settled_after(&self, trial: &TrialId, retries: u64, after: u64) -> bool {
        match self.newest(trial, after).next() {
            Some(last) if last.outcome == Outcome::Failed => {
                last.is_read_again || self.failures(trial, after) > retries
            }
            Some(last) => last.outcome.is_final(),
            None => false,
        }
    }

    /// Progress of the whole plan, independent of the selection of a launch.
    pub(super) fn standing(&self, trials: &[Trial], retries: u64) -> PlanProgress {
        let each = trials.iter().map(|trial| self.progress(&trial.id, retries));
        each.fold(PlanProgress::default(), PlanProgress::plus)
    }

    /// Progress of a plan of this trial alone.
    fn progress(&self, trial: &TrialId, retries: u64) -> PlanProgress {
        let is_settled = self.is_settled(trial, retries);
        let is_without_result = is_settled && !self.last(trial).is_some_and(Outcome::is_result);
        PlanProgress {
            settled: usize::from(is_settled),
            failed: usize::from(is_without_result),
        }
    }

    fn failures(&self, trial: &TrialId, after: u64) -> u64 {
        let failed = |ended: &&EndedAttempt| ended.outcome == Outcome::Failed;
        self.newest(trial, after).filter(failed).count() as u64
    }
}

#[cfg(test)]
impl History {
    pub(super) fn add_outcome(&mut self, trial: &TrialId, attempt: u64, outcome: Outcome) {
        self.add_cut_off(trial, attempt, outcome, None);
    }

    pub(super) fn add_cut_off(
        &mut self,
        trial: &TrialId,
        attempt: u64,
        outcome: Outcome,
        cut_off: Option<(u64, bool)>,
    ) {
        self.add(&AttemptEnd {
            trial: trial.clone(),
            attempt,
            outcome,
            cut_off: cut_off.map(|(launch, had_most)| CutOff { launch, had_most }),
            device_uuid: None,
            memory_limit_bytes: None,
            is_read_again: false,
        });
    }
}

/// The planned trials, followed by the replacements of trials that ran out of memory, as far as the
/// history shows them.
pub(super) fn with_fallbacks<'t>(
    planned: &'t [Trial],
    history: &History,
    on_oom: OnOom,
) -> Cow<'t, [Trial]> {
    let mut trials = Cow::Borrowed(planned);
    let mut at = 0;
    while let Some(trial) = trials.get(at).filter(|_| on_oom == OnOom::Shrink) {
        if history.last(&trial.id) == Some(Outcome::Oom)
            && let Some(next) = fallback(&trials, trial)
        {
            trials.to_mut().push(next);
        }
        at += 1;
    }
    trials
}

/// Returns the replacement of a trial that ran out of memory; `None` if no smaller batch is left,
/// or if it is already among the trials.
pub(super) fn fallback(trials: &[Trial], failed: &Trial) -> Option<Trial> {
    let smaller = failed.shrunk()?;
    let is_new = trials.iter().all(|known| known.id != smaller.id);
    is_new.then(|| Trial {
        number: trials.len() as u64 + 1,
        ..smaller
    })
}

/// The selected trials that need another attempt, whatever is asked for again.
pub(super) fn unsettled<'t>(
    trials: &'t [Trial],
    history: &'t History,
    selection: &'t Selection,
    retries: u64,
) -> impl Iterator<Item = &'t Trial> {
    let is_left = move |trial: &&Trial| !history.is_settled(&trial.id, retries);
    let selected = trials.iter().filter(|trial| selection.wants(trial));
    selected.filter(is_left)
}

/// Returns the indices in `trials` of the trials to run, in plan order.
pub(super) fn remaining(
    trials: &[Trial],
    history: &History,
    selection: &Selection,
    retries: u64,
) -> Vec<usize> {
    let again = |trial: &Trial| {
        history
            .last(&trial.id)
            .is_some_and(|outcome| selection.rerun.contains(&outcome))
    };
    (0..trials.len())
        .filter(|index| {
            let trial = &trials[*index];
            selection.wants(trial) && (again(trial) || !history.is_settled(&trial.id, retries))
        })
        .collect()
}

/// Most ids that a message lists.
const MOST_IDS: usize = 5;

/// Finds the trials that `--only` names, by id or the beginning of one.
///
/// # Errors
/// If a name matches no trial, or several; the text lists them.
pub fn find_ids(trials: &[Trial], names: &[String]) -> Result<Vec<TrialId>, String> {
    names.iter().map(|name| find_id(trials, name)).collect()
}

fn find_id(trials: &[Trial], name: &str) -> Result<TrialId, String> {
    if name.is_empty() {
        return Err(
            "`--only` names no trial; write an id or its beginning; `kiln plan` lists the ids"
                .to_owned(),
        );
    }
    let fitting: Vec<&TrialId> = trials
        .iter()
        .map(|trial| &trial.id)
        .filter(|id| id.begins_with(name))
        .collect();
    match fitting.as_slice() {
        [id] => Ok((*id).clone()),
        [] => Err(format!(
            "`--only {name}`: the plan has no such trial; its {} ids are listed by `kiln plan`",
            trials.len()
        )),
        several => {
            let ids: Vec<String> = several.iter().map(|id| id.0.clone()).collect();
            Err(format!(
                "`--only {name}` matches {} trials: {}; write more of the id",
                ids.len(),
                few(&ids, MOST_IDS)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kiln_core::spec::Experiment;

    use super::*;
    use crate::schedule::sweep::tests::trial;

    #[test]
    fn failed_trials_have_retries_and_outside_ends_are_never_final() {
        let id = TrialId("a".into());
        let settled = |ends: &[Outcome], retries| {
            let mut history = History::default();
            (1..)
                .zip(ends)
                .for_each(|(attempt, outcome)| history.add_outcome(&id, attempt, *outcome));
            history.is_settled(&id, retries)
        };
        use Outcome::{Completed, Failed, Interrupted, Killed, Oom, TimedOut};
        let mut skipped = History::default();
        skipped.add_outcome(&id, 0, Outcome::Skipped);
        assert!(skipped.is_settled(&id, 0) && skipped.last(&id) == Some(Outcome::Skipped));
        assert!(!settled(&[], 0) && !settled(&[Killed], 0) && !settled(&[Failed, Interrupted], 0));
        assert!(
            settled(&[Failed], 0)
                && !settled(&[Failed], 1)
                && settled(&[Failed, Killed, Failed], 1)
        );
        assert!(settled(&[Oom], 5) && settled(&[TimedOut], 5) && settled(&[Failed, Completed], 5));
    }

    #[test]
    fn a_failed_reading_has_no_retries_and_a_failed_program_after_it_has() {
        let id = TrialId("a".into());
        let mut history = History::default();
        history.add(&AttemptEnd {
            trial: id.clone(),
            attempt: 2,
            outcome: Outcome::Failed,
            cut_off: None,
            device_uuid: None,
            memory_limit_bytes: None,
            is_read_again: true,
        });
        assert!(history.is_settled(&id, 5));
        history.add_outcome(&id, 3, Outcome::Failed);
        assert!(!history.is_settled(&id, 5));
    }

    /// Trials with the ids 0000000001 to 00000000<count>.
    fn numbered(count: u64) -> Vec<Trial> {
        let experiment: Experiment =
            serde_yaml::from_str("{kiln: 1, name: x, model: {kind: matmul, size: 8}}").unwrap();
        (1..=count)
            .map(|number| trial(&experiment, number, 0))
            .collect()
    }

    #[test]
    fn an_ambiguous_id_names_the_first_of_its_trials() {
        let found = |name: &str| find_ids(&numbered(40), &[name.to_owned()]);
        assert_eq!(
            found("t").unwrap_err(),
            "`--only t` matches 40 trials: 0000000001, 0000000002, 0000000003, 0000000004, \
             0000000005 and 35 more; write more of the id"
        );
        assert_eq!(
            found("000000004").unwrap(),
            [TrialId("0000000040".to_owned())]
        );
    }

    #[test]
    fn progress_by_difference_is_that_of_the_whole_plan() {
        let trials = numbered(30);
        let outcomes = [
            Outcome::Completed,
            Outcome::Diverged,
            Outcome::Failed,
            Outcome::Oom,
            Outcome::TimedOut,
            Outcome::Skipped,
            Outcome::Killed,
            Outcome::Interrupted,
        ];
        let mut random = fastrand::Rng::with_seed(3);
        let mut seen = HashSet::new();
        for retries in [0, 1, 2] {
            // Some trials have ended before, and some are added to the plan later.
            let (mut history, mut count) = (History::default(), PlanCount::default());
            let mut planned = 20;
            for step in 0..300 {
                let among = if step < 20 { trials.len() } else { planned };
                let place = random.usize(..among);
                let end = AttemptEnd {
                    trial: trials[place].id.clone(),
                    attempt: random.u64(1..5),
                    outcome: outcomes[random.usize(..outcomes.len())],
                    cut_off: None,
                    device_uuid: None,
                    memory_limit_bytes: None,
                    is_read_again: random.bool(),
                };
                if step < 20 {
                    history.add(&end);
                    continue;
                }
                let found = count.add(&mut history, &end, &trials[..planned], retries);
                assert_eq!(found, history.standing(&trials[..planned], retries));
                seen.insert((found.settled, found.failed));
                planned = trials.len().min(planned + usize::from(step % 10 == 0));
            }
        }
        assert!(seen.len() > 10, "{seen:?}");
    }

    #[test]
    fn a_lost_attempt_that_gets_its_row_late_does_not_undo_a_later_one() {
        let id = TrialId("a".into());
        let mut history = History::default();
        for (attempt, outcome) in [
            (3, Outcome::Completed),
            (1, Outcome::Killed),
            (2, Outcome::Killed),
        ] {
            history.add_outcome(&id, attempt, outcome);
        }
        assert_eq!(history.last(&id), Some(Outcome::Completed));
        assert!(history.is_settled(&id, 0) && history.killed_in_a_row(&id, 0) == 0);
        // Who took the ticket back and the one that ran it, in either order.
        history.add_outcome(&id, 3, Outcome::Killed);
        history.add_outcome(&id, 4, Outcome::Killed);
        history.add_outcome(&id, 4, Outcome::Killed);
        assert_eq!(history.killed_in_a_row(&id, 0), 1);
        history.add_outcome(&id, 4, Outcome::Interrupted);
        history.add_outcome(&id, 4, Outcome::Killed);
        assert_eq!(history.last(&id), Some(Outcome::Interrupted));
        history.add_outcome(&id, 4, Outcome::Completed);
        assert!(history.is_settled(&id, 0));
    }
}
