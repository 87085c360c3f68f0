//! `steps.csv`: one row per optimizer step of one attempt; a struct is the table, a field is a
//! column.

use serde::{Deserialize, Serialize};

/// Version of the table, in every row.
pub const STEPS_TABLE: &str = "steps/1";

/// One optimizer step. An unknown value is an empty cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    pub kiln_table: String,
    /// End of the step on the host, in seconds after the run's start mark.
    pub run_seconds: f64,
    /// Pass over the training data that the step belongs to, from 1.
    pub epoch: u64,
    /// Optimizer update, from 1.
    pub step: u64,
    /// Mean over the step's targets, in nats per token; empty if the model has no loss.
    pub loss: Option<f64>,
    /// Learning rate of this update.
    pub learning_rate: Option<f64>,
    /// Time from the end of the previous step, without evaluation; empty if the host runs ahead of
    /// the device.
    pub step_seconds: Option<f64>,
    /// Part of the step in which the trainer was blocked in the loader.
    pub data_wait_seconds: f64,
    /// Whether the step is excluded from timing.
    pub is_warmup: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::columns::STEPS;

    #[test]
    fn a_row_is_the_listed_columns_and_reads_back_with_its_empty_cells() {
        let row = StepRow {
            kiln_table: STEPS_TABLE.to_string(),
            run_seconds: 1.5,
            epoch: 1,
            step: 3,
            loss: None,
            learning_rate: Some(1e-3),
            step_seconds: None,
            data_wait_seconds: 0.25,
            is_warmup: true,
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.serialize(&row).unwrap();
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        assert_eq!(text.lines().next().unwrap(), STEPS.names().join(","));
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "steps/1,1.5,1,3,,0.001,,0.25,true"
        );
        let back: StepRow = csv::Reader::from_reader(text.as_bytes())
            .deserialize()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(back, row);
    }
}
