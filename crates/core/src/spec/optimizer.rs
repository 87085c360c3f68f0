//! `train.optimizer` and `train.learning_rate_schedule`: the update rule and the schedule of its
//! step size. `kiln-trial` implements them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The update rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    Adamw {
        /// Step size, before the schedule.
        #[serde(default = "learning_rate")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        learning_rate: f64,
        /// Decay of the mean of the gradient.
        #[serde(default = "beta1")]
        #[schemars(range(min = 0.0, max = 0.999_999_9))]
        beta1: f64,
        /// Decay of the mean of the squared gradient.
        #[serde(default = "beta2")]
        #[schemars(range(min = 0.0, max = 0.999_999_9))]
        beta2: f64,
        /// Added to the root of the squared mean.
        #[serde(default = "epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        epsilon: f64,
        /// Fraction of a weight, times the learning rate, subtracted from it per step.
        #[serde(default = "weight_decay")]
        #[schemars(range(min = 0.0))]
        weight_decay: f64,
        #[serde(default)]
        weight_decay_on: WeightDecayOn,
    },
    /// Stochastic gradient descent; weight decay is added to the gradient.
    Sgd {
        /// Step size, before the schedule.
        #[serde(default = "sgd_learning_rate")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        learning_rate: f64,
        /// Fraction of the last update that is added to the next one.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 0.999_999_9))]
        momentum: f64,
        /// Whether to use Nesterov momentum; needs `momentum`.
        #[serde(default)]
        nesterov: bool,
        /// Fraction of a weight that is added to its gradient.
        #[serde(default)]
        #[schemars(range(min = 0.0))]
        weight_decay: f64,
        #[serde(default)]
        weight_decay_on: WeightDecayOn,
    },
    /// Adafactor with an explicit learning rate: step sizes do not depend on parameters or time
    /// (Shazeer & Stern 2018). Its memory grows with the sum of a matrix's sides, not their
    /// product.
    Adafactor {
        /// Step size, before the schedule.
        #[serde(default = "learning_rate")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        learning_rate: f64,
        /// Decay exponent of the means of the squared gradient: step t updates them with weight t
        /// to the power of minus this.
        #[serde(default = "decay_rate")]
        #[schemars(range(min = 0.0, max = 1.0))]
        decay_rate: f64,
        /// Added to the squared gradient.
        #[serde(default = "square_epsilon")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        epsilon: f64,
        /// Largest root mean square of one parameter's update, before the learning rate.
        #[serde(default = "clip_threshold")]
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        clip_threshold: f64,
        /// Fraction of a weight, times the learning rate, subtracted from it per step.
        #[serde(default)]
        #[schemars(range(min = 0.0))]
        weight_decay: f64,
        #[serde(default)]
        weight_decay_on: WeightDecayOn,
    },
}

impl Optimizer {
    /// Step size at the schedule's peak.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Adamw { learning_rate, .. }
            | Self::Sgd { learning_rate, .. }
            | Self::Adafactor { learning_rate, .. } => *learning_rate,
        }
    }

    /// Weight decay of a parameter with this many axes.
    pub fn weight_decay_of(&self, axes: usize) -> f64 {
        let (weight_decay, on) = match self {
            Self::Adamw {
                weight_decay,
                weight_decay_on,
                ..
            }
            | Self::Sgd {
                weight_decay,
                weight_decay_on,
                ..
            }
            | Self::Adafactor {
                weight_decay,
                weight_decay_on,
                ..
            } => (*weight_decay, *weight_decay_on),
        };
        if on == WeightDecayOn::Matrices && axes < 2 {
            0.0
        } else {
            weight_decay
        }
    }

    /// Tensors that it remembers for each parameter, each as large as the parameter.
    pub fn moments(&self) -> u64 {
        match self {
            Self::Adamw { .. } => 2,
            // Adafactor's have the size of a matrix's sides.
            Self::Sgd { momentum: 0.0, .. } | Self::Adafactor { .. } => 0,
            Self::Sgd { .. } => 1,
        }
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Adamw {
            learning_rate: learning_rate(),
            beta1: beta1(),
            beta2: beta2(),
            epsilon: epsilon(),
            weight_decay: weight_decay(),
            weight_decay_on: WeightDecayOn::All,
        }
    }
}

fn learning_rate() -> f64 {
    1e-3
}
fn beta1() -> f64 {
    0.9
}
fn beta2() -> f64 {
    0.999
}
fn epsilon() -> f64 {
    1e-8
}
fn weight_decay() -> f64 {
    0.01
}
fn decay_rate() -> f64 {
    0.8
}
fn square_epsilon() -> f64 {
    1e-30
}
fn clip_threshold() -> f64 {
    1.0
}
fn sgd_learning_rate() -> f64 {
    0.1
}

/// Which tensors weight decay applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightDecayOn {
    #[default]
    All,
    /// Tensors of two or more dimensions only: no biases, no norms.
    Matrices,
}

/// How the learning rate changes over the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LearningRateSchedule {
    Constant {
        /// Steps over which the rate rises linearly from near 0.
        #[serde(default)]
        #[schemars(range(min = 0, max = 1_000_000_000))]
        warmup_steps: u64,
    },
    /// Falls linearly to `final_fraction` of the rate at the last step.
    Linear {
        /// Steps over which the rate rises linearly from near 0.
        #[serde(default)]
        #[schemars(range(min = 0, max = 1_000_000_000))]
        warmup_steps: u64,
        /// Fraction of the rate at the last step.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        final_fraction: f64,
    },
    /// Falls along half a cosine to `final_fraction` of the rate at the last step.
    Cosine {
        /// Steps over which the rate rises linearly from near 0.
        #[serde(default)]
        #[schemars(range(min = 0, max = 1_000_000_000))]
        warmup_steps: u64,
        /// Fraction of the rate at the last step.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        final_fraction: f64,
    },
    /// Multiplied by `factor` when the validation loss stops improving. Needs evaluations during
    /// training (`evaluate.every`).
    Plateau {
        /// Steps over which the rate rises linearly from near 0.
        #[serde(default)]
        #[schemars(range(min = 0, max = 1_000_000_000))]
        warmup_steps: u64,
        /// Factor applied to the rate each time.
        #[serde(default = "quarter")]
        #[schemars(range(min = 0.001, max = 0.999))]
        factor: f64,
        /// Number of evaluations in a row without a new lowest loss that are tolerated.
        #[serde(default)]
        #[schemars(range(min = 0, max = 1_000_000))]
        patience: u64,
    },
}

/// Source: pytorch/examples, word_language_model.
fn quarter() -> f64 {
    0.25
}

impl LearningRateSchedule {
    /// Steps over which the rate rises from near 0.
    pub fn warmup_steps(&self) -> u64 {
        match self {
            Self::Constant { warmup_steps }
            | Self::Linear { warmup_steps, .. }
            | Self::Cosine { warmup_steps, .. }
            | Self::Plateau { warmup_steps, .. } => *warmup_steps,
        }
    }

    /// Whether the rate of a step depends on the number of all steps.
    pub fn is_over_all_steps(&self) -> bool {
        matches!(self, Self::Linear { .. } | Self::Cosine { .. })
    }
}

impl Default for LearningRateSchedule {
    fn default() -> Self {
        Self::Constant { warmup_steps: 0 }
    }
}
