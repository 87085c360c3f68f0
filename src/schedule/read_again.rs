//! `kiln run --read-again`: a new run that takes over the launches of another run, and those of its
//! attempts whose output can be read by the metrics of this experiment. Their programs are not
//! started; the other trials run as in a run that is resumed.

mod copies;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::Path,
    sync::atomic::AtomicBool,
};

use kiln_core::{
    folder::is_full,
    kinds::command::Command,
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, RunFile, RunFolder, TableRow, TrialFigures, TrialResult, TrialRow, TrialTable,
        attempt::result,
        note::{READ_AGAIN, notes_cell},
        tables::{TABLES, TRIALS},
    },
    units::counted,
};

use super::{
    RunRequest, RunStop,
    changes::{KeyChange, changes, describe},
    disk::{cannot_write, full_of_copies},
    existing_run::{Old, experiment_of, programs_of},
    machine::{self, MachineIdentity},
    open, process_record,
    provenance::{Changed, Programs},
    remaining::{History, remaining},
    row::{in_one_line, own_metrics},
};
use crate::{
    readings::{Paths, Privacy},
    relay::{KeptAttempt, NotReadable, read_again},
};

const NOT_THERE: &str = "not in that run";
/// The end of the note of a row, behind the attempt whose output was read: all other cells are of
/// that attempt.
const ALL_ELSE: &str = ", to which all other cells belong";

/// A run, and those of its attempts whose metrics were read again.
pub(super) struct ReadAgain {
    run: RunFolder,
    file: RunFile,
    programs: OldPrograms,
    attempts: Vec<AttemptReadAgain>,
    /// Notices for the user; the first says how many attempts there are.
    notices: Vec<String>,
}

struct AttemptReadAgain {
    row: TableRow,
    result: TrialResult,
}

/// The programs as they are now, beside those that wrote the output.
struct OldPrograms {
    /// `None` if the run recorded none.
    now: Option<Programs>,
    /// Sentences on changes that do not forbid the reading.
    told: Vec<String>,
    /// The first launch that measured something.
    first_measured: Option<u64>,
}

/// Reads what the run of `--read-again` kept of the selected trials; changes nothing. `None` without
/// that option.
///
/// # Errors
/// What was measured there is not what the experiment measures, or no trial can be read again.
pub(super) fn gather(
    request: &RunRequest,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<Option<ReadAgain>, RunStop> {
    let Some(run) = request.read_again else {
        return Ok(None);
    };
    let refused = |why: String| RunStop::Refused(format!("{}: {why}", name_of(run)));
    let file = check(request, run).map_err(refused)?;
    let table = TrialTable::read_of(run).map_err(|error| RunStop::Refused(error.to_string()))?;
    let programs = same_programs(request, run, &file, &table)?;
    let (attempts, others) = read_all(request, run, &table);
    if attempts.is_empty() {
        return Err(refused(format!(
            "no trial of this experiment can be read again ({others}){}; leave `--read-again` out to \
             run them",
            missing_output(run)
        )));
    }
    let mut again = ReadAgain {
        run: run.clone(),
        file,
        programs,
        attempts,
        notices: Vec::new(),
    };
    let told = again.told(request, &others);
    let elsewhere = again.of_other_machine(&here());
    again.notices.push(told);
    again.notices.extend(elsewhere);
    Ok(Some(again))
}

/// Reads the last attempts of the selected trials; says why others are not read, and how many.
fn read_all(
    request: &RunRequest,
    run: &RunFolder,
    table: &TrialTable,
) -> (Vec<AttemptReadAgain>, String) {
    let rows = table.last_attempts().into_iter();
    let rows: HashMap<&TrialId, &TrialRow> =
        rows.map(|row| (&row.fixed.trial, &*row.fixed)).collect();
    let mut attempts = Vec::new();
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    for trial in selected(request) {
        let read = match rows.get(&trial.id) {
            None => Err(NOT_THERE.to_owned()),
            Some(old) => read_one(request, run, trial, old).map_err(|why| why.to_string()),
        };
        match read {
            Ok(attempt) => attempts.push(attempt),
            Err(why) => *others.entry(why).or_default() += 1,
        }
    }
    let others: Vec<String> = others
        .iter()
        .map(|(why, trials)| format!("{why}: {trials}"))
        .collect();
    (attempts, others.join("; "))
}

/// The trials whose output is to be read.
fn selected<'a>(request: &RunRequest<'a>) -> Vec<&'a Trial> {
    let trials = request.trials.iter();
    trials
        .filter(|trial| request.selection.wants(trial))
        .collect()
}

