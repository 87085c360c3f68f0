//! `kiln run --read-again`: makes rows of a new run from the output that attempts of another run kept,
//! by the metrics of this experiment. Their programs are not started.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::command::Command,
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, RunFile, RunFolder, TableRow, TrialFigures, TrialResult, TrialRow,
        TrialTable,
        attempt::{ATTEMPT, RESULT_FILE, result},
        note::notes_cell,
        run_file::write_json,
        tables::TRIALS,
    },
};

use super::{
    RunRequest, RunStop,
    changes::{KeyChange, changes, describe},
    disk::cannot_write,
    existing_run::{experiment_of, programs_of},
    machine::{self, MachineIdentity},
    open::OpenRun,
    process_record,
    remaining::History,
    row::{in_one_line, own_metrics},
};
use crate::{
    readings::{Paths, Privacy},
    relay::{KeptAttempt, NotReadable, READ_AGAIN, read_again},
};

/// The number of each attempt in the new run.
const FIRST: u64 = 1;
const NOT_THERE: &str = "not in that run";

/// The attempts of another run whose metrics were read again; none by default.
#[derive(Default)]
pub(super) struct ReadAgain {
    attempts: Vec<AttemptReadAgain>,
    /// Notices for the user; the first says how many there are.
    notices: Vec<String>,
}

struct AttemptReadAgain {
    row: TableRow,
    result: TrialResult,
    /// The folder of the old attempt.
    folder: PathBuf,
}

/// Reads what the run of `--read-again` kept of these trials; changes nothing.
///
/// # Errors
/// What was measured there is not what the experiment measures, or no trial can be read again.
pub(super) fn gather(
    request: &RunRequest,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<ReadAgain, RunStop> {
    let Some(run) = request.read_again else {
        return Ok(ReadAgain::default());
    };
    let refused = |why: String| RunStop::Refused(format!("{}: {why}", name_of(run)));
    let file = check(request, run).map_err(refused)?;
    let table = TrialTable::read_of(run).map_err(|error| RunStop::Refused(error.to_string()))?;
    let mut notices = same_programs(request, run, &file, &table)?;
    let rows = table.last_attempts().into_iter();
    let rows: HashMap<&TrialId, &TrialRow> =
        rows.map(|row| (&row.fixed.trial, &*row.fixed)).collect();
    let mut attempts = Vec::new();
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    for trial in request.trials {
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
    if attempts.is_empty() {
        return Err(refused(format!(
            "no trial of this experiment can be read again ({}); leave `--read-again` out to run \
             them",
            others.join("; ")
        )));
    }
    leave_out_parts(&mut attempts, request.trials);
    let rest = match others.is_empty() {
        true => String::new(),
        false => format!("; the others run ({})", others.join("; ")),
    };
    let told = format!(
        "{} of {} trials are not started: their metrics are read again from the output that {} \
         kept{rest}",
        attempts.len(),
        request.trials.len(),
        name_of(run)
    );
    notices.insert(0, told);
    if let Some(difference) = machine::made_elsewhere(&file.launches, &here()) {
        notices.push(format!(
            "{} was made on another machine ({difference}), and so were the rows that are read again",
            name_of(run)
        ));
    }
    Ok(ReadAgain { attempts, notices })
}

impl ReadAgain {
    /// How the attempts ended, by the metrics of now.
    pub(super) fn history(&self) -> History {
        let rows = self.attempts.iter().map(|attempt| &attempt.row);
        let ends: Vec<AttemptEnd> = rows.map(AttemptEnd::of).collect();
        History::of(&ends)
    }

    /// Says what is read again; `None` if nothing is.
    pub(super) fn notice(&self) -> Option<String> {
        self.notices.first().cloned()
    }

    /// Writes the rows to the new run, and puts the files of the attempts beside them.
    ///
    /// # Errors
    /// A row cannot be written.
    pub(super) fn keep(self, open: &mut OpenRun, request: &RunRequest) -> Result<(), RunStop> {
        open.notices.extend(self.notices);
        for mut attempt in self.attempts {
            attempt.row.fixed.launch = open.launch;
            let changes = open
                .store
                .keep(&attempt.row)
                .map_err(io::Error::from)
                .map_err(cannot_write(request))?;
            open.notices.extend(changes.iter().map(ToString::to_string));
            // The row has the numbers; without the files it cannot be read again from this run.
            if let Err(error) = attempt.link_files(&open.folder, open.launch) {
                open.notices.push(format!(
                    "trial {}: its output could not be copied from {}: {error}",
                    attempt.row.fixed.trial,
                    attempt.folder.display()
                ));
            }
        }
        Ok(())
    }
}

impl AttemptReadAgain {
    /// Makes the folder of the attempt in a run: the old files, and the records of this attempt.
    fn link_files(&self, run: &RunFolder, launch: u64) -> io::Result<()> {
        let folder = run.make_attempt(&self.row.fixed.trial, FIRST)?;
        link_all(&self.folder, &folder, &[ATTEMPT, RESULT_FILE])?;
        if let Some(started) = AttemptFile::read(&self.folder) {
            let started = AttemptFile {
                attempt: FIRST,
                launch,
                ..started
            };
            started.write(run)?;
        }
        write_json(&folder.join(RESULT_FILE), &self.result)
    }
}

/// Puts all that is in a folder into another one, as hard links where the file system has them.
fn link_all(from: &Path, to: &Path, except: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if except.iter().any(|other| name.to_str() == Some(*other)) {
            continue;
        }
        let (old, new) = (entry.path(), to.join(&name));
        if kind.is_dir() {
            fs::create_dir(&new)?;
            link_all(&old, &new, &[])?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&old)?, &new)?;
        } else if kind.is_file() {
            fs::hard_link(&old, &new).or_else(|_| fs::copy(&old, &new).map(drop))?;
        }
    }
    Ok(())
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

