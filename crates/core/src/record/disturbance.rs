//! What a row says of others and of heat that reached into its numbers.

use super::TrialRow;
use crate::units::{Fraction, counted};

/// Begins the note on `samples_per_second` of a trial beside which other processes kept the host busy.
pub const BUSY_HOST: &str = "other processes kept";
/// Clocks held down for less of the window move no rate by 3 %.
const HARDLY_THROTTLED: f64 = 0.05;
/// The driver's name of a power cap: a well used device is at it.
const POWER_CAP: &str = "sw_power_cap";

impl TrialRow {
    /// Why its times, its energy or its results may not be those of the work alone; empty where nothing is known to have disturbed it.
    pub fn disturbances(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(seen) = self.others_on_device() {
            found.push(format!("others on the device ({seen})"));
        }
        if let Some(share) = self.throttled_fraction.filter(|share| *share >= HARDLY_THROTTLED) {
            let reasons = self.throttle_reasons.as_deref().unwrap_or("no reason given");
            if reasons.split(' ').any(|reason| reason != POWER_CAP) {
                found.push(format!("clocks held down for {} of the window ({reasons})", Fraction(share)));
            }
        }
        let errors = [(self.ecc_uncorrected_errors, "uncorrected memory error"), (self.ecc_corrected_errors, "corrected memory error")];
        found.extend(errors.into_iter().filter_map(|(count, what)| Some(counted(count.filter(|count| *count > 0)? as usize, what))));
        let notes = self.notes.as_deref().unwrap_or_default();
        let busy = notes.split("; ").find_map(|note| note.strip_prefix("samples_per_second: ").filter(|note| note.starts_with(BUSY_HOST)));
        found.extend(busy.map(str::to_owned));
        found
    }
}
