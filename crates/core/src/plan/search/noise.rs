//! What a batch needs in samples, by the gradient noise scale that the trials of a search measured:
//! `docs/measurement.md`, "Gradient noise".

use serde::{Deserialize, Serialize};

use super::{Probe, SearchContext, SearchTrial};
use crate::units::significant;

/// A gradient noise scale that a trial measured, in samples, with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredNoise {
    pub scale: f64,
    pub low: f64,
    pub high: f64,
}

/// The scale with the narrowest interval of those that the trials of a search measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SearchNoise {
    measured: MeasuredNoise,
    of: SearchTrial,
}

impl SearchNoise {
    pub(super) fn narrowest(probes: &[Probe]) -> Option<Self> {
        let width = |noise: &MeasuredNoise| noise.high / noise.low.max(f64::MIN_POSITIVE);
        let measured = probes.iter().filter_map(|probe| {
            Some(Self {
                measured: probe.noise?,
                of: probe.choice.clone(),
            })
        });
        measured.min_by(|one, other| width(&one.measured).total_cmp(&width(&other.measured)))
    }

    /// How many times the fewest samples a training with this effective batch needs.
    pub(super) fn samples(&self, effective: u64) -> f64 {
        needed(self.measured.scale, effective)
    }

    /// The samples at the lower and at the upper end of the interval.
    pub(super) fn samples_at_ends(&self, effective: u64) -> [f64; 2] {
        [self.measured.low, self.measured.high].map(|scale| needed(scale, effective))
    }

    /// What speeds are divided by, in words.
    pub(super) fn explained(&self) -> String {
        let MeasuredNoise { scale, low, high } = self.measured;
        let of: Vec<String> = self
            .of
            .values
            .iter()
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        format!(
            "useful speeds are speeds divided by 1 + B/N: so many times the fewest samples an \
             effective batch B needs until a loss, at the gradient noise scale N of {} samples (95 % \
             interval {} to {}, measured with {}), if it has a learning rate that suits it",
            significant(scale),
            significant(low),
            significant(high),
            of.join(", ")
        )
    }
}

/// 1 + B/N (McCandlish et al., 2018, arXiv 1812.06162, equation 2.12). No scale is below one sample.
fn needed(scale: f64, effective: u64) -> f64 {
    1.0 + effective as f64 / scale.max(1.0)
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
    fn the_narrowest_scale_counts_and_none_is_below_one_sample() {
        let probe = |size: u64, noise: Option<[f64; 3]>| Probe {
            noise: noise.map(|[low, scale, high]| MeasuredNoise { scale, low, high }),
            ..Probe::that_showed_nothing(
                SearchTrial::new([("train.batch_size", size)], 0),
                Outcome::Completed,
            )
        };
        assert_eq!(SearchNoise::narrowest(&[probe(8, None)]), None);
        let noise = SearchNoise::narrowest(&[
            probe(8, Some([10.0, 40.0, 90.0])),
            probe(16, Some([30.0, 32.0, 34.0])),
            probe(32, Some([0.0, 32.0, 64.0])),
        ]);
        let noise = noise.unwrap();
        assert_eq!((noise.samples(32), noise.samples(0)), (2.0, 1.0));
        assert_eq!(noise.samples_at_ends(60), [3.0, 1.0 + 60.0 / 34.0]);
        assert!(
            noise
                .explained()
                .contains("measured with train.batch_size 16")
        );
        let none = SearchNoise::narrowest(&[probe(8, Some([0.0, 0.0, 0.5]))]).unwrap();
        assert_eq!(none.samples(7), 8.0);
    }
}
