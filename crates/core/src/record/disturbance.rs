//! Disturbances that a row reports: other processes and clock limits.

use std::fmt;

use super::{TrialRow, note::BusyHost};
use crate::units::{Fraction, counted};

pub use crate::units::clock_limits::{LEAST_THROTTLED_FRACTION, POWER_CAP};

/// A reason why the times, energy or results of a trial may be disturbed.
#[derive(Clone, Debug, PartialEq)]
pub enum Disturbance {
    /// Other processes used the host.
    BusyHost(BusyHost),
    /// Any other reason, in words.
    Other(String),
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BusyHost(busy) => write!(f, "{busy}"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

impl TrialRow {
    /// Reasons why its times, energy or results may be disturbed; empty if no disturbance is known.
    pub fn disturbances(&self) -> Vec<Disturbance> {
        let mut found = Vec::new();
        if let Some(seen) = self.others_on_device() {
            found.push(format!("others on the device ({seen})"));
        }
        if let Some(share) = self
            .throttled_fraction
            .filter(|share| *share >= LEAST_THROTTLED_FRACTION)
        {
            let reasons = self
                .throttle_reasons
                .as_deref()
                .unwrap_or("no reason given");
            // The first one held for most of the limited time; others beside it may be of a moment.
            if reasons.split(' ').next() != Some(POWER_CAP) {
                found.push(format!(
                    "clocks limited for {} of the window ({reasons})",
                    Fraction(share)
                ));
            }
        }
        let errors = [
            (self.ecc_uncorrected_errors, "uncorrected memory error"),
            (self.ecc_corrected_errors, "corrected memory error"),
        ];
        found.extend(errors.into_iter().filter_map(|(count, what)| {
            Some(counted(count.filter(|count| *count > 0)? as usize, what))
        }));
        let busy = BusyHost::of(self).map(Disturbance::BusyHost);
        found
            .into_iter()
            .map(Disturbance::Other)
            .chain(busy)
            .collect()
    }
}
