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
    let has_run_seconds = values.iter().all(|(row, _)| row.run_seconds.is_some());
    let start = |row: &TrialRow| match has_run_seconds {
        true => Some((row.launch, row.run_seconds?)),
        false => Some((row.launch, row.started_seconds()?)),
    };
    // Where the start of a run is unknown, none is known to be the first.
    let starts: Option<Vec<(u64, f64)>> = values.iter().map(|(row, _)| start(row)).collect();
    let earliest = starts
        .into_iter()
        .flatten()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::row;

    /// The outlier of runs that began one after the other, of which the one at this place has no
    /// `run_seconds`.
    fn outlier(rates: [f64; 6], unknown: usize, has_time: bool) -> String {
        let run = |(place, rate): (usize, f64)| TrialRow {
            launch: 1,
            run_seconds: (place != unknown).then_some(place as f64),
            started_utc: has_time.then(|| format!("2026-01-01T00:00:0{place}Z")),
            ..row(place as u64, rate)
        };
        let rows: Vec<TrialRow> = rates.into_iter().enumerate().map(run).collect();
        let rows: Vec<&TrialRow> = rows.iter().collect();
        let found = outliers("base", &rows, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        found.concat()
    }

    #[test]
    fn the_first_run_is_known_by_its_time_where_one_lacks_run_seconds() {
        let first = [200.0, 100.4, 99.7, 100.2, 99.9, 100.0];
        let second = [100.4, 200.0, 99.7, 100.2, 99.9, 100.0];
        let is_first = |text: &str| text.ends_with("(the first run of its side)");
        assert!(is_first(&outlier(first, 0, true)));
        assert!(!is_first(&outlier(second, 0, true)));
        assert!(!is_first(&outlier(second, 0, false)));
        assert!(is_first(&outlier(first, 6, false)));
    }
}
