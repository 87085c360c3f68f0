//! `kiln run --keep`: a new run that takes over the trials of another run that are in its plan too and
//! have a final outcome. Only the others run.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    path::Path,
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, RunFile, RunFolder, TrialTable,
        run_file::{KeptFrom, sums},
    },
    spec::Experiment,
};

use super::{
    CopiedRow, CopiedRun, CopyPurpose, SourceFolders, can_be_copied, compare_programs, in_plan,
    name_of, read_again::reads_any, with_axes,
};
use crate::schedule::{
    RunStop, WantedTrials,
    changes::{KeyChange, changes, describe},
    content::other_data,
    disk,
    existing_run::history_of,
    kept_trials::{is_kept, run_alike},
    machine::{self, MachineIdentity},
    recorded_experiment::experiment_of,
    remaining::{History, Selection, remaining, with_fallbacks},
    skip_reason::names_one_of,
};

/// Most changed keys that are named where no trial can be kept.
const MOST_CHANGES: usize = 5;

/// The run whose trials are kept.
pub(in crate::schedule) struct KeptRun<'a> {
    pub(in crate::schedule) run: &'a RunFolder,
    /// Whether the other trials may run with other programs. Then only completed ones are kept.
    pub(in crate::schedule) across_programs: bool,
    /// The folder of the devices' locks.
    pub(in crate::schedule) locks: &'a Path,
}

impl KeptRun<'_> {
    fn refused(&self, why: &str) -> RunStop {
        RunStop::Refused(format!("{}: {why}", name_of(self.run)))
    }
}

/// Finds the trials of a run that are kept; changes nothing.
///
/// # Errors
/// Its trials were run in another way, or none of them is in the plan.
pub(super) fn gather(
    wanted: &WantedTrials,
    place: &KeptRun<'_>,
    selection: &Selection,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<CopiedRun, RunStop> {
    let refused = |why: String| place.refused(&why);
    let (file, old) = record(place).map_err(refused)?;
    let table =
        TrialTable::read_of(place.run).map_err(|error| RunStop::Refused(error.to_string()))?;
    let rows = rows(wanted, place, &file, &table).map_err(|error| disk::cannot_read(&error))?;
    let changes = changes(&old, wanted.experiment);
    if rows.is_empty() {
        let cause = other_cause(wanted.trials, &file, &table);
        let why = cause.unwrap_or_else(|| nothing_kept(place, wanted, &file, &changes));
        return Err(refused(why));
    }
    let can_be_read_again = || reads_any(wanted, place.run);
    run_alike(&old, wanted.experiment, &changes, &can_be_read_again).map_err(refused)?;
    check_data(&file, wanted.data).map_err(refused)?;
    let of_rows = rows.iter().map(|copied| &*copied.row.fixed);
    let (mut programs, changed) = compare_programs(wanted, &file, of_rows)?;
    if !place.across_programs {
        check_programs(&changed, &programs.of_earlier).map_err(refused)?;
    }
    if !changed.is_empty() {
        programs.told.clear();
        programs.first_measured = None;
    }
    let here = here();
    check_machine(&file, &here).map_err(refused)?;
    let trials = rows.iter().map(|copied| &copied.row.fixed.trial);
    let folders = SourceFolders::of(place.run, trials);
    let mut copied = CopiedRun {
        run: place.run.clone(),
        file,
        programs,
        rows,
        folders,
        purpose: CopyPurpose::Keep {
            across_programs: place.across_programs,
        },
        planned: wanted.trials.len(),
        kept_from: None,
        notices: Vec::new(),
    };
    let is_whole = left(&copied, wanted, &Selection::default()).is_empty();
    let mixes_programs = !changed.is_empty() && !is_whole;
    copied.kept_from = Some(kept_from(place, &copied, wanted, mixes_programs));
    if mixes_programs {
        copied.programs.told = vec![across(&changed)];
    }
    if !copied.programs.of_earlier.is_empty() {
        let several = several(&copied.programs.of_earlier);
        copied.programs.told.push(several);
    }
    let notice = notice(&copied, wanted, selection);
    let elsewhere = copied.of_other_machine(&here, "kept");
    copied.notices.push(notice);
    copied.notices.extend(elsewhere);
    Ok(copied)
}

/// Refuses data with another content than then.
fn check_data(file: &RunFile, here: &BTreeMap<String, String>) -> Result<(), String> {
    let data = replaced_data(file, here);
    match data.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "its data has changed since:\n  {}\nput it back to keep its trials, or run all trials with \
             `--fresh` in place of `--keep`",
            data.join("\n  ")
        )),
    }
}

