//! The axes of a table, checked against the experiment of its run and written as it has them.

use kiln_core::{
    record::{PlannedValues, RunFile, RunFolder, TableError, TrialTable},
    spec,
};
use serde_json::Value;

use super::record::{changed_since, experiment_text};

/// Reads the table of a run on this machine, with its axes as the run's experiment has them.
///
/// # Errors
/// The table cannot be read, lacks an axis of the run's sweep, or has other values or rows that
/// contradict themselves.
pub(in crate::commands) fn table_of_run(run: &RunFolder) -> Result<TrialTable, TableError> {
    let mut table = TrialTable::read_of(run)?;
    let file = RunFile::read(&run.run_file()).ok();
    let experiment = file.as_ref().and_then(|_| experiment_text(run));
    let planned = planned_values(experiment.as_deref(), file.as_ref());
    check_and_unify(&planned, file.as_ref(), &mut table, |planned| {
        planned.check_file(&run.trials_table())
    })?;
    Ok(table)
}

/// The values that the sweep of a run has; none if its experiment is not known, or is not the one that
/// the run recorded.
pub(super) fn planned_values(experiment: Option<&str>, run: Option<&RunFile>) -> PlannedValues {
    let recorded = run.and(experiment);
    let recorded = recorded.filter(|text| changed_since(text, run).is_none());
    let values: Option<Value> = recorded.and_then(|text| spec::read_yaml(text).ok());
    values.map_or_else(PlannedValues::default, |values| PlannedValues::of(&values))
}

/// Writes the axes of a table as the experiment of its run has them; `check` reads the table anew where
/// it lacks some of them.
///
/// # Errors
/// The table lacks an axis of its run's sweep, or has other values or rows that contradict themselves.
pub(super) fn check_and_unify(
    planned: &PlannedValues,
    run: Option<&RunFile>,
    table: &mut TrialTable,
    check: impl FnOnce(&PlannedValues) -> Result<(), TableError>,
) -> Result<(), TableError> {
    if !planned.has_all(table) {
        check(planned)?;
    }
    unify(planned, run, table);
    Ok(())
}

/// Writes the axes of a table as the experiment of its run has them.
pub(super) fn unify(planned: &PlannedValues, run: Option<&RunFile>, table: &mut TrialTable) {
    // Without its recorded hash, the experiment may be that of another table.
    if run.is_some_and(|run| run.experiment_sha256.is_some()) {
        planned.leave_out_others(table);
    }
    planned.unify(table);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::{
        plan::TrialId,
        record::{TableRow, TrialRow, TrialWriter, tables::TRIALS},
    };
    use serde_json::json;
    use sha2::{Digest, Sha256};

    use super::*;

    /// A run of a sweep over batch sizes, with one row of these axes and values.
    fn read(axes: &[&str], values: &[Value], batch_size: u64) -> Result<TrialTable, TableError> {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path().canonicalize().unwrap());
        let experiment = "sweep: {grid: {train.batch_size: [2, 4]}}\n";
        fs::write(run.experiment(), experiment).unwrap();
        let file = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": ["t1"], "launches": [],
            "experiment_sha256": hex::encode(Sha256::digest(experiment)),
        });
        fs::write(run.run_file(), file.to_string()).unwrap();
        let axes: Vec<String> = axes.iter().map(|axis| (*axis).to_owned()).collect();
        let (mut writer, _) = TrialWriter::open(&run.trials_table(), &axes).unwrap();
        let fixed = TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            trial: TrialId("t1".to_owned()),
            batch_size,
            ..TrialRow::default()
        };
        writer.append(&TableRow::new(fixed, values)).unwrap();
        table_of_run(&run)
    }

    #[test]
    fn the_table_of_a_run_has_the_axes_and_values_of_its_sweep() {
        let added = ["train.batch_size", "train.seed"];
        let table = read(&added, &[json!("2.0"), json!(7)], 2).unwrap();
        assert_eq!(table.axes, ["train.batch_size"]);
        assert_eq!(table.rows[0].axes, ["2"]);
        let refused = |axes: &[&str], values: &[Value], batch_size: u64| {
            read(axes, values, batch_size).unwrap_err().to_string()
        };
        let lacking = refused(&["train.seed"], &[json!(7)], 2);
        assert!(
            lacking.contains("no column `train.batch_size`"),
            "{lacking}"
        );
        let foreign = refused(&["train.batch_size"], &[json!(3)], 3);
        assert!(foreign.contains("has `2`, `4`"), "{foreign}");
        let contradicted = refused(&["train.batch_size"], &[json!(4)], 2);
        assert!(
            contradicted.contains("`batch_size` of the same row is `2`"),
            "{contradicted}"
        );
    }
}
