//! Reads the tables that a command line names: a run's folder, an experiment's folder, a
//! `trials.csv`, or one of these in a git revision.

mod axes;
mod lfs;
mod record;
mod revision;

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    record::{
        PlannedValues, RunFile, RunFolder, TableError, TicketQueue, TrialTable, collect,
        other_machine::rows_of_other_machine, run_folder::LATEST,
        several_programs::rows_of_several_programs, tables::TRIALS, unplanned::unplanned_rows,
    },
    units::{listed, shorten},
};
use serde_json::Value;

pub(super) use self::{
    axes::table_of_run,
    record::{experiment_text, objective_of},
};
use self::{
    axes::{check_and_unify, planned_values, unify},
    record::{beside, changed_since},
    revision::of_revision,
};
use super::{
    RESULTS, Stop, note,
    run_name::{NamedPlace, Taken, place_of, revision_and_path},
    runs, tickets,
};
use crate::report::{Subject, compare::RecordedTable, complete_experiment};

/// A table with the run record beside it, if there is one.
pub(super) struct TableSource {
    /// The name given on the command line, or the path where the table was found.
    pub(super) name: String,
    pub(super) table: TrialTable,
    pub(super) run: Option<RunFile>,
    /// Why the record cannot be used, with its path.
    pub(super) run_fault: Option<String>,
    /// The resolved experiment, as YAML.
    pub(super) experiment: Option<String>,
    /// Why the experiment cannot be used, with its path.
    pub(super) experiment_fault: Option<String>,
    /// The list of packages of the programs of its newest launch.
    pub(super) packages: Option<String>,
    /// Folder with the time series of the run; `None` for a commit.
    pub(super) folder: Option<RunFolder>,
}

impl TableSource {
    pub(super) fn experiment_value(&self) -> Option<Value> {
        complete_experiment(self.experiment.as_ref()?)
    }

    /// Path of the experiment beside the table, for messages; in a commit it begins with the revision.
    pub(super) fn experiment_file(&self) -> PathBuf {
        Path::new(&self.name).with_file_name("experiment.yaml")
    }

    /// Says that `experiment.yaml` is not the one that the run recorded; `None` if it is.
    pub(super) fn changed_experiment(&self) -> Option<String> {
        changed_since(self.experiment.as_ref()?, self.run.as_ref())
    }

    /// The refusal of a run whose experiment is needed and cannot be used.
    pub(super) fn without_experiment(&self, advice: &str) -> Stop {
        Stop::bad_input(match &self.experiment_fault {
            Some(fault) => format!("{fault}; this file has the settings of the run's trials"),
            None => format!(
                "{}: there is no `experiment.yaml` beside the table; {advice}",
                self.name
            ),
        })
    }

    fn planned_values(&self) -> PlannedValues {
        planned_values(self.experiment.as_deref(), self.run.as_ref())
    }

    /// Refuses a table that lacks an axis of its run's sweep, or has other values or rows that
    /// contradict themselves; `check` names it.
    fn checked(
        mut self,
        check: impl FnOnce(&PlannedValues) -> Result<(), TableError>,
    ) -> Result<Self, Stop> {
        let planned = self.planned_values();
        check_and_unify(&planned, self.run.as_ref(), &mut self.table, check)
            .map_err(Stop::bad_input)?;
        self.tell_others();
        Ok(self)
    }

    /// Writes the axes of the same table, read anew, as the experiment has them.
    pub(super) fn unify(&self, table: &mut TrialTable) {
        unify(&self.planned_values(), self.run.as_ref(), table);
    }

    /// Names the columns that somebody added, and that look like axes.
    fn tell_others(&self) {
        let others = self.table.others.iter();
        let names: Vec<String> = others
            .map(|name| format!("`{}`", shorten(name, MOST_LETTERS)))
            .collect();
        if !names.is_empty() {
            note(&format!(
                "note: {}: not axes of the sweep, so these columns are not read: {}",
                self.name,
                listed(&names, ", ")
            ));
        }
    }

    /// Says that rows contradict the record of their launch, or are not in the plan.
    fn tell_other_record(&self) {
        let run = self.run.as_ref();
        if let Some(found) = run.and_then(|run| rows_of_other_machine(&self.table, run)) {
            note(&format!("note: {}: {found}", self.name));
        }
        if let Some(found) = run.and_then(|run| unplanned_rows(&self.table, run)) {
            note(&format!("note: {}: {found}", self.name));
        }
    }

    /// Says that rows are of several programs.
    pub(super) fn tell_several_programs(&self) {
        let run = self.run.as_ref();
        if let Some(found) = run.and_then(|run| rows_of_several_programs(&self.table, run)) {
            note(&format!("note: {}: {found}", self.name));
        }
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            run: self.run.as_ref(),
            experiment: self.experiment.as_deref(),
            packages: self.packages.as_deref(),
            folder: self.folder.as_ref(),
            ..Subject::new(&self.table, &self.name)
        }
    }

    /// The table to add to, with the record of its run.
    pub(super) fn recorded_table(&mut self) -> RecordedTable<'_> {
        (&mut self.table, self.run.as_ref())
    }

    /// The table of the run with a row per point, if it is there.
    pub(super) fn summary_table(&self) -> Option<PathBuf> {
        let table = self.folder.as_ref()?.summary_table();
        table.is_file().then_some(table)
    }
}

/// Most letters of a column's name in a note.
const MOST_LETTERS: usize = 60;

/// Reads a table that a command line names, as [`source_in`] the folder [`RESULTS`].
pub(super) fn source(named: &str) -> Result<TableSource, Stop> {
    source_in(named, Path::new(RESULTS))
}

