//! The kernels of gradient scaling (`shim/scaler.cpp`) as safe functions. Input: the gradients and
//! four numbers on their device. Nothing here waits. `train::optimizer::scaler` decides when to
//! call which.

use std::ffi::c_int;

use tch::{Device, Kind, Tensor};

use super::shim::{Handle, checked, count, handle, handles};
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_unscale(gradients: *const Handle, count: c_int, scale: Handle, found: Handle) -> c_int;
    fn kiln_update_scale(
        scale: Handle,
        good_steps: Handle,
        found: Handle,
        skipped: Handle,
        growth: f64,
        back_off: f64,
        interval: i64,
    ) -> c_int;
}

/// Rules by which the scale of the loss changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) start: f64,
    /// Factor after `interval` good steps in a row.
    pub(crate) growth: f64,
    pub(crate) interval: i64,
    /// Factor after a skipped step.
    pub(crate) back_off: f64,
}

/// The state of gradient scaling, on the device; each is one number without axes.
#[derive(Debug)]
pub(crate) struct LossScale {
    /// Factor of the loss, f32.
    scale: Tensor,
    /// Good steps since the scale last changed, i32.
    good_steps: Tensor,
    /// 1 if the current step has a gradient that is NaN or infinite, else 0; f32.
    found: Tensor,
    /// Steps skipped, i64.
    skipped: Tensor,
}

impl LossScale {
    pub(crate) fn new(policy: Policy, device: Device) -> Self {
        let number = |value: f64, kind| Tensor::full([] as [i64; 0], value, (kind, device));
        Self {
            scale: number(policy.start, Kind::Float),
            good_steps: number(0.0, Kind::Int),
            found: number(0.0, Kind::Float),
            skipped: number(0.0, Kind::Int64),
        }
    }

    /// The factor of the loss, [1], in its own memory.
    pub(crate) fn factor(&self) -> Tensor {
        self.scale.copy().reshape([1])
    }

    /// Whether the current step is to be skipped: 1 on the device, else 0.
    pub(crate) fn found(&self) -> &Tensor {
        &self.found
    }

    /// Divides the gradients by the scale, in place, and notes whether one of their numbers is
    /// infinite or none.
    pub(crate) fn unscale(&mut self, gradients: &[Tensor]) -> Result<(), TrialError> {
        let list = handles(gradients);
        // SAFETY: the optimizer owns the gradients, this the two numbers; all are written during
        // the call alone.
        checked(unsafe {
            kiln_unscale(
                list.as_ptr(),
                count(gradients),
                handle(&self.scale),
                handle(&self.found),
            )
        })
    }

    /// Ends a step: counts it if it was skipped, and updates the scale.
    pub(crate) fn update(&mut self, policy: Policy) -> Result<(), TrialError> {
        let Self {
            scale,
            good_steps,
            found,
            skipped,
        } = self;
        let [scale, good_steps, found, skipped] =
            [scale, good_steps, found, skipped].map(|number| handle(number));
        // SAFETY: the four numbers are owned here.
        checked(unsafe {
            kiln_update_scale(
                scale,
                good_steps,
                found,
                skipped,
                policy.growth,
                policy.back_off,
                policy.interval,
            )
        })
    }

    /// Steps skipped so far. Waits for the device.
    pub(crate) fn skipped(&self) -> Result<u64, TrialError> {
        Ok(u64::try_from(self.counts()?.1).unwrap_or(0))
    }

    /// Good steps since the scale last changed, and steps skipped so far. Waits for the device.
    pub(crate) fn counts(&self) -> Result<(i64, i64), TrialError> {
        let read = |number: &Tensor| number.f_int64_value(&[]);
        let counts =
            read(&self.good_steps).and_then(|good_steps| Ok((good_steps, read(&self.skipped)?)));
        counts.map_err(|error| {
            TrialError::Failed(format!(
                "the steps of gradient scaling could not be read: {error}"
            ))
        })
    }

    /// Goes on from these numbers, between two steps.
    pub(crate) fn set(&mut self, scale: f64, good_steps: i64, skipped: i64) {
        let _ = self.scale.fill_(scale);
        let _ = self.good_steps.fill_(good_steps);
        let _ = self.skipped.fill_(skipped);
    }

    /// Waits for the device.
    pub(crate) fn scale(&self) -> Result<f64, TrialError> {
        self.scale.f_double_value(&[]).map_err(|error| {
            TrialError::Failed(format!("the scale of the loss could not be read: {error}"))
        })
    }
}
