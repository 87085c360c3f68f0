//! `steps.csv`: one row per optimizer step of one attempt.

use super::columns::table;

table! {
    /// One row per optimizer step, written by the trial. Not committed.
    STEPS: StepRow = "steps/2" in "trials/<id>/<attempt>/steps.csv";
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
        /// Time that the trainer was blocked in the loader for the step; on a GPU, whose host runs ahead,
        /// only as far as the GPU had no earlier steps left to do.
        data_wait_seconds: f64 ["s"],
        /// `true` for a step excluded from timing.
        is_warmup: bool,
    }
    since 2 {
        /// Squared norm of the step's gradient before clipping, if the step was measured for
        /// `measure.gradient_noise`; empty for other steps, like the next four columns.
        gradient_norm_squared: Option<f64>,
        /// Mean squared norm of the gradients of its micro-batches.
        micro_gradient_norm_squared: Option<f64>,
        /// Unbiased estimate, from this step alone, of the squared norm of the gradient without
        /// noise; it may be negative.
        gradient_signal: Option<f64>,
        /// The same of the trace of the covariance of a sample's gradient.
        gradient_noise: Option<f64>,
        /// Mean of `gradient_noise` over that of `gradient_signal`: over the newest half of the
        /// measured steps so far, 20 to 200 of them.
        gradient_noise_scale: Option<f64> ["samples"],
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
            gradient_norm_squared: Some(0.5),
            ..StepRow::default()
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.serialize(&row).unwrap();
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        assert_eq!(text.lines().next().unwrap(), STEPS.names().join(","));
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "steps/2,1.5,1,3,,0.001,,0.25,true,0.5,,,,"
        );
        let back: StepRow = csv::Reader::from_reader(text.as_bytes())
            .deserialize()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(back, row);
    }
}
