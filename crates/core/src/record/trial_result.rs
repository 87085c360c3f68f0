//! `trial.json`: the child's measurements, written once at its end (a temporary file, then a
//! rename).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    kinds::data::PairCounts,
    plan::{Outcome, TrialId},
};

/// All measurements of one attempt inside the child. Missing is `None`, never 0 or NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// Format version, 1.
    pub kiln_trial_result: u32,
    pub trial: TrialId,
    pub attempt: u64,
    pub outcome: Outcome,
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub parameters: Option<u64>,
    /// Model FLOPs of one sample, forward and backward.
    #[serde(default)]
    pub flops_per_sample: Option<u64>,
    /// Optimizer updates, including warm-up and those before `resumed_at_step`.
    pub steps: u64,
    /// Wall time of the measured window, without evaluation.
    #[serde(default)]
    pub window_seconds: Option<f64>,
    /// Steps of this attempt before the window.
    pub left_out_steps: u64,
    /// Start and end of the window, CLOCK_MONOTONIC.
    #[serde(default)]
    pub window_started_nanoseconds: Option<u64>,
    #[serde(default)]
    pub window_ended_nanoseconds: Option<u64>,
    /// Intervals excluded from the window (evaluation, checkpoints): start and end,
    /// CLOCK_MONOTONIC.
    #[serde(default)]
    pub window_cuts_nanoseconds: Vec<(u64, u64)>,
    #[serde(default)]
    pub samples_per_second: Option<f64>,
    #[serde(default)]
    pub tokens_per_second: Option<f64>,
    #[serde(default)]
    pub median_step_seconds: Option<f64>,
    /// Wall time of one epoch's training at the window's rate.
    #[serde(default)]
    pub epoch_seconds: Option<f64>,
    /// Fraction of the window in which the trainer was blocked in the loader.
    #[serde(default)]
    pub data_wait_fraction: Option<f64>,
    /// Time that workers spent on the window's batches, summed over workers.
    #[serde(default)]
    pub load_seconds: Option<f64>,
    /// Fraction of the window spent copying batches to the device.
    #[serde(default)]
    pub transfer_fraction: Option<f64>,
    /// Fraction of the window in which the devices of the trial exchanged gradients; `None` for one
    /// device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_fraction: Option<f64>,
    #[serde(default)]
    pub evaluation_seconds: Option<f64>,
    /// Total time of all checkpoints, and size of the last one in bytes.
    #[serde(default)]
    pub checkpoint_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_bytes: Option<u64>,
    /// The step of the checkpoint from which the attempt resumed; its own steps start after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_at_step: Option<u64>,
    /// Mean loss of the last `log_every` steps, in nats per token.
    #[serde(default)]
    pub train_loss: Option<f64>,
    /// Sums over the window, counted batch by batch: samples, tokens without padding, model FLOPs.
    #[serde(default)]
    pub window_samples: Option<u64>,
    #[serde(default)]
    pub window_tokens: Option<u64>,
    #[serde(default)]
    pub window_flops: Option<f64>,
    /// Lengths of the window's prompts and responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_pairs: Option<PairCounts>,
    #[serde(default)]
    pub valid_loss: Option<f64>,
    /// Fractions of validation images whose label has the highest output, and one of the five
    /// highest.
    #[serde(default)]
    pub valid_top1: Option<f64>,
    #[serde(default)]
    pub valid_top5: Option<f64>,
    /// Mean absolute error of validation log returns.
    #[serde(default)]
    pub valid_mean_absolute_error: Option<f64>,
    /// Fraction of validation returns whose direction was right.
    #[serde(default)]
    pub valid_hit_rate: Option<f64>,
    /// BLEU-4 and chrF of written responses against the data's, as fractions of 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_bleu4: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_chrf: Option<f64>,
    /// Error and hit rates of baselines without a model: no change; the previous direction; the
    /// more common direction in training.
    #[serde(default)]
    pub persistence_mean_absolute_error: Option<f64>,
    #[serde(default)]
    pub persistence_hit_rate: Option<f64>,
    #[serde(default)]
    pub majority_hit_rate: Option<f64>,
    /// Skipped parts of the data (rows of `null`, files that are not images), and their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out_of_data: BTreeMap<String, u64>,
    /// Time from the start of training until `train.target` was reached, including evaluation.
    #[serde(default)]
    pub seconds_to_target: Option<f64>,
    /// Allocator peaks of the device over the window; `None` on the CPU.
    #[serde(default)]
    pub peak_allocated_bytes: Option<u64>,
    #[serde(default)]
    pub peak_reserved_bytes: Option<u64>,
    #[serde(default)]
    pub allocator_retries: Option<u64>,
    /// Growth over the window of host memory without file pages, and of the device memory used by
    /// tensors (`train.memory.watch`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_slope_bytes_per_step: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_slope_bytes_per_step: Option<f64>,
    /// Steps that changed nothing because a gradient overflowed, as in `amp-f16`; `None` in other
    /// precisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// The kind of host memory from which batches were copied to the device: `pinned` or
    /// `pageable`; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_from: Option<String>,
    #[serde(default)]
    pub device_name: Option<String>,
    /// As the engine reports it once it is open.
    #[serde(default)]
    pub cpu_threads: Option<u64>,
    /// Threads that the loader started during the whole training; `None` for a model that reads no
    /// data.
    #[serde(default)]
    pub loader_threads: Option<u64>,
    /// Maximum number of batches in host memory at the same time, including unfinished ones.
    #[serde(default)]
    pub peak_batches_in_memory: Option<u64>,
    /// Samples dropped at the end of each epoch because they do not fill a whole step.
    #[serde(default)]
    pub dropped_samples_per_epoch: Option<u64>,
    #[serde(default)]
    pub train_samples: Option<u64>,
    #[serde(default)]
    pub data_sha256: Option<String>,
    /// Libraries loaded into the child (from its memory map): name to the version that each
    /// reports.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
    /// Paths of these libraries.
    #[serde(default)]
    pub library_files: BTreeMap<String, String>,
    /// Switches that affect numbers: TF32, cuDNN benchmark and deterministic.
    #[serde(default)]
    pub flags: BTreeMap<String, String>,
    /// Reasons for empty cells: column to reason.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

impl TrialResult {
    /// The version of libtorch that the trial was compiled for; `None` for a child without it.
    pub fn libtorch(&self) -> Option<&str> {
        self.libraries.get("libtorch").map(String::as_str)
    }
}
