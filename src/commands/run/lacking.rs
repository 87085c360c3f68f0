//! The trials of a launch that lack a metric although their program ended with status 0. A retry does
//! not mend them.

use std::collections::HashSet;

use kiln_core::{
    kinds::command::Command,
    plan::{Outcome, TrialId},
    record::{AttemptEnd, RunFolder, TrialRow, TrialTable, metric_reason},
};

use crate::relay::{KeptAttempt, NotReadable, check_kept};

/// Outcomes that a retry may mend.
pub(super) const RETRIED: [Outcome; 2] = [Outcome::Failed, Outcome::TimedOut];

/// The trials that lack a metric, and what is known of their output.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    pub(super) trials: HashSet<TrialId>,
    /// Whether a trial lacks a metric that is read from its output or files.
    is_of_metric: bool,
    /// Whether a trial lacks the length of its window.
    is_of_window: bool,
    /// Why none of them can be read again, as far as that is known.
    unreadable: Option<NotReadable>,
}

impl Lacking {
    /// The trials of `ends` that a retry would run. `command` is that of the experiment of `run`.
    pub(super) fn of(
        table: &TrialTable,
        ends: &[AttemptEnd],
        run: &RunFolder,
        command: Option<&Command>,
    ) -> Self {
        let retried = ends.iter().filter(|end| RETRIED.contains(&end.outcome));
        let retried: HashSet<&TrialId> = retried.map(|end| &end.trial).collect();
        let rows = table.last_attempts().into_iter().map(|row| &*row.fixed);
        let rows = rows.filter(|row| {
            let lacks = metric_reason::is_of_metric(reason(row));
            lacks && retried.contains(&row.trial)
        });
        let rows: Vec<&TrialRow> = rows.collect();
        let is_of_window = |row: &&TrialRow| metric_reason::is_of_window(reason(row));
        Self {
            trials: rows.iter().map(|row| row.trial.clone()).collect(),
            is_of_metric: !rows.iter().all(is_of_window),
            is_of_window: rows.iter().any(is_of_window),
            unreadable: command.and_then(|command| unreadable(command, run, &rows)),
        }
    }

    /// How to complete these trials, in sentences; empty if there are none. `command` is the one that
    /// ran, and `run` the path of its run.
    pub(super) fn advice(&self, command: &str, run: &str) -> Vec<String> {
        let of_metric = self.is_of_metric.then(|| match &self.unreadable {
            None => format!(
                "a retry does not mend a missing metric: correct `model.metrics`, then `{command} \
                 --read-again {run}` reads it from the output that these trials left, without \
                 running them"
            ),
            Some(why) => format!(
                "a retry does not mend a missing metric: correct `model.metrics`, then `{command}` \
                 starts a new run; the output that these trials left cannot be read again ({why})"
            ),
        });
        let of_window = self.is_of_window.then(|| {
            let optional = match &self.unreadable {
                None => format!(
                    "; or add `optional: true` to the metric, then `{command} --read-again {run}` \
                     completes these trials without it"
                ),
                Some(_) => String::new(),
            };
            format!(
                "a retry does not mend a missing window: correct `model.window`, then `{command}` starts \
                 a new run, because the times of lines are not kept{optional}"
            )
        });
        of_metric.into_iter().chain(of_window).collect()
    }
}

fn reason(row: &TrialRow) -> &str {
    row.reason.as_deref().unwrap_or_default()
}

/// Why none of these trials can be read again, as far as that is known without their output.
fn unreadable(command: &Command, run: &RunFolder, rows: &[&TrialRow]) -> Option<NotReadable> {
    // Files of metrics are compared with the whole path of the attempt.
    let path = run.path().canonicalize();
    let run = path.map_or_else(|_| run.clone(), RunFolder::at);
    let mut first = None;
    for row in rows {
        let folder = run.attempt(&row.trial, row.attempt);
        let kept = KeptAttempt {
            folder: &folder,
            trial: &row.trial,
            seed: row.seed,
            is_on_gpu: row.is_on_gpu(),
        };
        match check_kept(command, &kept) {
            Ok(()) => return None,
            Err(why) => first = first.or(Some(why)),
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use kiln_core::record::TableRow;

    use super::*;

    fn row(trial: &str, outcome: Outcome, reason: &str) -> TableRow {
        TableRow {
            fixed: Box::new(TrialRow {
                trial: TrialId(trial.to_owned()),
                attempt: 1,
                outcome,
                reason: Some(reason.to_owned()),
                ..TrialRow::default()
            }),
            axes: Vec::new(),
        }
    }

    fn lacking(rows: Vec<TableRow>, command: Option<&Command>) -> Lacking {
        let ends: Vec<AttemptEnd> = rows.iter().map(AttemptEnd::of).collect();
        let table = TrialTable {
            rows,
            ..TrialTable::default()
        };
        Lacking::of(&table, &ends, &RunFolder::at("/nowhere/x/r"), command)
    }

    fn of_metric(trial: &str) -> TableRow {
        let reason = metric_reason::of_program("sh", "`loss` never came");
        row(trial, Outcome::Failed, &reason)
    }

    fn of_window(trial: &str) -> TableRow {
        let fault = metric_reason::of_window("wall", "`window.from` never came");
        let reason = metric_reason::of_program("sh", &fault);
        row(trial, Outcome::Failed, &reason)
    }

    fn advice(rows: Vec<TableRow>) -> Vec<String> {
        lacking(rows, None).advice("kiln run x.yaml", "results/x/r")
    }

    #[test]
    fn trials_that_ended_otherwise_lack_no_metric() {
        let completed = || row("t1", Outcome::Completed, "");
        assert!(advice(vec![completed()]).is_empty());
        let late = row("t3", Outcome::TimedOut, "no message for 10 s");
        let other = row("t4", Outcome::Failed, "sh ended with status 1");
        let found = lacking(vec![completed(), of_metric("t2"), late, other], None);
        assert_eq!(found.trials, HashSet::from([TrialId("t2".to_owned())]));
        let advice = found.advice("kiln run x.yaml", "results/x/r");
        assert_eq!(
            advice,
            [
                "a retry does not mend a missing metric: correct `model.metrics`, then `kiln run x.yaml \
                 --read-again results/x/r` reads it from the output that these trials left, without \
                 running them"
            ]
        );
    }

    #[test]
    fn a_missing_window_is_not_mended_by_other_metrics() {
        let alone = advice(vec![of_window("t1")]);
        assert_eq!(
            alone,
            [
                "a retry does not mend a missing window: correct `model.window`, then `kiln run x.yaml` \
                 starts a new run, because the times of lines are not kept; or add `optional: true` to \
                 the metric, then `kiln run x.yaml --read-again results/x/r` completes these trials \
                 without it"
            ]
        );
        let both = advice(vec![of_window("t1"), of_metric("t2")]);
        assert_eq!(both.len(), 2, "{both:?}");
        assert_eq!(both[1], alone[0]);
    }

    #[test]
    fn output_that_cannot_be_read_again_is_told_with_the_reason() {
        let command: Command =
            serde_yaml::from_str("{argv: [x], metrics: {loss: {line: 'loss (.*)'}}}").unwrap();
        let found = lacking(vec![of_metric("t1"), of_window("t2")], Some(&command));
        let advice = found.advice("kiln run x.yaml", "results/x/r");
        assert!(
            advice[0]
                .ends_with("cannot be read again (without `program.json`, the record of its end)"),
            "{advice:?}"
        );
        assert_eq!(advice.len(), 2, "{advice:?}");
        let advice = advice.join("\n");
        assert!(!advice.contains("--read-again"), "{advice}");
    }
}
