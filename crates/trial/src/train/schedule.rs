//! The learning rate of each step, computed on the host.
//!
//! With `it` the step counted from 0, `w` the schedule's `warmup_steps`, `n` all steps, `r` the
//! optimizer's rate and `f` the `final_fraction`:
//!
//! - `it < w`: `r · (it + 1) / (w + 1)`, for every kind (nanoGPT's warm-up: never 0, and `r` itself
//!   right after it)
//! - then, with `p = (it − w) / (n − 1 − w)`, which is 0 on the first step after the warm-up and 1
//!   on the last step:
//!   - constant: `r`
//!   - linear: `r · (1 − (1 − f) · p)`
//!   - cosine: `r · (f + (1 − f) · (1 + cos(π p)) / 2)`
//!   - plateau: `r`, times the factor of [`Plateau`]
//!
//! If only one step follows the warm-up, it is the last one: `p` is 1.

use std::f64::consts::PI;

use kiln_core::spec::LearningRateSchedule;
use serde::{Deserialize, Serialize};

/// The rate of step `step`, counted from 1, of `total_steps`; `peak` is the optimizer's
/// `learning_rate`.
pub(crate) fn learning_rate(
    schedule: &LearningRateSchedule,
    peak: f64,
    step: u64,
    total_steps: u64,
) -> f64 {
    let iteration = step.saturating_sub(1);
    let warmup = schedule.warmup_steps();
    if iteration < warmup {
        return peak * (iteration + 1) as f64 / (warmup + 1) as f64;
    }
    let progress =
        progress_after_warmup(iteration - warmup, total_steps.saturating_sub(1 + warmup));
    match schedule {
        LearningRateSchedule::Constant { .. } | LearningRateSchedule::Plateau { .. } => peak,
        LearningRateSchedule::Linear { final_fraction, .. } => {
            peak * (1.0 - (1.0 - final_fraction) * progress)
        }
        LearningRateSchedule::Cosine { final_fraction, .. } => {
            peak * (final_fraction + (1.0 - final_fraction) * (1.0 + (PI * progress).cos()) / 2.0)
        }
    }
}

/// Factor of the rate after the evaluations so far. Source: pytorch/examples, word_language_model
/// (patience 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plateau {
    factor: f64,
    patience: u64,
    lowest: f64,
    /// Evaluations since the lowest loss, or since the rate fell.
    stalled: u64,
    left: f64,
}

/// Saved state of a plateau: the evaluations so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlateauState {
    /// `None` before the first evaluation.
    lowest: Option<f64>,
    stalled: u64,
    left: f64,
}

impl Plateau {
    /// For another schedule than `plateau` all of the rate is always left.
    pub(crate) fn new(schedule: &LearningRateSchedule) -> Self {
        let (factor, patience) = match schedule {
            LearningRateSchedule::Plateau {
                factor, patience, ..
            } => (*factor, *patience),
            _ => (1.0, 0),
        };
        Self {
            factor,
            patience,
            lowest: f64::INFINITY,
            stalled: 0,
            left: 1.0,
        }
    }

    /// Share of the rate, in (0, 1].
    pub(crate) fn left(&self) -> f64 {
        self.left
    }

    pub(crate) fn state(&self) -> PlateauState {
        PlateauState {
            lowest: Some(self.lowest).filter(|lowest| lowest.is_finite()),
            stalled: self.stalled,
            left: self.left,
        }
    }

    /// A continued training may have another schedule than the one that saved the state; only
    /// `plateau` lowers the rate.
    pub(crate) fn restore(&mut self, state: &PlateauState) {
        self.lowest = state.lowest.unwrap_or(f64::INFINITY);
        self.stalled = state.stalled;
        self.left = if self.factor < 1.0 { state.left } else { 1.0 };
    }

    /// Takes in the loss of one evaluation.
    pub(crate) fn hear(&mut self, loss: f64) {
        if loss < self.lowest {
            self.lowest = loss;
            self.stalled = 0;
            return;
        }
        self.stalled += 1;
        if self.stalled > self.patience {
            self.left *= self.factor;
            self.stalled = 0;
        }
    }
}

fn progress_after_warmup(done: u64, all: u64) -> f64 {
    if all == 0 {
        1.0
    } else {
        (done as f64 / all as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: &LearningRateSchedule, total: u64) -> Vec<f64> {
        (1..=total)
            .map(|step| learning_rate(schedule, 2.0, step, total))
            .collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() < 1e-12,
                "{found} is not {expected}"
            );
        }
    }

    #[test]
    fn a_plateau_divides_the_rate_when_the_loss_has_stalled() {
        let heard = |patience, losses: &[f64]| -> Vec<f64> {
            let mut plateau = Plateau::new(&LearningRateSchedule::Plateau {
                warmup_steps: 0,
                factor: 0.25,
                patience,
            });
            let mut left = |loss: &f64| {
                plateau.hear(*loss);
                plateau.left()
            };
            losses.iter().map(&mut left).collect()
        };
        assert_eq!(
            heard(0, &[5.0, 4.0, 4.0, 3.9, 4.5]),
            [1.0, 1.0, 0.25, 0.25, 0.0625]
        );
        assert_eq!(
            heard(1, &[5.0, 5.0, 5.0, 5.0, 5.0, 4.0]),
            [1.0, 1.0, 0.25, 0.25, 0.0625, 0.0625]
        );
        let mut constant = Plateau::new(&LearningRateSchedule::Constant { warmup_steps: 0 });
        (0..3).for_each(|_| constant.hear(1.0));
        assert_eq!(constant.left(), 1.0);
        assert_close(
            &rates(
                &LearningRateSchedule::Plateau {
                    warmup_steps: 1,
                    factor: 0.5,
                    patience: 0,
                },
                3,
            ),
            &[1.0, 2.0, 2.0],
        );
    }

    #[test]
    fn constant_rises_in_equal_parts_and_stays() {
        let schedule = LearningRateSchedule::Constant { warmup_steps: 3 };
        assert_close(&rates(&schedule, 6), &[0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        assert_close(
            &rates(&LearningRateSchedule::Constant { warmup_steps: 0 }, 2),
            &[2.0, 2.0],
        );
    }

    #[test]
    fn linear_and_cosine_end_on_the_final_fraction_at_the_last_step() {
        let linear = LearningRateSchedule::Linear {
            warmup_steps: 1,
            final_fraction: 0.0,
        };
        assert_close(&rates(&linear, 6), &[1.0, 2.0, 1.5, 1.0, 0.5, 0.0]);
        let cosine = LearningRateSchedule::Cosine {
            warmup_steps: 0,
            final_fraction: 0.5,
        };
        let half = 0.5 + 0.5 * (1.0 + (PI / 4.0).cos()) / 2.0;
        assert_close(
            &rates(&cosine, 5),
            &[2.0, 2.0 * half, 1.5, 2.0 * (1.5 - half), 1.0],
        );
    }

    #[test]
    fn a_training_that_ends_in_or_right_after_the_warmup_has_finite_rates() {
        let cosine = LearningRateSchedule::Cosine {
            warmup_steps: 4,
            final_fraction: 0.1,
        };
        assert_close(&rates(&cosine, 2), &[0.4, 0.8]);
        assert_close(&rates(&cosine, 5)[4..], &[0.2]);
        assert_close(
            &rates(
                &LearningRateSchedule::Linear {
                    warmup_steps: 0,
                    final_fraction: 0.25,
                },
                1,
            ),
            &[0.5],
        );
    }
}
