//! A new run that begins as a copy of another run's record: `kiln run --read-again` and `kiln run
//! --keep`. It takes over the launches of that run and some of its attempts, and is then resumed:
//! the other trials run.

mod copies;
pub(super) mod keep;
pub(super) mod read_again;
mod source;

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use kiln_core::{
    folder::is_full,
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, RunFile, RunFolder, TableRow, TrialResult, TrialRow,
        run_file::KeptFrom,
        tables::{TABLES, TRIALS},
    },
    spec::Experiment,
    units::counted,
};

use self::source::SourceFolders;
use super::{
    RunRequest, RunStop, WantedTrials,
    disk::{cannot_write, full_of_copies},
    existing_run::{Old, programs_of},
    machine::{self, MachineIdentity},
    open, process_record,
    provenance::{Changed, Programs},
    remaining::{History, Selection, remaining, with_fallbacks},
};
use crate::readings::{Paths, Privacy};

/// The run of which a launch makes its new run.
#[derive(Clone, Copy, Debug)]
pub struct CopySource<'a> {
    pub run: &'a RunFolder,
    pub purpose: CopyPurpose,
}

/// The reason for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPurpose {
    /// To read the metrics of its trials again from their output.
    ReadAgain,
    /// To keep its trials that have a final outcome.
    Keep {
        /// Whether the other trials may run with other programs. Then only completed ones are kept.
        across_programs: bool,
    },
}

impl CopyPurpose {
    /// Its option on the command line.
    pub fn option(self) -> &'static str {
        match self {
            Self::ReadAgain => "--read-again",
            Self::Keep { .. } => "--keep",
        }
    }
}

/// A run, and the attempts of it that the new run takes over.
pub(super) struct CopiedRun {
    run: RunFolder,
    file: RunFile,
    programs: OldPrograms,
    rows: Vec<CopiedRow>,
    /// The folders of its trials that are to be copied.
    folders: SourceFolders,
    purpose: CopyPurpose,
    /// Number of planned trials, without those that replace trials that ran out of memory.
    planned: usize,
    /// The note in `run.json` of the new run.
    kept_from: Option<KeptFrom>,
    /// Notices for the user; the first says how many trials are not started.
    notices: Vec<String>,
}

struct CopiedRow {
    row: TableRow,
    /// Its result if its metrics were read again; else that among its files stays.
    result: Option<TrialResult>,
}

/// The programs as they are now, beside those of the attempts.
struct OldPrograms {
    /// `None` if the run recorded none.
    now: Option<Programs>,
    /// Sentences on changes that forbid nothing.
    told: Vec<String>,
    /// The first launch that measured something with the programs of now.
    first_measured: Option<u64>,
    /// How they differ from those of rows that this run had itself kept across programs.
    of_earlier: Vec<String>,
}

