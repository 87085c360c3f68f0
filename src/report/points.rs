//! Groups rows into points: trials that differ only in their seed.

use std::{collections::HashMap, ops::Range};

use kiln_core::{
    kinds::data::Loader,
    plan::Outcome,
    record::{TableRow, TrialRow, TrialTable},
    statistics,
    units::{Fraction, shorten, without_controls},
};

use super::layout::significant;

/// Name of the only point of a run without a sweep.
pub(super) const UNSWEPT: &str = "all trials";

/// Outcomes that speak against the settings of a trial.
const FAILURES: [Outcome; 4] = [
    Outcome::Oom,
    Outcome::Diverged,
    Outcome::Failed,
    Outcome::TimedOut,
];

/// An outcome as a verb.
pub(super) fn did(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Oom => "ran out of memory",
        Outcome::Diverged => "diverged",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::Skipped => "was skipped",
        Outcome::Killed => "was killed",
        Outcome::Interrupted => "was interrupted",
    }
}

/// How many of these trials ended in each of the wanted ways: `2 oom`.
pub(super) fn ended(rows: &[&TrialRow], is_wanted: impl Fn(Outcome) -> bool) -> Vec<String> {
    let wanted = outcome_counts(rows.iter().copied()).into_iter();
    let wanted = wanted.filter(|(outcome, _)| is_wanted(*outcome));
    wanted
        .map(|(outcome, count)| format!("{count} {outcome}"))
        .collect()
}

/// How many trials ended in each way, in the order of [`Outcome::ALL`]; a way without a trial is left
/// out.
pub(super) fn outcome_counts<'r>(
    rows: impl IntoIterator<Item = &'r TrialRow>,
) -> Vec<(Outcome, usize)> {
    let mut counts = Outcome::ALL.map(|outcome| (outcome, 0));
    for row in rows {
        for (outcome, count) in &mut counts {
            *count += usize::from(*outcome == row.outcome);
        }
    }
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// One point of the sweep: the value of each axis, and the row that counts of each of its trials.
#[derive(Clone, Debug)]
pub(super) struct Point<'a> {
    pub(super) values: &'a [String],
    pub(super) rows: Vec<&'a TrialRow>,
}

impl Point<'_> {
    /// Rows of completed trials.
    pub(super) fn completed(&self) -> impl Iterator<Item = &TrialRow> {
        self.rows.iter().copied().filter(|row| row.is_completed())
    }

    /// How its other trials ended, with their numbers: `2 oom`; empty if all completed.
    pub(super) fn others(&self) -> Vec<String> {
        ended(&self.rows, |outcome| outcome != Outcome::Completed)
    }

    /// Its trials whose end speaks against its settings: `3 of 5 diverged`; `None` if there are
    /// none. Of a trial that was skipped, killed from outside or interrupted nothing is known.
    pub(super) fn failures(&self) -> Option<String> {
        let failures = FAILURES.into_iter().filter_map(|outcome| {
            let ended = self.rows.iter().filter(|row| row.outcome == outcome);
            let count = ended.count();
            (count > 0).then(|| format!("{count} of {} {}", self.rows.len(), did(outcome)))
        });
        let failures: Vec<String> = failures.collect();
        (!failures.is_empty()).then(|| failures.join(", "))
    }

    /// The same point with only those of its trials that completed without this number; `None` if
    /// there are none.
    pub(super) fn lacking(&self, number: impl Fn(&TrialRow) -> Option<f64>) -> Option<Self> {
        let rows: Vec<&TrialRow> = self
            .rows
            .iter()
            .copied()
            .filter(|row| row.is_completed() && number(row).is_none())
            .collect();
        (!rows.is_empty()).then_some(Self {
            values: self.values,
            rows,
        })
    }

    /// A number of its completed trials: mean and spread.
    pub(super) fn statistic(&self, of: impl Fn(&TrialRow) -> Option<f64>) -> Option<Statistic> {
        Statistic::of(self.completed().filter_map(of).collect())
    }

    /// `train.batch_size 8, data.num_workers 4`; the whole experiment where nothing is swept.
    pub(super) fn name(&self, axes: &[String]) -> String {
        let of_axes = axes
            .iter()
            .zip(self.values)
            .map(|(axis, value)| without_controls(&format!("{axis} {}", shown(value))));
        let in_pieces = self
            .rows
            .first()
            .and_then(|row| pieces(row))
            .map(|(batch, times)| format!("in pieces of {batch} × {times}"));
        let parts: Vec<String> = of_axes.chain(in_pieces).collect();
        if parts.is_empty() {
            UNSWEPT.to_owned()
        } else {
            parts.join(", ")
        }
    }
}

