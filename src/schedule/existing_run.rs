//! Finds the run of an experiment that a launch resumes, and checks that the experiment has not
//! changed.

mod keeping;

use std::{fs, io, path::Path};

use kiln_core::{
    input,
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, RunFile, RunFolder, TableError, TableRow, TableWriter, TicketQueue, TrialTable,
        attempt::later_than,
        run_folder::runs,
        tables::{SAMPLES, SNAPSHOTS, TRIALS},
    },
    units::{listed, shorten},
};
use kiln_data::source::{DATA_VARIABLE, absolute_data_folder};

use self::keeping::{keeping, keeping_across_programs};
use super::{
    RunStop, WantedTrials,
    changes::{KeyChange, changes},
    content::other_data,
    copied_run::read_again::reads_any,
    disk,
    machine::{self, MachineIdentity},
    provenance::{Changed, Programs, advice},
    recorded_experiment::{ExperimentMismatch, compare, experiment_of, unread},
    remaining::History,
};
use crate::readings::{Paths, Privacy};

/// Most earlier runs that are looked at for the same trials.
const MOST_EARLIER: usize = 100;

/// Most changes of an experiment that are named where a new run starts.
const MOST_CHANGES: usize = 3;
/// Most characters of one of them.
const LONGEST_CHANGE: usize = 120;

/// The run to resume, or a new one.
pub(super) enum ExistingRun {
    New {
        /// The reason why a finished run of the same experiment is not used.
        notice: Option<String>,
    },
    Old(Box<Old>),
}

/// A run of this experiment that can be resumed.
pub(super) struct Old {
    pub(super) folder: RunFolder,
    pub(super) file: RunFile,
    pub(super) ends: Vec<AttemptEnd>,
    /// The rows, for a search; empty for a sweep.
    pub(super) searched: Vec<TableRow>,
    pub(super) history: History,
    /// Changed keys that a resume accepts.
    pub(super) changed: Vec<KeyChange>,
    /// The programs as they are now; `None` if the run recorded none.
    pub(super) programs: Option<Programs>,
    /// What a resume accepts about them, in sentences.
    pub(super) told: Vec<String>,
    /// The first launch that measured something with the programs of now.
    pub(super) first_measured: Option<u64>,
}

