//! A learner's numbers, for comparisons with other programs and between devices.

use super::Learner;
use crate::{
    engine::guard_result,
    error::TrialError,
    train::{
        optimizer::{self, NamedValues},
        tensor_file::{NamedTensors, OutgoingTensor},
    },
};

impl Learner {
    /// The gradient of the current step by parameter path. Waits for the device.
    pub fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        guard_result(|| self.state.updater.gradients())
    }

    /// The parameters by path. Waits for the device.
    pub fn parameter_values(&self) -> Result<Vec<NamedValues>, TrialError> {
        guard_result(|| optimizer::parameters(self.state.network()))
    }

    /// Addresses of each parameter's first element in the device's memory; empty for engine flex.
    pub fn parameter_addresses(&self) -> Vec<usize> {
        self.state.updater.parameter_addresses()
    }

    /// The first parameter whose values differ between the replicas. Waits for the devices.
    pub(in crate::train) fn first_difference(
        replicas: &[Self],
    ) -> Result<Option<String>, TrialError> {
        guard_result(|| {
            let parameters: Vec<NamedTensors> = replicas
                .iter()
                .map(|replica| optimizer::leaving_parameters(replica.state.network()))
                .collect();
            let Some((first, others)) = parameters.split_first() else {
                return Ok(None);
            };
            let differs = |at: usize, values: &OutgoingTensor| {
                others.iter().any(|other| !other[at].1.is_same(values))
            };
            Ok(first
                .iter()
                .enumerate()
                .find(|(at, (_, values))| differs(*at, values))
                .map(|(_, (path, _))| path.clone()))
        })
    }
}
