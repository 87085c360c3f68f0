//! The gradient noise scale: how large the noise of a gradient is against the gradient itself, and
//! with that how large a batch may be (McCandlish et al., 2018, arXiv 1812.06162).
//!
//! In: of each measured step the squared norms of the gradients of its micro-batches and of the
//! whole step. Out: the simple noise scale tr(Σ)/|G|² with an interval. Ratios of single steps are
//! not averaged: the numerator and the denominator are, and the interval is Fieller's over the means
//! of blocks of steps. A jackknife of the ratio covered 43 to 96 % instead of 95 % where the batch is
//! much smaller than the noise scale, because then the denominator may be anything near 0.

use serde::{Deserialize, Serialize};

use super::student::quantile;

/// Blocks of measured steps. Within a block neighbors may be correlated; 20 means give an interval
/// that is a tenth wider than of many.
const BLOCKS: usize = 20;
/// Most measured steps that an estimate is made of.
pub const MOST_MEASURED: usize = 200;
/// Fewest measured steps of an estimate.
pub const FEWEST_MEASURED: usize = BLOCKS;

/// A gradient noise scale that a trial measured, in samples, with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredNoise {
    pub scale: f64,
    pub low: f64,
    pub high: f64,
    /// The last measured step.
    pub step: u64,
    /// Mean training loss of the measured steps, in nats.
    pub loss: f64,
}

impl MeasuredNoise {
    /// How wide its interval is, as a ratio.
    pub fn width(&self) -> f64 {
        self.high / self.low.max(f64::MIN_POSITIVE)
    }
}

/// The squared norms of one step. The gradients of the micro-batches are weighted: they add up to
/// the step's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNorms {
    /// Sum over the micro-batches of the squared norm of the weighted gradient.
    pub micro: f64,
    /// Squared norm of the step's gradient, before clipping.
    pub whole: f64,
    /// Sum of the squared weights: 1/k for k equal micro-batches.
    pub weights: f64,
    /// Samples of a micro-batch.
    pub samples: f64,
}

impl GradientNorms {
    /// Unbiased estimates of tr(Σ), of the gradient of one sample, and of |G|². `None` with fewer
    /// than two micro-batches, or if a norm is not finite.
    ///
    /// For k equal micro-batches these are the formulas of appendix A.1 with the mean of the small
    /// batches' squared norms. A single estimate of |G|² may be negative.
    pub fn estimates(self) -> Option<NoiseSums> {
        let signal = (self.whole - self.micro) / (1.0 - self.weights);
        let noise = self.samples * (self.micro / self.weights - signal);
        let is_usable = self.weights > 0.0 && self.weights < 1.0;
        (is_usable && signal.is_finite() && noise.is_finite())
            .then_some(NoiseSums { noise, signal })
    }
}

/// Estimates of one step, or their mean over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseSums {
    /// tr(Σ).
    pub noise: f64,
    /// |G|².
    pub signal: f64,
}

impl NoiseSums {
    /// The mean over these steps, none of which has no mean.
    pub fn mean<'a>(steps: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let (mut sums, mut count) = (Self::default(), 0.0);
        for step in steps {
            sums.noise += step.noise;
            sums.signal += step.signal;
            count += 1.0;
        }
        (count > 0.0).then(|| Self {
            noise: sums.noise / count,
            signal: sums.signal / count,
        })
    }

    /// tr(Σ)/|G|², in samples; `None` if the estimate of |G|² is not above 0.
    pub fn scale(self) -> Option<f64> {
        (self.signal > 0.0).then(|| (self.noise / self.signal).max(0.0))
    }
}

/// The noise scale of a stretch of a training, in samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseScale {
    /// `None` if the estimate of |G|² is not above 0.
    pub scale: Option<f64>,
    /// Lower end of the 95 % interval; at least 0.
    pub low: f64,
    /// Upper end; `None` if |G|² cannot be told from 0, so that no upper end is known.
    pub high: Option<f64>,
}

impl NoiseScale {
    /// The number of newest steps, of so many, that an estimate is made of: half of them, because
    /// the noise scale grows along a training, within [`FEWEST_MEASURED`] and [`MOST_MEASURED`].
    pub fn window(steps: usize) -> usize {
        (steps / 2).clamp(FEWEST_MEASURED, MOST_MEASURED).min(steps)
    }

