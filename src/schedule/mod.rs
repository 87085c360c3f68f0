//! Runs experiments: leases devices, runs each attempt in a child process, and converts its end to
//! an outcome and a row.
//!
//! An experiment and its trials come in as a [`RunRequest`]; a run's folder under `results/` is
//! created or resumed, and a [`LaunchReport`] comes out. The child does the training, `report`
//! interprets the results.

mod attempt;
mod budget;
mod changes;
mod child;
mod clock;
mod content;
mod contradiction;
mod copied_run;
mod devices;
mod disk;
mod estimate;
mod events;
mod existing_run;
mod gpus;
mod idle;
pub mod instruments;
mod judge;
mod kept_trials;
mod launch;
mod launch_programs;
mod lease;
mod leftovers;
mod limits;
mod listen;
mod locks_folder;
mod machine;
mod memory;
mod open;
mod pools;
mod process_record;
mod programs;
mod provenance;
mod queue;
mod recorded_experiment;
mod remaining;
mod row;
mod signals;
mod skip_reason;
mod slurm;
mod stray;
mod supervisor;
mod sweep;
mod tickets;
mod tuning;
mod visible;
mod worker;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
};

pub use budget::{Budget, BudgetEnd, FittingTrials, fitting_trials};
pub use clock::check_setting;
pub use content::{ChangedPrograms, programs_changed_since};
pub use copied_run::{CopyPurpose, CopySource};
pub use devices::why_none_visible;
pub use estimate::{EstimateGrade, KnownTimes, TimeEstimate, TrialTime, steps_per_epoch};
pub use events::{LaunchCounts, LaunchEvent, LaunchListener, TrialProgress};
pub use idle::IdleForecast;
pub use instruments::Instruments;
pub use lease::{Lease, take_first_idle};
pub use locks_folder::path as locks_folder;
pub(crate) use programs::{needs_gpu, needs_kiln_trial};
pub use remaining::{Selection, find_ids};
pub use row::row_ahead;
pub use slurm::{
    Allocation, ClusterProbe, ProbeStop, SlurmRun, SlurmSubmitted, cancel as cancel_workers,
    examine as examine_cluster, submit_workers, take_part, visible_in_job,
};
pub use tuning::{Progressed, Refused, Tuning};
pub use visible::restrict as visible_gpus;
pub use worker::{Attendance, Submitted, attend, copy_programs, for_later, submit, work};

use copied_run::{CopiedRun, keep::KeptRun};
use existing_run::ExistingRun;
use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{AttemptEnd, RunFile, RunFolder, run_file::EndCause},
    spec::{Experiment, Order, RunPlace},
};
use machine::MachineIdentity;

/// The command as it was typed, in a message.
const SAME_COMMAND: &str = "the same command";

/// The experiment to run, and how to run it.
#[derive(Clone)]
pub struct RunRequest<'a> {
    pub experiment: &'a Experiment,
    /// Text of `experiment.yaml`: the resolved experiment, which must read back as `experiment`.
    pub resolved: &'a str,
    /// Trials in plan order; for a search the first ones.
    pub trials: &'a [Trial],
    /// Generates further trials once the requested ones have ended.
    pub search: Option<&'a Tuning<'a>>,
    pub results: &'a Path,
    pub trial_program: &'a Path,
    /// The folder of the devices' locks; [`locks_folder()`].
    pub locks: &'a Path,
    /// `CUDA_VISIBLE_DEVICES` of kiln's own environment, which restricts what may be leased.
    pub visible_devices: Option<&'a str>,
    pub selection: Selection,
    /// Start a new run even if an unfinished run could be resumed.
    pub fresh: bool,
    /// The run of which the new run begins as a copy.
    pub copied: Option<CopySource<'a>>,
    /// The time in which trials may begin.
    pub budget: Option<&'a Budget>,
    /// The command line as typed, for `run.json`.
    pub command_line: &'a [String],
    /// SHA-256 of each text that is read, by data kind, for `run.json`.
    pub data: &'a BTreeMap<String, String>,
    /// Returns the SHA-256 of a file as hex, to record the programs in `run.json`.
    pub sha256: fn(&Path) -> io::Result<String>,
    /// Is told what happens.
    pub listener: &'a dyn LaunchListener,
}

impl<'a> RunRequest<'a> {
    /// Whether the planned trials run in blocks.
    fn has_blocks(&self) -> bool {
        let has_groups = !self.experiment.sweep.together.is_empty();
        self.has_rounds() || self.search.is_none() && has_groups
    }

    /// Whether the repeats of the planned trials run round by round.
    fn has_rounds(&self) -> bool {
        self.search.is_none() && self.experiment.sweep.order != Order::Listed
    }

