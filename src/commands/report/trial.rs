//! `kiln report RUN:TRIAL`: one trial of a run, from its rows and its files.
//!
//! In: the table of the run, and the folder of the trial if the run is not one of a commit. Out: a page
//! for a terminal, with the commands that go on from the trial.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use kiln_core::{
    input,
    plan::{Outcome, TrialId, show},
    record::{
        Checkpoints, RunFolder, TableRow, TrialRow,
        attempt::STDERR,
        command_line::{kept_from, results_option, resuming, with_variables},
        trial_reason::without_trial,
    },
    units::{Seconds, decimals, exact, shell_word, shorten, significant, without_controls},
};

use super::Args;
use crate::{
    commands::{
        Status, Stop, print,
        recorded_trial::{ids, planned_values},
        run_and_trial::{named_trial, refuse_no_id, trial_of_run},
        sources::{TableSource, recorded},
    },
    follow::{RunFollower, RunState},
};

/// Most lines of the standard error that are shown, and the end of the file that is read for them.
const MOST_LINES: usize = 10;
const MOST_BYTES: u64 = 8192;
/// Most characters that are shown of a line.
const MOST_CHARACTERS: usize = 200;
/// The outcome of a trial that has not begun.
const NOT_RUN: &str = "not run yet";
/// Columns of the labels.
const LABEL: usize = 12;

/// A label and its text; an empty label continues the one above.
type TrialLine = (&'static str, String);

/// Prints the page of a trial, if the names on the command line are those of one.
///
/// # Errors
/// There is no such run or trial, or the options ask for more than a page of text.
pub(super) fn show_if_any(args: &Args) -> Result<Option<Status>, Stop> {
    let mut trials = args.runs.iter();
    let Some((run, trial)) = trials.find_map(|named| trial_of_run(named, &args.results)) else {
        let mut named = args.runs.iter();
        named.try_for_each(|named| refuse_no_id(named, &args.results))?;
        return Ok(None);
    };
    let is_plain = args.runs.len() == 1
        && args.format.is_none()
        && args.html.is_none()
        && args.svg.is_none()
        && args.csv.is_none()
        && args.fail_on.is_empty()
        && !args.write
        && args.format().is_none();
    if !is_plain {
        return Err(Stop::bad_input(format!(
            "{run}:{trial}: the report of one trial is a page of text; name this trial alone and \
             without options, or leave `:{trial}` out to report the whole run"
        )));
    }
    let source = recorded(run, &args.results)?;
    let place = source.folder.clone();
    let place = place.unwrap_or_else(|| RunFolder::at(&source.name));
    let trial = named_trial(&place, &ids(&source), trial)?;
    let page = TrialPage {
        source: &source,
        trial: &trial,
        run,
        results: &args.results,
    };
    print(&page.text())?;
    Ok(Some(Status::Success))
}

/// One trial of a run.
struct TrialPage<'a> {
    source: &'a TableSource,
    trial: &'a TrialId,
    /// The run as it was named.
    run: &'a str,
    results: &'a Path,
}