/// Says that the run has no folder of output, if so.
fn missing_output(run: &RunFolder) -> &'static str {
    match run.trials().is_dir() {
        true => "",
        false => "; its folder `trials/` is missing: git ignores it, so a clone has no output",
    }
}

impl ReadAgain {
    /// How the attempts ended, by the metrics of now.
    pub(super) fn history(&self) -> History {
        History::of(&self.ends())
    }

    fn ends(&self) -> Vec<AttemptEnd> {
        let rows = self.attempts.iter().map(|attempt| &attempt.row);
        rows.map(AttemptEnd::of).collect()
    }

    /// Says what is read again.
    pub(super) fn notice(&self) -> Option<String> {
        self.notices.first().cloned()
    }

    /// Whether no selected trial is left to run.
    pub(super) fn leaves_nothing(&self, request: &RunRequest) -> bool {
        let retries = request.experiment.run.retries;
        remaining(request.trials, &self.history(), &request.selection, retries).is_empty()
    }

    /// Makes the new run, with the launches of the old one, and the rows and files of the attempts. It
    /// appears whole, as a run to resume.
    ///
    /// # Errors
    /// A file cannot be read or written, or a signal set `asked`; then there is no new run.
    pub(super) fn make_run(self, request: &RunRequest, asked: &AtomicBool) -> Result<Old, RunStop> {
        let made = open::create_with(request, self.file.launches.clone(), |new, store| {
            for attempt in &self.attempts {
                copies::copy_attempt(&self.run, new, attempt, asked)?;
                store.keep(&attempt.row)?;
            }
            copies::copy_records(&self.run, new, &self.kept())
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

    /// Why there is no new run.
    fn not_made(&self, request: &RunRequest, error: io::Error) -> RunStop {
        if error.kind() == io::ErrorKind::Interrupted {
            let text = "interrupted while the attempts were copied; no run was made";
            return RunStop::Interrupted(text.to_owned());
        }
        if !is_full(&error) {
            return cannot_write(request)(error);
        }
        let rows = self.attempts.iter().map(|attempt| &attempt.row.fixed);
        let folders = rows.map(|row| self.run.attempt(&row.trial, row.attempt));
        let bytes = folders.map(|folder| copies::bytes_in(&folder)).sum();
        let place = request.results.join(&request.experiment.name);
        RunStop::CannotRun(full_of_copies(&place, &self.run, bytes, &error))
    }

    /// The attempts that the new run has.
    fn kept(&self) -> HashSet<(TrialId, u64)> {
        let rows = self.attempts.iter().map(|attempt| &attempt.row.fixed);
        rows.map(|row| (row.trial.clone(), row.attempt)).collect()
    }

    /// Says how many trials are read again, and why the `others` run.
    fn told(&self, request: &RunRequest, others: &str) -> String {
        let (read, from) = (self.attempts.len(), name_of(&self.run));
        let count = selected(request).len();
        let all = match request.selection.only.is_empty() {
            true => format!("{count} trials"),
            false => format!("the {count} trials of `--only`"),
        };
        let rest = match others.is_empty() {
            true => String::new(),
            false => format!("; the others run ({others})"),
        };
        let rows = self.attempts.iter().map(|attempt| &attempt.row.fixed);
        let failed = rows.filter(|row| row.outcome == Outcome::Failed).count();
        let failed = match failed {
            0 => String::new(),
            failed => format!(
                "; {failed} of them failed again (`--rerun failed` without `--read-again` runs such \
                 trials)"
            ),
        };
        format!(
            "{read} of {all} are not started: their metrics are read again from the output that \
             {from} kept{failed}{rest}"
        )
    }

    /// Says that rows are of another machine than this one.
    fn of_other_machine(&self, here: &MachineIdentity) -> Option<String> {
        let differences = self.file.launches.iter().filter_map(|launch| {
            let difference = machine::difference(launch, here)?;
            Some((launch.launch, difference))
        });
        let differences: HashMap<u64, String> = differences.collect();
        let rows = self.attempts.iter().map(|attempt| &attempt.row.fixed);
        let elsewhere: Vec<&String> = rows
            .filter_map(|row| differences.get(&row.launch))
            .collect();
        let difference = elsewhere.first()?;
        Some(format!(
            "{} of {} that are read again ran on another machine ({difference})",
            elsewhere.len(),
            counted(self.attempts.len(), "trial")
        ))
    }
}

/// `NAME/FOLDER` of a run.
fn name_of(run: &RunFolder) -> String {
    let above = run.path().parent().and_then(Path::file_name);
    let experiment = above.unwrap_or_default().to_string_lossy();
    format!("{experiment}/{}", run.name())
}

/// The record of a run whose output can be read by this experiment.
///
/// # Errors
/// It is not a run of commands, something else was measured there, or it is being run.
fn check(request: &RunRequest, run: &RunFolder) -> Result<RunFile, String> {
    let kind = request.experiment.model.kind();
    if request.experiment.model.command().is_none() {
        return Err(format!(
            "`--read-again` reads the output of commands, and `model.kind` is `{kind}`; leave it out"
        ));
    }
    let file = RunFile::read(&run.run_file())?;
    let old = experiment_of(run).map_err(|what| what.trim().to_owned())?;
    if old.model.command().is_none() {
        return Err(format!(
            "its `model.kind` is `{}`, and only the output of commands can be read again; name a run \
             of commands",
            old.model.kind()
        ));
    }
    let is_other = |name: &str, version: &str| {
        let known = file.tables.get(name);
        known.is_none_or(|known| known != version)
    };
    let mut tables = TABLES.iter();
    if let Some(other) = tables.find(|table| is_other(table.file, table.version)) {
        return Err(format!(
            "its `{}` is not of version `{}`, which this kiln writes, so the new run cannot take it \
             over; read it again with the kiln that made it, or leave `--read-again` out",
            other.file, other.version
        ));
    }
    if let Some(pid) = process_record::launcher_in(request.locks, run.path()) {
        return Err(format!(
            "process {pid} works on this run; wait for its end, or stop it with `kill {pid}`"
        ));
    }
    let may_differ =
        |change: &KeyChange| change.is_free() || change.is_of_reading() || change.is_told_by_ids();
    let mut others = changes(&old, request.experiment);
    others.retain(|change| !may_differ(change));
    match others.is_empty() {
        true => Ok(file),
        false => Err(format!(
            "its output cannot be read again, because its trials were run or measured in another \
             way:\n{}\nrestore it, or leave `--read-again` out to run the trials",
            describe(&others)
        )),
    }
}

/// Compares the programs with those that wrote the output.
///
/// # Errors
/// One of them is another program.
fn same_programs(
    request: &RunRequest,
    run: &RunFolder,
    file: &RunFile,
    table: &TrialTable,
) -> Result<OldPrograms, RunStop> {
    let rows = table.rows.iter().map(|row| &row.fixed);
    let measured = rows.filter(|row| row.outcome.is_final());
    let first_measured = measured.map(|row| row.launch).min();
    let mut now = programs_of(&request.wanted(), file)?;
    let changed = match (&mut now, first_measured) {
        (Some(now), Some(first)) => {
            let paths = Paths::here(Privacy::of(request.experiment));
            now.compare(&file.launches, first, &paths)
        }
        _ => Changed::default(),
    };
    if changed.refused.is_empty() {
        return Ok(OldPrograms {
            now,
            told: changed.told,
            first_measured,
        });
    }
    let each = changed.refused.iter();
    let lines: Vec<String> = each.map(|change| format!("  {change}")).collect();
    Err(RunStop::Refused(format!(
        "{}: its output is of another program than the one that is there now:\n{}\nput it back to \
         read that output again, or leave `--read-again` out to run the trials",
        name_of(run),
        lines.join("\n")
    )))
}

/// Reads the last attempt of a trial again.
fn read_one(
    request: &RunRequest,
    run: &RunFolder,
    trial: &Trial,
    old: &TrialRow,
) -> Result<AttemptReadAgain, NotReadable> {
    let command = trial.model.command().ok_or(NotReadable::NoRecord)?;
    // Attempts with other outcomes were ended by kiln or ran out of memory, whatever their status.
    let ends = [Outcome::Completed, Outcome::Failed, Outcome::Diverged];
    if !ends.contains(&old.outcome) {
        return Err(NotReadable::OtherEnd);
    }
    let folder = run.attempt(&old.trial, old.attempt);
    let kept = KeptAttempt {
        folder: &folder,
        trial: &trial.id,
        seed: trial.train.seed,
        is_on_gpu: old.device_uuid.is_some(),
    };
    let read = read_again(command, &kept, old.attempt)?;
    let paths = Paths::here(Privacy::of(request.experiment));
    let mut notes = other_notes(old, &folder, &paths);
    for (column, told) in &read.notes {
        let note = notes.entry(column.clone()).or_default();
        *note = match note.is_empty() || note == told {
            true => told.clone(),
            false => format!("{note}; {told}"),
        };
    }
    let mut origin = origin(run, old);
    if let Some(told) = read.notes.get(READ_AGAIN) {
        origin = format!("{origin}; {told}");
    }
    notes.insert(READ_AGAIN.to_owned(), origin);
    let mut row = row(trial, command, old, &read).map_err(|_| NotReadable::NoRecord)?;
    row.notes = notes_cell(&notes);
    for cell in [&mut row.reason, &mut row.notes].into_iter().flatten() {
        *cell = paths.hide(cell);
    }
    let axes: Vec<_> = trial.axes.iter().map(|(_, value)| value.clone()).collect();
    Ok(AttemptReadAgain {
        row: TableRow::new(row, &axes),
        result: read,
    })
}

/// The note on the attempt whose output was read. A run that was itself read again names the first one.
fn origin(run: &RunFolder, old: &TrialRow) -> String {
    let known = old
        .note(READ_AGAIN)
        .and_then(|note| note.split_once(ALL_ELSE));
    let first = known.map_or_else(
        || {
            format!(
                "metrics read again from the output of attempt {} in {}",
                old.attempt,
                name_of(run)
            )
        },
        |(first, _)| first.to_owned(),
    );
    first + ALL_ELSE
}

/// The old row with the outcome and the numbers that were read again, without its notes.
fn row(
    trial: &Trial,
    command: &Command,
    old: &TrialRow,
    read: &TrialResult,
) -> serde_json::Result<TrialRow> {
    let mut cells = serde_json::to_value(old)?;
    let figures = serde_json::to_value(&read.figures)?;
    for column in TrialFigures::COLUMNS {
        cells[*column] = figures[*column].clone();
    }
    let row: TrialRow = serde_json::from_value(cells)?;
    Ok(TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        number: trial.number,
        outcome: read.outcome,
        reason: read.reason.as_deref().map(in_one_line),
        // A block and a round are kept only where this plan numbers them alike.
        block: row.block.filter(|block| *block == trial.block),
        round: row.round.filter(|round| *round == trial.repeat + 1),
        cpu_threads: row.cpu_threads.or_else(|| command.count("cpu_threads")),
        metrics: own_metrics(command, read),
        ..row
    })
}

/// The notes of a row without those on its metrics, which its `trial.json` has.
fn other_notes(old: &TrialRow, folder: &Path, paths: &Paths) -> BTreeMap<String, String> {
    let cell = old.notes.as_deref().unwrap_or_default();
    let each = cell.split("; ").filter_map(|note| note.split_once(": "));
    let mut notes: BTreeMap<String, String> = each
        .map(|(column, note)| (column.to_owned(), note.to_owned()))
        .collect();
    let of_metrics = result(folder).map(|before| before.notes);
    for (column, told) in of_metrics.unwrap_or_default() {
        let told = paths.hide(&told.replace(';', ","));
        let note = notes.get(&column);
        let rest = note.and_then(|note| note.strip_suffix(told.as_str()));
        match rest.map(|rest| rest.trim_end_matches(", ").to_owned()) {
            Some(rest) if rest.is_empty() => drop(notes.remove(&column)),
            Some(rest) => drop(notes.insert(column, rest)),
            None => {}
        }
    }
    notes
}

#[cfg(test)]
mod tests;
