//! The next state of a ticket that nobody works on: done, open, or held. Nobody takes a held ticket
//! until somebody asks for its trials again.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{NewTicket, Ticket, TicketContent, TicketEntry, TicketQueue, TicketState},
    units::{counted, without_controls},
};

use crate::schedule::remaining::History;

/// A trial that was killed so many times in a row, with its worker or from outside, is not given to
/// another one.
const MOST_KILLED: usize = 3;
/// A trial is not given to another worker after so many Slurm jobs that reached their time limit
/// before it ended, if it had most of each job's time and wrote no new checkpoint. Attempts at trials
/// of the same point (they differ in their seeds) are counted together, unless one has completed.
const MOST_JOBS: usize = 2;

/// Why a ticket is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::schedule) enum HeldCause {
    /// A trial of it was killed again and again.
    Killed,
    /// Its trials are longer than their jobs.
    TooLong,
}

impl HeldCause {
    /// `because …; … opens`
    pub(in crate::schedule) fn in_words(self) -> String {
        match self {
            Self::Killed => format!(
                "because a trial was killed {MOST_KILLED} times in a row, with its worker or from \
                 outside; `kiln run FILE --on workers --rerun killed` opens"
            ),
            Self::TooLong => format!(
                "because the time of {MOST_JOBS} jobs ended before a trial, or others of its point, and \
                 left no new checkpoint (`train.checkpoint` in a new run writes them); `kiln run FILE \
                 --on slurm --rerun interrupted --set run.slurm.time=…`, with more time, opens"
            ),
        }
    }
}

/// Why a ticket is held, and what opens it.
fn why_held(ticket: u64, cause: HeldCause) -> String {
    format!("ticket {ticket} is held, {} it", cause.in_words())
}

/// Why a ticket is held that names a trial which the plan does not have.
pub(in crate::schedule) fn why_damaged(ticket: u64, trial: &TrialId) -> String {
    format!(
        "ticket {ticket} of the run's queue is damaged: it names trial `{}`, which the experiment does \
         not have; it is held, and its trials get another one",
        without_controls(&trial.0)
    )
}

/// Where a ticket goes that nobody works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum NextState {
    /// Nothing is left of it.
    Done,
    Open,
    Held(HeldCause),
    /// Some of its trials are too long, and the others are not: it becomes a held and an open one.
    Divided,
}

impl NextState {
    pub(in crate::schedule) fn cause(self) -> Option<HeldCause> {
        match self {
            Self::Held(cause) => Some(cause),
            Self::Divided => Some(HeldCause::TooLong),
            Self::Done | Self::Open => None,
        }
    }
}

/// How far the trials of a plan are, by the rows that there are.
pub(in crate::schedule) struct Standing<'a> {
    trials: &'a [Trial],
    history: &'a History,
    retries: u64,
    /// Indices of each planned trial and of those that stand in for it.
    of_planned: HashMap<&'a TrialId, Vec<usize>>,
    /// Points that are longer than their jobs.
    long_points: HashSet<u64>,
}

impl<'a> Standing<'a> {
    /// `trials` are the plan and those that stand in for some of it.
    pub(in crate::schedule) fn new(
        trials: &'a [Trial],
        history: &'a History,
        retries: u64,
    ) -> Self {
        let mut of_planned: HashMap<&TrialId, Vec<usize>> = HashMap::new();
        let mut jobs: HashMap<u64, HashSet<u64>> = HashMap::new();
        let mut completed = HashSet::new();
        for (index, trial) in trials.iter().enumerate() {
            of_planned.entry(trial.planned()).or_default().push(index);
            let ended = history.last(&trial.id);
            if ended.is_some_and(Outcome::is_end_of_training) {
                completed.insert(trial.point);
            }
            let cut_off = history.cut_off_by(&trial.id, 0);
            jobs.entry(trial.point).or_default().extend(cut_off);
        }
        jobs.retain(|point, jobs| jobs.len() >= MOST_JOBS && !completed.contains(point));
        Self {
            trials,
            history,
            retries,
            of_planned,
            long_points: jobs.into_keys().collect(),
        }
    }

