//! `steps.csv`: one row per optimizer step of one attempt.

use super::columns::table;

table! {
    /// One row per optimizer step, written by the trial. Not committed.
    STEPS: StepRow = "steps/1" in "trials/<id>/<attempt>/steps.csv";
    since 1 {
        /// Time since the run's start mark, at the end of the step.
        run_seconds: f64 ["s"],
        /// Pass over the training data, from 1.
        epoch: u64,
        /// Optimizer step, from 1.
        step: u64,
        /// Mean loss per target over the effective batch; nats per token for text.
        loss: Option<f64> ["nats"],
        /// Learning rate of this update.
        learning_rate: Option<f64>,
        /// Wall time of the step, loader waits included.
        step_seconds: Option<f64> ["s"],
        /// Part of the step in which the trainer was blocked in the loader.
        data_wait_seconds: f64 ["s"],
        /// `true` for a step excluded from timing.
        is_warmup: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_listed_columns_and_reads_back_with_its_empty_cells() {
        let row = StepRow {
            kiln_table: STEPS.version.to_string(),
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