impl TrialPage<'_> {
    fn text(&self) -> String {
        let rows = self.rows();
        let last = rows.last().map(|row| &*row.fixed);
        let state = self.source.folder.clone();
        let state = state.map(|folder| RunFollower::new(folder).look());
        let checkpoint = self.checkpoint();
        let facts = self.facts(&rows, state.as_ref());
        let files = last.map_or_else(Vec::new, |row| self.files(row, checkpoint));
        let facts = facts.iter().chain(&files).map(|(label, text)| {
            let line = without_controls(&format!("{label:<LABEL$} {text}"));
            line.trim_end().to_owned() + "\n"
        });
        let head = without_controls(&format!("{}: trial {}", self.source.name, self.trial));
        let log = last.map_or_else(String::new, |row| self.log(row));
        format!(
            "{head}\n\n{}{log}{}",
            facts.collect::<String>(),
            self.next(last, checkpoint, state.as_ref())
        )
    }

    /// How it ended, or the settings of a trial that has not.
    fn facts(&self, rows: &[&TableRow], state: Option<&RunState>) -> Vec<TrialLine> {
        if let Some(row) = rows.last() {
            let mut lines = facts(&self.source.table.axes, rows);
            let run = self.source.run.as_ref();
            let kept = run.and_then(|run| kept_from(run, row.fixed.launch));
            lines.extend(labelled("kept from", kept.map(str::to_owned)));
            return lines;
        }
        let mut lines = match planned_values(self.source, self.trial) {
            Some((axes, seed)) => {
                let values = axes.iter().map(|(axis, value)| match value.is_null() {
                    true => format!("{axis} (none)"),
                    false => format!("{axis} {}", show(value)),
                });
                let seed = seed_line(axes.iter().map(|(axis, _)| axis), seed);
                labelled("settings", values.chain(seed))
            }
            None => Vec::new(),
        };
        lines.push(("outcome", self.unended(state)));
        lines
    }

    /// The outcome of a trial without an ended attempt, in words.
    fn unended(&self, state: Option<&RunState>) -> String {
        let Some(live) = state.filter(|state| state.life.goes_on()) else {
            return NOT_RUN.to_owned();
        };
        let is_running = live.running.iter().any(|running| running.id == *self.trial);
        let what = if is_running { "running" } else { NOT_RUN };
        let run = shell_word(self.run);
        let results = results_option(self.results);
        format!("{what}; `kiln watch {run}{results}` shows the run")
    }

    /// The command that runs it again, if it is left or a retry may mend it. Only the newest run of an
    /// experiment goes on.
    fn again(&self, row: &TrialRow) -> Option<String> {
        let option = match row.outcome {
            Outcome::Failed | Outcome::TimedOut => format!(" --rerun {}", row.outcome.name()),
            Outcome::Killed | Outcome::Interrupted => String::new(),
            _ => return None,
        };
        let (run, folder) = (self.source.run.as_ref()?, self.source.folder.as_ref()?);
        let resume = resuming(run, folder)?;
        let command = resume.command?;
        let is_retried = command.starts_with("kiln run ") && !command.contains(" --continue");
        if !option.is_empty() && !is_retried {
            return None;
        }
        let with = with_variables(&resume.variables);
        let with = match with.is_empty() {
            true => with,
            false => format!("  #{with}"),
        };
        Some(format!("{command}{option}{with}"))
    }

    /// Its rows, one per ended attempt, the last one at the end.
    fn rows(&self) -> Vec<&TableRow> {
        let all = self.source.table.rows.iter();
        let mut rows: Vec<&TableRow> = all.filter(|row| row.fixed.trial == *self.trial).collect();
        rows.sort_by_key(|row| row.fixed.attempt);
        rows
    }

    /// The folder of the last attempt and that of the newest checkpoint, as far as they are there.
    fn files(&self, row: &TrialRow, checkpoint: Option<u64>) -> Vec<TrialLine> {
        let Some(run) = &self.source.folder else {
            return Vec::new();
        };
        let folder = run.attempt(self.trial, row.attempt);
        let folder = folder.is_dir().then(|| folder.display().to_string());
        let checkpoint = checkpoint.map(|step| {
            let path = run.checkpoints(self.trial).join(step.to_string());
            path.display().to_string()
        });
        let files = [("files", folder), ("checkpoint", checkpoint)];
        let files = files.into_iter();
        files
            .filter_map(|(label, path)| Some((label, path?)))
            .collect()
    }

    /// The step of its newest checkpoint.
    fn checkpoint(&self) -> Option<u64> {
        let run = self.source.folder.as_ref()?;
        let folder = run.checkpoints(self.trial);
        Checkpoints::new(folder, self.trial.clone()).newest_step()
    }

    /// The end of the standard error of a last attempt that did not complete.
    fn log(&self, row: &TrialRow) -> String {
        let Some(run) = &self.source.folder else {
            return String::new();
        };
        let path = run.attempt(self.trial, row.attempt).join(STDERR);
        let lines = match row.outcome {
            Outcome::Completed => Vec::new(),
            _ => last_lines(&path).unwrap_or_default(),
        };
        let lines = lines.iter().map(|line| format!("  {line}\n"));
        let lines: String = lines.collect();
        match lines.is_empty() {
            true => lines,
            false => format!("\nlast lines of its {STDERR}:\n{lines}"),
        }
    }

    /// The commands that go on from the trial.
    fn next(
        &self,
        row: Option<&TrialRow>,
        checkpoint: Option<u64>,
        state: Option<&RunState>,
    ) -> String {
        let named = shell_word(&format!("{}:{}", self.run, self.trial));
        let results = results_option(self.results);
        let is_live = state.is_some_and(|state| state.life.goes_on());
        let again = row.filter(|_| !is_live).and_then(|row| self.again(row));
        let trained = row.filter(|row| checkpoint.is_some() && !row.is_command());
        let has_experiment = self.source.experiment.is_some();
        let writes_text = trained.is_some_and(|row| row.tokens_per_second.is_some());
        let commands = [
            again,
            has_experiment.then(|| format!("kiln init new.yaml --from {named}{results}")),
            trained.map(|_| format!("kiln evaluate {named}{results}")),
            writes_text.then(|| format!("kiln sample {named}{results}")),
        ];
        let commands = commands.iter().flatten();
        let commands = commands.map(|command| format!("  {}\n", without_controls(command)));
        let commands: String = commands.collect();
        match commands.is_empty() {
            true => commands,
            false => format!("\nnext:\n{commands}"),
        }
    }
}

