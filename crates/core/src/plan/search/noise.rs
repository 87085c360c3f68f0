//! The number of samples that a batch size needs until a loss, from the gradient noise scale that a
//! trial of the search measured (`docs/measurement.md`, "Gradient noise").

use super::{Probe, SearchContext, SearchTrial};
use crate::{statistics::MeasuredNoise, units::significant};

/// The first scale that a trial of a search measured: with a later one the search would have gone
/// another way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SearchNoise {
    measured: MeasuredNoise,
    of: SearchTrial,
}

impl SearchNoise {
    pub(super) fn first(probes: &[Probe]) -> Option<Self> {
        probes.iter().find_map(|probe| {
            Some(Self {
                measured: probe.noise?,
                of: probe.choice.clone(),
            })
        })
    }

    /// How many times the fewest samples a training with this effective batch needs.
    pub(super) fn samples(&self, effective: u64) -> f64 {
        needed(self.measured.scale, effective)
    }

    /// The samples at the lower and at the upper end of the interval.
    pub(super) fn samples_at_ends(&self, effective: u64) -> [f64; 2] {
        [self.measured.low, self.measured.high].map(|scale| needed(scale, effective))
    }

    /// A sentence for the user that defines useful speeds and gives the noise scale behind them.
    pub(super) fn explained(&self) -> String {
        let MeasuredNoise {
            scale,
            low,
            high,
            step,
            loss,
        } = self.measured;
        let of: Vec<String> = self
            .of
            .values
            .iter()
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        format!(
            "useful speeds are speeds divided by 1 + B/N: so many times the fewest samples an \
             effective batch B needs until a loss, if it has a learning rate that suits it; the \
             gradient noise scale N is {} samples (95 % interval {} to {}, at step {step} and a training \
             loss of {} with {}), and grows along a training",
            significant(scale.max(LEAST)),
            significant(low.max(LEAST)),
            significant(high.max(LEAST)),
            significant(loss),
            of.join(", ")
        )
    }
}

/// No scale is below one sample.
const LEAST: f64 = 1.0;

/// 1 + B/N (McCandlish et al., 2018, arXiv 1812.06162, equation 2.12).
fn needed(scale: f64, effective: u64) -> f64 {
    1.0 + effective as f64 / scale.max(LEAST)
}

/// Samples of an update with this batch size and accumulation.
pub(super) fn effective(given: &SearchContext, batch_size: u64, grad_accumulation: u64) -> u64 {
    batch_size
        .saturating_mul(grad_accumulation)
        .saturating_mul(given.devices_per_trial.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Outcome;

    #[test]
    fn the_first_scale_counts_and_none_is_below_one_sample() {
        let probe = |size: u64, noise: Option<[f64; 3]>| Probe {
            noise: noise.map(|[low, scale, high]| MeasuredNoise {
                scale,
                low,
                high,
                step: 40,
                loss: 2.5,
            }),
            ..Probe::that_showed_nothing(
                SearchTrial::new([("train.batch_size", size)], 0),
                Outcome::Completed,
            )
        };
        assert_eq!(SearchNoise::first(&[probe(8, None)]), None);
        let noise = SearchNoise::first(&[
            probe(8, None),
            probe(16, Some([30.0, 32.0, 60.0])),
            probe(32, Some([31.0, 33.0, 35.0])),
        ]);
        let noise = noise.unwrap();
        assert_eq!((noise.samples(32), noise.samples(0)), (2.0, 1.0));
        assert_eq!(noise.samples_at_ends(60), [3.0, 2.0]);
        let told = noise.explained();
        assert!(
            told.contains("N is 32.0 samples (95 % interval 30.0 to 60.0, at step 40")
                && told.contains("2.50 with train.batch_size 16)"),
            "{told}"
        );
        let none = SearchNoise::first(&[probe(8, Some([0.0, 0.0, 0.5]))]).unwrap();
        assert_eq!(none.samples(7), 8.0);
        assert!(none.explained().contains("N is 1.00 samples"));
    }
}
