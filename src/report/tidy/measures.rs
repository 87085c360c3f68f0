//! The columns of a point: how its trials ended, and each measure over those that completed. The
//! numbers are those of the report, not rounded.

use kiln_core::record::TrialRow;

use super::number;
use crate::report::{
    energy::energy_of,
    metrics::accuracy,
    points::{Point, SAMPLES, TOKENS, pieces},
};

/// Reads a number of a row.
type RowNumber = fn(&TrialRow) -> Option<f64>;

/// A number of a trial under the name of its column.
pub(in crate::report) struct TidyMeasure {
    name: &'static str,
    source: Source,
    /// Columns of `trials.csv` under whose names `notes` may say why it is empty, beside its own.
    pub(in crate::report) notes: &'static [&'static str],
    /// Whether a command that resumed lacks it ([`TrialRow::of_whole_work`]).
    pub(in crate::report) is_of_whole_work: bool,
}

enum Source {
    Row(RowNumber),
    /// All rows of a point are read alike ([`energy_of`]).
    Energy,
}

/// Notes on a measure of the window.
const WINDOW: &[&str] = &["window_seconds"];

static MEASURES: [TidyMeasure; 20] = [
    TidyMeasure {
        notes: WINDOW,
        ..of_whole_work("samples_per_second", SAMPLES.0)
    },
    TidyMeasure {
        notes: WINDOW,
        ..of_whole_work("tokens_per_second", TOKENS.0)
    },
    TidyMeasure {
        notes: WINDOW,
        ..of_whole_work("median_step_seconds", |row| {
            row.of_whole_work(row.median_step_seconds)
        })
    },
    TidyMeasure {
        notes: WINDOW,
        ..of_row("data_wait_fraction", |row| row.data_wait_fraction)
    },
    of_row("train_loss", |row| row.train_loss),
    of_row("valid_loss", |row| row.valid_loss),
    of_row("lowest_valid_loss", |row| row.lowest_valid_loss),
    TidyMeasure {
        notes: &["valid_top1", "valid_hit_rate", "valid_bleu4"],
        ..of_row("accuracy", accuracy)
    },
    of_row("valid_top1", |row| row.valid_top1),
    of_row("valid_mean_absolute_error", |row| {
        row.valid_mean_absolute_error
    }),
    of_row("valid_hit_rate", |row| row.valid_hit_rate),
    of_row("valid_bleu4", |row| row.valid_bleu4),
    of_row("valid_chrf", |row| row.valid_chrf),
    of_whole_work("seconds_to_target", |row| {
        row.of_whole_work(row.seconds_to_target)
    }),
    of_row("steps_to_target", |row| {
        row.steps_to_target.map(|steps| steps as f64)
    }),
    TidyMeasure {
        notes: &[
            "peak_allocated_bytes",
            "peak_nvml_used_bytes",
            "peak_resident_bytes",
        ],
        ..of_row("peak_memory_bytes", |row| {
            row.memory_held_bytes().map(|bytes| bytes as f64)
        })
    },
    TidyMeasure {
        notes: WINDOW,
        ..of_row("mean_gpu_utilization", |row| row.mean_gpu_utilization)
    },
    of_row("mfu", |row| row.mfu),
    // The row of a trial that was resumed has the time since then.
    of_whole_work("trial_seconds", TrialRow::whole_seconds),
    TidyMeasure {
        name: "joules_per_sample",
        source: Source::Energy,
        notes: &["energy_counter_joules", "energy_integral_joules"],
        is_of_whole_work: true,
    },
];

/// The name of the measure that is read from a column of `trials.csv`.
pub(super) fn name_of(column: &str) -> Option<&'static str> {
    let mut measures = MEASURES.iter();
    let found = measures.find(|one| one.name == column || one.notes.contains(&column));
    found.map(|one| one.name)
}

/// A measure of a row alone.
const fn of_row(name: &'static str, of: RowNumber) -> TidyMeasure {
    TidyMeasure {
        name,
        source: Source::Row(of),
        notes: &[],
        is_of_whole_work: false,
    }
}

/// A number of a row that a command which resumed lacks.
const fn of_whole_work(name: &'static str, of: RowNumber) -> TidyMeasure {
    TidyMeasure {
        name,
        source: Source::Row(of),
        notes: &[],
        is_of_whole_work: true,
    }
}

impl TidyMeasure {
    /// The measure of a column; `None` for a metric of a command.
    pub(in crate::report) fn named(column: &str) -> Option<&'static Self> {
        MEASURES.iter().find(|measure| measure.name == column)
    }

    /// Reads it from the rows of a point.
    fn of(&self, point: &Point<'_>) -> RowNumber {
        match self.source {
            Source::Row(of) => of,
            Source::Energy => energy_of(point),
        }
    }
}

/// Columns on the trials of a point, before its measures.
const ENDS: [&str; 3] = [
    "others",
    "stand_in_batch_size",
    "stand_in_grad_accumulation",
];

/// The names of the measures, without the metrics of commands.
pub(in crate::report) fn names() -> impl Iterator<Item = &'static str> {
    MEASURES.iter().map(|measure| measure.name)
}

/// Reads a measure, or `metric.NAME`, from the rows of a point.
pub(in crate::report) fn reader(
    point: &Point<'_>,
    column: &str,
) -> impl Fn(&TrialRow) -> Option<f64> {
    let measure = TidyMeasure::named(column).map(|measure| measure.of(point));
    move |row: &TrialRow| match measure {
        Some(of) => of(row),
        None => row.metric_of_column(column),
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
    let stand_in = point.rows.first().and_then(|row| pieces(row));
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut cells = vec![
        point.others().join(" "),
        whole(stand_in.map(|(batch, _)| batch)),
        whole(stand_in.map(|(_, times)| times)),
    ];
    for measure in &MEASURES {
        cells.extend(of_measure(point, measure.of(point)));
    }
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
