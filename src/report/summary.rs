//! Prints the table at the end of `kiln run`: the answer, then one line per point, best first, then
//! trials that did not complete, findings and notices.
//!
//! In comes `trials.csv` as read; out comes text. Repeats of a point are one line with their mean;
//! the spread is their sample standard deviation. Nothing is measured or looked up here.

use std::fmt::Write;

use kiln_core::{
    plan::Outcome,
    record::{RunFolder, TrialTable},
    spec::{self, Experiment},
    units::{counted, without_controls},
};

use super::{
    baselines::without_model,
    diagnosis::{RuleFinding, diagnose_asked, diagnose_run},
    findings::lines,
    layout::PageStyle,
    not_completed::NotCompleted,
    notices,
    points::{outcome_counts, points},
    ranked_table::RankedTable,
    ranking::Ranking,
    subject::{AskedRun, Subject},
};

/// The whole page, ending in a line feed. `planned` is how many trials the plan has, `experiment`
/// the text of the resolved experiment, `folder` the run's, where the logs of its trials are.
pub fn summary_in(
    folder: &RunFolder,
    table: &TrialTable,
    planned: usize,
    experiment: Option<&str>,
    style: PageStyle,
) -> String {
    let subject = Subject {
        experiment,
        ..Subject::new(table, "")
    };
    let (findings, objective) = (diagnose_run(subject), subject.objective());
    let notices = notices(table, experiment, &findings);
    let remarks = (&findings[..], &notices[..]);
    with_remarks(Some(folder), table, planned, objective, remarks, style)
}

/// The same for a run of this experiment.
pub fn summary_of_run(
    folder: &RunFolder,
    table: &TrialTable,
    planned: usize,
    experiment: &Experiment,
    style: PageStyle,
) -> String {
    let findings = diagnose_asked(table, AskedRun::of(experiment));
    let objective = experiment.ranking_objective();
    // A kiln writes only rows of its own version of the table.
    let notices = notices(table, None, &findings);
    let remarks = (&findings[..], &notices[..]);
    with_remarks(Some(folder), table, planned, objective, remarks, style)
}

fn with_remarks(
    folder: Option<&RunFolder>,
    table: &TrialTable,
    planned: usize,
    objective: Option<spec::Objective>,
    (findings, notices): (&[RuleFinding], &[String]),
    style: PageStyle,
) -> String {
    let remarks = Remarks {
        findings,
        notices,
        has_evidence_below: false,
        folder,
    };
    summary_with(table, planned, objective, remarks, style)
}

/// Whether the page says that the lead of its best point is larger than noise.
pub fn is_order_certain(table: &TrialTable) -> bool {
    Ranking::new(&points(table), table, None).is_certain()
}

/// The findings and notices below the table of a summary, and where to look further.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remarks<'a> {
    pub(super) findings: &'a [RuleFinding],
    /// On the whole run.
    pub(super) notices: &'a [String],
    /// Whether the evidence of each finding follows.
    pub(super) has_evidence_below: bool,
    /// The run's folder, where the logs of its trials are.
    pub(super) folder: Option<&'a RunFolder>,
}

/// The same page, with remarks that the caller knows.
pub(super) fn summary_with(
    table: &TrialTable,
    planned: usize,
    objective: Option<spec::Objective>,
    remarks: Remarks<'_>,
    style: PageStyle,
) -> String {
    let all = points(table);
    let ranking = Ranking::new(&all, table, objective);
    let mut page = format!("{}\n", counts(table, planned));
    if let Some(verdict) = ranking.verdict() {
        let _ = write!(page, "\n{verdict}\n");
    }
    if !ranking.points.is_empty() {
        let table = RankedTable(&ranking);
        let _ = write!(page, "\n{}", table.render(style));
        page.push_str(&table.without_rate());
        let below = ranking.unequal_samples().into_iter();
        for words in below.chain(without_model(&ranking)) {
            let _ = writeln!(page, "{words}");
        }
    }
    let not_completed = NotCompleted::of(table, remarks.folder, planned).text();
    if !not_completed.is_empty() {
        let _ = write!(page, "\nNot completed:\n{not_completed}");
    }
    page.push_str(&remarks.text(table.last_attempts().len()));
    page
}

impl Remarks<'_> {
    /// A line per finding of so many trials, most costly first, then the notices.
    fn text(self, trials: usize) -> String {
        let found = lines(self.findings, trials)
            .into_iter()
            .map(|line| format!("finding: {line}\n"));
        let mut text: String = found.collect();
        if !text.is_empty() && !self.has_evidence_below {
            text.push_str(
                "`kiln report` shows the evidence of each finding and what to run next\n",
            );
        }
        for notice in self.notices {
            text.push_str(&format!("note: {}\n", without_controls(notice)));
        }
        if text.is_empty() {
            text
        } else {
            format!("\n{text}")
        }
    }
}

/// `12 trials: 10 completed, 1 oom, 1 failed`, or `2 of 3 trials: 2 completed, 1 not run`.
pub(super) fn counts(table: &TrialTable, planned: usize) -> String {
    let rows = table.last_attempts();
    if rows.is_empty() {
        return "no trial has ended yet".to_owned();
    }
    let ended = outcome_counts(rows.iter().map(|row| &*row.fixed))
        .into_iter()
        .map(|(outcome, count)| (count, outcome.name()));
    let not_run = planned.saturating_sub(rows.len());
    let disturbed = rows
        .iter()
        .filter(|row| row.fixed.is_completed())
        .filter(|row| !row.fixed.disturbances().is_empty())
        .count();
    let parts = ended
        .chain([(not_run, "not run")])
        .filter(|(count, _)| *count > 0)
        .map(
            |(count, what)| match disturbed > 0 && what == Outcome::Completed.name() {
                true => format!("{count} {what} ({disturbed} of them disturbed)"),
                false => format!("{count} {what}"),
            },
        );
    let trials = if not_run > 0 {
        format!("{} of {}", rows.len(), counted(planned, "trial"))
    } else {
        counted(rows.len(), "trial")
    };
    format!("{trials}: {}", parts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
pub(super) mod tests;
