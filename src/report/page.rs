//! Prints `kiln report`: the summary, then the full evidence of each finding; as text, Markdown or
//! JSON.

use kiln_core::{
    record::{
        PlannedValues, RunFolder, TableRow, TrialTable, nodes::unlike_nodes, run_folder::LATEST,
        several_programs::rows_of_several_programs,
    },
    spec::{self, Metric},
    units::without_controls,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    compare::how_to_compare,
    diagnosis::{RuleFinding, diagnose_run},
    findings::{FindingForm, in_full},
    layout::PageStyle,
    metrics::LEARNED,
    not_completed::log_path,
    notices,
    points::{Point, Statistic, outcome_counts, points},
    ranking::Ranking,
    subject::Subject,
    summary::{Remarks, summary_with},
    tidy::measures,
};
use crate::output::markdown;

/// Version of the JSON form.
const KILN_REPORT: u32 = 1;

impl Subject<'_> {
    /// The command that compares the values of `sweep.together`.
    fn how_to_compare(&self) -> Option<String> {
        let experiment: Value = spec::read_yaml(self.experiment?).ok()?;
        let axis = experiment["sweep"]["together"][0].as_str()?;
        how_to_compare(self.table, axis, self.name)
    }

    /// The first lines of a file that builds on this run; empty without its experiment.
    pub(super) fn next_head(&self) -> String {
        self.next_lines().unwrap_or_default()
    }

    fn next_lines(&self) -> Option<String> {
        let experiment: Value = spec::read_yaml(self.experiment?).ok()?;
        let name: String = experiment["name"].as_str()?.chars().take(90).collect();
        let mut path = self.folder?.path().to_owned();
        // The link will lead to a newer run.
        if path.ends_with(LATEST) {
            let run = path.canonicalize().ok()?;
            path.set_file_name(run.file_name()?);
        }
        let extends = RunFolder::at(path).experiment();
        let extends = Value::from(extends.to_string_lossy().into_owned());
        let lines = [
            "kiln: 1".to_owned(),
            format!("name: {name}-next"),
            format!("extends: {extends}"),
        ];
        let lines = lines.iter().map(|line| without_controls(line) + "\n");
        Some(lines.collect())
    }

    /// Notices on the whole run: by its rows, by their programs, and by the differences between its
    /// nodes.
    pub(super) fn notices(&self, findings: &[RuleFinding]) -> Vec<String> {
        let of_nodes = self.run.map(|run| unlike_nodes(&run.launches));
        let of_programs = self.run.and_then(|run| {
            let found = rows_of_several_programs(self.table, run)?;
            Some(found.to_string())
        });
        let of_rows = notices(self.table, self.experiment, findings).into_iter();
        let of_rows = of_rows.chain(of_programs);
        of_rows.chain(of_nodes.unwrap_or_default()).collect()
    }
}

/// For a terminal.
pub fn text(subject: Subject<'_>, style: PageStyle) -> String {
    let findings = diagnose_run(subject);
    let page = above_evidence(subject, &findings, style);
    format!(
        "{}\n\n{page}{}{}",
        without_controls(subject.name),
        subject.how_to_compare().unwrap_or_default(),
        in_full(
            &findings,
            subject.ended(),
            FindingForm::Text,
            &subject.next_head()
        )
    )
}

/// For a pull request: the summary as it stands on a terminal without limit, then a section per
/// finding.
pub fn markdown(subject: Subject<'_>) -> String {
    let findings = diagnose_run(subject);
    let style = PageStyle {
        width: None,
        has_color: false,
    };
    let page = above_evidence(subject, &findings, style);
    format!(
        "# {}\n\n{}{}",
        markdown::inline(subject.name),
        markdown::fenced("", &page),
        in_full(
            &findings,
            subject.ended(),
            FindingForm::Markdown,
            &subject.next_head()
        )
    )
}

/// The summary, without the evidence that a page has below it.
fn above_evidence(subject: Subject<'_>, findings: &[RuleFinding], style: PageStyle) -> String {
    let remarks = Remarks {
        findings,
        notices: &subject.notices(findings),
        has_evidence_below: true,
        folder: subject.folder,
    };
    let (planned, objective) = (subject.planned(), subject.objective());
    summary_with(subject.table, planned, objective, remarks, style)
}

