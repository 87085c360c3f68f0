//! The workers of a run that Slurm has: which wait, run or are gone, and who comes in their place.

mod endings;
mod notices;

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use kiln_core::{
    record::{
        RunFolder, Submission, TicketCounts, TicketQueue,
        run_file::{EndCause, SlurmTask},
        submission,
    },
    spec::Slurm,
    units::counted,
};

pub(super) use self::endings::last_line;
use self::{endings::Ending, notices::PrintedNotices};
use super::{
    cancel::cancel,
    client::Client,
    look::{JobWatch, SlurmSays, Word},
    states::{Stage, TaskId},
    submit::{SubmitError, WorkerArray, known_jobs, looked_up, submit_array},
};
use crate::schedule::RunStop;

/// A pause before a replacement is at most so many beats.
const LONGEST_PAUSE: u32 = 20;
/// A submission may be without an answer for so many beats; `sbatch` tries for two minutes and a half.
const UNANSWERED: u32 = 6;

/// A start of a worker, as its launch tells it.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct WorkerSeen {
    pub(in crate::schedule) launch: u64,
    pub(in crate::schedule) task: SlurmTask,
    pub(in crate::schedule) node: Option<String>,
    pub(in crate::schedule) cause: Option<EndCause>,
    pub(in crate::schedule) has_begun_a_trial: bool,
}

/// The rows of a run, as far as they tell of its workers.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::schedule) struct RowsSeen {
    /// Trials that have one.
    pub(in crate::schedule) trials: usize,
    /// Whether some trial has a result.
    pub(in crate::schedule) has_result: bool,
}

/// How many tasks wait or run.
#[derive(Debug, Default)]
struct AliveTasks<'w> {
    /// Without those that Slurm starts no more.
    waiting: usize,
    running: usize,
    /// Those that run, have no ticket yet and will take one.
    beginning: usize,
    /// Why the last of those that wait does so.
    reason: &'w str,
}

impl AliveTasks<'_> {
    fn alive(&self) -> usize {
        self.waiting + self.running
    }
}

/// The workers of a run in Slurm.
#[derive(Debug)]
pub(in crate::schedule) struct Fleet {
    run: RunFolder,
    queue: TicketQueue,
    client: Client,
    /// All that have a job, in order.
    submissions: Vec<Submission>,
    /// The highest number of a submission, also of one without a job.
    newest: u64,
    /// When a submission without a job and without an answer was first seen, and when it was looked up
    /// last.
    unanswered: HashMap<u64, (Instant, Instant)>,
    watch: JobWatch,
    beat: Duration,
    endings: HashMap<TaskId, Ending>,
    /// Tasks that were seen to wait or run.
    alive: BTreeSet<TaskId>,
    /// Tasks that were seen to wait.
    waited: BTreeSet<TaskId>,
    lost_nodes: BTreeSet<String>,
    fruitless: usize,
    /// Replacements in a row without a new row.
    replaced: u32,
    rows: usize,
    /// Whether some trial has a result.
    has_result: bool,
    /// Before this moment nobody is replaced.
    pause_until: Instant,
    told: PrintedNotices,
}

impl Fleet {
    /// `None` if the run gave nothing to Slurm. `is_once` looks at once and never again; else the
    /// first look comes after half a beat.
    ///
    /// # Errors
    /// Slurm does not answer for a submission without a number, or one cannot be read.
    pub(in crate::schedule) fn of(
        run: &RunFolder,
        queue: &TicketQueue,
        beat: Duration,
        is_once: bool,
    ) -> Result<Option<Self>, RunStop> {
        let client = Client::new();
        let read = || Submission::all(run).map_err(|error| RunStop::CannotRun(error.to_string()));
        let jobs = known_jobs(client, run, read()?)
            .map_err(|error| RunStop::CannotRun(error.to_string()))?;
        let mut submissions = read()?;
        // One without an answer yet may be somebody else's.
        if jobs.is_empty() && !submissions.iter().any(Submission::is_unanswered) {
            return Ok(None);
        }
        submissions.retain(|one| one.job.is_some());
        let newest = submissions.last();
        Ok(Some(Self {
            lost_nodes: newest.map_or_else(BTreeSet::new, |one| {
                one.lost_nodes.iter().cloned().collect()
            }),
            run: run.clone(),
            queue: queue.clone(),
            client,
            newest: 0,
            unanswered: HashMap::new(),
            submissions,
            watch: match is_once {
                true => JobWatch::once(client, jobs),
                false => JobWatch::start(client, jobs, beat / 2, beat * 2),
            },
            beat,
            endings: HashMap::new(),
            alive: BTreeSet::new(),
            waited: BTreeSet::new(),
            fruitless: 0,
            replaced: 0,
            rows: 0,
            has_result: false,
            pause_until: Instant::now(),
            told: PrintedNotices::default(),
        }))
    }

