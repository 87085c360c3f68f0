//! `kiln doctor --on slurm --probe`: two small jobs on two nodes try the shared folder against each
//! other, as no look from here could.

mod checks;
mod part;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use kiln_core::{
    folder::write_whole,
    plan::TrialId,
    record::{Check, NewTicket, RunFolder, TicketEntry, TicketQueue},
    spec::Slurm,
    units::{TimeSpan, without_controls},
};

pub use self::part::take_part;
use self::part::{Here, PARTNER_PATIENCE, PATIENCE, PartWord, TICKETS, WORD, here};
use super::{
    client::{Client, ClientError},
    fleet::last_line,
    job::JobScript,
    look::{Looked, Word},
    states::{self, Stage, TaskId},
    submit::variables,
};
use crate::schedule::clock::beat;

/// The parts need no more time than this, where the file gives a longer one.
const LONGEST_JOB: Duration = Duration::from_secs(20 * 60);
/// A job keeps so much of its time for its own checks and for the race; the rest it may wait for the
/// other job.
const WORK: Duration = Duration::from_secs(6 * 60);
const SHORTEST_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks into the folder.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two questions to Slurm.
const ASK: Duration = Duration::from_secs(5);
/// After its job has ended, the word of a part may be seen so many heartbeats late here.
const LATE: u32 = 2;

/// A probe to be made.
#[derive(Clone, Copy, Debug)]
pub struct ClusterProbe<'a> {
    /// The resources that each of its jobs requests.
    pub slurm: &'a Slurm,
    /// The folder of the runs, which every node must see.
    pub results: &'a Path,
    /// This program, where every node sees it.
    pub program: &'a Path,
    /// Set when the user wants no more of it.
    pub is_stopped: &'a AtomicBool,
}

impl ClusterProbe<'_> {
    /// Runs both parts and says what they found; `tell` hears what goes on. Ends its jobs and removes
    /// its folder, unless a part failed: then its output is of use.
    ///
    /// # Errors
    /// The folder cannot be written, or the user stopped it.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> Result<Vec<Check>, ProbeStop> {
        let folder = make_folder(self.results, self.patience())?;
        let mut running = Running {
            probe: self,
            client: Client::new(),
            folder,
            jobs: Vec::new(),
            looked: Looked::default(),
            asked: None,
            told: String::new(),
        };
        let checks = running.follow(tell);
        running.cancel();
        let is_kept = matches!(&checks, Ok((_, true)));
        if !is_kept {
            let _ = fs::remove_dir_all(&running.folder);
        }
        checks.map(|(checks, _)| checks)
    }

    fn patience(&self) -> Duration {
        let time = self.slurm.time.map_or(LONGEST_JOB, |time| time.0);
        time.saturating_sub(WORK)
            .clamp(SHORTEST_PATIENCE, PARTNER_PATIENCE)
    }
}

