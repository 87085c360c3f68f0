//! Batches of tokens on the device.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::data::HostBatch;

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
    /// Copies the batch; `device` is one without autodiff.
    pub(super) fn new(batch: &HostBatch, device: &Device) -> Self {
        let HostBatch { inputs, targets, rows, seq_len } = batch;
        Self {
            inputs: Tensor::from_data(TensorData::new(inputs.clone(), [*rows, *seq_len]), device),
            targets: Tensor::from_data(TensorData::new(targets.clone(), [rows * seq_len]), device),
            counted_targets: batch.counted_targets(),
            rows: *rows,
        }
    }
}
