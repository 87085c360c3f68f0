//! Accuracies of which some runs have 0: there is no ratio, so they are compared by their differences,
//! told as parts of the mean of base.

use kiln_core::statistics::{self, Estimate, Sides, TimedRun};

/// The numbers that turn differences into parts of a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Differences {
    /// The arithmetic mean of base.
    base: f64,
    /// The largest number of both sides.
    largest: f64,
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
        Some(Self {
            base: mean(&sides.base)?,
            largest: values.map(|run| run.value).fold(0.0, f64::max),
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
        Estimate {
            ratio: 1.0 + parts(found.ratio.ln()),
            // None is below 0.
            low: (1.0 + parts(found.low.ln())).max(0.0),
            high: 1.0 + parts(found.high.ln()),
            visible: found.visible.map(|visible| parts(visible.ln_1p())),
            design: found.design,
        }
    }
}

/// The arithmetic mean of the runs of a side.
pub(super) fn mean(runs: &[TimedRun]) -> Option<f64> {
    statistics::mean(&runs.iter().map(|run| run.value).collect::<Vec<f64>>())
}