impl Point<'_> {
    /// Whether its trials train on one batch again and again, where that is an axis.
    pub(super) fn is_synthetic(&self, axes: &[String]) -> bool {
        let at = axes.iter().position(|axis| axis == Loader::SYNTHETIC);
        at.and_then(|at| self.values.get(at))
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// `batch_size 8, num_workers 4`: the last part of each key, where it is unique.
    pub(super) fn short_name(&self, axes: &[String]) -> String {
        self.name(&short_names(axes))
    }
}

/// Heads of columns that stand beside the axes.
const HEADS: [&str; 10] = [
    "n", "step", "loss", "memory", "power", "time", "trial", "outcome", "reason", "failures",
];

/// The last part of each key, where it is unique.
pub(super) fn short_names(axes: &[String]) -> Vec<String> {
    short_names_beside(axes, &HEADS)
}

/// The last part of each key, where it is unique and none of these heads.
pub(crate) fn short_names_beside(axes: &[String], heads: &[&str]) -> Vec<String> {
    let last = |axis: &str| axis.rsplit('.').next().unwrap_or_default().to_owned();
    let is_shared = |axis: &String| {
        axes.iter()
            .filter(|other| last(other) == last(axis))
            .count()
            > 1
    };
    axes.iter()
        .map(|axis| {
            if is_shared(axis) || heads.contains(&last(axis).as_str()) {
                axis.clone()
            } else {
                last(axis)
            }
        })
        .collect()
}

/// Longest value of an axis in the words of a trial, in letters.
const MOST_LETTERS: usize = 40;

/// Whether a point of the table has trials of several seeds.
pub(crate) fn has_repeats(table: &TrialTable) -> bool {
    let differ = |pair: &[&TrialRow]| pair[0].seed != pair[1].seed;
    points(table)
        .iter()
        .any(|point| point.rows.windows(2).any(differ))
}

/// `batch_size 8, seed 2`: a trial's value of each axis, and its seed if it is one of several; empty
/// if there is neither.
pub(crate) fn trial_in_words(table: &TrialTable, row: &TableRow, has_repeats: bool) -> String {
    let names = short_names(&table.axes);
    let of_axes = names
        .iter()
        .zip(&row.axes)
        .map(|(name, value)| format!("{name} {}", shorten(shown(value), MOST_LETTERS)));
    let seed = has_repeats.then(|| format!("seed {}", row.fixed.seed));
    let words: Vec<String> = of_axes.chain(seed).collect();
    without_controls(&words.join(", "))
}

/// Whether samples have different lengths; tokens are then comparable, samples are not.
pub(super) fn lengths_differ(axes: &[String]) -> bool {
    axes.iter().any(|axis| axis == "model.seq_len")
}

/// Speed of a row; higher is faster.
pub(super) type Speed = fn(&TrialRow) -> Option<f64>;

/// Whether one of these axes chooses devices.
pub(super) fn sweeps_devices(axes: &[String]) -> bool {
    axes.iter().any(|axis| DEVICES.contains(&axis.as_str()))
}

/// Axes that choose devices.
pub(super) const DEVICES: &[&str] = &["run.devices", "run.devices_per_trial"];
/// Tokens per second, with the unit.
pub(super) const TOKENS: (Speed, &str) =
    (|row| row.of_whole_work(row.tokens_per_second), "tokens/s");
/// Samples per second, with the unit.
pub(super) const SAMPLES: (Speed, &str) =
    (|row| row.of_whole_work(row.samples_per_second), "samples/s");

