//! `layers.csv`: the gradient of each layer group in the measured steps of one attempt.

use super::columns::table;

table! {
    /// One row per layer group and measured step, written by the trial with
    /// `measure.gradient_noise.layer_groups`. Not committed.
    LAYERS: LayerRow = "layers/1" in "trials/<id>/<attempt>/layers.csv";
    since 1 {
        /// Optimizer step, from 1.
        step: u64,
        /// The part of its parameters' names that they share, such as `blocks.3` or `token_table`.
        layer_group: String,
        /// Its number of parameters.
        parameters: u64,
        /// Squared norm of its part of the step's gradient before clipping; the groups of a step add
        /// up to the column of `steps.csv`, as in the next columns.
        gradient_norm_squared: Option<f64>,
        /// Mean squared norm of its part of the gradients of the micro-batches.
        micro_gradient_norm_squared: Option<f64>,
        /// Unbiased estimate, from this step alone, of the squared norm of its part of the gradient
        /// without noise; it may be negative.
        gradient_signal: Option<f64>,
        /// The same of the trace of the covariance of its part of a sample's gradient.
        gradient_noise: Option<f64>,
    }
}