    /// The words for the command that goes on with the run which this launch has begun: `the same
    /// command`, without what would begin another run.
    fn same_command(&self) -> String {
        let copying = self.copied.as_ref().map(|copied| copied.purpose.option());
        match copying.or(self.fresh.then_some("--fresh")) {
            Some(option) => format!("{SAME_COMMAND} without `{option}`"),
            None => SAME_COMMAND.to_owned(),
        }
    }

    fn wanted(&self) -> WantedTrials<'a> {
        let Self {
            experiment,
            trials,
            search,
            data,
            results,
            fresh,
            command_line,
            ..
        } = *self;
        WantedTrials {
            experiment,
            trials,
            search,
            data,
            results,
            fresh,
            reruns: !self.selection.rerun.is_empty(),
            command_line,
        }
    }
}

/// The run to find under `results`.
#[derive(Clone, Copy)]
pub struct WantedTrials<'a> {
    pub experiment: &'a Experiment,
    /// Trials in plan order; for a search the first ones.
    pub trials: &'a [Trial],
    pub search: Option<&'a Tuning<'a>>,
    /// SHA-256 of each text that is read, by data kind.
    pub data: &'a BTreeMap<String, String>,
    pub results: &'a Path,
    /// No run: a new one is requested.
    pub fresh: bool,
    /// Whether ended trials are to run again; then it is the newest run, from any machine.
    pub reruns: bool,
    /// The command line as typed; empty where nothing is launched.
    pub command_line: &'a [String],
}

/// The end of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchEnd {
    /// All requested trials ran.
    Finished,
    /// There was nothing to do.
    NothingToDo,
    /// Stopped by a signal; the run can be resumed.
    Interrupted,
}

/// The result of a launch.
#[derive(Clone, Debug)]
pub struct LaunchReport {
    pub folder: RunFolder,
    pub end: LaunchEnd,
    /// Whether a signal asked it to stop, also where nothing was left to do.
    pub is_stop_asked: bool,
    /// Number of planned trials and replacements.
    pub trials: usize,
    /// Number of those without a final row.
    pub left: usize,
    /// Number of those that were selected ([`Selection`]).
    pub asked_left: usize,
    /// The last attempt of each selected trial that has one, in plan order.
    pub last_attempts: Vec<AttemptEnd>,
    /// Reason why no more trials were started, if the machine could not continue.
    pub failure: Option<RunStop>,
    /// Why a worker ended although there is more to do.
    pub cause: Option<EndCause>,
    /// The end of [`RunRequest::budget`], if trials may have been begun.
    pub budget: Option<BudgetEnd>,
    /// Reason why not all events reached their reader.
    pub lost_events: Option<String>,
}

/// Reason why a run could not start or continue.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunStop {
    /// The request contradicts the existing run (a changed experiment).
    #[error("{0}")]
    Refused(String),
    /// The machine cannot run it now: a lock, a device, a disk, a missing program.
    #[error("{0}")]
    CannotRun(String),
    /// A signal arrived before the first trial.
    #[error("{0}")]
    Interrupted(String),
}

/// The result of `kiln run --dry-run`.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The run that would be resumed; `None` for a new one.
    pub resumes: Option<RunFolder>,
    /// Reason why a finished run of the same experiment is not used.
    pub notice: Option<String>,
    /// Listed devices that would have little to do.
    pub remarks: Vec<String>,
    /// The trials that would run, with their previous outcomes.
    pub to_run: Vec<(TrialId, Option<Outcome>)>,
}

/// Runs the remaining trials of an experiment, in a new run or in its newest unfinished one.
///
/// # Errors
/// See [`RunStop`]. A trial that fails is a row, not an error.
pub fn run(request: &RunRequest, instruments: Instruments) -> Result<LaunchReport, RunStop> {
    supervisor::receive_orphans();
    let report = sweep::run(request, instruments, worker::join)?;
    Ok(LaunchReport {
        lost_events: request.listener.lost_events(),
        ..report
    })
}

/// Returns what [`run`] would do, without side effects. `instruments` are opened if the result
/// depends on the machine.
///
/// # Errors
/// As [`run`], for errors that can be found without starting.
pub fn preview(
    request: &RunRequest,
    instruments: &dyn Fn() -> Instruments,
) -> Result<Preview, RunStop> {
    let here = || MachineIdentity::of(&instruments());
    let found = existing_run::find(&request.wanted(), &here)?;
    let copied = copied_run::gather(request, &here)?;
    let trials = known_trials(request, &found, copied.as_ref());
    let (resumes, notice, history) = match found {
        ExistingRun::New { notice } => {
            let told = copied.as_ref().and_then(CopiedRun::notice);
            let history = copied.as_ref().map(CopiedRun::history);
            (None, notice.or(told), history.unwrap_or_default())
        }
        ExistingRun::Old(old) => (Some(old.folder), None, old.history),
    };
    let left = remaining::remaining(
        &trials,
        &history,
        &request.selection,
        request.experiment.run.retries,
    );
    let forecast = IdleForecast {
        experiment: request.experiment,
        trials: request.trials,
        has_final: history.has_final(),
        gpus: &|| {
            let here = instruments();
            visible_gpus(&here.devices(), here.unusable(), request.visible_devices).len()
        },
    };
    let remarks = match request.search {
        Some(_) => Vec::new(),
        None => forecast.lines(left.iter().map(|index| &trials[*index])),
    };
    let to_run = left
        .iter()
        .map(|index| &trials[*index].id)
        .map(|id| (id.clone(), history.last(id)))
        .collect();
    Ok(Preview {
        resumes,
        notice,
        remarks,
        to_run,
    })
}