#[derive(Serialize)]
struct ReportPage {
    kiln_report: u32,
    table: String,
    /// `null` for a table without a run beside it.
    planned: Option<usize>,
    outcomes: Map<String, Value>,
    objective: Value,
    points: Vec<Value>,
    not_completed: Vec<Value>,
    findings: Vec<RuleFinding>,
    notices: Vec<String>,
    /// The answers of `--fail-on`, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    gates: Option<Vec<Value>>,
}

/// For programs: one object, a line feed at its end.
pub fn json(subject: Subject<'_>) -> String {
    json_with_gates(subject, None)
}

/// The same with the answers of gates.
pub fn json_with_gates(subject: Subject<'_>, gates: Option<Vec<Value>>) -> String {
    let table = subject.table;
    let findings = diagnose_run(subject);
    let planned = planned_values(subject);
    let planned = planned.as_ref();
    let report = ReportPage {
        kiln_report: KILN_REPORT,
        table: subject.name.to_owned(),
        planned: subject.run.map(|run| run.plan.len()),
        outcomes: outcomes(table),
        objective: objective(subject, planned),
        points: all_points(subject, planned),
        not_completed: not_completed(subject, planned),
        notices: subject.notices(&findings),
        findings,
        gates,
    };
    // Maps with text for keys and finite numbers always become JSON.
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

/// The metric that ranks the points, the best of them by their axes, and the answer in words.
fn objective(subject: Subject<'_>, planned: Option<&PlannedValues>) -> Value {
    let (table, all) = (subject.table, points(subject.table));
    let ranking = Ranking::new(&all, table, subject.objective());
    let marked = ranking.points.iter().filter(|ranked| ranked.is_marked);
    let best: Vec<Value> = marked
        .clone()
        .map(|ranked| axes_of(table, ranked.point))
        .collect();
    let best_values: Vec<Value> = marked
        .map(|ranked| values_of(table, planned, ranked.point))
        .collect();
    json!({
        "metric": ranking.column(),
        "ranked": ranking.objective.superlative(),
        "is_trade_off": ranking.objective.is_trade_off,
        "best": best,
        "best_values": best_values,
        "verdict": ranking.verdict(),
    })
}

/// The values that the sweep lists; `None` without its experiment.
fn planned_values(subject: Subject<'_>) -> Option<PlannedValues> {
    let experiment: Value = spec::read_yaml(subject.experiment?).ok()?;
    Some(PlannedValues::of(&experiment))
}

/// A point's value of each axis with its type: that of the experiment, else what the cell reads as.
fn values_of(table: &TrialTable, planned: Option<&PlannedValues>, point: &Point<'_>) -> Value {
    let typed = |(axis, cell): (&String, &String)| {
        let listed = planned.and_then(|planned| planned.value(axis, cell));
        let value = match (listed, cell.as_str()) {
            (Some(listed), _) => listed.clone(),
            (None, "") => Value::Null,
            (None, text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        };
        (axis.clone(), value)
    };
    Value::Object(table.axes.iter().zip(point.values).map(typed).collect())
}

/// A point's value of each axis, as the table prints it.
pub(super) fn axes_of(table: &TrialTable, point: &Point<'_>) -> Value {
    let values = point.values.iter().map(|value| Value::from(value.as_str()));
    Value::Object(table.axes.iter().cloned().zip(values).collect())
}

fn outcomes(table: &TrialTable) -> Map<String, Value> {
    let rows = table.last_attempts().into_iter().map(|row| &*row.fixed);
    outcome_counts(rows)
        .into_iter()
        .map(|(outcome, count)| (outcome.name().to_owned(), count.into()))
        .collect()
}

/// Each point with its axes, its trials, and the means over those that completed.
fn all_points(subject: Subject<'_>, planned: Option<&PlannedValues>) -> Vec<Value> {
    let table = subject.table;
    const MEANS: [&str; 5] = [
        "samples_per_second",
        "tokens_per_second",
        "median_step_seconds",
        "data_wait_fraction",
        "mfu",
    ];
    let all = points(table);
    let ranking = Ranking::new(&all, table, subject.objective());
    let metrics: Vec<Metric> = ranking.metrics_of_command().collect();
    let ranked = ranking.objective.metric();
    let of = |point: &Point<'_>| {
        let trials: Vec<&str> = point.rows.iter().map(|row| row.trial.0.as_str()).collect();
        let values = values_of(table, planned, point);
        let mut entry = json!({"axes": axes_of(table, point), "values": values, "trials": trials});
        if let Some(failures) = point.failures() {
            entry["failures"] = failures.into();
        }
        let mut tell = |name: &str, value: Option<Statistic>| {
            if let Some(value) = value {
                entry[name] = json!({
                    "mean": value.mean,
                    "deviation": value.deviation,
                    "runs": value.runs,
                });
            }
        };
        for name in MEANS {
            tell(name, point.statistic(measures::reader(point, name)));
        }
        let learned = LEARNED.iter().map(|column| column.metric);
        // The metrics of a command, and any other that ranks the points.
        for metric in learned.chain(metrics.iter().copied()).chain(ranked) {
            tell(
                metric.name(),
                point.statistic(|row| row.metric_of_whole_work(metric)),
            );
        }
        entry
    };
    all.iter().map(of).collect()
}

/// Each trial that did not complete, by its last attempt. `stderr` is the path of its log below the
/// run's folder, `null` where it is not there.
fn not_completed(subject: Subject<'_>, planned: Option<&PlannedValues>) -> Vec<Value> {
    let rows = subject.table.last_attempts().into_iter();
    let of = |TableRow { fixed: row, axes }: &TableRow| {
        let point = Point {
            values: axes,
            rows: vec![row],
        };
        json!({
            "trial": row.trial.0,
            "seed": row.seed,
            "axes": axes_of(subject.table, &point),
            "values": values_of(subject.table, planned, &point),
            "outcome": row.outcome.name(),
            "reason": row.reason,
            "attempt": row.attempt,
            "stderr": log_path(subject.folder, row),
        })
    };
    rows.filter(|row| !row.fixed.is_completed())
        .map(of)
        .collect()
}

#[cfg(test)]
mod tests {
    use kiln_core::record::{TrialRow, note::ResumedCommand};

    use super::{
        super::points::tests::{row, table},
        *,
    };

    #[test]
    fn the_rates_of_a_command_that_resumed_are_not_in_the_means() {
        let note = format!("{}: {}", ResumedCommand::COLUMN, ResumedCommand::TEXT);
        let resumed = TrialRow {
            notes: Some(note),
            median_step_seconds: Some(0.5),
            seconds_to_target: Some(1.0),
            valid_loss: Some(2.0),
            ..row(2, 900.0)
        };
        let whole = TrialRow {
            valid_loss: Some(3.0),
            ..row(1, 100.0)
        };
        let table = table(&["a.b"], vec![(whole, &["1"]), (resumed, &["1"])]);
        let asked = "objective: {metric: seconds_to_target}";
        let subject = Subject {
            experiment: Some(asked),
            ..Subject::new(&table, "x")
        };
        let told: Value = serde_json::from_str(&json(subject)).unwrap();
        let point = &told["points"][0];
        assert_eq!(told["objective"]["metric"], "seconds_to_target");
        assert_eq!(point["samples_per_second"]["mean"], 100.0);
        assert_eq!(point["samples_per_second"]["runs"], 1);
        assert!(point["median_step_seconds"].is_null(), "{point}");
        assert!(point["seconds_to_target"].is_null(), "{point}");
        assert_eq!(point["valid_loss"]["runs"], 2);
        let style = PageStyle {
            width: None,
            has_color: false,
        };
        let page = text(Subject::new(&table, "x"), style);
        let why = "1 trial without a rate: files of an earlier attempt";
        assert!(page.contains(why), "{page}");
    }

    #[test]
    fn values_of_axes_have_the_types_of_the_experiment() {
        let table = table(
            &["train.batch_size", "data.path"],
            vec![(row(1, 1.0), &["32", "8"])],
        );
        let values = |experiment: Option<&str>| {
            let subject = Subject {
                experiment,
                ..Subject::new(&table, "x")
            };
            let told: Value = serde_json::from_str(&json(subject)).unwrap();
            assert_eq!(told["points"][0]["axes"]["train.batch_size"], "32");
            assert_eq!(
                told["objective"]["best_values"][0],
                told["points"][0]["values"]
            );
            told["points"][0]["values"].clone()
        };
        let experiment = "sweep: {grid: {train.batch_size: [16, 32], data.path: ['8', '9']}}";
        assert_eq!(
            values(Some(experiment)),
            json!({"train.batch_size": 32, "data.path": "8"})
        );
        // A table alone does not tell a text of digits from a number.
        assert_eq!(
            values(None),
            json!({"train.batch_size": 32, "data.path": 8})
        );
    }
}