/// Why a probe was given up.
#[derive(Debug, thiserror::Error)]
pub enum ProbeStop {
    #[error("the probe was stopped; its jobs are cancelled")]
    Stopped,
    #[error("the folder of the probe cannot be written: {0}")]
    Folder(#[from] io::Error),
}

/// Why a job was not submitted.
#[derive(Debug, thiserror::Error)]
enum ProbeSubmitError {
    #[error(transparent)]
    Slurm(#[from] ClientError),
    #[error(transparent)]
    Folder(#[from] io::Error),
}

/// A job of one task, and when Slurm said that it is over.
#[derive(Debug)]
struct PartJob {
    job: u64,
    over_since: Option<Instant>,
}

#[derive(Debug)]
struct Running<'a> {
    probe: &'a ClusterProbe<'a>,
    client: Client,
    folder: PathBuf,
    jobs: Vec<PartJob>,
    looked: Looked,
    asked: Option<Instant>,
    /// The last notice.
    told: String,
}

impl Running<'_> {
    /// The checks, and whether the folder is to be kept.
    fn follow(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(Vec<Check>, bool), ProbeStop> {
        if let Some(check) = self.begin(None)? {
            return Ok((vec![check], false));
        }
        let node = loop {
            if let Some(here) = read::<Here>(&self.folder.join(here(0))) {
                break here.node;
            }
            if let Some(ended) = self.wait(0, tell)? {
                return Ok((vec![ended], true));
            }
        };
        // The second one must not come to the same node.
        if let Some(check) = self.begin(Some(&node))? {
            return Ok((vec![check], false));
        }
        let mut words: [Option<PartWord>; 2] = [None, None];
        loop {
            for (part, word) in words.iter_mut().enumerate() {
                if word.is_none() {
                    *word = self.word_of(part);
                }
            }
            if let [Some(first), Some(second)] = &words {
                return Ok((checks::of_words([first, second]), false));
            }
            // The first part has waited for the second, and gone.
            if words[0].as_ref().is_some_and(|word| word.meeting.is_none()) {
                return Ok((vec![checks::alone(self.seen_for())], false));
            }
            for (part, word) in words.iter().enumerate() {
                if word.is_none()
                    && let Some(ended) = self.wait(part, tell)?
                {
                    return Ok((vec![ended], true));
                }
            }
        }
    }

    /// Submits the job of the next part, the second one not to the node of the first (`beside`);
    /// returns a check if Slurm does not take it.
    fn begin(&mut self, beside: Option<&str>) -> Result<Option<Check>, ProbeStop> {
        let error = match self.submit(beside) {
            Ok(()) => return Ok(None),
            Err(ProbeSubmitError::Folder(error)) => return Err(error.into()),
            Err(ProbeSubmitError::Slurm(error)) => error,
        };
        let why = error.to_string();
        Ok(Some(match beside {
            _ if error.may_have_been_heard() => Check::unknown(checks::NODES, why),
            Some(node) => checks::no_second(node, &why),
            None => {
                let remedy = "change `run.slurm`; `docs/clusters.md` names its keys";
                Check::problem(checks::NODES, why, remedy)
            }
        }))
    }

    fn part(&self, part: usize) -> PathBuf {
        self.folder.join(format!("part-{part}"))
    }

    fn submit(&mut self, beside: Option<&str>) -> Result<(), ProbeSubmitError> {
        let own = self.part(self.jobs.len());
        fs::create_dir(&own)?;
        // Without a time the partition has one.
        let time = self.probe.slurm.time;
        let slurm = Slurm {
            time: time.map(|time| TimeSpan(time.0.min(LONGEST_JOB))),
            ..self.probe.slurm.clone()
        };
        let name = self.name();
        let (variables, _) = variables(&slurm);
        let text = |path: &Path| path.display().to_string();
        let lost_nodes: Vec<String> = beside.map(str::to_owned).into_iter().collect();
        let script = JobScript {
            slurm: &slurm,
            name: &name,
            tasks: 1,
            lost_nodes: &lost_nodes,
            folder: &std::env::current_dir()?,
            logs: &own,
            variables: &variables.into_iter().collect::<Vec<_>>(),
            command: &[
                text(self.probe.program),
                "doctor".to_owned(),
                "--quick".to_owned(),
                "--results".to_owned(),
                text(self.probe.results),
                "--probe-part".to_owned(),
                text(&own),
            ],
        };
        let path = own.join("job.sh");
        write_whole(&path, script.text().as_bytes())?;
        let asked = self.client.ask("sbatch", &["--parsable", &text(&path)]);
        let job = asked.and_then(|said| {
            states::of_sbatch(&said).ok_or_else(|| ClientError::Refused {
                program: "sbatch",
                said: format!("it printed no number of a job: {}", said.trim()),
            })
        })?;
        self.jobs.push(PartJob {
            job,
            over_since: None,
        });
        Ok(())
    }

    /// Waits a little; returns the check of a part that ended without a word.
    fn wait(
        &mut self,
        part: usize,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<Check>, ProbeStop> {
        if self.probe.is_stopped.load(Ordering::Relaxed) {
            return Err(ProbeStop::Stopped);
        }
        thread::sleep(LOOK);
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            self.asked = Some(Instant::now());
            self.ask(tell);
        }
        let Some(PartJob { job, over_since }) = self.jobs.get(part) else {
            return Ok(None);
        };
        let is_late = over_since.is_some_and(|since| since.elapsed() >= LATE * beat());
        if !is_late || self.word_of(part).is_some() {
            return Ok(None);
        }
        if part == 0 && self.is_waiting(1) {
            return Ok(Some(checks::alone(None)));
        }
        let id = TaskId { job: *job, task: 0 };
        let how = match self.looked.words.get(&id) {
            Some(Word::Said(report)) => report.ending(),
            _ => "Slurm has forgotten it".to_owned(),
        };
        let log = self.part(part).join("0.log");
        let last = last_line(&log).map_or(String::new(), |line| format!(": {line}"));
        Ok(Some(Check::problem(
            checks::NODES,
            format!("job {job} ended without a word ({how}){last}"),
            format!(
                "see {}; no file of it that was seen here means that this folder is not the nodes'",
                log.display()
            ),
        )))
    }

    /// Asks Slurm; where it does not answer, the folder tells enough.
    fn ask(&mut self, tell: &mut dyn FnMut(&str)) {
        let jobs: Vec<(u64, u32)> = self.jobs.iter().map(|part| (part.job, 1)).collect();
        if let Err(error) = self.looked.ask(self.client, &jobs) {
            self.tell(error.to_string(), tell);
            return;
        }
        let mut states = Vec::new();
        for part in &mut self.jobs {
            let id = TaskId {
                job: part.job,
                task: 0,
            };
            let (state, is_over) = match self.looked.words.get(&id) {
                Some(Word::Said(report)) => match report.stage() {
                    Stage::Waiting => {
                        let reason = without_controls(&report.reason);
                        (format!("waits in Slurm's queue ({reason})"), false)
                    }
                    Stage::Running => {
                        (format!("runs on {}", without_controls(&report.node)), false)
                    }
                    Stage::Over => ("has ended".to_owned(), true),
                },
                Some(Word::Forgotten) => ("has ended".to_owned(), true),
                None => continue,
            };
            if is_over {
                part.over_since.get_or_insert_with(Instant::now);
            }
            states.push(format!("job {} {state}", part.job));
        }
        self.tell(states.join(", "), tell);
    }

    fn tell(&mut self, text: String, tell: &mut dyn FnMut(&str)) {
        if text != self.told && !text.is_empty() {
            tell(&text);
            self.told = text;
        }
    }

    /// The name of the jobs, which no other ones have.
    fn name(&self) -> String {
        let folder = self.folder.file_name().unwrap_or_default();
        format!("kiln{}", folder.to_string_lossy().replace('.', "-"))
    }

    /// Seconds from the first file of the second part to the last word of the first one, by the clock
    /// of the file server.
    fn seen_for(&self) -> Option<f64> {
        let time = |path: PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
        let began = time(self.folder.join(here(1)))?;
        let gave_up = time(self.part(0).join(WORD))?;
        gave_up
            .duration_since(began)
            .ok()
            .map(|span| span.as_secs_f64())
    }

    /// Whether the job of a part waits in Slurm's queue.
    fn is_waiting(&self, part: usize) -> bool {
        let job = self.jobs.get(part).map(|part| part.job);
        let word = job.and_then(|job| self.looked.words.get(&TaskId { job, task: 0 }));
        matches!(word, Some(Word::Said(report)) if report.stage() == Stage::Waiting)
    }

    fn word_of(&self, part: usize) -> Option<PartWord> {
        read(&self.part(part).join(WORD))
    }

    /// Ends what still waits or runs, by its name: a job may be there although the reply to its
    /// submission was lost.
    fn cancel(&self) {
        let are_over = self.jobs.iter().all(|part| part.over_since.is_some());
        if self.jobs.len() < 2 || !are_over {
            let _ = self.client.ask("scancel", &["--name", &self.name()]);
        }
    }
}

/// The file that a part has written, if it is there.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// A folder with tickets, which git ignores.
fn make_folder(results: &Path, patience: Duration) -> io::Result<PathBuf> {
    fs::create_dir_all(results)?;
    let folder = fs::canonicalize(results)?.join(format!(".probe-{:08x}", fastrand::u32(..)));
    fs::create_dir(&folder)?;
    write_whole(&folder.join(".gitignore"), b"*\n")?;
    write_whole(
        &folder.join(PATIENCE),
        patience.as_secs().to_string().as_bytes(),
    )?;
    let ticket = |number: u64| {
        NewTicket::open(vec![TicketEntry {
            trial: TrialId(format!("probe-{number}")),
            after: 0,
        }])
    };
    let tickets: Vec<NewTicket> = (1..=TICKETS).map(ticket).collect();
    TicketQueue::create(&RunFolder::at(&folder), &tickets)?;
    Ok(folder)
}
