//! Runs whose speed is far from that of the other runs of their point.

use kiln_core::{
    record::TrialRow,
    statistics::{self, OUTLIER_DEVIATIONS, OUTLIER_FEWEST_RUNS, WORTH},
    units::decimals,
};

use super::{ComparedMetric, completed};

/// Median distance from the median of a normal distribution, in standard deviations.
const TO_DEVIATION: f64 = 0.6745;

/// Returns the runs whose speed is far from that of the others. They are reported, never excluded.
pub(super) fn outliers(side: &str, rows: &[&TrialRow]) -> Vec<String> {
    let rows = completed(rows);
    let speeds: Vec<(&TrialRow, f64)> = rows
        .iter()
        .filter_map(|row| Some((*row, ComparedMetric::Throughput.of(row)?)))
        .collect();
    if speeds.len() < OUTLIER_FEWEST_RUNS {
        return Vec::new();
    }
    let middle = statistics::median(speeds.iter().map(|(_, speed)| *speed));
    let distance = statistics::median(speeds.iter().map(|(_, speed)| (speed - middle).abs()));
    let is_far = |speed: f64| {
        let away = (speed - middle).abs();
        away > WORTH * middle && away * TO_DEVIATION > OUTLIER_DEVIATIONS * distance
    };
    let earliest = speeds
        .iter()
        .map(|(row, _)| (row.launch, row.run_seconds.unwrap_or(f64::MAX)))
        .min_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    let first =
        |row: &TrialRow| earliest == Some((row.launch, row.run_seconds.unwrap_or(f64::MAX)));
    let tell = |(row, speed): &(&TrialRow, f64)| {
        let share = speed / middle - 1.0;
        let why = likely_reason(row)
            .or_else(|| first(row).then(|| "the first run of its side".to_owned()));
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let sign = if share < 0.0 { "" } else { "+" };
        format!(
            "{side}: trial {} is {sign}{} % off the median of its side{why}",
            row.trial,
            decimals(share * 100.0, 0)
        )
    };
    speeds
        .iter()
        .filter(|(_, speed)| is_far(*speed))
        .map(tell)
        .collect()
}

fn likely_reason(row: &TrialRow) -> Option<String> {
    if let Some(seen) = row.others_on_device() {
        return Some(format!("others on the device: {seen}"));
    }
    if let Some(reasons) = row
        .throttle_reasons
        .as_deref()
        .filter(|_| row.throttled_fraction.is_some_and(|share| share > 0.0))
    {
        return Some(format!("throttled: {reasons}"));
    }
    row.note("samples_per_second").map(str::to_owned)
}