/// Returns the speed by which the points of a run are ranked, with its unit: samples per second, or
/// tokens per second where samples have different lengths. Where no row has it: steps per second,
/// if each step is the same work; step times of different batch sizes are not comparable.
pub(super) fn speed(points: &[Point<'_>], axes: &[String]) -> (Speed, &'static str) {
    let (throughput, unit) = if lengths_differ(axes) {
        TOKENS
    } else {
        SAMPLES
    };
    let rows = || points.iter().flat_map(Point::completed);
    let mut sizes = rows().map(|row| row.effective_batch_size);
    let first = sizes.next();
    let is_one_work = !lengths_differ(axes) && sizes.all(|size| first == Some(size));
    let has_rate = rows().any(|row| throughput(row).is_some());
    if has_rate || !is_one_work {
        return (throughput, unit);
    }
    let steps: Speed = |row| {
        row.of_whole_work(row.median_step_seconds)
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| 1.0 / seconds)
    };
    (steps, "steps/s")
}

/// The number in a cell, if it is one in kiln's own notation: `12.10` is a text, which another text
/// `12.1` does not equal.
pub(super) fn number(cell: &str) -> Option<f64> {
    let number = cell.parse::<f64>().ok()?;
    let is_own = cell == number.to_string() || cell == format!("{number:?}");
    is_own.then_some(number)
}

/// Text of a value; an axis removed by `null` has an empty cell.
pub(super) fn shown(value: &str) -> &str {
    if value.is_empty() { "(none)" } else { value }
}

/// Most significant digits of a mean: beyond them is the rounding of sums.
const MOST_DIGITS: i32 = 12;
/// Deviations that have no exponent.
const PLAIN: Range<f64> = 1e-6..1e12;

/// The power of ten of a number's first digit; 0 for 0.
pub(super) fn order(value: f64) -> i32 {
    match value == 0.0 {
        true => 0,
        false => value.abs().log10().floor() as i32,
    }
}

/// Mean over repeats, with the sample standard deviation where there are at least two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Statistic {
    pub(super) mean: f64,
    /// `None` for a single run.
    pub(super) deviation: Option<f64>,
    /// Number of runs that have the value.
    pub(super) runs: usize,
    /// Whether all values are above 0, so that the deviation is a share of the mean.
    is_ratio: bool,
}

impl Statistic {
    /// The text of a rate: `2171 ± 0.9 %`, and `-20.0 ± 10.0` where a value is not above 0; a
    /// single run has no spread.
    pub(super) fn with_spread(&self) -> String {
        let mean = significant(self.mean);
        match self.deviation {
            Some(_) if !self.mean.is_finite() => mean,
            Some(deviation) if self.is_ratio => {
                format!("{mean} ± {}", Fraction(deviation / self.mean))
            }
            Some(deviation) => format!("{mean} ± {}", significant(deviation)),
            None => mean,
        }
    }

    /// The text of a metric: `0.9200 ± 0.0064`, the deviation in the metric's own unit. A share of
    /// the mean would read as percentage points where the metric is an accuracy.
    pub(super) fn in_own_unit(&self) -> String {
        let mean = significant(self.mean);
        let Some(deviation) = self.deviation.filter(|_| self.mean.is_finite()) else {
            return mean;
        };
        let has_exponent = mean.contains('e');
        let is_plain = deviation == 0.0 || PLAIN.contains(&deviation);
        let says_all = deviation == 0.0 || deviation > self.mean.abs();
        if !deviation.is_finite() || (says_all && (has_exponent || !is_plain)) {
            return format!("{mean} ± {}", significant(deviation));
        }
        if has_exponent {
            let decimals = order(self.mean) - order(deviation) + 1;
            let decimals = decimals.clamp(2, MOST_DIGITS - 1) as usize;
            return format!("{:.decimals$e} ± {deviation:.1e}", self.mean);
        }
        let wanted = self.common_places(&mean, deviation);
        let left = MOST_DIGITS - 1 - order(self.mean.abs().max(deviation));
        let places = wanted.min(usize::try_from(left).unwrap_or(0));
        let spread = match is_plain {
            true if places == wanted => format!("{deviation:.places$}"),
            true => significant(deviation),
            false => format!("{deviation:.1e}"),
        };
        let mean = format!("{:.places$}", self.mean);
        let is_zero = mean.parse() == Ok(0.0);
        let mean = mean.strip_prefix('-').filter(|_| is_zero).unwrap_or(&mean);
        format!("{mean} ± {spread}")
    }

