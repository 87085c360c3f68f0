//! The columns of a point: how its trials ended, and each measure over those that completed. The
//! numbers are those of the report, not rounded.

use kiln_core::{plan::Outcome, record::TrialRow};

use super::number;
use crate::report::{
    energy::energy_of,
    metrics::accuracy,
    points::{Point, SAMPLES, TOKENS, ended, pieces},
};

/// A number of a trial under the name of its column.
type Measure = (&'static str, fn(&TrialRow) -> Option<f64>);

const MEASURES: [Measure; 19] = [
    ("samples_per_second", SAMPLES.0),
    ("tokens_per_second", TOKENS.0),
    ("median_step_seconds", |row| {
        row.of_whole_work(row.median_step_seconds)
    }),
    ("data_wait_fraction", |row| row.data_wait_fraction),
    ("train_loss", |row| row.train_loss),
    ("valid_loss", |row| row.valid_loss),
    ("lowest_valid_loss", |row| row.lowest_valid_loss),
    ("accuracy", accuracy),
    ("valid_top1", |row| row.valid_top1),
    ("valid_mean_absolute_error", |row| {
        row.valid_mean_absolute_error
    }),
    ("valid_hit_rate", |row| row.valid_hit_rate),
    ("valid_bleu4", |row| row.valid_bleu4),
    ("valid_chrf", |row| row.valid_chrf),
    ("seconds_to_target", |row| {
        row.of_whole_work(row.seconds_to_target)
    }),
    ("steps_to_target", |row| {
        row.steps_to_target.map(|steps| steps as f64)
    }),
    ("peak_memory_bytes", |row| {
        row.memory_held_bytes().map(|bytes| bytes as f64)
    }),
    ("mean_gpu_utilization", |row| row.mean_gpu_utilization),
    ("mfu", |row| row.mfu),
    // The row of a trial that was resumed has the time since then.
    ("trial_seconds", TrialRow::whole_seconds),
];

/// The measure behind these, of one source of energy.
const ENERGY: &str = "joules_per_sample";

/// Columns on the trials of a point, before its measures.
const ENDS: [&str; 3] = [
    "others",
    "stand_in_batch_size",
    "stand_in_grad_accumulation",
];

/// The names of the measures, without the metrics of commands.
pub(in crate::report) fn names() -> impl Iterator<Item = &'static str> {
    MEASURES.iter().map(|(name, _)| *name).chain([ENERGY])
}

/// A row's value of a measure, or of `metric.NAME`.
pub(in crate::report) fn value(point: &Point<'_>, column: &str, row: &TrialRow) -> Option<f64> {
    if column == ENERGY {
        return energy_of(point)(row);
    }
    match MEASURES.iter().find(|(name, _)| *name == column) {
        Some((_, of)) => of(row),
        None => row.metric_of_column(column),
    }
}

/// The columns of `trials.csv` under whose names `notes` may say why a measure is empty, beside its
/// own name.
pub(in crate::report) fn columns_of(measure: &str) -> &'static [&'static str] {
    match measure {
        "accuracy" => &["valid_top1", "valid_hit_rate", "valid_bleu4"],
        "peak_memory_bytes" => &[
            "peak_allocated_bytes",
            "peak_nvml_used_bytes",
            "peak_resident_bytes",
        ],
        ENERGY => &["energy_counter_joules", "energy_integral_joules"],
        "samples_per_second"
        | "tokens_per_second"
        | "median_step_seconds"
        | "data_wait_fraction"
        | "mean_gpu_utilization" => &["window_seconds"],
        _ => &[],
    }
}

/// The names of all columns; `metrics` are `metric.NAME`.
pub(super) fn columns(metrics: &[String]) -> Vec<String> {
    let known: Vec<&str> = names().collect();
    let measures = known.into_iter().chain(metrics.iter().map(String::as_str));
    let of_measure = |name: &str| {
        [
            name.to_owned(),
            format!("{name}_deviation"),
            format!("{name}_n"),
        ]
    };
    let ends = ENDS.iter().map(|name| (*name).to_owned());
    ends.chain(measures.flat_map(of_measure)).collect()
}

/// The cells of a point, one for each of [`columns`].
pub(super) fn cells(point: &Point<'_>, metrics: &[String]) -> Vec<String> {
    let others = ended(&point.rows, |outcome| outcome != Outcome::Completed);
    let stand_in = point.rows.first().and_then(|row| pieces(row));
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut cells = vec![
        others.join(" "),
        whole(stand_in.map(|(batch, _)| batch)),
        whole(stand_in.map(|(_, times)| times)),
    ];
    for (_, of) in MEASURES {
        cells.extend(of_measure(point, of));
    }
    cells.extend(of_measure(point, energy_of(point)));
    for metric in metrics {
        cells.extend(of_measure(point, |row| row.metric_of_column(metric)));
    }
    cells
}

/// Mean, standard deviation and number of runs; a single run has no deviation.
fn of_measure(point: &Point<'_>, of: impl Fn(&TrialRow) -> Option<f64>) -> [String; 3] {
    let Some(statistic) = point.statistic(of) else {
        return Default::default();
    };
    [
        number(Some(statistic.mean)),
        number(statistic.deviation),
        statistic.runs.to_string(),
    ]
}