/// Returns the facts of code, programs, machine and data that `run.json` of a new run would record,
/// without side effects, and the list of packages that would lie beside it.
pub fn record_now(request: &RunRequest, instruments: &Instruments) -> (RunFile, Option<String>) {
    open::record_now(request, instruments)
}

/// The plan with the trials that the rows add: further trials of a search, or replacements of
/// trials that ran out of memory.
fn known_trials<'t>(
    request: &RunRequest<'t>,
    found: &ExistingRun,
    copied: Option<&CopiedRun>,
) -> Cow<'t, [Trial]> {
    match (found, request.search) {
        (ExistingRun::New { .. }, _) => match copied {
            Some(copied) => copied.known_trials(request.trials, request.experiment),
            None => request.trials.into(),
        },
        (ExistingRun::Old(old), Some(search)) => search.progress(&old.searched).trials.into(),
        (ExistingRun::Old(old), None) => {
            remaining::with_fallbacks(request.trials, &old.history, request.experiment.run.on_oom)
        }
    }
}

/// The run that [`run`] would resume, as far as a plan says it.
#[derive(Debug, Default)]
pub struct Foretold {
    /// The last outcome of each of its trials; empty if [`run`] would start a new one, or refuse.
    pub ended: HashMap<TrialId, Outcome>,
    /// Why [`run`] would refuse: a program is missing or another one, the experiment has changed.
    pub refusal: Option<String>,
    /// How many trials a new run would keep of another run ([`foretell_kept`]).
    pub kept: Option<String>,
    /// Why [`run`] would start a new run although there is a finished one.
    pub notice: Option<String>,
}

/// Whether the programs of these trials and the data that they name can be had, as far as this machine
/// runs them.
fn check_here(wanted: &WantedTrials) -> Result<(), RunStop> {
    programs::check(wanted, wanted.trials.iter())?;
    match wanted.experiment.run.on {
        RunPlace::Here => programs::check_data_folder(wanted.trials),
        _ => Ok(()),
    }
}

/// Foretells [`run`]; changes nothing.
pub fn foretell(wanted: &WantedTrials, instruments: &dyn Fn() -> Instruments) -> Foretold {
    let refused = |stop: RunStop| Foretold {
        refusal: Some(stop.to_string()),
        ..Foretold::default()
    };
    let here = || MachineIdentity::of(&instruments());
    let found = check_here(wanted).and_then(|()| existing_run::find(wanted, &here));
    match found {
        Ok(ExistingRun::Old(old)) => Foretold {
            ended: wanted
                .trials
                .iter()
                .filter_map(|trial| Some((trial.id.clone(), old.history.last(&trial.id)?)))
                .collect(),
            ..Foretold::default()
        },
        Ok(ExistingRun::New { notice }) => Foretold {
            notice,
            ..Foretold::default()
        },
        Err(stop) => refused(stop),
    }
}

/// Foretells [`run`] of a new run that keeps trials of this run; changes nothing. `across_programs`:
/// as in [`CopyPurpose::Keep`].
pub fn foretell_kept(
    wanted: &WantedTrials,
    (run, across_programs): (&RunFolder, bool),
    instruments: &dyn Fn() -> Instruments,
) -> Foretold {
    let place = KeptRun {
        run,
        across_programs,
        locks: &locks_folder(),
    };
    let here = || MachineIdentity::of(&instruments());
    match check_here(wanted).and_then(|()| copied_run::foretell(wanted, &place, &here)) {
        Ok((ended, kept)) => Foretold {
            ended,
            kept,
            ..Foretold::default()
        },
        Err(stop) => Foretold {
            refusal: Some(stop.to_string()),
            ..Foretold::default()
        },
    }
}

/// An event that wakes the scheduler.
#[derive(Debug)]
enum Event {
    Signal(i32),
    /// The measured window of the child with this token begins or ends.
    Window(u64),
    /// A cut within the window of the child begins or ends.
    Cut(u64),
    /// The child with this token has ended and waits to be reaped.
    Ended(u64),
    /// The tickets of these numbers were taken back by another launch.
    TakenBack(Vec<u64>),
    /// The workers of the run shall stop.
    StopAsked,
}
