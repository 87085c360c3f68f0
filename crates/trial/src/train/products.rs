//! `model.kind: matmul`: no training. A step is `batch_size` × `grad_accumulation` matrix products on
//! each device; they are measured as the steps of a training are.

use std::io::Write;

use kiln_core::{kinds, plan::TrialFile};

use super::{
    feed::StepPlan,
    measurement::{AllocatorPeaks, DeviceWork, EndedStep, Measurement},
    training::Ending,
    trial_device,
};
use crate::{
    engine::{EngineDevice, Ops, guard, guard_result},
    error::TrialError,
    matmul::Factors,
    model::Init,
};

/// The products of one trial.
pub(super) struct Products {
    /// One per device.
    parts: Vec<(EngineDevice, Factors)>,
    /// Products per step and device.
    per_step: u64,
}

/// Errors: `train.steps` is missing, for there are no epochs to count.
pub(super) fn plan(file: &TrialFile) -> Result<StepPlan, TrialError> {
    let train = &file.train;
    let total_steps = train.steps.ok_or_else(|| {
        TrialError::Bad(
            "`train.steps` is missing; a model without data has no epochs to count".to_owned(),
        )
    })?;
    Ok(StepPlan {
        total_steps,
        steps_per_epoch: None,
        samples_per_step: train.batch_size * file.batches_per_step(),
        tokens_per_sample: 0.0,
        targets_per_sample: 0,
    })
}

impl Products {
    /// Opens the devices and makes the factors. Random: from `train.seed`.
    ///
    /// Errors: no such device, a precision the engine lacks, too little memory.
    pub(super) fn build(file: &TrialFile, shape: &kinds::Matmul) -> Result<Self, TrialError> {
        let train = &file.train;
        let ops = Ops::new(file.engine, train.precision)?;
        let part = |index: u64| {
            let device = trial_device::open(file, index)?;
            let init = Init {
                seed: train.seed,
                device: device.with_gradients(),
            };
            let factors = guard(|| Factors::new(shape, train.precision, ops, &init))?;
            Ok((device, factors))
        };
        Ok(Self {
            parts: (0..file.devices_per_trial)
                .map(part)
                .collect::<Result<_, TrialError>>()?,
            per_step: train.batch_size * train.grad_accumulation,
        })
    }

    /// The first device; `None` where the trial has no devices.
    pub(super) fn device(&self) -> Option<&EngineDevice> {
        self.parts.first().map(|(device, _)| device)
    }

    /// Makes all steps. The tables are written and synced, whatever the ending; not so after an
    /// error.
    pub(super) fn run<W: Write>(
        &mut self,
        measurement: &mut Measurement<'_, '_, W>,
    ) -> Result<Ending, TrialError> {
        let ending = self.make_steps(measurement)?;
        measurement.close_window(self)?;
        measurement.settle(self, &[], &[], &[])?;
        let now = measurement.clock.now();
        measurement.send_progress(now)?;
        measurement.tables.sync()?;
        Ok(ending)
    }

    fn make_steps<W: Write>(
        &mut self,
        measurement: &mut Measurement<'_, '_, W>,
    ) -> Result<Ending, TrialError> {
        for step in 1..=measurement.plan.total_steps {
            if measurement.is_interrupted() {
                return Ok(Ending::Interrupted);
            }
            measurement.begin_step(step, self)?;
            self.multiply()?;
            measurement.end_step(EndedStep {
                step,
                ..EndedStep::default()
            })?;
            if measurement.is_logged(step) && step < measurement.plan.total_steps {
                // There is no loss to read, but the host must not run far ahead of the device.
                self.wait()?;
                measurement.settle(self, &[], &[], &[])?;
            }
        }
        Ok(Ending::Completed)
    }

    /// One step on each device. Does not wait.
    fn multiply(&self) -> Result<(), TrialError> {
        self.parts.iter().try_for_each(|(_, factors)| {
            guard_result(|| {
                (0..self.per_step).for_each(|_| drop(factors.product()));
                Ok(())
            })
        })
    }
}

impl DeviceWork for Products {
    fn wait(&mut self) -> Result<(), TrialError> {
        self.parts
            .iter_mut()
            .try_for_each(|(device, _)| DeviceWork::wait(device))
    }

    /// The peaks of the device with the highest values.
    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        self.parts
            .iter()
            .filter_map(|(device, _)| device.allocator_peaks())
            .reduce(AllocatorPeaks::highest)
    }

    /// On all devices together.
    fn allocated_bytes(&self) -> Option<u64> {
        self.parts
            .iter()
            .map(|(device, _)| device.allocated_bytes())
            .sum()
    }

    fn reset_allocator_peaks(&mut self) {
        self.parts
            .iter_mut()
            .for_each(|(device, _)| DeviceWork::reset_allocator_peaks(device));
    }
}
