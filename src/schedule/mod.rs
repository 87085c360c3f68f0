//! When it runs: devices are leased, each attempt is a child process of its own, its end becomes an outcome and a row.
//!
//! An experiment and its trials come in as a [`Request`]; a run's folder under `results/` is made or gone on with, and a
//! [`Report`] comes out. What a trial does is for the child, what the numbers mean for `report`.

mod attempt;
mod changes;
mod child;
mod clock;
mod devices;
mod disk;
pub mod instruments;
mod judge;
mod launch;
mod lease;
mod listen;
mod machine;
mod memory;
mod oom_killer;
mod open;
mod pools;
pub mod preflight;
#[cfg(test)]
#[path = "../../tests/scripted_child/program.rs"]
mod program;
mod progress;
mod queue;
mod remaining;
mod row;
mod signals;
mod stray;
mod sweep;
mod tuning;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
};

pub use devices::restrict as visible_gpus;
pub use instruments::Instruments;
pub use lease::{Lease, folder as locks_folder, take_first_idle};
pub use progress::Style;
pub use remaining::{Selection, find_ids};
pub use tuning::{Progressed, Refused, Tuning};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{RunFile, RunFolder, TableRow},
    spec::Experiment,
};
use machine::Here;
use open::Found;
use remaining::History;

/// What to run, and how.
#[derive(Clone)]
pub struct Request<'a> {
    pub experiment: &'a Experiment,
    /// Text of `experiment.yaml`: the resolved experiment, which must read back as `experiment`.
    pub resolved: &'a str,
    /// In plan order; of a search those that it begins with.
    pub trials: &'a [Trial],
    /// What asks for further trials once those it asked for have ended.
    pub search: Option<&'a Tuning<'a>>,
    pub results: &'a Path,
    pub trial_program: &'a Path,
    /// The folder of the devices' locks; [`locks_folder`].
    pub locks: &'a Path,
    /// `CUDA_VISIBLE_DEVICES` of kiln's own environment, which restricts what may be leased.
    pub visible_devices: Option<&'a str>,
    pub selection: Selection,
    /// Start a new run even if one could be gone on with.
    pub fresh: bool,
    /// As typed, for `run.json`.
    pub command_line: &'a [String],
    /// SHA-256 of each text that is read, by data kind, for `run.json`.
    pub data: &'a BTreeMap<String, String>,
    /// SHA-256 of a file's bytes, as hex: which programs ran is kept in `run.json`.
    pub sha256: fn(&Path) -> io::Result<String>,
    pub style: Style,
}

impl<'a> Request<'a> {
    fn wanted(&self) -> Wanted<'a> {
        let Self { experiment, trials, search, results, fresh, .. } = *self;
        Wanted { experiment, trials, search, results, fresh, reruns: !self.selection.rerun.is_empty() }
    }
}

/// Which run is looked for under `results`.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub experiment: &'a Experiment,
    /// In plan order; of a search those that it begins with.
    pub trials: &'a [Trial],
    pub search: Option<&'a Tuning<'a>>,
    pub results: &'a Path,
    /// None: a new one is asked for.
    pub fresh: bool,
    /// Whether trials that have ended are to run again: then it is the newest run, wherever it was made.
    pub reruns: bool,
}

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything asked for was run.
    Finished,
    /// There was nothing to do.
    NothingToDo,
    /// Stopped by a signal; a resume goes on.
    Interrupted,
}

/// What a launch leaves.
#[derive(Clone, Debug)]
pub struct Report {
    pub folder: RunFolder,
    pub end: End,
    /// Trials of the plan, and those that stand in for some of them.
    pub trials: usize,
    /// Those of them that have no final row yet.
    pub left: usize,
    /// Those of them that were asked for ([`Selection`]).
    pub asked_left: usize,
    /// The last attempt of each trial asked for that has one, in plan order.
    pub rows: Vec<TableRow>,
    /// Why no more trials were started, if the machine could not go on.
    pub failure: Option<Stop>,
}

/// Why a run could not start or go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Stop {
    /// The request contradicts what is there (a changed experiment).
    #[error("{0}")]
    Refused(String),
    /// The machine cannot run it now: a lock, a device, a disk, a missing program.
    #[error("{0}")]
    CannotRun(String),
    /// A signal came before the first trial.
    #[error("{0}")]
    Interrupted(String),
}

/// What `kiln run --dry-run` tells.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The run that would be gone on with; `None` for a new one.
    pub resumes: Option<RunFolder>,
    /// Why a finished run of the same experiment is not gone on with.
    pub notice: Option<String>,
    /// The trials that would run and how each ended before.
    pub to_run: Vec<(TrialId, Option<Outcome>)>,
}

/// Runs what is left of an experiment, in a new run or in its newest unfinished one.
///
/// # Errors
/// See [`Stop`]. A trial that fails is a row, not an error.
pub fn run(request: &Request, instruments: Instruments) -> Result<Report, Stop> {
    sweep::run(request, instruments)
}

/// What [`run`] would do; touches nothing. `instruments` are opened if the run depends on which machine this is.
///
/// # Errors
/// As [`run`], for what can be seen without starting.
pub fn preview(request: &Request, instruments: &dyn Fn() -> Instruments) -> Result<Preview, Stop> {
    let found = open::find(&request.wanted(), &|| Here::of(&instruments()))?;
    let trials = known_trials(request, &found);
    let (resumes, notice, history) = match found {
        Found::New { notice } => (None, notice, History::default()),
        Found::Old(old) => (Some(old.folder), None, old.history),
    };
    let left = remaining::remaining(&trials, &history, &request.selection, request.experiment.run.retries);
    let to_run = left.iter().map(|index| &trials[*index].id).map(|id| (id.clone(), history.last(id))).collect();
    Ok(Preview { resumes, notice, to_run })
}

/// What `run.json` of a new run would tell before its first trial of the code, the programs, the machine and the data; touches nothing.
pub fn record_now(request: &Request, instruments: &Instruments) -> RunFile {
    open::record_now(request, instruments)
}

/// The plan, and what the rows add to it: what a search went on to ask for, or what stands in for trials that ran out of memory.
fn known_trials(request: &Request, found: &Found) -> Vec<Trial> {
    match (found, request.search) {
        (Found::New { .. }, _) => request.trials.to_vec(),
        (Found::Old(old), Some(search)) => search.progress(&old.rows).trials,
        (Found::Old(old), None) => remaining::with_fallbacks(request.trials, &old.history, request.experiment.run.on_oom),
    }
}

/// How each trial ended last in the run that [`run`] would go on with; nothing if it would start a new one, or refuse.
pub fn ended(wanted: &Wanted, instruments: &dyn Fn() -> Instruments) -> HashMap<TrialId, Outcome> {
    match open::find(wanted, &|| Here::of(&instruments())) {
        Ok(Found::Old(old)) => wanted.trials.iter().filter_map(|trial| Some((trial.id.clone(), old.history.last(&trial.id)?))).collect(),
        Ok(Found::New { .. }) | Err(_) => HashMap::new(),
    }
}

/// Something that wakes the scheduler.
#[derive(Debug)]
enum Event {
    Signal(i32),
    /// The measured window of the child with this token begins or ends.
    Window(u64),
    /// The child with this token has ended and waits to be reaped.
    Ended(u64),
}