/// Reads what the new run takes over; changes nothing. `None` if no copy is asked for.
///
/// # Errors
/// The experiment measures something else than that run, or no trial can be taken over.
pub(super) fn gather(
    request: &RunRequest,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<Option<CopiedRun>, RunStop> {
    let Some(CopySource { run, purpose }) = request.copied else {
        return Ok(None);
    };
    let copied = match purpose {
        CopyPurpose::ReadAgain => read_again::gather(request, run, here)?,
        CopyPurpose::Keep { across_programs } => {
            let place = keep::KeptRun {
                run,
                across_programs,
                locks: request.locks,
            };
            keep::gather(&request.wanted(), &place, &request.selection, here)?
        }
    };
    Ok(Some(copied))
}

/// The last outcomes of the trials that a new run would keep, and a sentence on them.
///
/// # Errors
/// As [`gather`].
pub(super) fn foretell(
    wanted: &WantedTrials,
    place: &keep::KeptRun<'_>,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<(HashMap<TrialId, Outcome>, Option<String>), RunStop> {
    let copied = keep::gather(wanted, place, &Selection::default(), here)?;
    let history = copied.history();
    let trials = wanted.trials.iter();
    let ended = trials.filter_map(|trial| Some((trial.id.clone(), history.last(&trial.id)?)));
    Ok((ended.collect(), copied.notice()))
}

impl CopiedRun {
    /// How the attempts that are taken over ended.
    pub(super) fn history(&self) -> History {
        History::of(&self.ends())
    }

    fn ends(&self) -> Vec<AttemptEnd> {
        let rows = self.rows.iter().map(|copied| &copied.row);
        rows.map(AttemptEnd::of).collect()
    }

    /// Says how many trials are not started.
    pub(super) fn notice(&self) -> Option<String> {
        self.notices.first().cloned()
    }

    /// The plan, with the replacements of trials that ran out of memory.
    pub(super) fn known_trials<'t>(
        &self,
        planned: &'t [Trial],
        experiment: &Experiment,
    ) -> Cow<'t, [Trial]> {
        with_fallbacks(planned, &self.history(), experiment.run.on_oom)
    }

    /// Whether no selected trial is left to run.
    pub(super) fn leaves_nothing(&self, request: &RunRequest) -> bool {
        let retries = request.experiment.run.retries;
        remaining(request.trials, &self.history(), &request.selection, retries).is_empty()
    }

    /// Makes the new run, with the launches of the old one, and the rows and files of the attempts. It
    /// appears whole, as a run to resume, when all of it is on the disk.
    ///
    /// # Errors
    /// A file cannot be read or written, the old run was removed or changed meanwhile, or a signal set
    /// `asked`; then there is no new run.
    pub(super) fn make_run(self, request: &RunRequest, asked: &AtomicBool) -> Result<Old, RunStop> {
        let planned = RunRequest {
            trials: &request.trials[..self.planned.min(request.trials.len())],
            ..request.clone()
        };
        let record = (self.file.launches.clone(), self.kept_from.clone());
        let made = open::create_with(&planned, record, |new, store| {
            self.copy_files(new, asked)?;
            for copied in &self.rows {
                copies::heed(asked)?;
                store.add(&copied.row)?;
            }
            copies::copy_records(&self.run, new, &self.attempts(), asked)?;
            store.sync()?;
            // One call for the names of all files: thousands of single ones would take minutes.
            new.open()?.sync_everything()?;
            self.folders.check(&self.run, &self.file)
        });
        let (folder, file) = made.map_err(|error| self.not_made(request, error))?;
        let ends = self.ends();
        let told = self.notices.into_iter().chain(self.programs.told);
        Ok(Old {
            folder,
            file,
            history: History::of(&ends),
            ends,
            searched: Vec::new(),
            changed: Vec::new(),
            programs: self.programs.now,
            told: told.collect(),
            first_measured: self.programs.first_measured,
        })
    }

    /// Puts the files of the attempts into the new run.
    fn copy_files(&self, new: &RunFolder, asked: &AtomicBool) -> io::Result<()> {
        match self.purpose {
            CopyPurpose::ReadAgain => {
                let mut rows = self.rows.iter();
                rows.try_for_each(|copied| copies::copy_attempt(&self.run, new, copied, asked))
            }
            CopyPurpose::Keep { .. } => {
                let (history, attempts) = (self.history(), self.attempts());
                self.trials().into_iter().try_for_each(|trial| {
                    // Another attempt may go on with the checkpoints of one that did not complete, and
                    // a program may write into their files.
                    let has_completed = history.last(trial) == Some(Outcome::Completed);
                    let parts = copies::TrialParts {
                        attempts: &attempts,
                        links_checkpoints: has_completed,
                    };
                    copies::copy_trial(&self.run, new, trial, &parts, asked)
                })
            }
        }
    }

    /// Why there is no new run.
    fn not_made(&self, request: &RunRequest, error: io::Error) -> RunStop {
        if error.kind() == io::ErrorKind::Interrupted {
            let text = "interrupted while the attempts were copied; no run was made";
            return RunStop::Interrupted(text.to_owned());
        }
        if !is_full(&error) {
            return cannot_write(request)(error);
        }
        let of_attempt = |(trial, number): &(TrialId, u64)| self.run.attempt(trial, *number);
        let folders: Vec<PathBuf> = match self.purpose {
            CopyPurpose::ReadAgain => self.attempts().iter().map(of_attempt).collect(),
            CopyPurpose::Keep { .. } => {
                let trials = self.trials().into_iter();
                trials.map(|trial| self.run.trial(trial)).collect()
            }
        };
        let bytes = folders.iter().map(|folder| copies::bytes_in(folder)).sum();
        let place = request.results.join(&request.experiment.name);
        RunStop::CannotRun(full_of_copies(&place, &self.run, bytes, &error))
    }

    /// The attempts that the new run has.
    fn attempts(&self) -> HashSet<(TrialId, u64)> {
        let rows = self.rows.iter().map(|copied| &copied.row.fixed);
        rows.map(|row| (row.trial.clone(), row.attempt)).collect()
    }

    /// The trials of the attempts that the new run has.
    fn trials(&self) -> HashSet<&TrialId> {
        let trials = self.rows.iter().map(|copied| &copied.row.fixed.trial);
        trials.collect()
    }

    /// Says that rows are of another machine than this one; `what` says which trials they are of.
    fn of_other_machine(&self, here: &MachineIdentity, what: &str) -> Option<String> {
        let differences = self.file.launches.iter().filter_map(|launch| {
            let difference = machine::difference(launch, here)?;
            Some((launch.launch, difference))
        });
        let differences: HashMap<u64, String> = differences.collect();
        let rows = self.rows.iter().map(|copied| &copied.row.fixed);
        let elsewhere = rows.filter_map(|row| Some((&row.trial, differences.get(&row.launch)?)));
        let elsewhere: HashMap<&TrialId, &String> = elsewhere.collect();
        let difference = elsewhere.values().next()?;
        Some(format!(
            "{} of {} that are {what} ran on another machine ({difference})",
            elsewhere.len(),
            counted(self.trials().len(), "trial")
        ))
    }
}

