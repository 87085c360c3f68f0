//! Slurm tasks that have ended: the cause, and whether a replacement would fare better.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use kiln_core::{
    record::{Submission, run_file::EndCause},
    units::without_controls,
};

use super::{Fleet, WorkerSeen};
use crate::schedule::{
    RunStop,
    slurm::{
        look::Word,
        states::{TaskId, TaskReport},
    },
};

/// So many workers in a row that ran no trial end the attendance: the next would do the same.
const MOST_FRUITLESS: usize = 3;
/// Bytes at the end of a log that are looked at.
const LOG_END: u64 = 4096;

/// The cause of a task's end, as far as replacements depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Somebody meant it: nobody comes in its place.
    Cancelled,
    /// It ran no trial, and says that something is wrong.
    Fruitless,
    /// As [`Ending::Fruitless`], on a node that gets no more workers: a replacement runs elsewhere.
    KnownBad,
    Other,
}

impl Fleet {
    /// A task is over: is it known why, and does that say something of the next?
    pub(super) fn over(
        &mut self,
        id: TaskId,
        word: Option<&Word>,
        workers: &[WorkerSeen],
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        if self.endings.contains_key(&id) {
            return Ok(());
        }
        let mut own = workers.iter().rev();
        let worker = own.find(|worker| TaskId::of(worker.task) == id);
        let report = match word {
            Some(Word::Said(report)) => Some(report),
            _ => None,
        };
        let is_known_bad = worker
            .and_then(|worker| worker.node.as_ref())
            .is_some_and(|node| self.lost_nodes.contains(node));
        self.lose_node(report, worker, tell);
        let ending = match self.ending(id, report, worker) {
            // A node counts once, however many workers it had.
            Ending::Fruitless if is_known_bad => Ending::KnownBad,
            ending => ending,
        };
        self.endings.insert(id, ending);
        match (ending, worker) {
            (Ending::Fruitless, _) => self.tell_fruitless(id, report, worker, tell),
            (Ending::Other, Some(_)) => {
                self.fruitless = 0;
                Ok(())
            }
            (Ending::Cancelled, None) => {
                tell(&format!("job {id} was cancelled before its worker began"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The file of a task's output, which Slurm makes when it begins.
    fn log_of(&self, id: TaskId) -> Option<PathBuf> {
        let own = self.submissions.iter().find(|one| one.job == Some(id.job));
        own.map(|one| one.log(&self.run, id.task))
    }

    fn ending(
        &self,
        id: TaskId,
        report: Option<&TaskReport>,
        worker: Option<&WorkerSeen>,
    ) -> Ending {
        let is_asked = |one: &Submission| one.job == Some(id.job) && !one.cancels.is_empty();
        let was_asked = self.submissions.iter().any(is_asked);
        let has_log = || self.log_of(id).is_some_and(|log| log.exists());
        match (report, worker) {
            (Some(report), _) if report.is_cancelled() => Ending::Cancelled,
            // A task that is cancelled while it waits vanishes, and has written nothing.
            (None, None) if self.waited.contains(&id) || was_asked || !has_log() => {
                Ending::Cancelled
            }
            // Its state is long forgotten.
            (None, None) if !self.alive.contains(&id) => Ending::Other,
            (Some(report), None) if report.is_success() => Ending::Other,
            (_, None) => Ending::Fruitless,
            // Its node gets no other one, so the next has a better chance: unless trials failed there
            // and nobody has got a result yet, so that they may be to blame.
            (_, Some(worker)) if worker.cause == Some(EndCause::BadNode) => {
                match self.has_result || !worker.has_begun_a_trial {
                    true => Ending::Other,
                    false => Ending::Fruitless,
                }
            }
            (Some(report), Some(worker))
                if !worker.has_begun_a_trial && !report.is_success() && !report.is_lost_node() =>
            {
                Ending::Fruitless
            }
            (_, Some(_)) => Ending::Other,
        }
    }

    fn lose_node(
        &mut self,
        report: Option<&TaskReport>,
        worker: Option<&WorkerSeen>,
        tell: &mut dyn FnMut(&str),
    ) {
        let of_report = report.filter(|report| report.is_lost_node());
        let of_worker = worker.filter(|worker| worker.cause == Some(EndCause::BadNode));
        let node = of_report
            .map(|report| report.node.clone())
            .filter(|node| !node.is_empty())
            .or_else(|| of_worker.and_then(|worker| worker.node.clone()));
        if let Some(node) = node
            && !self.lost_nodes.contains(&node)
        {
            tell(&format!("no more workers are asked for on node {node}"));
            self.lost_nodes.insert(node);
        }
    }

    fn tell_fruitless(
        &mut self,
        id: TaskId,
        report: Option<&TaskReport>,
        worker: Option<&WorkerSeen>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        self.fruitless += 1;
        let how = report.map_or("Slurm has forgotten it".to_owned(), TaskReport::ending);
        let when = match worker {
            Some(worker) if worker.has_begun_a_trial => {
                format!(
                    "after trials failed in launch {} before they began",
                    worker.launch
                )
            }
            Some(worker) => format!("before launch {} began a trial", worker.launch),
            None => "before its worker began".to_owned(),
        };
        let log = self.log_of(id);
        let last = log.as_ref().and_then(|log| last_line(log));
        let last = last.map_or(String::new(), |line| format!(": {line}"));
        let what = format!("job {id} ended ({how}) {when}{last}");
        if self.fruitless < MOST_FRUITLESS {
            tell(&what);
            return Ok(());
        }
        let log = log.map_or(String::new(), |log| format!(", see {}", log.display()));
        Err(RunStop::CannotRun(format!(
            "{MOST_FRUITLESS} workers in a row came to nothing; the last one: {what}{log}; \
             `kiln stop {}` cancels those that wait",
            self.run.path().display()
        )))
    }
}

/// The last line of a log that is not empty.
pub(in crate::schedule::slurm) fn last_line(log: &Path) -> Option<String> {
    let mut log = File::open(log).ok()?;
    let length = log.metadata().ok()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_END)))
        .ok()?;
    let mut end = Vec::new();
    log.take(LOG_END).read_to_end(&mut end).ok()?;
    let text = String::from_utf8_lossy(&end);
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(without_controls(line.trim()))
}
