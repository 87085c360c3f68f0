//! Formats a plan as text: one line per trial, then a summary.

use std::{collections::HashMap, fmt::Write, path::Path};

use kiln_core::{
    plan::{Outcome, Plan, Trial, TrialId, show},
    units::{Bytes, Count, Seconds, without_controls},
};

use super::expectation::{Expectations, Expected};

use crate::output::table::TextTable;

/// Columns: number, id, axes, seed if there are repeats, parameters, FLOPs per sample, effective
/// batch, steps, and the time and memory that trials like it took, where there are any.
pub(super) fn table(plan: &Plan, expected: &Expectations) -> String {
    let of_trial = |trial: &Trial| expected.of_trial(&trial.id);
    let has =
        |known: fn(&Expected) -> bool| plan.trials.iter().any(|trial| known(&of_trial(trial)));
    let has_time = has(|expected| expected.seconds.is_some());
    let has_memory = has(|expected| expected.memory_bytes.is_some());
    let mut header: Vec<String> = vec!["#".to_owned(), "trial".to_owned()];
    header.extend(plan.axes.iter().cloned());
    if plan.repeats > 1 {
        header.push("seed".to_owned());
    }
    header.extend(["parameters", "FLOPs/sample", "effective batch", "steps"].map(str::to_owned));
    header.extend(has_time.then(|| "time".to_owned()));
    header.extend(has_memory.then(|| "memory".to_owned()));
    let mut table = TextTable::plain(header);
    for trial in &plan.trials {
        let mut cells = row(trial, plan.repeats);
        let Expected {
            seconds,
            memory_bytes,
            ..
        } = of_trial(trial);
        let time = || seconds.map_or_else(unknown, |seconds| Seconds(seconds).to_string());
        let memory = || memory_bytes.map_or_else(unknown, |bytes| Bytes(bytes).to_string());
        cells.extend(has_time.then(time));
        cells.extend(has_memory.then(memory));
        table.add_row(cells);
    }
    table.align_right(2);
    table.text()
}

fn row(trial: &Trial, repeats: u64) -> Vec<String> {
    let mut cells = vec![trial.number.to_string(), trial.id.to_string()];
    cells.extend(trial.axes.iter().map(|(_, value)| show(value)));
    if repeats > 1 {
        cells.push(trial.train.seed.to_string());
    }
    cells.push(count(trial.parameters));
    cells.push(count(trial.flops_per_sample));
    cells.push(trial.effective_batch_size.to_string());
    cells.push(trial.steps.map_or_else(unknown, |steps| steps.to_string()));
    cells
}

fn count(number: Option<u64>) -> String {
    number.map_or_else(unknown, |number| Count(number as f64).to_string())
}

/// The text of an unknown cell; the notes below the table explain it.
fn unknown() -> String {
    "?".to_owned()
}

/// `folder` is the folder of the run; `notes` say why some cells are unknown; `ended` holds the
/// outcomes of an unfinished run.
pub(super) fn footer(
    folder: &Path,
    plan: &Plan,
    notes: &[String],
    ended: &HashMap<TrialId, Outcome>,
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
        .filter(|trial| {
            ended
                .get(&trial.id)
                .is_some_and(|outcome| outcome.is_final())
        })
        .count();
    if done > 0 {
        let _ = writeln!(
            text,
            "{done} of them have already ended; a resume skips them"
        );
    }
    for note in notes {
        let _ = writeln!(text, "unknown (?): {}", without_controls(note));
    }
    text
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

    #[test]
    fn what_a_resume_skips_is_counted() {
        let plan = plan("grid: {model.size: [1000, 2000]}");
        let ended = |outcome| HashMap::from([(plan.trials[0].id.clone(), outcome)]);
        let says = |outcome| {
            footer(
                Path::new("results/x"),
                &plan,
                &[],
                &ended(outcome),
                &Expectations::default(),
            )
            .contains("1 of them have already ended")
        };
        assert!(says(Outcome::Completed) && says(Outcome::Failed));
        assert!(
            !says(Outcome::Interrupted),
            "an interrupted trial runs again"
        );
    }

    #[test]
    fn seeds_are_shown_where_there_are_repeats() {
        let seen = |repeats| table(&plan(repeats), &Expectations::default()).contains("seed");
        assert!(!seen("repeats: 1"));
        assert!(seen("repeats: 2"));
        assert!(
            footer(
                Path::new("results/x"),
                &plan("repeats: 2"),
                &[],
                &HashMap::new(),
                &Expectations::default(),
            )
            .starts_with("1 point × 2 repeats = 2 trials, order interleaved; about")
        );
    }
}