/// Refuses rows of several programs, or of another program than the one that is there now. `changed` are
/// the changes since the newest of them.
fn check_programs(changed: &[String], of_earlier: &[String]) -> Result<(), String> {
    match (changed.is_empty(), of_earlier.is_empty()) {
        (true, true) => Ok(()),
        (false, true) => Err(of_other_program(changed)),
        (_, false) => Err(of_several_programs(changed, of_earlier)),
    }
}

/// Refuses rows of another machine.
fn check_machine(file: &RunFile, here: &MachineIdentity) -> Result<(), String> {
    match machine::made_elsewhere(&file.launches, here) {
        None => Ok(()),
        Some(difference) => Err(format!(
            "it was made on another machine ({difference}), and rows of two machines do not compare; \
             run all trials on this one with `--fresh` in place of `--keep`"
        )),
    }
}

/// The data with another content than then. Data that no trial reads any more are no others.
fn replaced_data(file: &RunFile, here: &BTreeMap<String, String>) -> Vec<String> {
    let last = file.launches.last();
    let is_known = |kind: &str, now: &str| {
        let then = last.and_then(|launch| launch.data_sha256.get(kind));
        then.is_some_and(|then| sums(now).is_subset(&sums(then)))
    };
    let others = here.iter().filter(|(kind, now)| !is_known(kind, now));
    let others: BTreeMap<String, String> = others
        .map(|(kind, now)| (kind.clone(), now.clone()))
        .collect();
    other_data(file, &others)
}

/// The record of the run, and its experiment.
fn record(place: &KeptRun<'_>) -> Result<(RunFile, Experiment), String> {
    let file = RunFile::read(&place.run.run_file())?;
    let old = experiment_of(place.run).map_err(|what| what.trim().to_owned())?;
    if file.is_searching || old.sweep.search.is_some() {
        return Err(
            "`kiln tune` chose its trials, and a sweep cannot keep them; use `--fresh` in place of `--keep`"
                .to_owned(),
        );
    }
    can_be_copied(place.run, &file, place.locks, "--keep")?;
    Ok((file, old))
}

/// The rows of the kept trials, in the order of the table.
///
/// # Errors
/// The queue or the attempts of the run cannot be read.
fn rows(
    wanted: &WantedTrials,
    place: &KeptRun<'_>,
    file: &RunFile,
    table: &TrialTable,
) -> io::Result<Vec<CopiedRow>> {
    let ends: Vec<AttemptEnd> = table.rows.iter().map(AttemptEnd::of).collect();
    let history = history_of(place.run, &ends, &file.plan)?;
    let is_kept = |trial: &TrialId| is_kept(history.last(trial), place.across_programs);
    let kept = History::of(ends.iter().filter(|end| is_kept(&end.trial)));
    let known = with_fallbacks(wanted.trials, &kept, wanted.experiment.run.on_oom);
    let trials: HashMap<&TrialId, &Trial> = known.iter().map(|trial| (&trial.id, trial)).collect();
    let rows = table.rows.iter().filter(|row| is_kept(&row.fixed.trial));
    let copied = rows.filter_map(|row| {
        let trial = *trials.get(&row.fixed.trial)?;
        let row = in_plan((*row.fixed).clone(), trial);
        Some(CopiedRow {
            row: with_axes(row, trial),
            result: None,
        })
    });
    Ok(decided(copied.collect(), &history))
}

/// Leaves out the skipped trials whose reason names none of the kept trials that ran out of memory:
/// they are decided anew.
fn decided(mut rows: Vec<CopiedRow>, history: &History) -> Vec<CopiedRow> {
    let ended = |outcome: Outcome| {
        let rows = rows.iter().map(|copied| &copied.row.fixed);
        rows.filter(move |row| history.last(&row.trial) == Some(outcome))
    };
    let ran_out: HashSet<TrialId> = ended(Outcome::Oom).map(|row| row.trial.clone()).collect();
    let names_one = |reason: &str| names_one_of(reason, &ran_out);
    let undecided: HashSet<TrialId> = ended(Outcome::Skipped)
        .filter(|row| row.outcome == Outcome::Skipped)
        .filter(|row| !row.reason.as_deref().is_some_and(names_one))
        .map(|row| row.trial.clone())
        .collect();
    rows.retain(|copied| !undecided.contains(&copied.row.fixed.trial));
    rows
}