    /// The scale over these steps, in their order. `None` with fewer than [`FEWEST_MEASURED`], or if
    /// nothing can be told.
    pub fn over(steps: &[NoiseSums]) -> Option<Self> {
        if steps.len() < BLOCKS {
            return None;
        }
        // Their sizes differ by one at most.
        let edge = |block: usize| block * steps.len() / BLOCKS;
        let blocks: Vec<(f64, NoiseSums)> = (0..BLOCKS)
            .map(|block| &steps[edge(block)..edge(block + 1)])
            .map(|block| (block.len() as f64 / steps.len() as f64, mean(block)))
            .collect();
        let mean = mean(steps);
        type Part = fn(&NoiseSums) -> f64;
        // The covariance of the mean of all steps; each block counts by its share of them.
        let covariance = |of: Part, with: Part| {
            let products = blocks.iter().map(|(share, block)| {
                share.powi(2) * (of(block) - of(&mean)) * (with(block) - with(&mean))
            });
            let count = BLOCKS as f64;
            products.sum::<f64>() * count / (count - 1.0)
        };
        let (noise, signal): (Part, Part) = (|sums| sums.noise, |sums| sums.signal);
        // The ratios r for which `noise - r signal` does not differ from 0: a r² - 2 b r + c ≤ 0.
        let squared = quantile(0.975, (BLOCKS - 1) as f64).powi(2);
        let a = mean.signal.powi(2) - squared * covariance(signal, signal);
        let b = mean.noise * mean.signal - squared * covariance(noise, signal);
        let c = mean.noise.powi(2) - squared * covariance(noise, noise);
        let root = (b * b - a * c).sqrt();
        let (low, high) = match (a > 0.0, c > 0.0) {
            (true, _) => ((b - root) / a, Some((b + root) / a)),
            // Outside of the two roots, of which one is negative.
            (false, true) => ((b - root) / a, None),
            // Neither the noise nor the gradient differs from 0.
            (false, false) => return None,
        };
        let is_told = low.is_finite() && high.is_none_or(|high| high.is_finite() && high > 0.0);
        is_told.then(|| Self {
            scale: mean.scale(),
            low: low.max(0.0),
            high,
        })
    }
}

