//! Runs whose speed, or another number of programs without one, is far from that of the other runs of
//! their point.

use kiln_core::{
    record::{TrialRow, disturbance::LEAST_THROTTLED_FRACTION},
    statistics::{self, OUTLIER_DEVIATIONS, OUTLIER_FEWEST_RUNS, WORTH},
    units::decimals,
};

use super::{ComparedMetric, Nature, completed};

/// Median distance from the median of a normal distribution, in standard deviations.
const TO_DEVIATION: f64 = 0.6745;

/// Returns the runs whose speed is far from that of the others; of rows without a speed, the first
/// number that was asked for and that the state of the machine reaches. They are reported, never
/// excluded.
pub(super) fn outliers(side: &str, rows: &[&TrialRow], metrics: &[ComparedMetric]) -> Vec<String> {
    let rows = completed(rows);
    let own = |metric: &&ComparedMetric| metric.is_main() && metric.nature() == Nature::Drifting;
    let metric = [&ComparedMetric::Throughput]
        .into_iter()
        .chain(metrics.iter().filter(own))
        .find(|metric| rows.iter().any(|row| metric.of(row).is_some()));
    let Some(metric) = metric else {
        return Vec::new();
    };
    let values: Vec<(&TrialRow, f64)> = rows
        .iter()
        .filter_map(|row| Some((*row, metric.of(row)?)))
        .collect();
    if values.len() < OUTLIER_FEWEST_RUNS {
        return Vec::new();
    }
    let middle = statistics::median(values.iter().map(|(_, value)| *value));
    let distance = statistics::median(values.iter().map(|(_, value)| (value - middle).abs()));
    let is_far = |value: f64| {
        let away = (value - middle).abs();
        away > WORTH * middle && away * TO_DEVIATION > OUTLIER_DEVIATIONS * distance
    };
    let start = |row: &TrialRow| Some((row.launch, row.run_seconds?));
    let earliest = values
        .iter()
        .filter_map(|(row, _)| start(row))
        .min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let first = |row: &TrialRow| start(row).is_some() && start(row) == earliest;
    let tell = |(row, value): &(&TrialRow, f64)| {
        let share = value / middle - 1.0;
        let number = match metric {
            ComparedMetric::Throughput => String::new(),
            other => format!("`{}` of ", other.short_name()),
        };
        let why = likely_reason(row)
            .or_else(|| first(row).then(|| "the first run of its side".to_owned()));
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let sign = if share < 0.0 { "" } else { "+" };
        format!(
            "{side}: {number}trial {} is {sign}{} % off the median of its side{why}",
            row.trial,
            decimals(share * 100.0, 0)
        )
    };
    values
        .iter()
        .filter(|(_, value)| is_far(*value))
        .map(tell)
        .collect()
}

fn likely_reason(row: &TrialRow) -> Option<String> {
    if let Some(seen) = row.others_on_device() {
        return Some(format!("others on the device: {seen}"));
    }
    if let Some(reasons) = row.throttle_reasons.as_deref().filter(|_| {
        row.throttled_fraction
            .is_some_and(|share| share >= LEAST_THROTTLED_FRACTION)
    }) {
        return Some(format!("throttled: {reasons}"));
    }
    row.note("samples_per_second").map(str::to_owned)
}
