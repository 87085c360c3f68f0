//! Formats a plan as text: one line per trial, then a summary.

use std::{collections::HashMap, fmt::Write, path::Path};

use kiln_core::{
    kinds::command::Placeholders,
    plan::{Outcome, Plan, TrialId, show},
    statistics::FEWEST_RUNS,
    units::{Bytes, without_controls},
};

use super::{
    columns::{dispensable, heads, whole_table},
    expectation::{Expectations, has_ended},
};
use crate::{output::table::hidden_for_width, report::short_names_beside};

/// One line per trial. A terminal of too small a width shows fewer columns; where that is not
/// enough, only the last part of each axis, and then fewer axes, from the last to the second. A line
/// below names the others.
pub(super) fn table(plan: &Plan, expected: &Expectations, width: Option<u16>) -> String {
    let width = width.map_or(usize::MAX, usize::from);
    let short = short_names_beside(&plan.axes, &heads());
    let dispensable = dispensable();
    let mut table = whole_table(plan, expected, &plan.axes);
    let mut left_out: Vec<&str> = table.fit(width, &dispensable);
    if !table.fits(width) {
        table = whole_table(plan, expected, &short);
        let axes = short.iter().skip(1).rev().map(String::as_str);
        let dispensable: Vec<&str> = dispensable.into_iter().chain(axes).collect();
        left_out = table.fit(width, &dispensable);
    }
    let mut text = table.text();
    if let Some(hidden) = hidden_for_width(&left_out, width) {
        let _ = write!(text, "\n{hidden}");
    }
    text
}

/// The command of the first trial and its metrics, and a warning if repeats are the same command.
fn of_command(plan: &Plan) -> Option<String> {
    let first = plan.trials.first()?;
    let command = first.model.command()?;
    let expanded = command.expand(&Placeholders {
        seed: Some(first.train.seed),
        trial: Some(first.id.to_string()),
        attempt: Some(1),
        ..Placeholders::default()
    });
    let metrics = command.every_metric();
    let metrics: Vec<&str> = metrics.names().collect();
    let mut text = format!(
        "trial 1 runs: {}\nmetrics: {}\n",
        without_controls(&shell_words(&expanded.argv)),
        metrics.join(", ")
    );
    if plan.repeats > 1 && !command.has_placeholder("seed") {
        text.push_str(
            "repeats run the same command again: `argv` has no `{seed}`, so only the noise of the \
             measurement differs\n",
        );
    }
    Some(text)
}

/// Arguments as a shell would read them.
fn shell_words(argv: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%{}".contains(c);
    let word = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The trials that would not run.
#[derive(Clone, Copy)]
pub(super) struct TrialsBefore<'a> {
    /// The outcomes in the run that would be resumed, or whose trials would be kept.
    pub(super) ended: &'a HashMap<TrialId, Outcome>,
    /// Sentence on the number of trials that would be kept; `None` without `--keep`.
    pub(super) kept: Option<&'a str>,
}

