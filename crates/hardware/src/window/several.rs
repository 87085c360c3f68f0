//! One summary of the devices that shared a trial. The values of the process and the host are the
//! same for each of them.

use std::collections::BTreeMap;

use super::{
    WindowSummary,
    columns::{COUNTS, NUMBERS, WindowColumn},
    reasons_in_order,
};

/// The summaries of a trial's devices as one; of one device it is its own. A number that one device
/// lacks is missing, with that device's reason.
pub fn together(mut found: Vec<WindowSummary>) -> WindowSummary {
    if found.len() < 2 {
        return found.pop().unwrap_or_default();
    }
    let mut joined = found[0].clone();
    for column in &NUMBERS {
        *(column.place)(&mut joined) = joined_in(column, &mut found);
    }
    for column in &COUNTS {
        *(column.place)(&mut joined) = joined_in(column, &mut found);
    }
    joined.throttle_shares = throttle_shares(&found);
    joined.throttle_reasons = reasons_in_order(&joined.throttle_shares);
    for summary in found {
        for (column, note) in summary.notes {
            joined.notes.entry(column).or_insert(note);
        }
    }
    joined
}

/// The column's value of all devices together; `None` if one has none.
fn joined_in<T: Copy>(column: &WindowColumn<T>, found: &mut [WindowSummary]) -> Option<T> {
    let each = found.iter_mut().map(|summary| *(column.place)(summary));
    (column.join)(&each.collect::<Option<Vec<T>>>()?)
}

/// The largest share that each reason has on a device.
fn throttle_shares(found: &[WindowSummary]) -> BTreeMap<String, f64> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for (name, share) in found.iter().flat_map(|summary| &summary.throttle_shares) {
        let most = shares.entry(name.clone()).or_default();
        *most = most.max(*share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(scale: f64) -> WindowSummary {
        let shares: &[(&str, f64)] = match scale > 1.0 {
            true => &[("hw_slowdown", 0.125), ("sw_power_cap", 0.25)],
            false => &[("hw_slowdown", 0.375)],
        };
        let throttle_shares = shares
            .iter()
            .map(|(name, share)| ((*name).to_owned(), *share))
            .collect();
        WindowSummary {
            throttle_reasons: reasons_in_order(&throttle_shares),
            throttle_shares,
            mean_gpu_utilization: Some(0.25 * scale),
            mean_power_watts: Some(100.0 * scale),
            energy_counter_joules: Some(1000.0 * scale),
            max_temperature_celsius: Some(40.0 * scale),
            throttled_fraction: Some(0.5 - 0.125 * scale),
            peak_nvml_used_bytes: Some((1e9 * scale) as u64),
            ecc_corrected_errors: Some(scale as u64),
            mean_cpu_cores: Some(1.5),
            ..WindowSummary::default()
        }
    }

    #[test]
    fn power_is_summed_utilization_is_meant_and_the_fullest_memory_counts() {
        let joined = together(vec![device(1.0), device(2.0)]);
        let expected = WindowSummary {
            mean_gpu_utilization: Some(0.375),
            mean_power_watts: Some(300.0),
            energy_counter_joules: Some(3000.0),
            max_temperature_celsius: Some(80.0),
            throttled_fraction: Some(0.375),
            throttle_reasons: Some("hw_slowdown sw_power_cap".to_owned()),
            throttle_shares: BTreeMap::from([
                ("hw_slowdown".to_owned(), 0.375),
                ("sw_power_cap".to_owned(), 0.25),
            ]),
            peak_nvml_used_bytes: Some(2_000_000_000),
            ecc_corrected_errors: Some(3),
            mean_cpu_cores: Some(1.5),
            ..WindowSummary::default()
        };
        assert_eq!(joined, expected);
        assert_eq!(together(vec![device(1.0)]), device(1.0));
        assert_eq!(together(Vec::new()), WindowSummary::default());
    }

    #[test]
    fn what_one_device_lacks_is_missing_with_its_reason() {
        let notes = BTreeMap::from([(
            "mean_power_watts".to_owned(),
            "not supported by this device".to_owned(),
        )]);
        let lacking = WindowSummary {
            mean_power_watts: None,
            notes: notes.clone(),
            ..device(2.0)
        };
        let joined = together(vec![device(1.0), lacking]);
        assert_eq!(
            (
                joined.mean_power_watts,
                joined.energy_counter_joules,
                joined.notes
            ),
            (None, Some(3000.0), notes)
        );
    }
}