/// The number of planned trials that these rows are of.
fn kept(wanted: &WantedTrials, rows: &[CopiedRow]) -> usize {
    let ids: BTreeSet<&TrialId> = rows.iter().map(|copied| &copied.row.fixed.trial).collect();
    let planned = wanted.trials.iter();
    planned.filter(|trial| ids.contains(&trial.id)).count()
}

/// The note in `run.json` of the new run. `mixes_programs`: trials are left to run, with other
/// programs.
fn kept_from(
    place: &KeptRun<'_>,
    copied: &CopiedRun,
    wanted: &WantedTrials,
    mixes_programs: bool,
) -> KeptFrom {
    let before = copied.file.kept_from.as_ref();
    let before = before.and_then(|kept| kept.programs_from);
    let is_of_rows = |first: &u64| {
        let mut rows = copied.rows.iter().map(|copied| &copied.row.fixed);
        rows.any(|row| row.outcome.is_final() && row.launch >= *first)
    };
    KeptFrom {
        run: name_of(place.run),
        trials: kept(wanted, &copied.rows),
        programs_from: match mixes_programs {
            true => Some(copied.file.last_launch() + 1),
            false => before.filter(is_of_rows),
        },
        last_launch: Some(copied.file.last_launch()),
    }
}

/// The ids of the trials that are left to run.
fn left(copied: &CopiedRun, wanted: &WantedTrials, selection: &Selection) -> Vec<TrialId> {
    let known = copied.known_trials(wanted.trials, wanted.experiment);
    let retries = wanted.experiment.run.retries;
    let places = remaining(&known, &copied.history(), selection, retries);
    let ids = places.into_iter().map(|place| known[place].id.clone());
    ids.collect()
}

/// Says how many trials are kept, and how many are left to run. A kept one that failed is retried as
/// far as `run.retries` allows.
fn notice(copied: &CopiedRun, wanted: &WantedTrials, selection: &Selection) -> String {
    let (history, left) = (copied.history(), left(copied, wanted, selection));
    let is_kept = |trial: &&TrialId| history.last(trial).is_some();
    let retried = match left.iter().filter(is_kept).count() {
        0 => String::new(),
        count => format!(", {count} of them kept but retried (`run.retries`)"),
    };
    let left = match left.len() {
        0 => "none is left to run".to_owned(),
        1 => "1 is left to run".to_owned(),
        left => format!("{left} are left to run"),
    };
    format!(
        "{} of {} trials are kept from {}; {left}{retried}",
        kept(wanted, &copied.rows),
        wanted.trials.len(),
        name_of(&copied.run)
    )
}

/// Why no trial is kept, where no change of the experiment is the cause.
fn other_cause(planned: &[Trial], file: &RunFile, table: &TrialTable) -> Option<String> {
    if table.rows.is_empty() {
        let why = "no trial of it has ended, so none can be kept; run all trials with `--fresh` in place of \
             `--keep`";
        return Some(why.to_owned());
    }
    let origin = file.continues.values().next()?;
    (!has_one_of(file, planned)).then(|| {
        format!(
            "its trials began with checkpoints of {} (`--continue`), and those of this experiment begin \
             without one, so none can be kept; run all trials with `--fresh` in place of `--keep`",
            origin.run_name()
        )
    })
}

/// Whether one of these trials is in the plan of a run.
fn has_one_of(file: &RunFile, planned: &[Trial]) -> bool {
    let ids: HashSet<&TrialId> = file.plan.iter().collect();
    planned.iter().any(|trial| ids.contains(&trial.id))
}

