//! Gradient scaling, for products in f16: the loss is multiplied by a scale before the backward
//! pass, so that small gradients are not zero in f16, and the gradients are divided by it before
//! they are clipped and used. A step whose gradients overflowed is skipped, and the scale is
//! lowered. As PyTorch's `torch.amp.GradScaler`. Only functions that say so wait for the device.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use burn::{backend::LibTorch, tensor::Tensor};
use burn_tch::TchTensor;

use super::ScalerState;
use crate::{
    engine::scaler::{LossScale, Policy},
    error::TrialError,
};

/// The defaults of `torch.amp.GradScaler`.
const GRAD_SCALER: Policy = Policy {
    start: 65536.0,
    growth: 2.0,
    interval: 2000,
    back_off: 0.5,
};

#[derive(Debug)]
pub(super) struct Scaler {
    state: LossScale,
    policy: Policy,
}

impl Scaler {
    pub(super) fn new(device: tch::Device) -> Self {
        Self::with(GRAD_SCALER, device)
    }

    fn with(policy: Policy, device: tch::Device) -> Self {
        Self {
            state: LossScale::new(policy, device),
            policy,
        }
    }

    /// The loss to go backward from; loss and result [1], f32.
    pub(super) fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        let factor = Tensor::from_primitive::<LibTorch>(TchTensor::new(self.state.factor()));
        loss * if factor.is_autodiff() {
            factor
        } else {
            factor.autodiff()
        }
    }

    /// The square of the loss's factor, [], f64, on the device.
    pub(super) fn squared_factor(&self) -> tch::Tensor {
        let factor = self.state.factor().to_kind(tch::Kind::Double);
        factor.square().reshape([0_i64; 0])
    }

    /// Makes plain gradients of those of the scaled loss.
    pub(super) fn unscale(&mut self, gradients: &[tch::Tensor]) -> Result<(), TrialError> {
        self.state.unscale(gradients)
    }

    /// Whether the step is to be skipped: 1 on the device, else 0.
    pub(super) fn found(&self) -> &tch::Tensor {
        self.state.found()
    }

    /// Counts a skipped step, and updates the scale.
    pub(super) fn end_step(&mut self) -> Result<(), TrialError> {
        self.state.update(self.policy)
    }

    /// Steps skipped so far. Waits for the device.
    pub(super) fn skipped(&self) -> Result<u64, TrialError> {
        self.state.skipped()
    }

    /// Between two steps. Waits for the device.
    pub(super) fn state(&self) -> Result<ScalerState, TrialError> {
        let (good_steps, skipped) = self.state.counts()?;
        Ok(ScalerState {
            scale: self.scale()?,
            good_steps,
            skipped,
        })
    }

    pub(super) fn restore(&mut self, state: ScalerState) {
        self.state.set(state.scale, state.good_steps, state.skipped);
    }

    /// Factor of the gradients until [`Scaler::unscale`]. Waits for the device.
    pub(super) fn scale(&self) -> Result<f64, TrialError> {
        self.state.scale()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(interval: i64) -> Scaler {
        Scaler::with(
            Policy {
                interval,
                ..GRAD_SCALER
            },
            tch::Device::Cpu,
        )
    }

    /// One step whose scaled gradients are these; the gradients without the scale.
    fn step(scaler: &mut Scaler, gradients: &[f32]) -> Vec<f32> {
        let gradients = [tch::Tensor::from_slice(gradients)];
        scaler.unscale(&gradients).unwrap();
        scaler.end_step().unwrap();
        Vec::try_from(&gradients[0]).unwrap()
    }

    fn state(scaler: &Scaler) -> (f64, u64) {
        (scaler.scale().unwrap(), scaler.skipped().unwrap())
    }

    #[test]
    fn the_scale_starts_at_65536_and_gradients_are_divided_by_it() {
        let mut scaler = Scaler::new(tch::Device::Cpu);
        assert_eq!(step(&mut scaler, &[65536.0, -32768.0]), [1.0, -0.5]);
        assert_eq!(
            (state(&scaler), scaler.found().double_value(&[])),
            ((65536.0, 0), 0.0)
        );
    }

    #[test]
    fn a_gradient_that_is_no_finite_number_halves_the_scale_and_is_counted() {
        for (planted, bad) in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN]
            .into_iter()
            .enumerate()
        {
            let mut scaler = scaler(2000);
            for skipped in 1..=3 {
                step(&mut scaler, &[1.0, bad]);
                assert_eq!(
                    state(&scaler),
                    (65536.0 / 2.0_f64.powi(skipped), skipped as u64),
                    "bad number {planted}"
                );
                assert_eq!(scaler.found().double_value(&[]), 1.0);
            }
            step(&mut scaler, &[1.0, 1.0]);
            assert_eq!(
                (state(&scaler).1, scaler.found().double_value(&[])),
                (3, 0.0),
                "a good step counts nothing"
            );
        }
    }

    #[test]
    fn the_scale_doubles_after_the_interval_of_good_steps_in_a_row() {
        let mut scaler = scaler(4);
        let mut scales = Vec::new();
        for good in [true, true, true, false, true, true, true, true, true] {
            step(&mut scaler, &[if good { 1.0 } else { f32::INFINITY }]);
            scales.push(scaler.scale().unwrap() / 65536.0);
        }
        assert_eq!(scales, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn the_policy_is_that_of_grad_scaler() {
        assert_eq!(
            GRAD_SCALER,
            Policy {
                start: 65536.0,
                growth: 2.0,
                interval: 2000,
                back_off: 0.5
            }
        );
    }

    #[test]
    fn the_scaled_loss_gives_scaled_gradients_and_leaves_the_scale_alone() {
        let mut scaler = scaler(2000);
        let x = Tensor::<1>::from_data([3.0], &burn::tensor::Device::libtorch().autodiff())
            .require_grad();
        let loss = x.clone() * 2.0;
        let scaled = scaler.scaled(loss.clone());
        assert_eq!(
            scaled.clone().into_data().try_to_vec::<f32>().unwrap(),
            [6.0 * 65536.0]
        );
        let gradient = x
            .grad(&scaled.backward())
            .unwrap()
            .into_data()
            .try_to_vec::<f32>()
            .unwrap();
        assert_eq!(gradient, [2.0 * 65536.0]);
        assert_eq!(
            loss.into_data().try_to_vec::<f32>().unwrap(),
            [6.0],
            "the loss that is reported is the plain one"
        );
        step(&mut scaler, &gradient);
        assert_eq!(state(&scaler), (65536.0, 0));
    }
}