    /// The decimals of the mean and its deviation: as many as show two digits of the deviation, and
    /// at least those of the mean in `text`, unless the deviation is larger.
    fn common_places(&self, text: &str, deviation: f64) -> usize {
        let of_mean = text
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        let of_deviation = match deviation > 0.0 {
            // Negative from 100 on.
            true => usize::try_from(1 - order(deviation)).unwrap_or(0),
            false => 0,
        };
        let least = match deviation > self.mean.abs() {
            true => 0,
            false => of_mean,
        };
        of_deviation.max(least)
    }

    pub(super) fn of(values: Vec<f64>) -> Option<Self> {
        Some(Self {
            mean: statistics::mean(&values)?,
            deviation: statistics::deviation(&values),
            runs: values.len(),
            is_ratio: values.iter().all(|value| *value > 0.0),
        })
    }
}

/// Batch and accumulation.
pub(super) type BatchPieces = (u64, u64);

/// Batch size and accumulation of a trial that replaces one that ran out of memory; it is not a
/// repeat of a planned trial.
pub(super) fn pieces(row: &TrialRow) -> Option<BatchPieces> {
    row.fallback_of
        .as_ref()
        .map(|_| (row.batch_size, row.grad_accumulation))
}

/// All points, in the plan's order.
pub(super) fn points(table: &TrialTable) -> Vec<Point<'_>> {
    let mut points: Vec<Point<'_>> = Vec::new();
    let mut place_of: HashMap<(&[String], Option<BatchPieces>), usize> = HashMap::new();
    for row in table.last_attempts() {
        let place = *place_of
            .entry((&row.axes, pieces(&row.fixed)))
            .or_insert(points.len());
        if place == points.len() {
            points.push(Point {
                values: &row.axes,
                rows: Vec::new(),
            });
        }
        points[place].rows.push(&row.fixed);
    }
    points
}

/// Columns that an axis of another table may be.
pub(super) const SETTINGS: [&str; 11] = [
    "batch_size",
    "grad_accumulation",
    "effective_batch_size",
    "num_workers",
    "seed",
    "precision",
    "engine",
    "device_name",
    "devices_per_trial",
    "model_kind",
    "data_kind",
];

/// Returns a row's value of an axis or of one of [`SETTINGS`]: an axis of one table may be a fixed
/// setting of the other. `None` where the table does not have it.
pub(super) fn setting(table: &TrialTable, row: &TableRow, key: &str) -> Option<String> {
    if let Some(place) = table.axes.iter().position(|axis| axis == key) {
        return Some(row.axes.get(place).cloned().unwrap_or_default());
    }
    column_setting(&row.fixed, key)
}

