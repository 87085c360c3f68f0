//! `epochs.csv`: one row at the end of each epoch and at each evaluation of one attempt; a struct
//! is the table, a field is a column.

use serde::{Deserialize, Serialize};

/// Version of the table, in every row.
pub const EPOCHS_TABLE: &str = "epochs/3";

/// The end of an epoch, or an evaluation; both at the same time are one row. An unknown value is an
/// empty cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    pub kiln_table: String,
    /// End of the epoch or of the evaluation, in seconds after the run's start mark.
    pub run_seconds: f64,
    /// Pass over the training data, from 1.
    pub epoch: u64,
    /// Optimizer updates made so far.
    pub step: u64,
    /// Mean loss of the steps since the previous row, in nats per token.
    pub train_loss: Option<f64>,
    /// Mean over every validation target, in nats per token; empty if there was no evaluation here.
    pub valid_loss: Option<f64>,
    /// e to the power of `valid_loss`; empty if that is too large for a number, and for data other
    /// than text.
    pub valid_perplexity: Option<f64>,
    /// Wall time of this evaluation, with a wait for the device at both ends.
    pub evaluation_seconds: Option<f64>,
    /// Samples trained on so far.
    pub samples: u64,
    /// Fraction of validation images whose label has the highest output.
    pub valid_top1: Option<f64>,
    /// Fraction of validation images whose label has one of the five highest outputs.
    pub valid_top5: Option<f64>,
    /// Mean absolute error of validation log returns.
    pub valid_mean_absolute_error: Option<f64>,
    /// Fraction of validation returns whose direction was right.
    pub valid_hit_rate: Option<f64>,
    /// BLEU-4 and chrF of the written responses against those of the data.
    pub valid_bleu4: Option<f64>,
    pub valid_chrf: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::columns::EPOCHS;

    #[test]
    fn a_row_is_the_listed_columns_and_reads_back_with_its_empty_cells() {
        let row = EpochRow {
            kiln_table: EPOCHS_TABLE.to_string(),
            run_seconds: 9.5,
            epoch: 2,
            step: 40,
            train_loss: Some(2.5),
            valid_loss: None,
            valid_perplexity: None,
            evaluation_seconds: None,
            samples: 320,
            valid_top1: Some(0.75),
            valid_top5: None,
            valid_mean_absolute_error: None,
            valid_hit_rate: None,
            valid_bleu4: None,
            valid_chrf: Some(0.25),
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.serialize(&row).unwrap();
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        assert_eq!(text.lines().next().unwrap(), EPOCHS.names().join(","));
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "epochs/3,9.5,2,40,2.5,,,,320,0.75,,,,,0.25"
        );
        let back: EpochRow = csv::Reader::from_reader(text.as_bytes())
            .deserialize()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(back, row);
    }
}