    /// The last report of Slurm on the tasks.
    pub(in crate::schedule) fn says(&self) -> SlurmSays {
        let seen = self.watch.seen();
        SlurmSays {
            words: seen.words.clone(),
            has_answered: seen.answers > 0,
        }
    }

    /// The resources that the workers of the newest submission request.
    pub(in crate::schedule) fn slurm(&self) -> Slurm {
        let newest = self.submissions.last();
        newest.map(|one| one.slurm.clone()).unwrap_or_default()
    }

    /// Looks at what is known now: tells who is gone, and submits workers in the place of those.
    ///
    /// # Errors
    /// Nothing more can come of it: see the message.
    pub(in crate::schedule) fn look(
        &mut self,
        workers: &[WorkerSeen],
        counts: TicketCounts,
        rows: RowsSeen,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        self.has_result = rows.has_result;
        let (words, answers, silence) = {
            let seen = self.watch.seen();
            (seen.words.clone(), seen.answers, seen.silence.clone())
        };
        self.told.tell_silence(silence, self.beat, tell);
        self.learn();
        if answers == 0 {
            return Ok(());
        }
        if rows.trials > self.rows {
            (self.rows, self.replaced) = (rows.trials, 0);
        }
        let tasks = self.tasks();
        let counted = self.follow(&tasks, &words, workers, tell)?;
        self.told
            .tell_waiting(counted.waiting, counted.alive(), counted.reason, tell);
        if self.queue.stop_asked().is_none() {
            // What those from before were started again counts to the request before.
            let request = self.submissions.get(self.request());
            let before = request.map_or(0, |request| request.alive_before.len());
            let own = tasks.iter().skip(before).filter_map(|id| words.get(id));
            let restarts = own.map(restarts).sum();
            let unclaimed = counts
                .open
                .saturating_sub(counted.waiting + counted.beginning);
            self.replace(counted.alive(), (counts.open, unclaimed), restarts, tell)?;
        }
        Ok(())
    }

