//! Steps against samples: what batches of several sizes need to reach one loss (McCandlish et al.,
//! 2018, arXiv 1812.06162, equation 2.11).
//!
//! In: effective batches, each with the steps until the loss. Out: the critical batch C, in samples,
//! with an interval. (S/S_min - 1)(E/E_min - 1) = 1 with the samples E = B·S is S = S_min (1 + C/B),
//! where C = E_min/S_min. It is fitted by least squares of ln S, because what seeds and batches add
//! is a ratio; S_min has a closed form for each C, and the interval is that of all C whose sum of
//! squares an F test does not tell from the least one. It counts the scatter of the batches around
//! the curve, so it knows whether they follow it.

use super::student::quantile;

/// Fewest batches of different sizes: two of them only draw the curve.
const FEWEST: usize = 4;
/// ln C is looked for so far beyond the batches.
const BEYOND: f64 = 7.0;
/// Values of ln C that are tried, before the best one is refined.
const TRIED: usize = 2000;

/// A fitted curve of steps against samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tradeoff {
    /// Steps that no batch can go below.
    pub fewest_steps: f64,
    /// The batch, in samples, with which a training needs twice the fewest steps and twice the fewest
    /// samples.
    pub critical_batch: f64,
    /// Lower end of its 95 % interval; 0 if all smaller ones fit as well.
    pub low: f64,
    /// Upper end; `None` if all larger ones fit as well.
    pub high: Option<f64>,
    /// Standard deviation of ln S around the curve.
    pub scatter: f64,
    /// Batches that it was fitted to.
    pub batches: usize,
}

impl Tradeoff {
    /// Fits batches, in samples, and their steps, both above 0. `None` with fewer than four sizes, or
    /// if they do not show where the curve bends: the steps do not depend on the batch, or fall as it
    /// grows.
    pub fn fit(reached: &[(f64, f64)]) -> Option<Self> {
        let mut sizes: Vec<f64> = reached.iter().map(|(batch, _)| *batch).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        let all = reached.iter();
        if sizes.len() < FEWEST
            || !all
                .clone()
                .all(|(batch, steps)| is_positive(*batch) && is_positive(*steps))
        {
            return None;
        }
        let (from, to) = (sizes.first()?.ln() - BEYOND, sizes.last()?.ln() + BEYOND);
        let width = (to - from) / TRIED as f64;
        let tried: Vec<(f64, f64)> = (0..=TRIED)
            .map(|place| from + place as f64 * width)
            .map(|log| (log, squares(reached, log)))
            .collect();
        let best =
            (0..tried.len()).min_by(|one, other| tried[*one].1.total_cmp(&tried[*other].1))?;
        if best == 0 || best == TRIED {
            return None;
        }
        let log = refined(reached, tried[best - 1].0, tried[best + 1].0);
        let least = squares(reached, log);
        let freedom = reached.len() as f64 - 2.0;
        let most = least * (1.0 + quantile(0.975, freedom).powi(2) / freedom);
        let fits = |(_, sum): &&(f64, f64)| *sum <= most;
        // The ends are those of the stretch around the best value, which lies between two tried ones.
        let below = tried.iter().rev().find(|at| at.0 < log && !fits(at));
        let above = tried.iter().find(|at| at.0 > log && !fits(at));
        let crossing = |outside: f64| crossing(reached, most, log, outside).exp();
        Some(Self {
            fewest_steps: logs(reached, log).0.exp(),
            critical_batch: log.exp(),
            low: below.map_or(0.0, |at| crossing(at.0)),
            high: above.map(|at| crossing(at.0)),
            scatter: (least / freedom).sqrt(),
            batches: sizes.len(),
        })
    }

    /// Both ends of the interval of the critical batch; `None` if one is open.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.high
            .filter(|_| self.low > 0.0)
            .map(|high| (self.low, high))
    }

    /// Samples that no batch can go below.
    pub fn fewest_samples(&self) -> f64 {
        self.fewest_steps * self.critical_batch
    }

    /// Steps with a batch, in samples.
    pub fn steps(&self, batch: f64) -> f64 {
        self.fewest_steps * (1.0 + self.critical_batch / batch)
    }
}

/// ln S_min that fits best if ln C is `log`, and the sum of squares around that curve.
fn logs(reached: &[(f64, f64)], log: f64) -> (f64, f64) {
    let of = |(batch, steps): &(f64, f64)| steps.ln() - (log.exp() / batch).ln_1p();
    let mean = reached.iter().map(of).sum::<f64>() / reached.len() as f64;
    let squares = reached.iter().map(|at| (of(at) - mean).powi(2)).sum();
    (mean, squares)
}

