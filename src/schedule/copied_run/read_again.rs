//! `kiln run --read-again`: a new run that takes over those attempts of another run whose output can
//! be read by the metrics of this experiment. Their programs are not started.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use kiln_core::{
    kinds::command::Command,
    plan::{Outcome, Trial, TrialId},
    record::{
        RunFile, RunFolder, TrialFigures, TrialResult, TrialRow, TrialTable,
        attempt::result,
        note::{READ_AGAIN, notes_cell},
    },
};

use super::{
    CopiedRow, CopiedRun, CopyPurpose, OldPrograms, SourceFolders, can_be_copied, compare_programs,
    in_plan, name_of, with_axes,
};
use crate::{
    readings::{Paths, Privacy},
    relay::{KeptAttempt, NotReadable, read_again},
    schedule::{
        RunRequest, RunStop, WantedTrials,
        changes::{KeyChange, changes, describe},
        machine::MachineIdentity,
        recorded_experiment::experiment_of,
        row::{hide_paths, in_one_line, own_metrics},
    },
};

/// Most outputs without their middle that are read to find a trial that can be read again.
const MOST_CUT: usize = 8;
const NOT_THERE: &str = "not in that run";
/// The end of the note of a row, behind the attempt whose output was read: all other cells are of
/// that attempt.
const ALL_ELSE: &str = ", to which all other cells belong";