/// The settings of a trial and how it ended, by its rows.
fn facts(axes: &[String], rows: &[&TableRow]) -> Vec<TrialLine> {
    let Some(row) = rows.last() else {
        return vec![("outcome", NOT_RUN.to_owned())];
    };
    let fixed = &*row.fixed;
    let values = axes.iter().zip(&row.axes).map(|(axis, value)| {
        let value = if value.is_empty() {
            "(none)"
        } else {
            value.as_str()
        };
        format!("{axis} {value}")
    });
    let seed = seed_line(axes.iter(), fixed.seed);
    let notes = fixed.notes.iter().flat_map(|notes| notes.split("; "));
    let mut facts = labelled("settings", values.chain(seed));
    facts.push(("outcome", outcome(fixed)));
    facts.extend(labelled("attempts", attempts(rows)));
    facts.extend(labelled("started", started(fixed)));
    facts.extend(labelled("device", fixed.device_name.clone()));
    facts.extend(labelled("speed", joined(speed(fixed))));
    facts.extend(labelled("results", joined(results(fixed))));
    facts.extend(labelled("notes", notes.map(str::to_owned)));
    facts
}

/// The seed, if it is not on an axis.
fn seed_line<'a>(mut axes: impl Iterator<Item = &'a String>, seed: u64) -> Option<String> {
    let is_axis = axes.any(|axis| axis == "train.seed");
    (!is_axis).then(|| format!("seed {seed}"))
}

/// The label stands at the first text.
fn labelled(label: &'static str, texts: impl IntoIterator<Item = String>) -> Vec<TrialLine> {
    let texts = texts.into_iter().enumerate();
    let texts = texts.map(|(place, text)| (if place == 0 { label } else { "" }, text));
    texts.collect()
}