/// `folder` is the folder of the run; `notes` say why some cells are unknown.
pub(super) fn footer(
    folder: &Path,
    plan: &Plan,
    notes: &[String],
    TrialsBefore { ended, kept }: TrialsBefore<'_>,
    expected: &Expectations,
) -> String {
    let mut text = String::new();
    let disk = match plan.expected_disk_bytes() {
        Some(bytes) => {
            let folder = without_controls(&folder.display().to_string());
            format!("about {} under {folder}/", Bytes(bytes))
        }
        None => "disk unknown".to_owned(),
    };
    let order = serde_json::to_value(plan.order)
        .map(|order| show(&order))
        .unwrap_or_default();
    let _ = writeln!(
        text,
        "{} × {} = {}, order {order}; {disk}, hardware samples not counted",
        plural(plan.points, "point"),
        plural(plan.repeats, "repeat"),
        plural(plan.trials.len() as u64, "trial"),
    );
    if !plan.together.is_empty() {
        let _ = writeln!(text, "{}", of_blocks(plan));
    }
    text.extend(of_command(plan));
    if let Some(time) = expected.time(plan, ended) {
        let _ = writeln!(text, "{time}");
    }
    let most_dropped = plan
        .epochs
        .iter()
        .flatten()
        .map(|epoch| epoch.dropped_samples())
        .max()
        .unwrap_or(0);
    if most_dropped > 0 {
        let _ = writeln!(
            text,
            "drops up to {} at the end of each epoch (partial step)",
            plural(most_dropped, "sample")
        );
    }
    let done = plan
        .trials
        .iter()
        .filter(|trial| has_ended(trial, ended))
        .count();
    if let Some(kept) = kept {
        let _ = writeln!(text, "{}", without_controls(kept));
    } else if done > 0 {
        let _ = writeln!(
            text,
            "{done} of them {} already ended; a resume skips them",
            if done == 1 { "has" } else { "have" }
        );
    }
    for note in notes {
        let _ = writeln!(text, "unknown (?): {}", without_controls(note));
    }
    text
}

