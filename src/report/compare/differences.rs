//! Accuracies of which some runs have 0: there is no ratio, so they are compared by their differences,
//! told as parts of the mean of base.

use kiln_core::statistics::{self, Design, Estimate, Sides, TimedRun};

/// The numbers that turn differences into parts of a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Differences {
    /// The arithmetic mean of base.
    base: f64,
    /// The largest number of both sides.
    largest: f64,
    /// Variances of the means of both sides and of the mean difference of runs of one seed, in
    /// squares of `largest`.
    of_base: f64,
    of_new: f64,
    of_pairs: f64,
}

impl Differences {
    /// `None` where no run has 0, and where all runs of a side have it.
    pub(super) fn of(sides: &Sides) -> Option<Self> {
        let is_zero = |run: &TimedRun| run.value == 0.0;
        let both = [&sides.base, &sides.new];
        let is_all = both.iter().any(|runs| runs.iter().all(is_zero));
        if is_all || !both.iter().any(|runs| runs.iter().any(is_zero)) {
            return None;
        }
        let values = both.iter().flat_map(|runs| runs.iter());
        let largest = values.map(|run| run.value).fold(0.0, f64::max);
        let of_side = |runs: &[TimedRun]| variance(runs.iter().map(|run| run.value / largest));
        let of_pair = |run: &TimedRun| {
            let mut others = sides.new.iter();
            let other = others.find(|other| run.block.is_some() && other.block == run.block)?;
            Some((other.value - run.value) / largest)
        };
        Some(Self {
            base: mean(&sides.base)?,
            largest,
            of_base: of_side(&sides.base),
            of_new: of_side(&sides.new),
            of_pairs: variance(sides.base.iter().filter_map(of_pair)),
        })
    }

    /// The runs of a side for the statistics, which take logarithms: those of these numbers are
    /// parts of the largest one.
    pub(super) fn sides(self, sides: &Sides) -> Sides {
        let of = |run: &TimedRun| TimedRun {
            value: (run.value / self.largest).exp(),
            ..*run
        };
        Sides {
            base: sides.base.iter().map(of).collect(),
            new: sides.new.iter().map(of).collect(),
            nature: sides.nature,
        }
    }

    /// The smallest change that counts, for the statistics.
    pub(super) fn worth(self, worth: f64) -> f64 {
        (worth * self.base / self.largest).exp_m1()
    }

    /// An estimate from such numbers as one of the ratio of the arithmetic means.
    pub(super) fn estimate(self, found: Estimate) -> Estimate {
        let parts = |log: f64| log * self.largest / self.base;
        let of_known_base = || [found.low, found.high].map(|end| parts(end.ln()));
        let [low, high] = self.fieller(&found).unwrap_or_else(of_known_base);
        Estimate {
            ratio: 1.0 + parts(found.ratio.ln()),
            // None is below 0.
            low: (1.0 + low).max(0.0),
            high: 1.0 + high,
            visible: found.visible.map(|visible| parts(visible.ln_1p())),
            design: found.design,
        }
    }

    /// The interval of the difference as a part of base's mean, which varies too (Fieller 1954).
    /// `None` where noise alone may make that mean 0, because the interval then has no end, and
    /// where there is no noise.
    fn fieller(self, found: &Estimate) -> Option<[f64; 2]> {
        let base = self.base / self.largest;
        let difference = found.ratio.ln();
        let half = (found.high.ln() - found.low.ln()) / 2.0;
        let of_difference = match found.design {
            Design::Paired { .. } => self.of_pairs,
            _ => self.of_base + self.of_new,
        };
        // The square of the quantile of t; the interval of the difference is that of its variance.
        let quantile = half.powi(2) / of_difference;
        let of_both = (self.of_new - self.of_base - of_difference) / 2.0;
        let square = base.powi(2) - quantile * self.of_base;
        let linear = difference * base - quantile * of_both;
        let constant = difference.powi(2) - half.powi(2);
        let root = (linear.powi(2) - square * constant).max(0.0).sqrt();
        let ends = [linear - root, linear + root].map(|end| end / square);
        (square > 0.0 && ends.iter().all(|end| end.is_finite())).then_some(ends)
    }
}

/// The variance of the mean of values; 0 for fewer than two.
fn variance(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let deviation = statistics::deviation(&values).unwrap_or_default();
    deviation.powi(2) / values.len().max(1) as f64
}

/// The arithmetic mean of the runs of a side.
pub(super) fn mean(runs: &[TimedRun]) -> Option<f64> {
    statistics::mean(&runs.iter().map(|run| run.value).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use kiln_core::statistics::{Nature, Question, estimates};

    use super::*;

    /// Share of intervals that hold a true ratio of 4, of ten runs on each side, each with 100
    /// answers of which 2 % or 8 % are right.
    fn share_of_true(has_seeds: bool) -> f64 {
        let mut random = fastrand::Rng::with_seed(5);
        let mut run = |seed: u64, chance: f64| TimedRun {
            block: has_seeds.then_some(seed),
            ..TimedRun::of((0..100).filter(|_| random.f64() < chance).count() as f64 / 100.0)
        };
        let (mut held, mut all) = (0.0, 0.0);
        for _ in 0..2000 {
            let sides = Sides {
                base: (0..10).map(|seed| run(seed, 0.02)).collect(),
                new: (0..10).map(|seed| run(seed, 0.08)).collect(),
                nature: Nature::Settled,
            };
            let Some(differences) = Differences::of(&sides) else {
                continue;
            };
            let question = Question {
                sides: differences.sides(&sides),
                worth: differences.worth(0.01),
                weight: 1.0,
            };
            let found = differences.estimate(estimates(&[question])[0]);
            all += 1.0;
            held += f64::from(u8::from((found.low..=found.high).contains(&4.0)));
        }
        held / all
    }

    #[test]
    fn an_interval_of_differences_holds_the_true_ratio() {
        for has_seeds in [false, true] {
            let share = share_of_true(has_seeds);
            assert!((0.925..=0.975).contains(&share), "{has_seeds}: {share}");
        }
    }
}
