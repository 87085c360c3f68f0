//! One summary of the devices that shared a trial. The values of the process and the host are the
//! same for each of them.

use super::{
    WindowSummary,
    columns::{COUNTS, Column, NUMBERS},
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
    joined.throttle_reasons = throttle_reasons(&found);
    for summary in found {
        for (column, note) in summary.notes {
            joined.notes.entry(column).or_insert(note);
        }
    }
    joined
}

/// The column's value of all devices together; `None` if one has none.
fn joined_in<T: Copy>(column: &Column<T>, found: &mut [WindowSummary]) -> Option<T> {
    let each = found.iter_mut().map(|summary| *(column.place)(summary));
    (column.join)(&each.collect::<Option<Vec<T>>>()?)
}

/// Each once, the first device's first.
fn throttle_reasons(found: &[WindowSummary]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for name in found
        .iter()
        .filter_map(|summary| summary.throttle_reasons.as_deref())
        .flat_map(str::split_whitespace)
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| names.join(" "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn device(scale: f64) -> WindowSummary {
        WindowSummary {
            mean_gpu_utilization: Some(0.25 * scale),
            mean_power_watts: Some(100.0 * scale),
            energy_counter_joules: Some(1000.0 * scale),
            max_temperature_celsius: Some(40.0 * scale),
            throttled_fraction: Some(0.5 - 0.125 * scale),
            throttle_reasons: Some(
                if scale > 1.0 {
                    "sw_power_cap hw_slowdown"
                } else {
                    "hw_slowdown"
                }
                .to_owned(),
            ),
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