/// `10 blocks of 2 trials (run.engine together), each on one device`, and what is missing for a
/// verdict between the values.
fn of_blocks(plan: &Plan) -> String {
    let mut sizes: Vec<usize> = (1..=plan.blocks())
        .map(|block| {
            let trials = plan.trials.iter();
            trials.filter(|trial| trial.block == block).count()
        })
        .collect();
    sizes.sort_unstable();
    let size = match (sizes.first(), sizes.last()) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most} trials"),
        (Some(size), _) => plural(*size as u64, "trial"),
        _ => String::new(),
    };
    let together: Vec<String> = plan
        .together
        .iter()
        .map(|key| without_controls(key))
        .collect();
    let needed = FEWEST_RUNS as u64;
    let advice = match plan.repeats < needed {
        true => format!("; a verdict between them needs `sweep.repeats: {needed}` or more"),
        false => String::new(),
    };
    format!(
        "{} of {size} ({} together), each on one device{advice}",
        plural(plan.blocks(), "block"),
        together.join(", ")
    )
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_core::spec::Experiment;

    fn plan(sweep: &str) -> Plan {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: matmul}}, train: {{steps: 10}}, sweep: \
             {{{sweep}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        kiln_core::plan::expand(&experiment, &|_| None).unwrap()
    }

    fn before(ended: &HashMap<TrialId, Outcome>) -> TrialsBefore<'_> {
        TrialsBefore { ended, kept: None }
    }

    #[test]
    fn kept_trials_are_told_in_place_of_those_that_a_resume_skips() {
        let plan = plan("grid: {model.size: [1000, 2000]}");
        let ended = HashMap::from([(plan.trials[0].id.clone(), Outcome::Completed)]);
        let before = TrialsBefore {
            kept: Some("1 of 2 trials are kept"),
            ..before(&ended)
        };
        let text = footer(
            Path::new("results/x"),
            &plan,
            &[],
            before,
            &Expectations::default(),
        );
        assert!(text.ends_with("\n1 of 2 trials are kept\n"), "{text}");
        assert!(!text.contains("already ended"), "{text}");
    }

    #[test]
    fn what_a_resume_skips_is_counted() {
        let plan = plan("grid: {model.size: [1000, 2000]}");
        let ended = |outcome| HashMap::from([(plan.trials[0].id.clone(), outcome)]);
        let says = |outcome| {
            footer(
                Path::new("results/x"),
                &plan,
                &[],
                before(&ended(outcome)),
                &Expectations::default(),
            )
            .contains("1 of them has already ended")
        };
        assert!(says(Outcome::Completed) && says(Outcome::Failed));
        assert!(
            !says(Outcome::Interrupted),
            "an interrupted trial runs again"
        );
    }

    #[test]
    fn blocks_are_shown_where_axes_run_together() {
        let of = |repeats: u64| {
            plan(&format!(
                "grid: {{model.size: [64, 128], train.cpu_threads: [1, 2]}}, repeats: {repeats}, \
                 together: [train.cpu_threads]"
            ))
        };
        let shown = table(&of(2), &Expectations::default(), None);
        let columns = |line: &str| -> Vec<String> {
            line.split_whitespace().take(2).map(str::to_owned).collect()
        };
        let lines: Vec<Vec<String>> = shown.lines().map(columns).collect();
        assert_eq!(lines[0], ["#", "block"]);
        let blocks: Vec<&str> = lines[1..].iter().map(|cells| cells[1].as_str()).collect();
        assert_eq!(blocks, ["1", "1", "2", "2", "3", "3", "4", "4"], "{shown}");
        let says = |plan: &Plan| {
            let (results, ended) = (Path::new("results/x"), HashMap::new());
            let text = footer(results, plan, &[], before(&ended), &Expectations::default());
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(
            says(&of(3)),
            "6 blocks of 2 trials (train.cpu_threads together), each on one device"
        );
        assert!(says(&of(1)).ends_with("a verdict between them needs `sweep.repeats: 3` or more"));
    }

    #[test]
    fn a_narrow_terminal_shows_fewer_columns_and_says_which() {
        let plan = plan("grid: {model.size: [64, 128]}");
        let shown = |width| table(&plan, &Expectations::default(), width);
        let whole = shown(None);
        assert!(!whole.contains("not shown"), "{whole}");
        let widest = whole.lines().map(|line| line.chars().count()).max();
        let widest = u16::try_from(widest.unwrap()).unwrap();
        assert_eq!(shown(Some(widest)), whole);
        let narrow = shown(Some(widest - 1));
        let (table, note) = narrow.rsplit_once('\n').unwrap();
        assert_eq!(note, "hidden for width: FLOPs/sample");
        let fits = |line: &str| line.chars().count() < usize::from(widest);
        assert!(
            table.lines().all(fits) && table.contains("parameters"),
            "{narrow}"
        );
    }

    #[test]
    fn a_plan_of_many_axes_fits_into_a_terminal() {
        let all = |entry: &dyn Fn(u32) -> String| {
            let entries: Vec<String> = (0..30).map(entry).collect();
            entries.join(", ")
        };
        let values = all(&|axis| format!("option_{axis}: 0"));
        let axes = all(&|axis| format!("model.values.option_{axis}: [1]"));
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: command, argv: [x, '{{trial_file}}'], values: \
             {{{values}}}}}, sweep: {{grid: {{{axes}}}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        let plan = kiln_core::plan::expand(&experiment, &|_| None).unwrap();
        let shown = |width| table(&plan, &Expectations::default(), width);
        let narrow = shown(Some(80));
        let fits = |line: &str| line.chars().count() <= 80;
        assert!(narrow.lines().all(fits), "{narrow}");
        let (head, note) = (narrow.lines().next(), narrow.lines().last());
        let (head, note) = (head.unwrap(), note.unwrap());
        assert!(head.contains(" option_0 "), "{narrow}");
        assert!(!head.contains("model.values"), "{narrow}");
        let begin = "hidden for width: option_29, option_28, ";
        assert!(
            note.starts_with(begin) && note.ends_with(" more"),
            "{narrow}"
        );
        assert!(shown(None).contains("model.values.option_29"));
    }

    #[test]
    fn seeds_are_shown_where_there_are_repeats() {
        let seen = |repeats| table(&plan(repeats), &Expectations::default(), None).contains("seed");
        assert!(!seen("repeats: 1"));
        assert!(seen("repeats: 2"));
        assert!(
            footer(
                Path::new("results/x"),
                &plan("repeats: 2"),
                &[],
                before(&HashMap::new()),
                &Expectations::default(),
            )
            .starts_with("1 point × 2 repeats = 2 trials, order interleaved; about")
        );
    }
}
