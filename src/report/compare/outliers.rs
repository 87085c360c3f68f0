//! Runs whose speed, or another number of programs without one, is far from that of the other runs of
//! their point.

use kiln_core::{
    record::{TrialRow, disturbance::LEAST_THROTTLED_FRACTION},
    statistics::{self, OUTLIER_FEWEST_RUNS, WORTH, outlier_deviations},
    units::decimals,
};

use super::{ComparedMetric, Nature, completed};

/// Median distance from the median of a normal distribution, in standard deviations.
const TO_DEVIATION: f64 = 0.6745;

/// Beside at least [`FEWEST_EQUAL`] equal runs one that is further off is an outlier: the step of
/// numbers is not that coarse.
const COARSEST_STEP: f64 = 0.25;
const FEWEST_EQUAL: usize = 5;

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
    // If numbers are coarse, most may be equal, with a median distance of 0.
    let step = smallest_step(values.iter().map(|(_, value)| *value).collect());
    let deviation = (distance / TO_DEVIATION).max(step);
    // Where all others are equal, the step is the distance of the run itself.
    let equal = values.iter().filter(|(_, value)| *value == middle);
    let equal = equal.count();
    let are_others_equal = equal >= FEWEST_EQUAL && equal + 1 == values.len();
    let is_far = |value: f64| {
        let away = (value - middle).abs();
        let is_beyond = away > outlier_deviations(values.len()) * deviation;
        let is_off = are_others_equal && away > COARSEST_STEP * middle;
        away > WORTH * middle && (is_beyond || is_off)
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

/// The smallest difference of two values that are not equal; 0 if all are equal.
fn smallest_step(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let steps = values.windows(2).map(|two| two[1] - two[0]);
    let steps = steps.filter(|step| *step > 0.0);
    steps.reduce(f64::min).unwrap_or_default()
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

    /// Share of comparisons of clean runs, normal with a deviation of 5 % and rounded to `unit`, in
    /// which a run of a side is called an outlier.
    fn share_of_clean(runs: usize, unit: f64) -> f64 {
        const COMPARISONS: usize = 2000;
        let mut random = fastrand::Rng::with_seed(7);
        let mut normal = || {
            let [one, other] = [(); 2].map(|()| random.f64());
            (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
        };
        let mut rows = vec![row(1, 100.0); 2 * runs];
        let mut has_outlier = || {
            for row in &mut rows {
                let rate = ((100.0 + 5.0 * normal()) / unit).round() * unit;
                row.samples_per_second = Some(rate);
            }
            let rows: Vec<&TrialRow> = rows.iter().collect();
            let mut sides = rows.chunks(runs);
            sides.any(|side| !outliers("base", side, &[]).is_empty())
        };
        let found = (0..COMPARISONS).filter(|_| has_outlier()).count();
        found as f64 / COMPARISONS as f64
    }

    #[test]
    fn clean_runs_seldom_have_an_outlier_however_few_or_coarse() {
        for runs in [4, 5, 6, 7, 10, 20] {
            let share = share_of_clean(runs, 1e-6);
            assert!((0.02..0.08).contains(&share), "{runs} runs: {share}");
            for unit in [1.0, 5.0, 10.0, 20.0] {
                let share = share_of_clean(runs, unit);
                assert!(share < 0.08, "{runs} runs in steps of {unit}: {share}");
            }
        }
    }

    #[test]
    fn a_run_far_from_others_that_are_equal_is_an_outlier() {
        let found = |equal: usize, other: f64| {
            let rates = [100.0].repeat(equal).into_iter().chain([other]);
            let rows: Vec<TrialRow> = rates.map(|rate| row(1, rate)).collect();
            let rows: Vec<&TrialRow> = rows.iter().collect();
            outliers("base", &rows, &[]).len()
        };
        assert_eq!(found(9, 70.0), 1);
        assert_eq!(found(5, 140.0), 1);
        // Such a step may be that of the numbers, and few runs say nothing of it.
        assert_eq!(found(9, 80.0), 0);
        assert_eq!(found(4, 70.0), 0);
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