    /// Notes the stage of each task, and counts those that are alive.
    fn follow<'w>(
        &mut self,
        tasks: &[TaskId],
        words: &'w HashMap<TaskId, Word>,
        workers: &[WorkerSeen],
        tell: &mut dyn FnMut(&str),
    ) -> Result<AliveTasks<'w>, RunStop> {
        let mut counted = AliveTasks::default();
        for id in tasks {
            let word = words.get(id);
            let stage = match word {
                Some(Word::Said(report)) => report.stage(),
                Some(Word::Forgotten) => Stage::Over,
                None => Stage::Running,
            };
            match stage {
                Stage::Waiting => {
                    let mut is_worn_out = false;
                    if let Some(Word::Said(report)) = word {
                        counted.reason = &report.reason;
                        self.told.tell_held(*id, report, tell);
                        is_worn_out = report.is_worn_out();
                    }
                    counted.waiting += usize::from(!is_worn_out);
                    self.waited.insert(*id);
                }
                Stage::Running => {
                    counted.running += 1;
                    counted.beginning += usize::from(!has_begun(*id, word, workers));
                    self.waited.remove(id);
                }
                Stage::Over => {
                    self.over(*id, word, workers, tell)?;
                    continue;
                }
            }
            self.alive.insert(*id);
            self.endings.remove(id);
        }
        Ok(counted)
    }

    /// The place of the newest submission that replaces nobody: what counts is counted since then.
    fn request(&self) -> usize {
        let request = self.submissions.iter().rposition(|one| !one.is_replacement);
        request.unwrap_or(0)
    }

    /// Somebody else who attends, or who asked for workers again, may have submitted some.
    fn learn(&mut self) {
        let known: BTreeSet<u64> = self.submissions.iter().map(|one| one.submission).collect();
        // Without a list nothing is learnt now.
        let Ok(mut others) = submission::numbers(&self.run) else {
            return;
        };
        self.newest = others.last().copied().unwrap_or(0);
        others.retain(|number| !known.contains(number));
        for number in others {
            let submission = Submission::read(&self.run, number);
            let Some(one) = self.answered(number, submission) else {
                continue;
            };
            let Some(job) = one.job else { continue };
            self.watch.add_job(job, one.tasks);
            self.lost_nodes.extend(one.lost_nodes.iter().cloned());
            if !one.is_replacement {
                // Whatever became of the others, somebody asked again.
                self.fruitless = 0;
                self.told.ask_again();
            }
            let at = self
                .submissions
                .partition_point(|other| other.submission < number);
            self.submissions.insert(at, one);
        }
    }

    /// A submission that is no longer on its way; one that has been for long is looked up.
    fn answered(&mut self, number: u64, submission: Option<Submission>) -> Option<Submission> {
        if let Some(one) = submission.as_ref().filter(|one| !one.is_unanswered()) {
            self.unanswered.remove(&number);
            return Some(one.clone());
        }
        let now = Instant::now();
        let (_, looked) = self.unanswered.entry(number).or_insert((now, now));
        if looked.elapsed() < self.beat * UNANSWERED {
            return None;
        }
        *looked = now;
        let found = looked_up(self.client, &self.run, submission?).ok()?;
        (!found.is_unanswered()).then_some(found)
    }

    /// The tasks that count: those of the newest request and after it, and those that it found alive.
    fn tasks(&self) -> Vec<TaskId> {
        let tasks = |one: &Submission| {
            let (job, tasks) = (one.job, one.tasks);
            job.into_iter()
                .flat_map(move |job| (0..tasks).map(move |task| TaskId { job, task }))
        };
        let counted = &self.submissions[self.request()..];
        let before = counted.first().into_iter();
        let before = before.flat_map(|request| &request.alive_before);
        before
            .map(|(job, task)| TaskId {
                job: *job,
                task: *task,
            })
            .chain(counted.iter().flat_map(tasks))
            .collect()
    }

    /// Submits workers in the place of those that are gone: for open tickets that none of those to
    /// come will take.
    fn replace(
        &mut self,
        alive: usize,
        (open, unclaimed): (usize, usize),
        restarts: usize,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        // Whoever submits workers now, of whom nothing is known yet.
        let mut unanswered = self.unanswered.values();
        let is_submitting = unanswered.any(|(since, _)| since.elapsed() < self.beat * UNANSWERED);
        if is_submitting && alive == 0 {
            return Ok(());
        }
        if self.submissions.is_empty() && open > 0 {
            return Err(RunStop::CannotRun(
                "Slurm has made no job for this run; `kiln run FILE --on slurm` asks again"
                    .to_owned(),
            ));
        }
        let is_cancelled = |id: &TaskId| self.endings.get(id) == Some(&Ending::Cancelled);
        let cancelled = self.tasks().iter().filter(|id| is_cancelled(id)).count();
        let slurm = self.slurm();
        let counted = &self.submissions[self.request()..];
        let asked = counted
            .first()
            .map_or(0, |request| request.asked.unwrap_or(request.tasks) as usize);
        let wanted = asked.saturating_sub(cancelled + alive);
        let needed = wanted.min(unclaimed);
        if needed == 0 {
            return match alive == 0 && open > 0 && cancelled > 0 {
                true => Err(RunStop::CannotRun(format!(
                    "the workers were cancelled, and {} left; `kiln run FILE --on slurm` goes on",
                    match open {
                        1 => "1 ticket is".to_owned(),
                        more => format!("{more} tickets are"),
                    }
                ))),
                false => Ok(()),
            };
        }
        let made = counted.iter().filter(|one| one.is_replacement);
        let used = restarts + made.map(|one| one.tasks as usize).sum::<usize>();
        let allowed = usize::try_from(slurm.resubmissions).unwrap_or(usize::MAX);
        let left = allowed.saturating_sub(used);
        if left == 0 {
            return self.told.tell_no_more(alive, allowed, tell);
        }
        if Instant::now() < self.pause_until || is_submitting {
            return Ok(());
        }
        self.submit(needed.min(left), slurm, tell)
    }

    fn submit(
        &mut self,
        tasks: usize,
        slurm: Slurm,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        self.pause_until = Instant::now() + pause(self.beat, self.replaced);
        self.replaced = self.replaced.saturating_add(1);
        let Some(newest) = self.submissions.last() else {
            return Ok(());
        };
        let array = WorkerArray {
            tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
            slurm,
            program: newest.program.clone(),
            variables: newest.variables.clone(),
            kill_wait_seconds: newest.kill_wait_seconds,
            lost_nodes: self.lost_nodes.iter().cloned().collect(),
            asked: None,
            alive_before: Vec::new(),
            replacement: Some(self.newest + 1),
        };
        match submit_array(self.client, &self.run, &self.queue, array) {
            Ok(made) => {
                if let Some(job) = made.job {
                    let without = match made.lost_nodes.as_slice() {
                        [] => String::new(),
                        nodes => format!(", without {}", nodes.join(", ")),
                    };
                    let tasks = counted(tasks, "task");
                    tell(&format!(
                        "job {job}: {tasks} in place of workers that are gone{without}"
                    ));
                    self.watch.add_job(job, made.tasks);
                }
                self.submissions.push(made);
            }
            // The next look learns of their submission.
            Err(SubmitError::IsOthers) => {}
            // Later it may.
            Err(SubmitError::Client(error)) => {
                tell(&format!("no worker could be asked for: {error}"));
            }
            Err(SubmitError::Io(error)) => return Err(RunStop::CannotRun(error.to_string())),
        }
        Ok(())
    }

    /// The work is done: tasks that still wait would find no ticket, those of older submissions
    /// neither.
    pub(in crate::schedule) fn cancel_waiting(&mut self) -> Option<String> {
        let seen = self.watch.seen();
        let mut words = seen.words.values();
        let is_waiting = words
            .any(|word| matches!(word, Word::Said(report) if report.stage() == Stage::Waiting))
            || self.tasks().iter().any(|id| !seen.words.contains_key(id));
        drop(seen);
        if !is_waiting {
            return None;
        }
        cancel(&self.run, false).err()
    }
}

/// A pause before the next replacement, after so many in a row without a new row: each twice as long as
/// the one before.
fn pause(beat: Duration, replaced: u32) -> Duration {
    beat * 2_u32.saturating_pow(replaced).min(LONGEST_PAUSE)
}

/// Whether the worker of this start of a task has a launch.
fn has_begun(id: TaskId, word: Option<&Word>, workers: &[WorkerSeen]) -> bool {
    let restarts = match word {
        Some(Word::Said(report)) => report.restarts.unwrap_or(0),
        _ => 0,
    };
    workers
        .iter()
        .any(|worker| TaskId::of(worker.task) == id && worker.task.restarts >= restarts)
}

fn restarts(word: &Word) -> usize {
    match word {
        Word::Said(report) => report.restarts.unwrap_or(0) as usize,
        Word::Forgotten => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_without_a_row_in_between_come_less_and_less_often() {
        let beat = Duration::from_secs(30);
        let seconds: Vec<u64> = [0, 1, 2, 4, 5, 40]
            .map(|replaced| pause(beat, replaced).as_secs())
            .into();
        assert_eq!(seconds, [30, 60, 120, 480, 600, 600]);
    }
}