    /// A trial that a ticket names and the plan does not have.
    pub(in crate::schedule) fn unknown<'e>(
        &self,
        entries: &'e [TicketEntry],
    ) -> Option<&'e TrialId> {
        let mut named = entries.iter().map(|entry| &entry.trial);
        named.find(|id| !self.of_planned.contains_key(id))
    }

    /// Where a ticket with these trials goes that nobody works on.
    pub(in crate::schedule) fn next(&self, entries: &[TicketEntry]) -> NextState {
        let (mut is_left, mut is_long) = (false, false);
        for (trial, after) in self.unsettled(entries) {
            if self.history.killed_in_a_row(&trial.id, after) >= MOST_KILLED {
                return NextState::Held(HeldCause::Killed);
            }
            match self.is_too_long(trial, after) {
                true => is_long = true,
                false => is_left = true,
            }
        }
        match (is_left, is_long) {
            (false, false) => NextState::Done,
            (true, false) => NextState::Open,
            (false, true) => NextState::Held(HeldCause::TooLong),
            (true, true) => NextState::Divided,
        }
    }

    /// Whether the trial of an entry, or one that stands in for it, needs another attempt.
    pub(in crate::schedule) fn is_left(&self, entry: &TicketEntry) -> bool {
        let mut unsettled = self.unsettled(std::slice::from_ref(entry));
        unsettled.next().is_some()
    }

    /// Whether the time of this launch's job ended the last attempt of one of these trials.
    pub(in crate::schedule) fn is_cut_off_by(&self, entries: &[TicketEntry], launch: u64) -> bool {
        self.unsettled(entries)
            .any(|(trial, _)| self.history.is_cut_off_by(&trial.id, launch))
    }

    /// Holds a ticket whose trials are too long, or divides one of which some are not; returns how
    /// many of its trials wait on in another one, and `None` if somebody else was faster, or was cut off
    /// as he divided it.
    ///
    /// # Errors
    /// The queue cannot be read or written.
    pub(in crate::schedule) fn hold(
        &self,
        queue: &TicketQueue,
        ticket: Ticket,
        entries: Vec<TicketEntry>,
    ) -> io::Result<Option<usize>> {
        let is_long = |entry: &TicketEntry| {
            self.unsettled(std::slice::from_ref(entry))
                .any(|(trial, after)| self.is_too_long(trial, after))
        };
        let left = entries.into_iter().filter(|entry| self.is_left(entry));
        let (long, others): (Vec<_>, Vec<_>) = left.partition(is_long);
        let left = others.len();
        if left == 0 {
            let held = queue.put(ticket, TicketState::Held)?;
            return Ok(held.map(|_| 0));
        }
        let parts = [
            NewTicket {
                entries: long,
                state: TicketState::Held,
            },
            NewTicket::open(others),
        ];
        let divided = queue.divide(ticket, TicketState::Held, &parts)?;
        Ok(divided.then_some(left))
    }

    /// Holds the open tickets with trials of the same points as these, which are too long; returns how
    /// many it held. Whoever has just taken one runs its trial once more.
    ///
    /// # Errors
    /// The queue cannot be read or written.
    pub(in crate::schedule) fn hold_others(
        &self,
        queue: &TicketQueue,
        entries: &[TicketEntry],
    ) -> io::Result<usize> {
        let long = self.unsettled(entries);
        let long = long.filter(|(trial, after)| self.is_too_long(trial, *after));
        let points: HashSet<u64> = long.map(|(trial, _)| trial.point).collect();
        let own: HashSet<&TrialId> = entries.iter().map(|entry| &entry.trial).collect();
        let others: HashSet<&TrialId> = self
            .trials
            .iter()
            .filter(|trial| points.contains(&trial.point) && !own.contains(&trial.id))
            .map(|trial| &trial.id)
            .collect();
        // Most plans have no repeats, and reading all tickets takes its time.
        if others.is_empty() {
            return Ok(0);
        }
        let mut held = 0;
        for ticket in queue.list()? {
            if ticket.state != TicketState::Open {
                continue;
            }
            // Somebody has just taken it, or it is damaged, which whoever takes it finds.
            let TicketContent::Whole(entries) = queue.content(ticket)? else {
                continue;
            };
            let is_of_them = entries.iter().any(|entry| others.contains(&entry.trial));
            if is_of_them
                && self.next(&entries).cause() == Some(HeldCause::TooLong)
                && self.hold(queue, ticket, entries)?.is_some()
            {
                held += 1;
            }
        }
        Ok(held)
    }

    fn is_too_long(&self, trial: &Trial, after: u64) -> bool {
        let jobs: HashSet<u64> = self
            .history
            .cut_off_by(&trial.id, after)
            .into_iter()
            .collect();
        jobs.len() >= MOST_JOBS || self.long_points.contains(&trial.point)
    }

    /// The trials of these entries that need another attempt, with those that stand in for them; each
    /// with the number of the attempt up to which rows do not count.
    fn unsettled<'s>(
        &'s self,
        entries: &'s [TicketEntry],
    ) -> impl Iterator<Item = (&'s Trial, u64)> {
        let of_entry = move |entry: &'s TicketEntry| {
            let indices = self.of_planned.get(&entry.trial).into_iter().flatten();
            indices.map(move |index| {
                let trial = &self.trials[*index];
                let after = if trial.id == entry.trial {
                    entry.after
                } else {
                    0
                };
                (trial, after)
            })
        };
        let all = entries.iter().flat_map(of_entry);
        all.filter(|(trial, after)| {
            let history = self.history;
            !history.is_settled_after(&trial.id, self.retries, *after)
        })
    }
}