/// Reads what a run kept of the selected trials; changes nothing.
///
/// # Errors
/// The experiment measures something else than that run, no trial can be read again, or a kept file
/// cannot be read.
pub(super) fn gather(
    request: &RunRequest,
    run: &RunFolder,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<CopiedRun, RunStop> {
    let refused = |why: String| RunStop::Refused(format!("{}: {why}", name_of(run)));
    let file = check(request, run).map_err(refused)?;
    let table = TrialTable::read_of(run).map_err(|error| RunStop::Refused(error.to_string()))?;
    let programs = same_programs(&request.wanted(), run, &file, &table)?;
    let (rows, others) = read_all(request, run, &table).map_err(|why| {
        RunStop::CannotRun(format!(
            "{}: nothing is read again, because a kept file cannot be read: {why}",
            name_of(run)
        ))
    })?;
    if rows.is_empty() {
        return Err(refused(format!(
            "no trial of this experiment can be read again ({others}){}; leave `--read-again` out to \
             run them",
            missing_output(run)
        )));
    }
    let mut again = CopiedRun {
        run: run.clone(),
        kept_from: file.kept_from.clone(),
        file,
        programs,
        rows,
        // The copying of an attempt fails if its folder is missing.
        folders: SourceFolders::default(),
        purpose: CopyPurpose::ReadAgain,
        planned: request.trials.len(),
        notices: Vec::new(),
    };
    let told = told(&again, request, &others);
    let elsewhere = again.of_other_machine(&here(), "read again");
    again.notices.push(told);
    again.notices.extend(elsewhere);
    Ok(again)
}

/// Reads the last attempts of the selected trials; says why others are not read, and how many.
///
/// # Errors
/// The machine cannot read a file, so it is not known whether that trial can be read again.
fn read_all(
    request: &RunRequest,
    run: &RunFolder,
    table: &TrialTable,
) -> Result<(Vec<CopiedRow>, String), String> {
    let rows = last_rows(table);
    let mut attempts = Vec::new();
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    for trial in selected(request) {
        let read = match rows.get(&trial.id) {
            None => Err(NOT_THERE.to_owned()),
            Some(old) => match read_one(request, run, trial, old) {
                Err(NotReadable::Failed(why)) => return Err(why),
                read => read.map_err(|why| why.to_string()),
            },
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
    Ok((attempts, others.join("; ")))
}

/// The last attempt of each trial.
fn last_rows(table: &TrialTable) -> HashMap<&TrialId, &TrialRow> {
    let rows = table.last_attempts().into_iter();
    rows.map(|row| (&row.fixed.trial, &*row.fixed)).collect()
}

/// Whether a trial of this plan can be read again from a run, whose experiment differs only in how
/// output is read. Changes nothing, and reads no more output than it takes to find one.
pub(in crate::schedule) fn reads_any(wanted: &WantedTrials, run: &RunFolder) -> bool {
    // Files of metrics are compared with the whole path of the attempt.
    let Ok(path) = run.path().canonicalize() else {
        return false;
    };
    let run = RunFolder::at(path);
    let (Ok(file), Ok(table)) = (RunFile::read(&run.run_file()), TrialTable::read_of(&run)) else {
        return false;
    };
    has_readable(wanted.trials, &run, &table) && same_programs(wanted, &run, &file, &table).is_ok()
}

fn has_readable(trials: &[Trial], run: &RunFolder, table: &TrialTable) -> bool {
    if !run.trials().is_dir() {
        return false;
    }
    let rows = last_rows(table);
    let mut cut = 0;
    for trial in trials {
        let Some(old) = rows.get(&trial.id) else {
            continue;
        };
        match read_kept(run, trial, old) {
            Ok(_) => return true,
            Err(NotReadable::Cut) => cut += 1,
            // It refuses the reading of all.
            Err(NotReadable::Failed(_)) => return false,
            Err(_) => {}
        }
        if cut == MOST_CUT {
            return false;
        }
    }
    false
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

/// Says how many trials are read again, and why the `others` run.
fn told(again: &CopiedRun, request: &RunRequest, others: &str) -> String {
    let (read, from) = (again.rows.len(), name_of(&again.run));
    let count = selected(request).len();
    let all = match request.selection.only.is_empty() {
        true => format!("{count} trials"),
        false => format!("the {count} trials of `--only`"),
    };
    let rest = match others.is_empty() {
        true => String::new(),
        false => format!("; the others run ({others})"),
    };
    let rows = again.rows.iter().map(|copied| &copied.row.fixed);
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

/// The record of a run whose output can be read by this experiment.
///
/// # Errors
/// It is not a run of commands, something else was measured there, or it is being run.
fn check(request: &RunRequest, run: &RunFolder) -> Result<RunFile, String> {
    let kind = request.experiment.model.kind();
    if request.experiment.model.command().is_none() {
        return Err(format!(
            "`--read-again` reads the output of commands, and `model.kind` is `{kind}`; leave it out, or \
             keep the trials that RUN has of this experiment with `--keep RUN`"
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
    can_be_copied(run, &file, request.locks, CopyPurpose::ReadAgain.option())?;
    let may_differ =
        |change: &KeyChange| change.is_free() || change.is_of_reading() || change.is_told_by_ids();
    let mut others = changes(&old, request.experiment);
    others.retain(|change| !may_differ(change));
    match others.is_empty() {
        true => Ok(file),
        false => Err(format!(
            "its output cannot be read again, because its trials were run or measured in another \
             way:\n{}\nrestore it, or run the trials with `--fresh` in place of `--read-again`",
            describe(&others)
        )),
    }
}

/// Compares the programs with those that wrote the output.
///
/// # Errors
/// One of them is another program.
fn same_programs(
    wanted: &WantedTrials,
    run: &RunFolder,
    file: &RunFile,
    table: &TrialTable,
) -> Result<OldPrograms, RunStop> {
    let all = table.rows.iter().map(|row| &*row.fixed);
    let (programs, changed) = compare_programs(wanted, file, all)?;
    if changed.is_empty() {
        return Ok(programs);
    }
    let lines: Vec<String> = changed.iter().map(|change| format!("  {change}")).collect();
    Err(RunStop::Refused(format!(
        "{}: its output is of another program than the one that is there now:\n{}\nput it back to \
         read that output again, or run the trials with `--fresh` in place of `--read-again`",
        name_of(run),
        lines.join("\n")
    )))
}

/// The result of the last attempt of a trial with the metrics of now.
fn read_kept(run: &RunFolder, trial: &Trial, old: &TrialRow) -> Result<TrialResult, NotReadable> {
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
        is_on_gpu: old.is_on_gpu(),
    };
    read_again(command, &kept, old.attempt)
}

/// Reads the last attempt of a trial again.
fn read_one(
    request: &RunRequest,
    run: &RunFolder,
    trial: &Trial,
    old: &TrialRow,
) -> Result<CopiedRow, NotReadable> {
    let command = trial.model.command().ok_or(NotReadable::NoRecord)?;
    let read = read_kept(run, trial, old)?;
    let folder = run.attempt(&old.trial, old.attempt);
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
    hide_paths(&mut row, &paths);
    Ok(CopiedRow {
        row: with_axes(row, trial),
        result: Some(read),
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
        outcome: read.outcome,
        reason: read.reason.as_deref().map(in_one_line),
        cpu_threads: row.cpu_threads.or_else(|| command.count("cpu_threads")),
        metrics: own_metrics(command, read),
        ..in_plan(row, trial)
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
