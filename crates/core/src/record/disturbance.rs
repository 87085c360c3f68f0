//! Disturbances that a row reports: other processes and clock limits.

use super::{TrialRow, note::BusyHost};
use crate::units::{Fraction, counted};

/// Clock limits for a smaller fraction of the window change no rate by 3 %. The diagnosis has the
/// same limit.
pub const LEAST_THROTTLED_FRACTION: f64 = 0.05;
/// The driver's name of the power cap; a fully used device normally reaches it.
pub const POWER_CAP: &str = "sw_power_cap";

impl TrialRow {
    /// Reasons why its times, energy or results may be disturbed; empty if no disturbance is known.
    pub fn disturbances(&self) -> Vec<String> {
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
            if reasons.split(' ').any(|reason| reason != POWER_CAP) {
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
        found.extend(BusyHost::of(self).map(|busy| busy.to_string()));
        found
    }
}
