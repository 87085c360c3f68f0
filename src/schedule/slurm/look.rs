//! Asks Slurm what became of tasks: all that it lists with one question, those that it no longer
//! lists by the accounting, or where there is none by the controller. A task of which nobody speaks
//! is not therefore over.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_core::record::run_file::SlurmTask;

use super::{
    client::{Client, ClientError},
    states::{
        SACCT_COLUMNS, SQUEUE_COLUMNS, Stage, TaskId, TaskReport, of_sacct, of_scontrol, of_squeue,
    },
};

/// Rows of the accounting may be late: a task is asked for so often.
const MOST_ASKED: u32 = 3;

/// The answer of Slurm on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum Word {
    Said(TaskReport),
    /// Slurm answered, and knows nothing of it (any more).
    Forgotten,
}

/// The reports of Slurm on the tasks of the run.
#[derive(Debug)]
pub(in crate::schedule) struct SlurmSays {
    pub(in crate::schedule) words: HashMap<TaskId, Word>,
    /// Whether it has answered at all.
    pub(in crate::schedule) has_answered: bool,
}

impl SlurmSays {
    /// The word on the task of a start.
    pub(in crate::schedule) fn word(&self, start: SlurmTask) -> Option<&Word> {
        self.words.get(&TaskId::of(start))
    }
}

/// The tasks that Slurm lists, chosen by an option and its value.
pub(super) fn listed(client: Client, which: [&str; 2]) -> Result<Vec<TaskReport>, ClientError> {
    let options = ["-h", "-r", "-t", "all", "-O", SQUEUE_COLUMNS];
    let text = client.ask("squeue", &[&options[..], &which].concat())?;
    Ok(of_squeue(&text))
}