/// Says why no trial is kept.
fn nothing_kept(
    place: &KeptRun<'_>,
    wanted: &WantedTrials,
    file: &RunFile,
    changes: &[KeyChange],
) -> String {
    let ended = match place.across_programs {
        true => "completed in it",
        false => "in it with a final outcome",
    };
    let none = format!(
        "none of the {} trials of this experiment is {ended}, so none can be kept",
        wanted.trials.len()
    );
    let bound = changes.iter().filter(|change| !change.is_free());
    let bound: Vec<KeyChange> = bound.cloned().collect();
    // Trials that both have ended otherwise there, whatever has changed.
    if bound.is_empty() || has_one_of(file, wanted.trials) {
        return format!("{none}; run them with `--fresh` in place of `--keep`");
    }
    let first = describe(&bound[..bound.len().min(MOST_CHANGES)]);
    let more = match bound.len().saturating_sub(MOST_CHANGES) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    format!(
        "{none}; what has changed since:\n{first}{more}\nrestore what makes other trials of them, or \
         run all trials with `--fresh` in place of `--keep`"
    )
}

/// Says that the programs are others, and what to do.
fn of_other_program(changed: &[String]) -> String {
    format!(
        "its trials ran with another program than the one that is there now:\n  {}\nput it back to keep \
         them, add `--across programs` to keep the completed ones all the same, or run all \
         trials with `--fresh` in place of `--keep`",
        changed.join("\n  ")
    )
}

/// Says that the rows to keep are of several programs, and what to do. `changed` are the changes since
/// the newest of them.
fn of_several_programs(changed: &[String], of_earlier: &[String]) -> String {
    let new = changed.iter().filter(|change| !of_earlier.contains(change));
    let all: Vec<&str> = of_earlier.iter().chain(new).map(String::as_str).collect();
    format!(
        "the trials to keep ran with several programs, not all with the one that is there now:\n  {}\n\
         add `--across programs` to keep the completed ones all the same, or run all trials with one \
         program with `--fresh` in place of `--keep`",
        all.join("\n  ")
    )
}

/// Says that the kept rows are of several programs.
fn several(of_earlier: &[String]) -> String {
    format!(
        "the kept trials ran with several programs ({}); their rows stand in one table, and differences \
         between them may come from the program",
        of_earlier.join("; ")
    )
}

/// Says that the kept rows are of other programs.
fn across(changed: &[String]) -> String {
    format!(
        "the kept trials ran with another program than the others will ({}); their rows stand in one \
         table, and differences between them may come from the program",
        changed.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use kiln_core::record::{TableRow, TrialRow};
    use serde_json::json;

    use super::*;

    #[test]
    fn data_that_fewer_trials_read_have_not_changed_and_replaced_data_have() {
        let launch = json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": null,
            "devices": null, "environment": {}, "data_sha256": {"text": "aaa, bbb"},
            "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                         "trial_program_sha256": null},
        });
        let file: RunFile = serde_json::from_value(json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
        }))
        .unwrap();
        let is_replaced = |now: &str| {
            let here = BTreeMap::from([("text".to_owned(), now.to_owned())]);
            !replaced_data(&file, &here).is_empty()
        };
        assert!(!is_replaced("aaa") && !is_replaced("aaa, bbb, ccc"));
        assert!(is_replaced("ccc") && is_replaced("aaa, ccc"));
    }

    #[test]
    fn a_run_without_rows_and_a_continued_one_are_told_as_such() {
        let file = |continues: serde_json::Value| -> RunFile {
            serde_json::from_value(json!({
                "kiln_run": 1, "experiment": "x", "tables": {}, "plan": ["t0123456789"],
                "launches": [], "continues": continues,
            }))
            .unwrap()
        };
        let origin = json!({
            "run": "results/x/20261120T100809Z-4da13ed", "trial": "t1111111111", "step": 200,
            "sha256": "ab",
        });
        let (plain, continued) = (file(json!({})), file(json!({"t0123456789": origin})));
        let ended = TrialTable {
            rows: vec![TableRow::new(TrialRow::default(), &[])],
            ..TrialTable::default()
        };
        let told = |file: &RunFile, table: &TrialTable| other_cause(&[], file, table);
        let none = told(&plain, &TrialTable::default()).unwrap();
        assert!(none.starts_with("no trial of it has ended"), "{none}");
        assert_eq!(told(&plain, &ended), None);
        let began = told(&continued, &ended).unwrap();
        assert!(began.contains("(`--continue`)"), "{began}");
    }
}