/// The notice that a ticket is held or divided: `left` of its trials wait in another ticket, and
/// `others` is the number of other tickets that are held for the same cause.
pub(in crate::schedule) fn held_in_words(
    ticket: u64,
    cause: HeldCause,
    left: usize,
    others: usize,
) -> String {
    let mut sentence = match left {
        0 => why_held(ticket, cause),
        left => format!(
            "ticket {ticket} is divided: {} on in another one, and the rest is held, {} it",
            counted(left, "trial") + if left == 1 { " waits" } else { " wait" },
            cause.in_words()
        ),
    };
    if others > 0 {
        sentence += &format!("; the same is true of {}", counted(others, "other ticket"));
    }
    sentence
}

#[cfg(test)]
mod tests {
    use kiln_core::{record::RunFolder, spec::Experiment};

    use super::*;

    fn plan(grid: &str, repeats: u64) -> Vec<Trial> {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp}}, data: {{kind: generated}}, train: {{steps: \
             10}}, sweep: {{grid: {{train.batch_size: [{grid}]}}, repeats: {repeats}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        let plan = kiln_core::plan::expand(&experiment, &|_| None).unwrap();
        plan.trials
    }

    fn entry(trial: &TrialId) -> TicketEntry {
        TicketEntry {
            trial: trial.clone(),
            after: 0,
        }
    }

    fn of_point(trials: &[Trial], point: u64) -> Vec<TrialId> {
        let of_it = trials.iter().filter(|trial| trial.point == point);
        of_it.map(|trial| trial.id.clone()).collect()
    }

    /// A history of attempts: the trial, how it ended, and whether the time of that job ended it.
    fn history(ends: &[(&TrialId, Outcome, Option<u64>)]) -> History {
        let mut history = History::default();
        for (attempt, (trial, outcome, job)) in (1..).zip(ends) {
            history.add_cut_off(trial, attempt, *outcome, job.map(|job| (job, true)));
        }
        history
    }

    #[test]
    fn a_ticket_nobody_works_on_is_done_open_or_held() {
        use Outcome::{Completed, Interrupted, Killed};
        let trials = plan("1, 2", 1);
        let (a, b) = (&trials[0].id, &trials[1].id);
        let next = |of_a: &[Outcome], of_b: &[Outcome]| {
            let mut history = History::default();
            for (id, outcomes) in [(a, of_a), (b, of_b)] {
                (1..)
                    .zip(outcomes)
                    .for_each(|(attempt, outcome)| history.add_outcome(id, attempt, *outcome));
            }
            Standing::new(&trials, &history, 0).next(&[entry(a), entry(b)])
        };
        let killed = NextState::Held(HeldCause::Killed);
        assert_eq!(next(&[Completed], &[Killed, Completed]), NextState::Done);
        assert_eq!(next(&[Completed], &[Killed, Killed]), NextState::Open);
        assert_eq!(next(&[Completed], &[Killed; 3]), killed);
        assert_eq!(
            next(&[], &[Killed, Killed, Interrupted, Killed]),
            NextState::Open
        );
        assert_eq!(next(&[Killed; 3], &[]), killed);
        assert_eq!(next(&[], &[]), NextState::Open);
    }

    #[test]
    fn rows_up_to_the_one_that_was_asked_for_again_do_not_count() {
        let trials = plan("1", 1);
        let a = &trials[0].id;
        let mut history = History::default();
        history.add_outcome(a, 1, Outcome::Completed);
        let next = |history: &History, after| {
            let entry = TicketEntry { after, ..entry(a) };
            Standing::new(&trials, history, 0).next(&[entry])
        };
        assert_eq!(next(&history, 0), NextState::Done);
        assert_eq!(next(&history, 1), NextState::Open);
        history.add_outcome(a, 2, Outcome::Completed);
        assert_eq!(next(&history, 1), NextState::Done);
    }

    #[test]
    fn a_point_that_is_longer_than_its_jobs_is_held() {
        let trials = plan("1, 2", 2);
        let (first, other) = (of_point(&trials, 0), of_point(&trials, 1));
        let next = |ends: &[(&TrialId, Outcome, Option<u64>)], of: &TrialId| {
            Standing::new(&trials, &history(ends), 0).next(&[entry(of)])
        };
        let (a, b) = (&first[0], &first[1]);
        let cut = |trial, job| (trial, Outcome::Interrupted, Some(job));
        let too_long = NextState::Held(HeldCause::TooLong);
        assert_eq!(next(&[cut(a, 2)], a), NextState::Open);
        assert_eq!(next(&[cut(a, 2), cut(a, 3)], a), too_long);
        // What its point shows is true of a trial that was never begun.
        assert_eq!(next(&[cut(a, 2), cut(a, 3)], b), too_long);
        assert_eq!(next(&[cut(a, 2), cut(b, 3)], a), too_long);
        assert_eq!(next(&[cut(a, 2), cut(a, 3)], &other[0]), NextState::Open);
        // Two that ran side by side in one job.
        assert_eq!(next(&[cut(a, 2), cut(b, 2)], a), NextState::Open);
        // One that has a result speaks for the others.
        let done = (b, Outcome::Completed, None);
        assert_eq!(next(&[cut(a, 2), done], a), NextState::Open);
        assert_eq!(next(&[cut(a, 2), done, cut(a, 3)], a), too_long);
        // Stopped by a person, or with a new checkpoint.
        let stopped = (a, Outcome::Interrupted, None);
        assert_eq!(next(&[cut(a, 2), stopped, cut(a, 3)], a), NextState::Open);
    }

    #[test]
    fn a_ticket_of_which_some_trials_are_too_long_is_divided_and_open_ones_of_the_point_are_held() {
        let trials = plan("1, 2, 3", 2);
        let (long, others) = (of_point(&trials, 1), of_point(&trials, 0));
        let history = history(&[
            (&long[0], Outcome::Interrupted, Some(2)),
            (&long[0], Outcome::Interrupted, Some(3)),
            (&others[0], Outcome::Completed, None),
        ]);
        let standing = Standing::new(&trials, &history, 0);
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let third = of_point(&trials, 2);
        let rounds = [0, 1].map(|round| {
            vec![
                entry(&others[round]),
                entry(&long[round]),
                entry(&third[round]),
            ]
        });
        let tickets = rounds.clone().map(NewTicket::open);
        let queue = TicketQueue::create(&run, &tickets).unwrap();
        let first = queue.list().unwrap()[0];
        let taken = queue.put(first, TicketState::Taken(3)).unwrap().unwrap();
        assert_eq!(standing.next(&rounds[0]), NextState::Divided);
        let left = standing.hold(&queue, taken, rounds[0].clone()).unwrap();
        assert_eq!(left, Some(1));
        assert_eq!(standing.hold_others(&queue, &rounds[0]).unwrap(), 1);
        let all = |state: TicketState| -> Vec<Vec<TicketEntry>> {
            let listed = queue.list().unwrap();
            let of_state = listed.into_iter().filter(|ticket| ticket.state == state);
            of_state
                .map(|ticket| match queue.content(ticket).unwrap() {
                    TicketContent::Whole(entries) => entries,
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(all(TicketState::Done), rounds);
        assert_eq!(
            all(TicketState::Held),
            [vec![entry(&long[0])], vec![entry(&long[1])]]
        );
        assert_eq!(
            all(TicketState::Open),
            [
                vec![entry(&third[0])],
                vec![entry(&others[1]), entry(&third[1])]
            ]
        );
        // Who finds it as it was, in an old list, divides nothing a second time.
        assert_eq!(
            standing.hold(&queue, taken, rounds[0].clone()).unwrap(),
            None
        );
        assert_eq!(queue.list().unwrap().len(), 6);
    }
}
