//! Reads the table of a run on this machine.

use kiln_core::record::{RunFile, RunFolder, TableError, TrialTable};

use super::{check_and_unify, experiment_text, planned_values};

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

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::{
        plan::TrialId,
        record::{TableRow, TrialRow, TrialWriter, tables::TRIALS},
    };
    use serde_json::{Value, json};
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
