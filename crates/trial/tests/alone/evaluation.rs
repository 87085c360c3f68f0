//! Evaluations of the same weights in other batches.

use crate::common::attempts::{Case, LSTM, Trial};

/// A row of validation text begins with an empty memory, so that more rows have a higher loss.
#[test]
fn a_contiguous_validation_text_has_one_loss_whatever_the_batches_are() {
    let loss = |multiple: u64| {
        let train = format!(
            "batch_size: 4, steps: 30, optimizer: {{kind: sgd, learning_rate: 4.0}}, evaluate: \
             {{every: end, batch_multiple: {multiple}}}"
        );
        let case = Case {
            engine: "flex",
            train: train.leak(),
            ..LSTM
        };
        let trained = Trial::new(case, "every_steps: 1000").complete_here(1);
        trained.result.unwrap().figures.valid_loss.unwrap()
    };
    assert_eq!(loss(1), loss(16));
}