/// The tasks of which the accounting knows; `None` if there is no accounting.
pub(super) fn accounted(
    client: Client,
    which: [&str; 2],
) -> Result<Option<Vec<TaskReport>>, ClientError> {
    let options = ["-n", "-P", "-X", "-o", SACCT_COLUMNS];
    match client.ask("sacct", &[&options[..], &which].concat()) {
        Ok(text) => Ok(Some(of_sacct(&text))),
        Err(error @ ClientError::NoAnswer { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The tasks of jobs, by what Slurm said last.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) words: HashMap<TaskId, Word>,
    /// How often the accounting was asked for a task.
    asked: HashMap<TaskId, u32>,
}

impl Looked {
    /// Asks for the tasks of these jobs, given with their numbers of tasks.
    ///
    /// # Errors
    /// Slurm does not answer; what was known stays.
    pub(super) fn ask(&mut self, client: Client, jobs: &[(u64, u32)]) -> Result<(), ClientError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let numbers: Vec<String> = jobs.iter().map(|(job, _)| job.to_string()).collect();
        let numbers = numbers.join(",");
        let listed = match listed(client, ["-j", &numbers]) {
            Err(error) if error.is_unknown_job() => Vec::new(),
            listed => listed?,
        };
        for report in &listed {
            self.words.insert(report.id, Word::Said(report.clone()));
        }
        let all = jobs
            .iter()
            .flat_map(|(job, tasks)| (0..*tasks).map(|task| TaskId { job: *job, task }));
        let listed: HashSet<TaskId> = listed.iter().map(|report| report.id).collect();
        let unlisted: Vec<TaskId> = all
            .filter(|id| !listed.contains(id) && self.is_open(*id))
            .collect();
        if !unlisted.is_empty() {
            self.ask_of_the_past(client, &unlisted)?;
        }
        Ok(())
    }

    /// Whether more may be learnt of a task that is not listed.
    fn is_open(&self, id: TaskId) -> bool {
        match self.words.get(&id) {
            Some(Word::Said(report)) => report.stage() != Stage::Over,
            Some(Word::Forgotten) => self.asked.get(&id).is_none_or(|asked| *asked < MOST_ASKED),
            None => true,
        }
    }

    fn ask_of_the_past(&mut self, client: Client, tasks: &[TaskId]) -> Result<(), ClientError> {
        let mut jobs: Vec<u64> = tasks.iter().map(|id| id.job).collect();
        jobs.dedup();
        let numbers: Vec<String> = jobs.iter().map(u64::to_string).collect();
        let reports = match accounted(client, ["-j", &numbers.join(",")])? {
            Some(reports) => reports,
            None => kept(client, &jobs)?,
        };
        for id in tasks {
            *self.asked.entry(*id).or_default() += 1;
            match reports.iter().rfind(|report| report.id == *id) {
                Some(report) if report.stage() == Stage::Over => {
                    self.words.insert(*id, Word::Said(report.clone()));
                }
                // A late row: it says less than what was known.
                Some(_) => {}
                None => {
                    self.words.insert(*id, Word::Forgotten);
                }
            }
        }
        Ok(())
    }
}

/// The tasks of jobs that the controller still knows.
fn kept(client: Client, jobs: &[u64]) -> Result<Vec<TaskReport>, ClientError> {
    let mut reports = Vec::new();
    for job in jobs {
        let shown = client.ask("scontrol", &["--oneliner", "show", "job", &job.to_string()]);
        match shown {
            Err(error) if error.is_unknown_job() => {}
            // It may be missing on this node; then nobody speaks of the task.
            Err(ClientError::Missing(_)) => {}
            shown => reports.extend(of_scontrol(&shown?)),
        }
    }
    Ok(reports)
}

/// Looks again and again in a thread of its own: a client that hangs delays nothing else.
#[derive(Debug)]
pub(super) struct JobWatch {
    shared: Arc<(Mutex<WatchedJobs>, Condvar)>,
}

#[derive(Debug, Default)]
pub(super) struct WatchedJobs {
    jobs: Vec<(u64, u32)>,
    pub(super) words: HashMap<TaskId, Word>,
    /// Number of answers.
    pub(super) answers: u64,
    /// Why there is no answer.
    pub(super) silence: Option<String>,
    is_over: bool,
}

impl JobWatch {
    /// Looks after `first`, and then every `every`.
    pub(super) fn start(
        client: Client,
        jobs: Vec<(u64, u32)>,
        first: Duration,
        every: Duration,
    ) -> Self {
        let shared = Arc::new((
            Mutex::new(WatchedJobs {
                jobs,
                ..WatchedJobs::default()
            }),
            Condvar::new(),
        ));
        let own = Arc::clone(&shared);
        // Without it nothing is known of any task, and each stays as it is.
        let _ = std::thread::Builder::new()
            .name("slurm".to_owned())
            .spawn(move || watch(client, &own, first, every));
        Self { shared }
    }

    /// Looks once, in this thread.
    pub(super) fn once(client: Client, jobs: Vec<(u64, u32)>) -> Self {
        let mut looked = Looked::default();
        let answer = looked.ask(client, &jobs);
        let mut watched = WatchedJobs {
            jobs,
            ..WatchedJobs::default()
        };
        watched.add(&looked, answer);
        Self {
            shared: Arc::new((Mutex::new(watched), Condvar::new())),
        }
    }

    pub(super) fn add_job(&self, job: u64, tasks: u32) {
        lock(&self.shared.0).jobs.push((job, tasks));
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, WatchedJobs> {
        lock(&self.shared.0)
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        // A client may hang; its thread ends by itself.
        lock(&self.shared.0).is_over = true;
        self.shared.1.notify_all();
    }
}

impl WatchedJobs {
    fn add(&mut self, looked: &Looked, answer: Result<(), ClientError>) {
        match answer {
            Ok(()) => {
                self.words.clone_from(&looked.words);
                self.answers += 1;
                self.silence = None;
            }
            Err(error) => self.silence = Some(error.to_string()),
        }
    }
}

fn watch(client: Client, shared: &(Mutex<WatchedJobs>, Condvar), first: Duration, every: Duration) {
    let mut looked = Looked::default();
    let mut rest = first;
    loop {
        let jobs = {
            let (watched, woken) = shared;
            let waited = woken.wait_timeout_while(lock(watched), rest, |watched| !watched.is_over);
            let watched = waited.unwrap_or_else(PoisonError::into_inner).0;
            if watched.is_over {
                return;
            }
            watched.jobs.clone()
        };
        let answer = looked.ask(client, &jobs);
        lock(&shared.0).add(&looked, answer);
        rest = every;
    }
}

fn lock(watched: &Mutex<WatchedJobs>) -> MutexGuard<'_, WatchedJobs> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}
