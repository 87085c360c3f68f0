//! `layers.csv`: the gradient of each layer group in the measured steps of one attempt.

use super::columns::table;

table! {
    /// One row per layer group and measured step, written by the trial with
    /// `measure.gradient_noise.layer_groups`. Not committed.
    LAYERS: LayerRow = "layers/1" in "trials/<id>/<attempt>/layers.csv";
    since 1 {
        /// Optimizer step, from 1.
        step: u64,
        /// The names of its parameters up to their first numbers, such as `blocks.3`, or up to the
        /// first dot in those without a number, such as `token_table`.
        layer_group: String,
        /// Number of parameters in the group.
        parameters: u64,
        /// Squared norm of the step's gradient before clipping, over the parameters of this group
        /// alone. The groups of a step add up to the column of this name in `steps.csv`; so do the
        /// next three columns. Empty if it overflowed, like the next column.
        gradient_norm_squared: Option<f64>,
        /// Mean squared norm of the gradients of the micro-batches, over these parameters.
        micro_gradient_norm_squared: Option<f64>,
        /// Unbiased estimate, from this step alone, of the squared norm of the gradient without
        /// noise, over these parameters; it may be negative. Empty where `steps.csv` has none for
        /// the step, like the next column.
        gradient_signal: Option<f64>,
        /// Unbiased estimate, from this step alone, of the trace of the covariance of a sample's
        /// gradient, over these parameters.
        gradient_noise: Option<f64>,
    }
}
