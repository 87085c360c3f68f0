//! Formats a plan as text: one line per trial, then a summary.

use std::{fmt::Write, path::Path};

use kiln_core::{
    kinds::command::Placeholders,
    plan::{Plan, shared_metric_file, show},
    statistics::FEWEST_RUNS,
    units::{Bytes, without_controls},
};

use super::{
    before::TrialsBefore,
    columns::{PlanRows, dispensable, every_trial, heads, whole_table},
    expectation::has_ended,
};
use crate::{output::table::hidden_for_width, report::short_names_beside};

/// One line per trial, below a line of what is the same in all of them. On a terminal of too small a
/// width times lose their range, then axes have only the last part of their keys, then columns are
/// hidden: those that are not axes first, then axes, from the last to the second; those that fit
/// after all come back. A line below names the others.
pub(super) fn table(rows: PlanRows<'_>, width: Option<u16>) -> String {
    let width = width.map_or(usize::MAX, usize::from);
    let axes = &rows.plan.axes;
    let short = short_names_beside(axes, &heads());
    let mut table = whole_table(&rows, axes);
    let middles = PlanRows {
        has_ranges: false,
        ..rows
    };
    for axes in [axes, &short] {
        if !table.fits(width) {
            table = whole_table(&middles, axes);
        }
    }
    let hideable = short.iter().skip(1).rev().map(String::as_str);
    let dispensable: Vec<&str> = dispensable().into_iter().chain(hideable).collect();
    let left_out = table.fit_most(width, &dispensable);
    // A reader misses an axis most.
    let (mut hidden, others): (Vec<&str>, Vec<&str>) = left_out
        .into_iter()
        .partition(|head| short.iter().any(|axis| axis == head));
    hidden.extend(others);
    let mut text = String::new();
    if let Some(line) = every_trial(&rows) {
        let _ = writeln!(text, "{line}");
    }
    text += &table.text();
    if let Some(line) = hidden_for_width(&hidden, width) {
        let _ = write!(text, "\n{line}");
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
    if let Some(shared) = shared_metric_file(&plan.trials) {
        let _ = writeln!(
            text,
            "`{}` of more than one trial is read from one file, `{}`, so they must run one after another; \
             `{{folder}}/{}` would be a file for each",
            shared.metric,
            without_controls(&shared.file),
            without_controls(shared.file_name()),
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

/// `folder` is the folder of the run; `notes` say why some cells are unknown.
pub(super) fn footer(folder: &Path, rows: PlanRows<'_>, notes: &[String]) -> String {
    let PlanRows {
        plan,
        expected,
        before: TrialsBefore { ended, kept },
        ..
    } = rows;
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
    use std::collections::HashMap;

    use kiln_core::{
        plan::{Outcome, TrialId},
        spec::Experiment,
    };

    use super::*;
    use crate::{
        commands::plan::expectation::{Expectations, Expected},
        schedule::{EstimateGrade, TimeEstimate},
    };

    fn plan(sweep: &str) -> Plan {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: matmul}}, train: {{steps: 10}}, sweep: \
             {{{sweep}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        kiln_core::plan::expand(&experiment, &|_| None).unwrap()
    }

    /// The table, of a plan of which nothing has run.
    fn table_of(plan: &Plan, expected: &Expectations, width: Option<u16>) -> String {
        let ended = HashMap::new();
        table(rows(plan, expected, &ended, None), width)
    }

    fn footer_of(plan: &Plan, ended: &HashMap<TrialId, Outcome>, kept: Option<&str>) -> String {
        let expected = Expectations::default();
        footer(
            Path::new("results/x"),
            rows(plan, &expected, ended, kept),
            &[],
        )
    }

    fn rows<'a>(
        plan: &'a Plan,
        expected: &'a Expectations,
        ended: &'a HashMap<TrialId, Outcome>,
        kept: Option<&'a str>,
    ) -> PlanRows<'a> {
        PlanRows {
            plan,
            expected,
            before: TrialsBefore { ended, kept },
            has_ranges: true,
        }
    }

    /// A plan whose trials all take one time.
    fn expected(plan: &Plan) -> Expectations {
        let time = TimeEstimate {
            grade: EstimateGrade::AsBefore,
            lowest: 0.62,
            median: 0.654,
            highest: 0.7,
        };
        Expectations::of_each(
            plan,
            Expected {
                time: Some(time),
                memory_bytes: None,
                least_memory_bytes: None,
            },
        )
    }

    #[test]
    fn kept_trials_are_told_in_place_of_those_that_a_resume_skips() {
        let plan = plan("grid: {model.size: [1000, 2000]}");
        let ended = HashMap::from([(plan.trials[0].id.clone(), Outcome::Completed)]);
        let text = footer_of(&plan, &ended, Some("1 of 2 trials are kept"));
        assert!(text.ends_with("\n1 of 2 trials are kept\n"), "{text}");
        assert!(!text.contains("already ended"), "{text}");
    }

    #[test]
    fn what_a_resume_skips_is_counted() {
        let plan = plan("grid: {model.size: [1000, 2000]}");
        let ended = |outcome| HashMap::from([(plan.trials[0].id.clone(), outcome)]);
        let says = |outcome| {
            let text = footer_of(&plan, &ended(outcome), None);
            text.contains("1 of them has already ended")
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
        let shown = table_of(&of(2), &Expectations::default(), None);
        let columns = |line: &str| -> Vec<String> {
            line.split_whitespace().take(2).map(str::to_owned).collect()
        };
        let table = shown.lines().skip_while(|line| !line.starts_with(" #"));
        let lines: Vec<Vec<String>> = table.map(columns).collect();
        assert_eq!(lines[0], ["#", "block"]);
        let blocks: Vec<&str> = lines[1..].iter().map(|cells| cells[1].as_str()).collect();
        assert_eq!(blocks, ["1", "1", "2", "2", "3", "3", "4", "4"], "{shown}");
        let says = |plan: &Plan| {
            let text = footer_of(plan, &HashMap::new(), None);
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
        let shown = |width| table_of(&plan, &Expectations::default(), width);
        let whole = shown(None);
        assert!(!whole.contains("hidden"), "{whole}");
        let widest = widest(&whole);
        assert_eq!(shown(Some(widest)), whole);
        // The last part of the axis has room for all columns.
        let short = shown(Some(widest - 1));
        assert!(
            short.contains("  size  FLOPs/sample\n") && !short.contains("hidden"),
            "{short}"
        );
        let narrow = shown(Some(widest - 7));
        let (table, note) = narrow.rsplit_once('\n').unwrap();
        assert_eq!(note, "hidden for width: FLOPs/sample");
        assert!(self::widest(table) <= widest - 7, "{narrow}");
    }

    /// The length of the longest line of a table, without what stands above it.
    fn widest(shown: &str) -> u16 {
        let lines = shown.lines().filter(|line| line.starts_with(' '));
        let widest = lines.map(|line| line.chars().count()).max();
        u16::try_from(widest.unwrap()).unwrap()
    }

    #[test]
    fn a_narrow_terminal_hides_the_range_of_times_first_and_axes_last() {
        let plan = plan("grid: {model.size: [64, 128], train.batch_size: [1, 2]}, repeats: 2");
        let expected = expected(&plan);
        let shown = |width| table_of(&plan, &expected, width);
        let whole = shown(None);
        assert!(whole.contains("654 ms (620 ms to 700 ms)"), "{whole}");
        assert!(whole.contains("time estimated from same settings"));
        let widest = widest(&whole);
        let middle = shown(Some(widest - 1));
        assert!(
            middle.contains("  654 ms") && !middle.contains("700 ms") && !middle.contains("hidden"),
            "{middle}"
        );
        let last_line = |width| {
            let shown = shown(Some(width));
            shown.lines().last().unwrap().to_owned()
        };
        let narrower = (1..widest).rev().map(last_line);
        let mut hidden: Vec<String> = narrower.filter(|line| line.starts_with("hidden")).collect();
        hidden.dedup();
        assert_eq!(hidden[0], "hidden for width: time");
        // Without the wider one the time fits again.
        assert_eq!(hidden[1], "hidden for width: FLOPs/sample");
        assert_eq!(hidden[2], "hidden for width: time, FLOPs/sample");
        let narrowest = hidden.last().unwrap();
        assert!(
            narrowest.starts_with("hidden for width: batch_size"),
            "{hidden:?}"
        );
        assert!(hidden[..2].iter().all(|line| !line.contains("batch_size")));
    }

    #[test]
    fn values_that_all_trials_share_stand_above_the_table() {
        let shown = |sweep: &str| table_of(&plan(sweep), &Expectations::default(), None);
        let several = shown("grid: {model.size: [64, 128]}");
        let (above, table) = several.split_once('\n').unwrap();
        assert!(
            above.starts_with("every trial: 0 parameters, "),
            "{several}"
        );
        assert!(above.ends_with(", 10 steps"), "{several}");
        let head = table.lines().next().unwrap();
        assert!(
            head.contains("FLOPs/sample") && !head.contains("steps"),
            "{several}"
        );
        let one = shown("grid: {model.size: [64]}");
        assert!(
            one.starts_with(" #") && one.contains("  steps"),
            "a single trial: {one}"
        );
    }

    #[test]
    fn trials_that_are_kept_or_have_ended_are_marked() {
        let plan = plan("grid: {model.size: [1000, 2000, 3000]}");
        let expected = Expectations::default();
        let states = |outcomes: &[Outcome], kept: Option<&str>| {
            let ids = plan.trials.iter().map(|trial| trial.id.clone());
            let ended = ids.zip(outcomes.iter().copied()).collect();
            table(rows(&plan, &expected, &ended, kept), None)
        };
        let cells = |shown: &str| -> Vec<String> {
            let rows = shown.lines().skip_while(|line| !line.starts_with(" #"));
            let cell = |line: &str| line.split_whitespace().nth(2).map(str::to_owned);
            rows.filter_map(cell).collect()
        };
        let ended = [Outcome::Completed, Outcome::Oom, Outcome::Interrupted];
        let resumed = states(&ended, None);
        assert_eq!(
            cells(&resumed),
            ["state", "done", "oom", "3000"],
            "{resumed}"
        );
        let kept = states(&ended[..1], Some("1 of 3 trials are kept"));
        assert_eq!(cells(&kept), ["state", "kept", "2000", "3000"], "{kept}");
        assert!(!states(&[], None).contains("state"));
        let all = states(&[Outcome::Completed; 3], None);
        assert!(all.starts_with("every trial: done, "), "{all}");
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
        let shown = |width| table_of(&plan, &Expectations::default(), width);
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
        let seen =
            |repeats| table_of(&plan(repeats), &Expectations::default(), None).contains("seed");
        assert!(!seen("repeats: 1"));
        assert!(seen("repeats: 2"));
        assert!(
            footer_of(&plan("repeats: 2"), &HashMap::new(), None)
                .starts_with("1 point × 2 repeats = 2 trials, order interleaved; about")
        );
    }
}