/// The value of a row in one of the columns of [`SETTINGS`].
pub(super) fn column_setting(fixed: &TrialRow, key: &str) -> Option<String> {
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    // A command has none: 0 is an empty cell.
    let count = |value: u64| number(Some(value).filter(|value| *value > 0));
    let column = match key {
        "model.kind" => "model_kind",
        "data.kind" => "data_kind",
        _ => key.rsplit('.').next().unwrap_or(key),
    };
    Some(match column {
        "batch_size" => count(fixed.batch_size),
        "grad_accumulation" => count(fixed.grad_accumulation),
        "effective_batch_size" => count(fixed.effective_batch_size),
        "num_workers" => number(fixed.num_workers),
        "seed" => fixed.seed.to_string(),
        "precision" => fixed.precision.clone(),
        "engine" => fixed.engine.clone(),
        "device_name" => fixed.device_name.clone().unwrap_or_default(),
        "devices_per_trial" => number(fixed.devices_per_trial),
        "model_kind" => fixed.model_kind.clone(),
        "data_kind" => fixed.data_kind.clone(),
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kiln_core::{
        plan::{Origin, TrialId},
        record::{RunFile, TableRow, tables::TRIALS},
    };

    /// The run, as if its trial had begun with a checkpoint of another run.
    pub(in crate::report) fn continued(run: &RunFile) -> RunFile {
        let origin = Origin {
            run: "results/x/20261120T100809Z-4da13ed".into(),
            trial: TrialId("t0123456789".to_owned()),
            step: 200,
            sha256: "ab".repeat(32),
        };
        let mut continued = run.clone();
        continued
            .continues
            .insert(TrialId("t1111111111".to_owned()), origin);
        continued
    }

    /// The checkpoint of [`continued`], as pages show it.
    pub(in crate::report) const BEGINNING: &str =
        "x/20261120T100809Z-4da13ed: t0123456789 at step 200";

    /// A completed trial on a GPU; `id` also numbers it.
    pub(in crate::report) fn row(id: u64, samples_per_second: f64) -> TrialRow {
        TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            trial: TrialId(format!("{id:010x}")),
            attempt: 1,
            launch: 1,
            number: id,
            outcome: Outcome::Completed,
            model_kind: "gpt".to_owned(),
            data_kind: "generated".to_owned(),
            engine: "libtorch".to_owned(),
            precision: "f32".to_owned(),
            device_name: Some("NVIDIA H200".to_owned()),
            device_uuid: Some("GPU-1".to_owned()),
            batch_size: 1,
            grad_accumulation: 1,
            effective_batch_size: 1,
            seed: 1,
            samples_per_second: Some(samples_per_second),
            concurrent_trials: 1,
            ..TrialRow::default()
        }
    }

    pub(in crate::report) fn table(axes: &[&str], rows: Vec<(TrialRow, &[&str])>) -> TrialTable {
        let rows = rows
            .into_iter()
            .map(|(fixed, axes)| TableRow {
                fixed: Box::new(fixed),
                axes: axes.iter().map(|cell| (*cell).to_owned()).collect(),
            })
            .collect();
        TrialTable {
            axes: axes.iter().map(|axis| (*axis).to_owned()).collect(),
            rows,
            metrics: Vec::new(),
            others: Vec::new(),
            varied: Vec::new(),
            torn: None,
        }
    }

    #[test]
    fn a_trial_in_words_has_its_seed_if_points_have_several() {
        let seeded = |id, seed| TrialRow {
            seed,
            ..row(id, 10.0)
        };
        let long = "x".repeat(50);
        let words = |table: &TrialTable| trial_in_words(table, &table.rows[1], has_repeats(table));
        let repeats = table(
            &["train.batch_size", "data.path"],
            vec![(seeded(1, 1), &["8", ""]), (seeded(2, 2), &["8", ""])],
        );
        assert_eq!(words(&repeats), "batch_size 8, path (none), seed 2");
        let once = table(
            &["data.path"],
            vec![(seeded(1, 1), &["a"]), (seeded(2, 1), &[long.as_str()])],
        );
        assert_eq!(words(&once), format!("path {}…", "x".repeat(40)));
        let unswept = table(&[], vec![(row(1, 1.0), &[]), (row(2, 1.0), &[])]);
        assert_eq!(words(&unswept), "");
    }

    #[test]
    fn repeats_are_one_point_and_only_the_last_attempt_counts() {
        let again = TrialRow {
            attempt: 2,
            ..row(2, 30.0)
        };
        let table = table(
            &["a.b"],
            vec![
                (row(1, 10.0), &["x"]),
                (row(2, 5.0), &["x"]),
                (row(3, 7.0), &["y"]),
                (again, &["x"]),
            ],
        );
        let points = points(&table);
        assert_eq!(points.len(), 2);
        let statistic = points[0].statistic(|row| row.samples_per_second).unwrap();
        assert_eq!((statistic.mean, points[0].rows.len()), (20.0, 2));
        assert!((statistic.deviation.unwrap() - 200.0_f64.sqrt()).abs() < 1e-12);
        let single = points[1].statistic(|row| row.samples_per_second).unwrap();
        assert_eq!((single.mean, single.deviation), (7.0, None));
        assert_eq!(points[1].name(&table.axes), "a.b y");
        assert_eq!(
            table.last_attempts()[1].fixed.trial,
            TrialId("0000000002".into())
        );
    }

    #[test]
    fn values_that_are_not_above_0_have_a_spread_in_their_own_unit() {
        let told = |values: &[f64]| Statistic::of(values.to_vec()).unwrap().with_spread();
        assert_eq!(told(&[9.0, 11.0]), "10.0 ± 14.1 %");
        assert_eq!(told(&[-10.0, -20.0, -30.0]), "-20.0 ± 10.0");
        assert_eq!(told(&[-1.0, 3.0]), "1.00 ± 2.83");
        assert_eq!(told(&[0.0, 0.0]), "0 ± 0");
        assert_eq!(told(&[-1.0]), "-1.00");
    }

    #[test]
    fn a_metric_has_its_deviation_in_its_own_unit() {
        let told = |values: &[f64]| Statistic::of(values.to_vec()).unwrap().in_own_unit();
        assert_eq!(told(&[0.914, 0.92, 0.926]), "0.9200 ± 0.0060");
        assert_eq!(told(&[0.8, 0.9, 1.0]), "0.900 ± 0.100");
        assert_eq!(told(&[2150.0, 2171.0, 2190.0]), "2170 ± 20");
        assert_eq!(told(&[-10.0, -20.0, -30.0]), "-20.0 ± 10.0");
        assert_eq!(told(&[-1.0, 3.0]), "1.0 ± 2.8");
        assert_eq!(told(&[0.5, 0.5]), "0.500 ± 0.000");
        assert_eq!(told(&[0.0, 0.0]), "0 ± 0");
        assert_eq!(told(&[0.5]), "0.500");
        assert_eq!(told(&[0.5, 0.5 + 2e-9]), "0.5000000010 ± 1.4e-9");
        assert_eq!(told(&[221.2, 221.21, 221.206]), "221.2053 ± 0.0050");
        assert_eq!(told(&[10001.19, 10001.2]), "10001.1950 ± 0.0071");
        assert_eq!(told(&[99.996, 100.0]), "99.9980 ± 0.0028");
        assert_eq!(told(&[1.2e-8, 1.21e-8]), "1.2050e-8 ± 7.1e-11");
        assert_eq!(told(&[-1e-9, 1e-9]), "0 ± 1.41e-9");
        assert_eq!(told(&[-1e-8, 1.2e-8]), "1.00e-9 ± 1.56e-8");
        // More digits would be those of rounding.
        assert_eq!(
            told(&[123_456_789.0, 123_456_789.000_1]),
            "123456789.000 ± 0.0000707"
        );
        assert_eq!(told(&[1e300, 1e300]), "1.00e300 ± 0");
    }

    #[test]
    fn what_stands_in_for_a_trial_is_a_point_of_its_own() {
        let smaller = |id| TrialRow {
            fallback_of: Some(TrialId("0000000001".into())),
            batch_size: 4,
            grad_accumulation: 2,
            ..row(id, 5.0)
        };
        let failed = TrialRow {
            outcome: Outcome::Oom,
            ..row(1, 9.0)
        };
        let rows = vec![
            (failed, &["8"][..]),
            (row(2, 7.0), &["4"]),
            (smaller(3), &["4"]),
            (smaller(4), &["4"]),
        ];
        let table = table(&["train.batch_size"], rows);
        let points = points(&table);
        let names: Vec<String> = points.iter().map(|point| point.name(&table.axes)).collect();
        assert_eq!(
            names,
            [
                "train.batch_size 8",
                "train.batch_size 4",
                "train.batch_size 4, in pieces of 4 × 2"
            ]
        );
        assert_eq!(
            points
                .iter()
                .map(|point| point.rows.len())
                .collect::<Vec<_>>(),
            [1, 1, 2]
        );
    }

    #[test]
    fn a_trial_that_did_not_complete_has_no_part_in_the_numbers() {
        let failed = TrialRow {
            outcome: Outcome::Oom,
            ..row(2, 99.0)
        };
        let table = table(&[], vec![(row(1, 10.0), &[]), (failed, &[])]);
        assert_eq!(
            points(&table)[0]
                .statistic(|row| row.samples_per_second)
                .unwrap()
                .mean,
            10.0
        );
    }
}