/// Reads a table that a command line names.
pub(super) fn source_in(named: &str, results: &Path) -> Result<TableSource, Stop> {
    match revision_and_path(named) {
        Some((revision, path)) => of_revision(revision, path),
        None => of_folder(&table_of(named, results, Taken::Tables)?),
    }
}

/// Reads the record of a run, as [`source_in`]; a run that has no table yet has its experiment and
/// its launches.
pub(super) fn recorded(named: &str, results: &Path) -> Result<TableSource, Stop> {
    if let Some((revision, path)) = revision_and_path(named) {
        return of_revision(revision, path);
    }
    match place_of(named, results, Taken::Tables)? {
        NamedPlace::Run(run) if has_no_table(&run) && run.run_file().is_file() => {
            Ok(beside(run, TrialTable::default()))
        }
        place => of_folder(&table_at(place, named, Taken::Tables)?),
    }
}

/// Whether a run is known to have no table: one that cannot be looked at is read, and told.
fn has_no_table(folder: &RunFolder) -> bool {
    matches!(input::find(&folder.trials_table()), Ok(None))
}

pub(super) fn of_folder(path: &Path) -> Result<TableSource, Stop> {
    let table = TrialTable::read(path).map_err(Stop::bad_input)?;
    tell_torn(path, &table);
    tell_uncollected(path);
    let name = path.display().to_string();
    // A table with another name and without the record of a run beside it belongs to no run.
    let folder = path.parent().map(RunFolder::at).filter(|folder| {
        path.file_name() == Some(TRIALS.file.as_ref()) || folder.run_file().is_file()
    });
    let source = match folder {
        Some(folder) => TableSource {
            name,
            ..beside(folder, table)
        },
        None => TableSource {
            name,
            table,
            run: None,
            run_fault: None,
            experiment: None,
            experiment_fault: None,
            packages: None,
            folder: None,
        },
    };
    source.tell_other_record();
    source.checked(|planned| planned.check_file(path))
}

/// Says that workers have written rows that are not in the table yet.
pub(super) fn tell_uncollected(path: &Path) {
    // `latest` is a link.
    let folder = path.canonicalize().ok();
    let folder = folder.as_deref().and_then(Path::parent);
    let Some(folder) = folder.map(RunFolder::at) else {
        return;
    };
    match collect::uncollected(&folder) {
        Ok(rows) => {
            if let Some(told) = tickets::uncollected(rows) {
                let (path, run) = (path.display(), folder.path().display());
                note(&format!(
                    "{path}: {told}; `kiln wait {run} --once` collects them"
                ));
            }
        }
        Err(error) => note(&format!("rows of workers cannot be read: {error}")),
    }
    let queue = TicketQueue::of(&folder);
    let counts = queue.and_then(|queue| queue.map(|queue| queue.counts()).transpose());
    let counts = counts.unwrap_or_else(|error| {
        note(&format!("tickets of workers cannot be read: {error}"));
        None
    });
    let notices = counts.map(|counts| [tickets::held(counts), tickets::later(counts)]);
    for notice in notices.into_iter().flatten().flatten() {
        note(&format!("{}: {notice}", path.display()));
    }
}

/// An unfinished last row may hold a cut number, so it is dropped, with a note: an editor may have
/// removed the line feed.
pub(super) fn tell_torn(path: &Path, table: &TrialTable) {
    if let Some(torn) = &table.torn {
        note(&format!(
            "note: {}:{}: the last line has no line feed and may be cut short, so it is dropped; \
             if it is complete, add a line feed",
            path.display(),
            torn.line
        ));
    }
}

/// Returns the table that a name means: that of a run, or a file.
///
/// # Errors
/// As [`place_of`]; or the run has no table yet.
pub(super) fn table_of(named: &str, results: &Path, taken: Taken) -> Result<PathBuf, Stop> {
    table_at(place_of(named, results, taken)?, named, taken)
}

fn table_at(place: NamedPlace, named: &str, taken: Taken) -> Result<PathBuf, Stop> {
    match place {
        NamedPlace::Table(table) => Ok(table),
        NamedPlace::Run(run) => {
            let table = found(run.trials_table())?;
            table.ok_or_else(|| taken.refused(named, "this run has no `trials.csv` yet"))
        }
    }
}

/// The path of a table, if anything stands there: what is not a file is told where it is read.
///
/// # Errors
/// It is a link to nothing.
fn found(table: PathBuf) -> Result<Option<PathBuf>, Stop> {
    match table.read_link() {
        Ok(target) if matches!(input::find(&table), Ok(None)) => Err(Stop::bad_input(format!(
            "{}: it is a link to {}, which is not there; put the file there (`git annex get` or `dvc \
             pull`, if one of them made the link)",
            table.display(),
            target.display()
        ))),
        Ok(_) => Ok(Some(table)),
        Err(_) => Ok(table.symlink_metadata().is_ok().then_some(table)),
    }
}

/// The table of the run that started last, among all experiments.
pub(super) fn newest(results: &Path) -> Result<PathBuf, Stop> {
    let all = runs::newest_first(results).map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::NotFound => {
                "there is no such folder; `kiln run FILE` creates it".to_owned()
            }
            _ => error.to_string(),
        };
        Stop::bad_input(format!(
            "{}: {what}; name another folder of runs with `--results`",
            results.display()
        ))
    })?;
    if all.is_empty()
        && let Some(left) = runs::leftover_by_name(LATEST, results)
    {
        return Err(runs::refuse_leftover(&left));
    }
    let mut tables = all.iter().map(|named| named.run.trials_table());
    let is_there = |table: &PathBuf| table.symlink_metadata().is_ok();
    tables.find(is_there).ok_or_else(|| {
        Stop::bad_input(format!(
            "no run with a `trials.csv` under {}; `kiln run FILE` creates one",
            results.display()
        ))
    })
}