/// Compares the programs with those that wrote the output; returns what is only told.
///
/// # Errors
/// One of them is another program.
fn same_programs(
    request: &RunRequest,
    run: &RunFolder,
    file: &RunFile,
    table: &TrialTable,
) -> Result<Vec<String>, RunStop> {
    let rows = table.rows.iter().map(|row| &row.fixed);
    let measured = rows.filter(|row| row.outcome.is_final());
    let first = measured.map(|row| row.launch).min();
    let programs = programs_of(&request.wanted(), file)?;
    let (Some(mut programs), Some(first)) = (programs, first) else {
        return Ok(Vec::new());
    };
    let paths = Paths::here(Privacy::of(request.experiment));
    let changed = programs.compare(&file.launches, first, &paths);
    if changed.refused.is_empty() {
        return Ok(changed.told);
    }
    let each = changed.refused.iter();
    let lines: Vec<String> = each.map(|change| format!("  {change}")).collect();
    Err(RunStop::Refused(format!(
        "{}: its output is not of the program of now, which has changed since:\n{}\nput it back to \
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
    // Others were ended by kiln, or by a lack of memory, whatever the status.
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
    let read = read_again(command, &kept, FIRST)?;
    let paths = Paths::here(Privacy::of(request.experiment));
    let mut notes = other_notes(old, &folder, &paths);
    for (column, told) in &read.notes {
        let note = notes.entry(column.clone()).or_default();
        *note = match note.is_empty() || note == told {
            true => told.clone(),
            false => format!("{note}; {told}"),
        };
    }
    let mut origin = format!(
        "metrics read again from the output of attempt {} in {}, which all else in this row is of",
        old.attempt,
        name_of(run)
    );
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
        folder,
    })
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
        attempt: FIRST,
        number: trial.number,
        outcome: read.outcome,
        reason: read.reason.as_deref().map(in_one_line),
        // It counts from the start of the other run.
        run_seconds: None,
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

/// Blocks and rounds compare what ran side by side. One of which a trial runs only now has no number.
fn leave_out_parts(attempts: &mut [AttemptReadAgain], trials: &[Trial]) {
    let blocks = whole(trials, attempts, |trial| trial.block, |row| row.block);
    let rounds = whole(trials, attempts, |trial| trial.repeat + 1, |row| row.round);
    for attempt in attempts {
        let row = &mut attempt.row.fixed;
        row.block = row.block.filter(|block| blocks.contains(block));
        row.round = row.round.filter(|round| rounds.contains(round));
    }
}

/// The numbers of groups of which each trial is read again, and ran in the group of this number if it
/// ran in any.
fn whole(
    trials: &[Trial],
    attempts: &[AttemptReadAgain],
    planned: fn(&Trial) -> u64,
    measured: fn(&TrialRow) -> Option<u64>,
) -> HashSet<u64> {
    let rows = attempts.iter().map(|attempt| &*attempt.row.fixed);
    let ran_in: HashMap<&TrialId, Option<u64>> =
        rows.map(|row| (&row.trial, measured(row))).collect();
    let mut groups: HashSet<u64> = trials.iter().map(planned).collect();
    for trial in trials {
        let group = planned(trial);
        let number = ran_in.get(&trial.id).copied();
        if !number.is_some_and(|number| number.is_none_or(|number| number == group)) {
            groups.remove(&group);
        }
    }
    groups
}

#[cfg(test)]
mod tests;
