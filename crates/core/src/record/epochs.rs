//! `epochs.csv`: one row at the end of each epoch and at each evaluation of one attempt.

use super::columns::table;

table! {
    /// One row per evaluation (every given number of steps or epoch, `train.evaluate`, and at the end), and
    /// one at the end of each epoch, without a validation loss where none is due. Written by the trial. Not committed.
    EPOCHS: EpochRow = "epochs/3" in "trials/<id>/<attempt>/epochs.csv";
    since 1 {
        /// Time since the run's start mark, at the end of the evaluation.
        run_seconds: f64 ["s"],
        /// Pass over the training data, from 1.
        epoch: u64,
        /// Optimizer steps made so far.
        step: u64,
        /// Mean training loss since the previous row; for returns, squared errors in units of their
        /// standard deviation.
        train_loss: Option<f64> ["nats"],
        /// Mean loss over every target of the validation data, once; for returns as in
        /// `train_loss`.
        valid_loss: Option<f64> ["nats"],
        /// e to the power of `valid_loss`; for text.
        valid_perplexity: Option<f64>,
        /// Wall time of the evaluation, excluded from the measured window.
        evaluation_seconds: Option<f64> ["s"],
        /// Training samples seen so far.
        samples: u64,
    }
    since 2 {
        /// Fraction of validation images whose label has the highest output.
        valid_top1: Option<f64> ["of 1"],
        /// Fraction of validation images whose label has one of the five highest outputs; empty
        /// with fewer than six classes.
        valid_top5: Option<f64> ["of 1"],
        /// Mean absolute error of the validation log returns of a panel.
        valid_mean_absolute_error: Option<f64>,
        /// Fraction of a panel's validation returns whose direction (above 0 or not) was right.
        valid_hit_rate: Option<f64> ["of 1"],
    }
    since 3 {
        /// BLEU-4 of `train.evaluate.generate`'s responses, over characters.
        valid_bleu4: Option<f64> ["of 1"],
        /// chrF of the same responses.
        valid_chrf: Option<f64> ["of 1"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_listed_columns_and_reads_back_with_its_empty_cells() {
        let row = EpochRow {
            kiln_table: EPOCHS.version.to_string(),
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
