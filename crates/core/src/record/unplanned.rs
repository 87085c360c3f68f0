//! Rows of trials that the recorded plan does not have: a merge took the `run.json` of another run. In:
//! a table and `run.json`. Out: a sentence.

use std::{collections::HashSet, fmt};

use super::{RunFile, TrialRow, TrialTable};
use crate::{plan::TrialId, units::counted};

/// Rows of trials that are not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnplannedRows {
    pub rows: usize,
    /// The trial of the first one.
    pub trial: TrialId,
}

impl fmt::Display for UnplannedRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the plan in `run.json` does not have the trials of {} (the first: trial {}); a merge may \
             have taken the `run.json` of another run: restore the one of these rows",
            counted(self.rows, "row"),
            self.trial
        )
    }
}

/// The rows of trials that the plan does not have; `None` if there is none. A smaller trial in place of
/// one that ran out of memory is in no plan, and a search still adds to its plan.
pub fn unplanned_rows(table: &TrialTable, run: &RunFile) -> Option<UnplannedRows> {
    if run.is_searching {
        return None;
    }
    let plan: HashSet<&TrialId> = run.plan.iter().collect();
    let is_unplanned = |row: &TrialRow| row.fallback_of.is_none() && !plan.contains(&row.trial);
    let rows = table.rows.iter().map(|row| &*row.fixed);
    let found: Vec<&TrialRow> = rows.filter(|row| is_unplanned(row)).collect();
    let first = found.first()?;
    Some(UnplannedRows {
        rows: found.len(),
        trial: first.trial.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::TableRow;

    #[test]
    fn rows_outside_the_plan_are_counted() {
        let row = |trial: &str, fallback_of: Option<&str>| {
            let fixed = TrialRow {
                trial: TrialId(trial.to_owned()),
                fallback_of: fallback_of.map(|id| TrialId(id.to_owned())),
                ..TrialRow::default()
            };
            TableRow::new(fixed, &[])
        };
        let found = |plan: &[&str], is_searching: bool| {
            let file = json!({
                "kiln_run": 1, "experiment": "x", "tables": {}, "plan": plan, "launches": [],
                "is_searching": is_searching,
            });
            let run: RunFile = serde_json::from_value(file).unwrap();
            let table = TrialTable {
                rows: vec![row("t1", None), row("t2", None), row("t3", Some("t1"))],
                ..TrialTable::default()
            };
            unplanned_rows(&table, &run).map(|found| (found.rows, found.trial.0))
        };
        assert_eq!(found(&["t1", "t2"], false), None);
        assert_eq!(
            found(&["1", "t2", "t4"], false),
            None,
            "an id without its letter"
        );
        assert_eq!(found(&["t1"], false), Some((1, "t2".to_owned())));
        assert_eq!(found(&[], false), Some((2, "t1".to_owned())));
        assert_eq!(found(&["t1"], true), None, "a search adds to its plan");
    }
}