fn squares(reached: &[(f64, f64)], log: f64) -> f64 {
    logs(reached, log).1
}

/// The least of the sums of squares between two values of ln C, by thirds.
fn refined(reached: &[(f64, f64)], mut from: f64, mut to: f64) -> f64 {
    for _ in 0..80 {
        let third = (to - from) / 3.0;
        if squares(reached, from + third) <= squares(reached, to - third) {
            to -= third;
        } else {
            from += third;
        }
    }
    f64::midpoint(from, to)
}

/// Where the sum of squares passes `most` between a value of ln C that fits and one that does not.
fn crossing(reached: &[(f64, f64)], most: f64, mut inside: f64, mut outside: f64) -> f64 {
    for _ in 0..60 {
        let middle = f64::midpoint(inside, outside);
        if squares(reached, middle) <= most {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHES: [f64; 7] = [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

    fn on_curve(fewest: f64, critical: f64) -> Vec<(f64, f64)> {
        BATCHES
            .iter()
            .map(|batch| (*batch, fewest * (1.0 + critical / batch)))
            .collect()
    }

    #[test]
    fn a_curve_without_scatter_is_found_again() {
        for critical in [2.0, 46.0, 900.0] {
            let fitted = Tradeoff::fit(&on_curve(157.0, critical)).unwrap();
            assert!((fitted.critical_batch / critical - 1.0).abs() < 1e-6);
            assert!((fitted.fewest_steps / 157.0 - 1.0).abs() < 1e-6);
            assert!(fitted.scatter < 1e-6 && fitted.batches == 7);
            assert!(fitted.low <= fitted.critical_batch);
            assert!(
                fitted
                    .high
                    .is_some_and(|high| fitted.critical_batch <= high)
            );
            assert!(
                (fitted.steps(64.0) * 64.0 / fitted.fewest_samples() - (1.0 + 64.0 / critical))
                    .abs()
                    < 1e-6
            );
        }
    }

    #[test]
    fn what_shows_no_bend_is_not_fitted_and_an_open_end_stays_open() {
        let of = |steps: fn(f64) -> f64| -> Vec<(f64, f64)> {
            BATCHES
                .iter()
                .map(|batch| (*batch, steps(*batch)))
                .collect()
        };
        assert_eq!(Tradeoff::fit(&of(|_| 100.0)), None);
        assert_eq!(Tradeoff::fit(&of(|batch| 1e6 / batch)), None);
        assert_eq!(Tradeoff::fit(&of(|batch| 100.0 + batch)), None);
        assert_eq!(Tradeoff::fit(&on_curve(1.0, 50.0)[..3]), None);
        let mut few = on_curve(100.0, 50.0);
        few[0].1 = f64::NAN;
        assert_eq!(Tradeoff::fit(&few), None);
        // Steps fall almost as the batch grows, but for scatter: any large C fits.
        let scattered = [1.02, 0.97, 1.01, 1.03, 0.96, 1.0, 1.01];
        let reached: Vec<(f64, f64)> = on_curve(1.0, 4000.0)
            .into_iter()
            .zip(scattered)
            .map(|((batch, steps), factor)| (batch, steps * factor))
            .collect();
        let fitted = Tradeoff::fit(&reached).unwrap();
        assert!(
            fitted.high.is_none_or(|high| high > 4000.0) && fitted.low < 4000.0,
            "{fitted:?}"
        );
    }

    #[test]
    fn the_interval_covers_95_of_100_critical_batches() {
        let mut random = fastrand::Rng::with_seed(20_261_126);
        let mut normal = || {
            let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
            radius * (std::f64::consts::TAU * random.f64()).cos()
        };
        for (critical, scatter) in [(46.0, 0.001), (46.0, 0.05), (15.0, 0.1), (300.0, 0.1)] {
            let covered = (0..1000)
                .filter(|_| {
                    let reached: Vec<(f64, f64)> = on_curve(157.0, critical)
                        .into_iter()
                        .map(|(batch, steps)| (batch, steps * (scatter * normal()).exp()))
                        .collect();
                    Tradeoff::fit(&reached).is_some_and(|fitted| {
                        fitted.low <= critical && fitted.high.is_none_or(|high| critical <= high)
                    })
                })
                .count();
            assert!(
                (930..=970).contains(&covered),
                "{critical} {scatter}: {covered}"
            );
        }
    }
}
