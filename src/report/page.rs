//! Prints `kiln report`: the summary, then the full evidence of each finding; as text, Markdown or
//! JSON.

use kiln_core::{
    plan::Outcome,
    record::{TrialRow, TrialTable, nodes::unlike_nodes},
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
    notices,
    points::{Point, Statistic, points},
    ranking::Ranking,
    subject::Subject,
    summary::{Remarks, summary_with},
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

    /// Notices on the whole run: by its rows, and by the differences between its nodes.
    pub(super) fn notices(&self, findings: &[RuleFinding]) -> Vec<String> {
        let of_nodes = self.run.map(|run| unlike_nodes(&run.launches));
        let of_rows = notices(self.table, findings).into_iter();
        of_rows.chain(of_nodes.unwrap_or_default()).collect()
    }
}

/// For a terminal.
pub fn text(subject: Subject<'_>, style: PageStyle) -> String {
    let findings = diagnose_run(subject);
    let notices = subject.notices(&findings);
    let page = summary_with(
        subject.table,
        subject.planned(),
        subject.objective(),
        Remarks {
            findings: &findings,
            notices: &notices,
            has_evidence_below: true,
        },
        style,
    );
    format!(
        "{}\n\n{page}{}{}",
        without_controls(subject.name),
        subject.how_to_compare().unwrap_or_default(),
        in_full(&findings, FindingForm::Text)
    )
}

/// For a pull request: the summary as it stands on a terminal without limit, then a section per
/// finding.
pub fn markdown(subject: Subject<'_>) -> String {
    let findings = diagnose_run(subject);
    let notices = subject.notices(&findings);
    let page = summary_with(
        subject.table,
        subject.planned(),
        subject.objective(),
        Remarks {
            findings: &findings,
            notices: &notices,
            has_evidence_below: true,
        },
        PageStyle {
            width: None,
            has_color: false,
        },
    );
    format!(
        "# {}\n\n{}{}",
        markdown::inline(subject.name),
        markdown::fenced("", &page),
        in_full(&findings, FindingForm::Markdown)
    )
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
    findings: Vec<RuleFinding>,
    notices: Vec<String>,
}

/// For programs: one object, a line feed at its end.
pub fn json(subject: Subject<'_>) -> String {
    let table = subject.table;
    let findings = diagnose_run(subject);
    let report = ReportPage {
        kiln_report: KILN_REPORT,
        table: subject.name.to_owned(),
        planned: subject.run.map(|run| run.plan.len()),
        outcomes: outcomes(table),
        objective: objective(subject),
        points: all_points(subject),
        notices: subject.notices(&findings),
        findings,
    };
    // Maps with text for keys and finite numbers always become JSON.
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

/// The metric that ranks the points, the best of them by their axes, and the answer in words.
fn objective(subject: Subject<'_>) -> Value {
    let (table, all) = (subject.table, points(subject.table));
    let ranking = Ranking::new(&all, table, subject.objective());
    let best: Vec<Value> = ranking
        .points
        .iter()
        .filter(|ranked| ranked.is_marked)
        .map(|ranked| axes_of(table, ranked.point))
        .collect();
    json!({
        "metric": ranking.column(),
        "ranked": ranking.objective.superlative(),
        "is_trade_off": ranking.objective.is_trade_off,
        "best": best,
        "verdict": ranking.verdict(),
    })
}

/// A point's value of each axis.
fn axes_of(table: &TrialTable, point: &Point<'_>) -> Value {
    let values = point.values.iter().map(|value| Value::from(value.as_str()));
    Value::Object(table.axes.iter().cloned().zip(values).collect())
}

fn outcomes(table: &TrialTable) -> Map<String, Value> {
    let rows = table.last_attempts();
    let of = |outcome: Outcome| {
        rows.iter()
            .filter(|row| row.fixed.outcome == outcome)
            .count()
    };
    Outcome::ALL
        .into_iter()
        .filter(|outcome| of(*outcome) > 0)
        .map(|outcome| (outcome.name().to_owned(), of(outcome).into()))
        .collect()
}

/// Each point with its axes, its trials, and the means over those that completed.
fn all_points(subject: Subject<'_>) -> Vec<Value> {
    let table = subject.table;
    type Cell = fn(&TrialRow) -> Option<f64>;
    const MEANS: [(&str, Cell); 5] = [
        ("samples_per_second", |row| row.samples_per_second),
        ("tokens_per_second", |row| row.tokens_per_second),
        ("median_step_seconds", |row| row.median_step_seconds),
        ("data_wait_fraction", |row| row.data_wait_fraction),
        ("mfu", |row| row.mfu),
    ];
    let all = points(table);
    let ranking = Ranking::new(&all, table, subject.objective());
    let metrics: Vec<Metric> = ranking.metrics_of_command().collect();
    let ranked = ranking.objective.metric();
    let of = |point: &Point<'_>| {
        let trials: Vec<&str> = point.rows.iter().map(|row| row.trial.0.as_str()).collect();
        let mut entry = json!({"axes": axes_of(table, point), "trials": trials});
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
        for (name, cell) in MEANS {
            tell(name, point.statistic(cell));
        }
        let learned = LEARNED.iter().map(|column| column.metric);
        // The metrics of a command, and any other that ranks the points.
        for metric in learned.chain(metrics.iter().copied()).chain(ranked) {
            tell(metric.name(), point.statistic(|row| row.metric(metric)));
        }
        entry
    };
    all.iter().map(of).collect()
}