/// `NAME/FOLDER` of a run.
fn name_of(run: &RunFolder) -> String {
    format!("{}/{}", run.experiment_name(), run.name())
}

/// Checks that this kiln can go on with the tables of a run, and that nobody works on it.
///
/// # Errors
/// A sentence on what is in the way.
fn can_be_copied(
    run: &RunFolder,
    file: &RunFile,
    locks: &Path,
    option: &str,
) -> Result<(), String> {
    let is_other = |name: &str, version: &str| {
        let known = file.tables.get(name);
        known.is_none_or(|known| known != version)
    };
    let mut tables = TABLES.iter();
    if let Some(other) = tables.find(|table| is_other(table.file, table.version)) {
        return Err(format!(
            "its `{}` is not of version `{}`, which this kiln writes, so the new run cannot take it \
             over; use the kiln that made it, or leave `{option}` out",
            other.file, other.version
        ));
    }
    let launcher = process_record::launcher_in(locks, run.path());
    match launcher.map_err(|error| error.to_string())? {
        Some(pid) => Err(format!(
            "process {pid} works on this run; wait for its end, or stop it with `kill {pid}`"
        )),
        None => Ok(()),
    }
}

/// Compares the programs with those of the attempts of these rows; also returns the changes that
/// forbid to resume the run.
///
/// # Errors
/// An entry of `files` of a program stands for no file.
fn compare_programs<'r>(
    wanted: &WantedTrials,
    file: &RunFile,
    rows: impl Iterator<Item = &'r TrialRow>,
) -> Result<(OldPrograms, Vec<String>), RunStop> {
    let measured = rows.filter(|row| row.outcome.is_final());
    let measured: BTreeSet<u64> = measured.map(|row| row.launch).collect();
    let mut launches = measured.iter().copied();
    let present = launches.find(|launch| file.has_present_programs(*launch));
    let first_measured = present.or(measured.first().copied());
    let mut now = programs_of(wanted, file)?;
    let paths = Paths::here(Privacy::of(wanted.experiment));
    let mut of_earlier = match &mut now {
        Some(now) => changes_since_earlier(now, file, &measured, &paths),
        None => Vec::new(),
    };
    let Changed { refused, told } = match (&mut now, first_measured) {
        (Some(now), Some(first)) => now.compare(&file.launches, first, &paths),
        _ => Changed::default(),
    };
    let mut changed: Vec<String> = refused.iter().map(ToString::to_string).collect();
    // No row is of the programs that the run was to go on with, so those of all rows count.
    if present.is_none() {
        of_earlier.retain(|change| !changed.contains(change));
        changed.append(&mut of_earlier);
    }
    let programs = OldPrograms {
        now,
        told,
        first_measured,
        of_earlier,
    };
    Ok((programs, changed))
}

/// The changes since each of these launches that had other programs than those with which the run was
/// to go on.
fn changes_since_earlier(
    now: &mut Programs,
    file: &RunFile,
    measured: &BTreeSet<u64>,
    paths: &Paths,
) -> Vec<String> {
    let is_earlier = |launch: u64| measured.contains(&launch) && !file.has_present_programs(launch);
    let mut all: Vec<String> = Vec::new();
    let launches = file.launches.iter();
    for launch in launches.filter(|launch| is_earlier(launch.launch)) {
        let changed = now.compare(std::slice::from_ref(launch), launch.launch, paths);
        let changes = changed.refused.iter().map(ToString::to_string);
        let new: Vec<String> = changes.filter(|change| !all.contains(change)).collect();
        all.extend(new);
    }
    all
}

/// A row with the place of its trial in this plan. A block and a round are kept only where this plan
/// numbers them alike. A smaller batch in the place of another trial may be planned itself here.
fn in_plan(row: TrialRow, trial: &Trial) -> TrialRow {
    TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        number: trial.number,
        fallback_of: trial.fallback_of.clone(),
        block: row.block.filter(|block| *block == trial.block),
        round: row.round.filter(|round| *round == trial.repeat + 1),
        ..row
    }
}

/// A row with the values of the axes of this plan.
fn with_axes(row: TrialRow, trial: &Trial) -> TableRow {
    let axes: Vec<_> = trial.axes.iter().map(|(_, value)| value.clone()).collect();
    TableRow::new(row, &axes)
}