fn mean(of: &[NoiseSums]) -> NoiseSums {
    NoiseSums::mean(of.iter()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Normally distributed, by Box and Muller.
    fn normal(random: &mut Rng) -> f64 {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    }

    /// A linear regression with Gaussian inputs x of `size` values and targets with noise of
    /// variance 1, at a distance `delta` from the solution along the first axis. The gradient of a
    /// sample is x (xᵀδ - e): its mean is δ, and the trace of its covariance (n + 1) |δ|² + n.
    struct Regression {
        size: usize,
        delta: f64,
        batch: usize,
        micro_batches: usize,
    }

    impl Regression {
        fn true_scale(&self) -> f64 {
            let size = self.size as f64;
            ((size + 1.0) * self.delta.powi(2) + size) / self.delta.powi(2)
        }

        fn micro_batch(&self, random: &mut Rng) -> Vec<f64> {
            let mut gradient = vec![0.0; self.size];
            for _ in 0..self.batch {
                let input: Vec<f64> = (0..self.size).map(|_| normal(random)).collect();
                let error = input[0] * self.delta - normal(random);
                let terms = gradient.iter_mut().zip(&input);
                terms.for_each(|(sum, value)| *sum += value * error / self.batch as f64);
            }
            gradient
        }

        fn step(&self, random: &mut Rng) -> NoiseSums {
            let weights = vec![1.0 / self.micro_batches as f64; self.micro_batches];
            self.weighted_step(&weights, random)
        }

        /// One micro-batch per weight; the weights add up to 1.
        fn weighted_step(&self, weights: &[f64], random: &mut Rng) -> NoiseSums {
            let squared = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
            let mut whole = vec![0.0; self.size];
            let mut micro = 0.0;
            for weight in weights {
                let mut gradient = self.micro_batch(random);
                gradient.iter_mut().for_each(|value| *value *= weight);
                micro += squared(&gradient);
                let sums = whole.iter_mut().zip(&gradient);
                sums.for_each(|(sum, value)| *sum += value);
            }
            let norms = GradientNorms {
                micro,
                whole: squared(&whole),
                weights: squared(weights),
                samples: self.batch as f64,
            };
            norms.estimates().unwrap()
        }

        fn steps(&self, count: usize, random: &mut Rng) -> Vec<NoiseSums> {
            (0..count).map(|_| self.step(random)).collect()
        }
    }

    #[test]
    fn the_estimates_are_unbiased_for_a_known_noise() {
        let regression = Regression {
            size: 20,
            delta: 1.0,
            batch: 8,
            micro_batches: 4,
        };
        let mut random = Rng::with_seed(7);
        let all = mean(&regression.steps(20_000, &mut random));
        assert!((all.signal - 1.0).abs() < 0.02, "{all:?}");
        let (scale, truth) = (all.noise / all.signal, regression.true_scale());
        assert!((scale / truth - 1.0).abs() < 0.05, "{scale} for {truth}");
    }

    #[test]
    fn weights_that_differ_leave_the_estimates_unbiased() {
        let regression = Regression {
            size: 10,
            delta: 1.0,
            batch: 4,
            micro_batches: 2,
        };
        let mut random = Rng::with_seed(3);
        let steps: Vec<NoiseSums> = (0..40_000)
            .map(|_| regression.weighted_step(&[0.75, 0.25], &mut random))
            .collect();
        let all = mean(&steps);
        assert!((all.signal - 1.0).abs() < 0.02, "{all:?}");
        let scale = all.noise / all.signal;
        assert!(
            (scale / regression.true_scale() - 1.0).abs() < 0.05,
            "{scale}"
        );
    }

    #[test]
    fn every_step_counts_also_where_blocks_differ_in_size() {
        let sums = |noise: f64| NoiseSums { noise, signal: 2.0 };
        let mut steps = vec![sums(10.0); 39];
        steps[0] = sums(400.0);
        let found = NoiseScale::over(&steps).unwrap();
        let expected = (38.0 * 10.0 + 400.0) / (39.0 * 2.0);
        assert!(
            (found.scale.unwrap() / expected - 1.0).abs() < 1e-12,
            "{found:?}"
        );
    }

    #[test]
    fn the_interval_covers_the_truth_in_95_of_100_also_where_the_batch_is_far_too_small() {
        // Noise scales of 41, of 101 and of 243 samples, at steps of 32, 4 and 8 samples.
        for (size, delta, batch, micro_batches) in
            [(20, 1.0, 8, 4), (20, 0.5, 2, 2), (20, 0.3, 2, 4)]
        {
            let regression = Regression {
                size,
                delta,
                batch,
                micro_batches,
            };
            let truth = regression.true_scale();
            let mut random = Rng::with_seed(11);
            let found: Vec<Option<NoiseScale>> = (0..1000)
                .map(|at| NoiseScale::over(&regression.steps(95 + at % 10, &mut random)))
                .collect();
            // Where nothing can be told, nothing false is told.
            let is_covered = |scale: &Option<NoiseScale>| {
                scale.is_none_or(|scale| {
                    scale.low <= truth && scale.high.is_none_or(|high| truth <= high)
                })
            };
            let covered = found.iter().filter(|scale| is_covered(scale)).count();
            let silent = found.iter().filter(|scale| scale.is_none()).count();
            assert!(
                (930..=970).contains(&covered),
                "{covered} of 1000 for {truth}"
            );
            assert!(silent <= 20, "{silent} of 1000 for {truth}");
        }
    }

    #[test]
    fn a_gradient_that_is_lost_in_noise_has_a_lower_end_alone() {
        let regression = Regression {
            size: 30,
            delta: 0.05,
            batch: 2,
            micro_batches: 2,
        };
        let steps = regression.steps(60, &mut Rng::with_seed(1));
        let scale = NoiseScale::over(&steps).unwrap();
        assert!(scale.high.is_none() && scale.low > 4.0, "{scale:?}");
        assert!(scale.low < regression.true_scale());
    }

    #[test]
    fn what_cannot_be_told_is_none() {
        let one = NoiseSums {
            noise: 2.0,
            signal: 1.0,
        };
        assert_eq!(NoiseScale::over(&[one; FEWEST_MEASURED - 1]), None);
        let same = NoiseScale::over(&[one; FEWEST_MEASURED]).unwrap();
        assert_eq!(
            (same.scale, same.low, same.high),
            (Some(2.0), 2.0, Some(2.0))
        );
        assert_eq!(NoiseScale::over(&[NoiseSums::default(); 40]), None);
        let windows = [0, 5, 30, 100, 1000].map(NoiseScale::window);
        assert_eq!(windows, [0, 5, 20, 50, 200]);
        let norms = |weights, whole| GradientNorms {
            micro: 1.0,
            whole,
            weights,
            samples: 4.0,
        };
        assert_eq!(norms(1.0, 1.0).estimates(), None);
        assert_eq!(norms(0.5, f64::NAN).estimates(), None);
        assert_eq!(norms(0.5, f64::INFINITY).estimates(), None);
    }
}
