//! The page at the end of a launch: the experiment's description, the summary of the run, and the
//! files that are worth a look.

use std::path::{Path, PathBuf};

use kiln_core::{
    plan::Outcome,
    record::{AttemptEnd, RunFolder, TrialTable, checkpoint::aside},
    spec::Experiment,
    units::{significant, without_controls},
};

use super::{Status, Stop, launch::Launched, launch_options::LaunchOptions, page_style, print};
use crate::{
    git,
    progress::ProgressMode,
    report::{self, compare::how_to_compare},
    schedule::LaunchReport,
};

/// Prints the result of a launch.
pub(super) fn show(
    launched: Launched,
    launch: &LaunchOptions,
    experiment: &Experiment,
) -> Result<(), Stop> {
    let Launched { report, table } = launched;
    match &report.lost_events {
        Some(why) => Err(Stop::new(Status::Failed, why)),
        None if launch.style() == ProgressMode::Json => table.map(drop),
        None => table.and_then(|table| match !launch.quiet && lacks_time(&report, &table) {
            true => Ok(()),
            false => print(&summary(&report, &table, experiment)),
        }),
    }
}

/// Whether no trial has ended because none fits into the time of `--for`. The page would be empty, and
/// the command says the cause.
fn lacks_time(report: &LaunchReport, table: &TrialTable) -> bool {
    let is_left = report.budget.as_ref().is_some_and(|end| end.left > 0);
    is_left && table.rows.is_empty()
}

/// Returns the experiment's description, the report of the run's table, and the paths of the files.
fn summary(report: &LaunchReport, table: &TrialTable, experiment: &Experiment) -> String {
    let folder = &report.folder;
    let style = page_style();
    let page = report::summary_of_run(folder, table, report.trials, experiment, style);
    let together = experiment.sweep.together.first();
    let between = together
        .and_then(|axis| how_to_compare(table, axis, &folder.path().display().to_string()))
        .unwrap_or_default();
    let purpose = experiment
        .description
        .as_deref()
        .map(|text| indented(text) + "\n")
        .unwrap_or_default();
    format!(
        "\n{purpose}{page}{between}\n{}{}{}",
        texts(report),
        weights(report, table),
        closing(folder, table)
    )
}

/// The last lines of the page: the run's folder, and that it is worth committing.
fn closing(folder: &RunFolder, table: &TrialTable) -> String {
    let mut rows = table.rows.iter();
    match rows.any(|row| row.fixed.is_completed()) {
        true => worth_committing(folder),
        false => format!(
            "No trial completed; the run's folder is:\n  {}\n",
            shown_path(folder)
        ),
    }
}

fn shown_path(folder: &RunFolder) -> String {
    without_controls(&folder.path().display().to_string())
}

/// Names what to commit: the whole folder, of which git takes only what is small; or the rule by
/// which git takes no table.
pub(super) fn worth_committing(folder: &RunFolder) -> String {
    let path = shown_path(folder);
    let summary = match folder.summary_table().is_file() {
        true => "  (summary.csv is the short table)",
        false => "",
    };
    let title = match git::ignored_by(&folder.trials_table()) {
        Some(rule) => format!(
            "git ignores the tables of this run (rule {}); change that rule to commit them",
            without_controls(&rule)
        ),
        None => "Worth committing (weights and readings stay out of git)".to_owned(),
    };
    format!("{title}:\n  {path}{summary}\n")
}

/// The lines of a description; those after the first are indented, so that none of them can pass
/// for a line of the page.
fn indented(description: &str) -> String {
    let lines = description.trim_end().lines().map(without_controls);
    lines.collect::<Vec<_>>().join("\n  ") + "\n"
}

/// A line of a list of files.
pub(super) fn path_line(path: &Path) -> String {
    format!("  {}\n", without_controls(&path.display().to_string()))
}

/// Most paths of texts or weights that are listed.
const MOST_LISTED: usize = 4;

/// Returns the paths of the texts of `train.sample`; empty if there are none.
fn texts(report: &LaunchReport) -> String {
    let paths = report
        .last_attempts
        .iter()
        .map(|end| report.folder.sample_texts(&end.trial, end.attempt));
    let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    listed(
        "Written by the models",
        paths.iter().map(|path| path_line(path)).collect(),
    )
}

/// Returns the checkpoints whose weights the trials leave, each with the settings of its trial, those
/// with the lowest loss first; empty if there are none.
fn weights(report: &LaunchReport, table: &TrialTable) -> String {
    let has_repeats = report::has_repeats(table);
    let found = |end: &AttemptEnd| {
        let trial = &end.trial;
        let completed = (end.outcome == Outcome::Completed).then_some(end.attempt);
        let listing = aside::weights(&report.folder, trial, completed)
            .and_then(|kept| kept.listing())
            .and_then(|listing| listing.unread().map_or(Ok(listing), Err));
        let kept = match listing {
            Ok(listing) => listing.result()?,
            Err(why) => {
                let why = without_controls(&why.to_string());
                return Some((f64::INFINITY, false, format!("  trial {trial}: {why}\n")));
            }
        };
        let which = match kept.valid_loss {
            Some(loss) => format!("step {}, valid loss {}", kept.step, significant(loss)),
            None => format!("step {}", kept.step),
        };
        let path = without_controls(&kept.folder.display().to_string());
        let loss = kept.valid_loss.unwrap_or(f64::INFINITY);
        let mut rows = table.rows.iter();
        let row = rows.find(|row| row.fixed.trial == *trial && row.fixed.attempt == end.attempt);
        let last = row.and_then(|row| row.fixed.valid_loss);
        let is_earlier = last.is_some_and(|last| loss < last);
        let words = row.map(|row| report::trial_in_words(table, row, has_repeats));
        let whose = words.filter(|words| !words.is_empty());
        let whose = whose.map(|words| words + ": ").unwrap_or_default();
        Some((loss, is_earlier, format!("  {path}\n    {whose}{which}\n")))
    };
    let mut lines: Vec<(f64, bool, String)> =
        report.last_attempts.iter().filter_map(found).collect();
    lines.sort_by(|one, other| one.0.total_cmp(&other.0));
    let title = match lines.iter().any(|(_, is_earlier, _)| *is_earlier) {
        true => {
            "Weights, for `kiln evaluate`, `sample`, `predict` and `export` (of each trial's step with the \
             lowest validation loss; the tables have the loss after the last step)"
        }
        false => "Weights, for `kiln evaluate`, `sample`, `predict` and `export`",
    };
    listed(title, lines.into_iter().map(|(.., line)| line).collect())
}

/// The first of these lines below a title; empty if there are none.
fn listed(title: &str, lines: Vec<String>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let more = match lines.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        more => format!("  … and {more} more\n"),
    };
    let shown = lines[..lines.len().min(MOST_LISTED)].concat();
    format!("{title}:\n{shown}{more}\n")
}