/// Reads the newest run of the experiment; changes nothing. `here` is called only if the decision
/// depends on the machine.
///
/// # Errors
/// If the run is unfinished and the experiment has changed, or the runs cannot be listed or read.
pub(super) fn find(
    wanted: &WantedTrials,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<ExistingRun, RunStop> {
    refuse_unwritable_path(wanted.results)?;
    let runs =
        runs(wanted.results, &wanted.experiment.name).map_err(|error| disk::cannot_read(&error))?;
    find_among(wanted, runs, here)
}

/// The same where the runs of the experiment are listed, oldest first.
///
/// # Errors
/// As [`find`].
pub(super) fn find_among(
    wanted: &WantedTrials,
    mut earlier: Vec<RunFolder>,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<ExistingRun, RunStop> {
    refuse_unwritable_path(wanted.results)?;
    let Some(folder) = earlier.pop().filter(|_| !wanted.fresh) else {
        return Ok(ExistingRun::New { notice: None });
    };
    let (old, other) = old_run(wanted, folder)?;
    match compare(wanted, &old.folder, &old.file, (&old.ends, &old.searched)) {
        Ok(changed) => of_same_experiment(wanted, Old { changed, ..old }, &other, here),
        Err(mismatch) => {
            if let ExperimentMismatch::Unread(_) = mismatch {
                refuse_unread(&old)?;
            }
            let keeping = match other.programs.is_empty() && other.data.is_empty() {
                true => keeping(wanted, &old, here),
                false => String::new(),
            };
            of_changed_experiment(wanted, &old, (&mismatch, &keeping), &earlier)
        }
    }
}

impl Old {
    /// Whether nothing of its plan is left to run.
    fn is_finished(&self) -> bool {
        let is_settled = |trial: &TrialId| self.history.is_settled(trial, 0);
        !self.file.is_searching && self.file.plan.iter().all(is_settled)
    }
}

/// Refuses a finished run whose experiment cannot be read now: it may be the wanted one, and would be
/// run again in whole.
fn refuse_unread(old: &Old) -> Result<(), RunStop> {
    match unread(&old.folder).filter(|_| old.is_finished()) {
        None => Ok(()),
        Some(why) => Err(RunStop::CannotRun(format!(
            "{why}; whether the run is one of this experiment is not known, and nothing was started: \
             restore the file, or start a new run with `--fresh`"
        ))),
    }
}

/// Content that a run measured and that has changed since.
struct OtherContent {
    /// Changes of its programs that refuse a resume, and what to do about them.
    programs: Vec<String>,
    advice: &'static str,
    data: Vec<String>,
}

fn queue_of(folder: &RunFolder) -> Result<Option<TicketQueue>, RunStop> {
    TicketQueue::of(folder).map_err(|error| disk::cannot_read(&error))
}

/// Reads a run, and compares its programs and data with those of now.
fn old_run(wanted: &WantedTrials, folder: RunFolder) -> Result<(Old, OtherContent), RunStop> {
    let ReadRun {
        file,
        ends,
        searched,
        first_measured,
    } = read(wanted, &folder)?;
    let history =
        history_of(&folder, &ends, &file.plan).map_err(|error| disk::cannot_read(&error))?;
    let mut programs = programs_of(wanted, &file)?;
    let Changed { refused, told } = match (&mut programs, first_measured) {
        (Some(programs), Some(first)) => {
            let paths = Paths::here(Privacy::of(wanted.experiment));
            programs.compare(&file.launches, first, &paths)
        }
        _ => Changed::default(),
    };
    let other = OtherContent {
        programs: refused.iter().map(ToString::to_string).collect(),
        advice: advice(&refused),
        data: match ends.is_empty() && !has_attempts(&folder) {
            true => Vec::new(),
            false => other_data(&file, wanted.data),
        },
    };
    let old = Old {
        folder,
        file,
        ends,
        searched,
        history,
        changed: Vec::new(),
        programs,
        told,
        first_measured,
    };
    Ok((old, other))
}

/// The answer where the experiment is the one of the run: it is resumed, unless it measured something
/// else or ran elsewhere.
fn of_same_experiment(
    wanted: &WantedTrials,
    old: Old,
    other: &OtherContent,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<ExistingRun, RunStop> {
    let (finished, reruns) = (old.is_finished(), wanted.reruns);
    if !other.programs.is_empty() {
        let change = ContentChange {
            what: "program",
            each: &other.programs,
            advice: other.advice,
            keeping: &keeping_across_programs(wanted, &old, here),
        };
        return of_other_content(&old.folder, &change, finished, reruns);
    }
    if !other.data.is_empty() {
        let change = ContentChange {
            what: "data",
            each: &other.data,
            advice: "",
            keeping: "",
        };
        return of_other_content(&old.folder, &change, finished, reruns);
    }
    let goes_on = !finished || reruns;
    // One that workers made on a shared folder belongs to all that see it.
    if !goes_on
        && queue_of(&old.folder)?.is_none()
        && let Some(notice) = elsewhere(&old.folder, &old.file, here)
    {
        return Ok(ExistingRun::New {
            notice: Some(notice),
        });
    }
    if goes_on {
        check_tables(&old.folder, wanted.trials)?;
    }
    Ok(ExistingRun::Old(Box::new(old)))
}

/// The answer where the experiment has changed since the run, by what [`compare`] found: a finished
/// run is left as it is. `keeping` says what `--keep` would save.
fn of_changed_experiment(
    wanted: &WantedTrials,
    old: &Old,
    (mismatch, keeping): (&ExperimentMismatch, &str),
    earlier: &[RunFolder],
) -> Result<ExistingRun, RunStop> {
    let (folder, what) = (&old.folder, mismatch.lines());
    match (old.is_finished(), wanted.reruns) {
        (true, true) => Err(RunStop::Refused(format!(
            "`--rerun` retries trials of a run, but the experiment has changed since {}:\n{what}\n\
             restore it to retry trials of that run, or leave `--rerun` out to start a new run",
            folder.path().display()
        ))),
        (true, false) => {
            let why = with_these_trials(wanted, earlier);
            let why = why.unwrap_or_else(|| because_of(folder, mismatch));
            Ok(ExistingRun::New {
                notice: Some(why + &reading_again(wanted, folder) + keeping),
            })
        }
        (false, _) => Err(RunStop::Refused(format!(
            "{} is unfinished and {}:\n{what}\nrestore it to resume that run, or start a new one with \
             `--fresh`{}{keeping}",
            folder.path().display(),
            mismatch.clause(),
            reading_again(wanted, folder)
        ))),
    }
}

/// A run as its files have it.
struct ReadRun {
    file: RunFile,
    ends: Vec<AttemptEnd>,
    searched: Vec<TableRow>,
    /// The first launch with a final result of the programs of now.
    first_measured: Option<u64>,
}

fn read(wanted: &WantedTrials, folder: &RunFolder) -> Result<ReadRun, RunStop> {
    let unreadable = |what: String| {
        RunStop::Refused(format!(
            "{what}; repair it, or start a new run with `--fresh`"
        ))
    };
    let mut read = ReadRun {
        file: RunFile::read(&folder.run_file()).map_err(unreadable)?,
        ends: Vec::new(),
        searched: Vec::new(),
        first_measured: None,
    };
    TrialTable::each_of(folder, &mut |row| {
        read.ends.push(AttemptEnd::of(&row));
        if row.fixed.outcome.is_final() && read.file.has_present_programs(row.fixed.launch) {
            let known = read.first_measured.into_iter();
            read.first_measured = known.chain([row.fixed.launch]).min();
        }
        if wanted.search.is_some() {
            read.searched.push(row);
        }
    })
    .map_err(|error| {
        let table = folder.trials_table();
        match table.is_symlink() {
            true => RunStop::Refused(format!(
                "{}: it is a link, and no row is appended behind a link; put the file itself there to \
                 go on",
                table.display()
            )),
            false => unreadable(error.to_string()),
        }
    })?;
    Ok(read)
}

/// The history of a run by the ends of its rows. Without a queue, attempts of a settled trial that came
/// after its last row count as killed.
///
/// # Errors
/// The queue or the attempts of the run cannot be read.
pub(super) fn history_of(
    folder: &RunFolder,
    ends: &[AttemptEnd],
    plan: &[TrialId],
) -> io::Result<History> {
    let mut history = History::of(ends);
    if TicketQueue::of(folder)?.is_none() {
        add_lost(&mut history, folder, plan)?;
    }
    Ok(history)
}

/// Counts the attempts of a settled trial that came after its last row as killed: where a trial with a
/// result was run again and that launch was killed, the rows alone would say that nothing is to do.
fn add_lost(history: &mut History, folder: &RunFolder, plan: &[TrialId]) -> io::Result<()> {
    for trial in plan {
        if !history.last(trial).is_some_and(Outcome::is_final) {
            continue;
        }
        let last = history.last_attempt(trial);
        for attempt in later_than(folder, trial, last)? {
            history.add(&AttemptEnd {
                trial: trial.clone(),
                attempt,
                outcome: Outcome::Killed,
                cut_off: None,
                device_uuid: None,
                memory_limit_bytes: None,
                is_read_again: false,
            });
        }
    }
    Ok(())
}

/// Names the newest of these earlier runs that has the wanted trials: only the newest run of all is
/// ever resumed.
fn with_these_trials(wanted: &WantedTrials, earlier: &[RunFolder]) -> Option<String> {
    let has_them = |folder: &&RunFolder| {
        wanted.search.is_none()
            && RunFile::read(&folder.run_file())
                .is_ok_and(|file| has_trials_of(wanted, folder, &file))
    };
    let found = earlier.iter().rev().take(MOST_EARLIER).find(has_them)?;
    Some(format!(
        "{0} has the same trials (`kiln report {0}`), but a later run of this name has others; \
         starting a new run",
        found.path().display()
    ))
}

/// Whether a run is of the wanted experiment, on the same devices.
fn has_trials_of(wanted: &WantedTrials, folder: &RunFolder, file: &RunFile) -> bool {
    let changed = compare(wanted, folder, file, (&[], &[]));
    changed.is_ok_and(|changed| !changed.iter().any(KeyChange::is_of_the_device))
}

/// Paths of a run's files and of the data stand in its records, which are UTF-8.
///
/// # Errors
/// The path of `results`, or that in `KILN_DATA`, is not UTF-8.
pub(super) fn refuse_unwritable_path(results: &Path) -> Result<(), RunStop> {
    let absolute = std::path::absolute(results);
    match absolute.as_deref().map(Path::to_str) {
        Ok(None) => Err(RunStop::Refused(format!(
            "{}: this path is not UTF-8 text, as the records of a run are; name a folder whose whole path \
             is with `--results`",
            results.display()
        ))),
        _ => refuse_unwritable_data_folder(absolute_data_folder().as_deref()),
    }
}

fn refuse_unwritable_data_folder(folder: Option<&Path>) -> Result<(), RunStop> {
    match folder.filter(|folder| folder.to_str().is_none()) {
        None => Ok(()),
        Some(folder) => Err(RunStop::Refused(format!(
            "`{DATA_VARIABLE}` is {}: this path is not UTF-8 text, as the records of a run are; rename \
             the folder, or name another one by the variable",
            folder.display()
        ))),
    }
}

/// Checks that rows can be appended to the run's tables, before anything of the run is changed.
fn check_tables(folder: &RunFolder, trials: &[Trial]) -> Result<(), RunStop> {
    let refused = |error: TableError| {
        RunStop::Refused(match error {
            // Without a row no version is told.
            TableError::Columns { .. } => format!(
                "{error}; the table of a run that another version of kiln began is finished by that one, or \
                 a new run started with `--fresh`"
            ),
            _ => error.to_string(),
        })
    };
    TableWriter::check(
        &folder.trials_table(),
        &TRIALS.spec(&TrialTable::axes_of(trials)),
    )
    .map_err(refused)?;
    for table in [&SAMPLES, &SNAPSHOTS] {
        match TableWriter::check(&folder.path().join(table.file), &table.spec(&[])) {
            // It is put aside, and a new one begun.
            Err(TableError::NoTable { .. }) => {}
            other => other.map_err(refused)?,
        }
    }
    Ok(())
}

/// Says why a finished run is left as it is, with the first lines of what [`compare`] found.
fn because_of(folder: &RunFolder, mismatch: &ExperimentMismatch) -> String {
    let mut lines = mismatch.lines().lines().map(str::trim);
    let first = lines.by_ref().take(MOST_CHANGES);
    let first: Vec<String> = first.map(|line| shorten(line, LONGEST_CHANGE)).collect();
    let more = match lines.count() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!(
        "{} is finished, but {} ({}{more}); starting a new run",
        folder.path().display(),
        mismatch.clause(),
        first.join("; ")
    )
}

/// Says that the output of a run can be read again, if the experiment differs only in how it is read and
/// the output of a trial is there.
fn reading_again(wanted: &WantedTrials, folder: &RunFolder) -> String {
    let is_possible = experiment_of(folder).is_ok_and(|old| {
        let changes = changes(&old, wanted.experiment);
        let mut bound = changes.iter().filter(|change| !change.is_free()).peekable();
        let is_changed_command = bound.peek().is_some() && old.model.command().is_some();
        is_changed_command && bound.all(KeyChange::is_of_reading)
    });
    match is_possible && wanted.search.is_none() && reads_any(wanted, folder) {
        true => format!(
            "; `--read-again {}` reads the metrics of its ended trials from the output that they left, \
             and does not run them anew",
            folder.path().display()
        ),
        false => String::new(),
    }
}

/// The programs of the trials as they are now, if the run recorded any.
pub(super) fn programs_of(
    wanted: &WantedTrials,
    file: &RunFile,
) -> Result<Option<Programs>, RunStop> {
    let is_recorded = file
        .launches
        .iter()
        .any(|launch| !launch.programs.is_empty());
    let read = || Programs::read(wanted.experiment, wanted.trials.iter(), wanted.results);
    let programs = is_recorded.then(read).transpose();
    programs.map_err(RunStop::Refused)
}

/// Whether a trial of the run has begun.
fn has_attempts(folder: &RunFolder) -> bool {
    match fs::read_dir(folder.trials()) {
        Ok(mut found) => found.next().is_some(),
        Err(error) => !input::is_absent(&error),
    }
}

/// Content that a run measured and that has changed since, for a message.
struct ContentChange<'a> {
    what: &'a str,
    /// A sentence each.
    each: &'a [String],
    /// How to keep it from changing; may be empty.
    advice: &'a str,
    /// Says how many trials `--keep` would save; may be empty.
    keeping: &'a str,
}

/// The answer where a run measured other programs or other data: a finished run is left as it is.
fn of_other_content(
    folder: &RunFolder,
    change: &ContentChange<'_>,
    is_finished: bool,
    reruns: bool,
) -> Result<ExistingRun, RunStop> {
    let ContentChange {
        what,
        each,
        advice,
        keeping,
    } = change;
    let lines: Vec<String> = each.iter().map(|change| format!("  {change}")).collect();
    let (folder, lines) = (folder.path().display(), lines.join("\n"));
    let refused = |text: String| Err(RunStop::Refused(text));
    match (is_finished, reruns) {
        (true, false) => Ok(ExistingRun::New {
            notice: Some(format!(
                "{folder} is finished, but its {what} has changed since ({}); starting a new \
                 run{keeping}",
                listed(each, "; ")
            )),
        }),
        (true, true) => refused(format!(
            "`--rerun` retries trials of a run, but its {what} has changed since {folder}:\n\
             {lines}\nput it back to retry trials of that run, or leave `--rerun` out to start a \
             new run{keeping}"
        )),
        (false, _) => refused(format!(
            "{folder} is unfinished and its {what} has changed since:\n{lines}\nput it back to \
             resume that run, or start a new one with `--fresh`{advice}{keeping}"
        )),
    }
}

/// Returns the reason why a finished run is not a result of this machine; `None` if it is one.
fn elsewhere(
    folder: &RunFolder,
    file: &RunFile,
    here: &dyn Fn() -> MachineIdentity,
) -> Option<String> {
    let difference = machine::made_elsewhere(&file.launches, &here())?;
    Some(format!(
        "{} is finished, but ran on another machine ({difference}); starting a new run",
        folder.path().display()
    ))
}
