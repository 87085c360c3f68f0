//! Batches of tokens on the device.

use burn::tensor::{Int, Tensor};

use crate::{
    TrialError,
    data::HostBatch,
    engine::{HostCopy, Tokens},
};

/// A batch on the device.
#[derive(Clone, Debug)]
pub struct DeviceBatch {
    pub(super) inputs: Tensor<2, Int>,  // [rows, time]
    pub(super) targets: Tensor<1, Int>, // [rows × time]
    /// Targets that count in the loss.
    pub counted_targets: u64,
    pub rows: usize,
}

impl DeviceBatch {
    /// Copies the batch.
    pub(super) fn new(batch: &HostBatch, copy: &mut HostCopy) -> Result<Self, TrialError> {
        let HostBatch { inputs, targets, rows, seq_len } = batch;
        let (inputs, targets) = copy.copy(Tokens { inputs, targets, rows: *rows, seq_len: *seq_len })?;
        Ok(Self { inputs, targets, counted_targets: batch.counted_targets(), rows: *rows })
    }
}