fn joined(parts: Vec<String>) -> Option<String> {
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The outcome and the reason, which may be a sentence on the trial.
fn outcome(row: &TrialRow) -> String {
    let outcome = row.outcome.name();
    let Some(reason) = row.reason.as_deref() else {
        return outcome.to_owned();
    };
    let reason = without_trial(&row.trial, reason).unwrap_or(reason);
    match reason.starts_with(outcome) {
        true => reason.to_owned(),
        false => format!("{outcome}: {reason}"),
    }
}

/// `1 killed, 2 completed`, where there are several.
fn attempts(rows: &[&TableRow]) -> Option<String> {
    let each = rows.iter();
    let each = each.map(|row| format!("{} {}", row.fixed.attempt, row.fixed.outcome.name()));
    let each: Vec<String> = each.collect();
    (each.len() > 1).then(|| each.join(", "))
}

/// When the last attempt started, and how long it took.
fn started(row: &TrialRow) -> Option<String> {
    let started = row.started_utc.as_deref()?.split('.').next()?;
    let started = started.trim_end_matches('Z').replace('T', " ");
    let took = row.trial_seconds.map(Seconds);
    let took = took.map_or_else(String::new, |took| format!(", took {took}"));
    Some(format!("{started} UTC{took}"))
}

fn speed(row: &TrialRow) -> Vec<String> {
    let rate = |rate: Option<f64>, unit: &str| Some(format!("{} {unit}", significant(rate?)));
    let step = row.median_step_seconds.map(Seconds);
    let parts = [
        rate(row.samples_per_second, "samples/s"),
        rate(row.tokens_per_second, "tokens/s"),
        step.map(|step| format!("{step} a step")),
        row.steps.map(|steps| format!("{steps} steps")),
    ];
    parts.into_iter().flatten().collect()
}

/// The losses and scores by the names of their columns.
fn results(row: &TrialRow) -> Vec<String> {
    let learned = [
        ("train_loss", row.train_loss),
        ("valid_loss", row.valid_loss),
        ("lowest_valid_loss", row.lowest_valid_loss),
        ("valid_top1", row.valid_top1),
        ("valid_mean_absolute_error", row.valid_mean_absolute_error),
        ("valid_hit_rate", row.valid_hit_rate),
        ("valid_bleu4", row.valid_bleu4),
        ("valid_chrf", row.valid_chrf),
    ];
    let learned = learned.into_iter();
    let learned =
        learned.filter_map(|(name, value)| Some(format!("{name} {}", decimals(value?, 4))));
    let own = row.metrics.iter();
    let own = own.map(|(name, value)| format!("{name} {}", own_metric(*value)));
    learned.chain(own).collect()
}

/// A metric of a command, with at most four decimals; a small one has three digits.
fn own_metric(value: f64) -> String {
    match value.is_finite() && value.abs() >= 0.1 {
        true => exact((value * 1e4).round() / 1e4),
        false => significant(value),
    }
}

/// The last lines of a file.
fn last_lines(path: &Path) -> io::Result<Vec<String>> {
    // A pipe in the place of the file would never end.
    if !input::find(path)?.is_some_and(|found| found.is_file()) {
        return Ok(Vec::new());
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES)))?;
    let mut end = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut end)?;
    let text = String::from_utf8_lossy(&end);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(|line| shorten(&without_controls(line), MOST_CHARACTERS));
    let mut lines: Vec<String> = lines.collect();
    lines.drain(..lines.len().saturating_sub(MOST_LINES));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(attempt: u64, outcome: Outcome) -> TableRow {
        let fixed = TrialRow {
            trial: TrialId("t0".to_owned()),
            attempt,
            outcome,
            seed: 3,
            ..TrialRow::default()
        };
        TableRow::new(fixed, &[8.into()])
    }

    #[test]
    fn a_trial_tells_its_settings_its_attempts_and_its_reason() {
        let mut failed = row(2, Outcome::Failed);
        failed.fixed.reason = Some("trial t0 failed after 3.00 s".to_owned());
        failed.fixed.started_utc = Some("2026-12-01T02:34:53.719Z".to_owned());
        failed.fixed.trial_seconds = Some(3.0);
        failed.fixed.train_loss = Some(2.5);
        failed.fixed.notes = Some("mfu: no peak; steps: killed".to_owned());
        let killed = row(1, Outcome::Killed);
        let told = facts(&["train.batch_size".to_owned()], &[&killed, &failed]);
        let told: Vec<(&str, &str)> = told.iter().map(|(at, text)| (*at, text.as_str())).collect();
        assert_eq!(
            told,
            [
                ("settings", "train.batch_size 8"),
                ("", "seed 3"),
                ("outcome", "failed after 3.00 s"),
                ("attempts", "1 killed, 2 failed"),
                ("started", "2026-12-01 02:34:53 UTC, took 3.00 s"),
                ("results", "train_loss 2.5000"),
                ("notes", "mfu: no peak"),
                ("", "steps: killed"),
            ]
        );
        assert_eq!(facts(&[], &[])[0].0, "outcome");
    }

    #[test]
    fn a_metric_of_a_command_keeps_its_digits() {
        let told = [0.92134, 1234.56789, 171_900.0, 0.000_123].map(own_metric);
        assert_eq!(told, ["0.9213", "1234.5679", "171900", "0.000123"]);
    }

    #[test]
    fn only_the_last_lines_of_a_log_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STDERR);
        let text: String = (1..=2000)
            .map(|number| format!("line {number}\n\n"))
            .collect();
        std::fs::write(&path, text).unwrap();
        let lines = last_lines(&path).unwrap();
        assert_eq!(lines.len(), MOST_LINES);
        assert_eq!((&*lines[0], &*lines[9]), ("line 1991", "line 2000"));
        assert!(last_lines(folder.path()).unwrap().is_empty());
        std::fs::write(&path, "x".repeat(1000)).unwrap();
        let long = last_lines(&path).unwrap().remove(0);
        assert_eq!(long.chars().count(), MOST_CHARACTERS + 1);
    }
}
