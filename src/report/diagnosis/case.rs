//! One trial as the rules see it: its row, and where a rule needs them the other rows of the run.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::rule::{Evidence, Threshold, Unit};
use crate::{
    plan::Outcome,
    record::TrialRow,
    report::points::{Point, Statistic, note_on},
};

/// From where on another point's rate counts as faster.
pub(super) const FASTER: Threshold = Threshold::at_least(
    "rate of another point / own rate - 1, beyond the spreads of both",
    0.03,
    Unit::Fraction,
    "chosen: as between two tables, where smaller differences are called the same",
);

/// The same where one of the two is a single run.
pub(super) const FASTER_ONCE: Threshold = Threshold::at_least(
    "the same, where one of the two is a single run",
    0.10,
    Unit::Fraction,
    "chosen: nobody knows its spread, and single runs on a quiet machine are up to 4 % apart",
);

/// All points of a run, looked through once: a rule asks of each trial.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) axes: &'a [String],
    /// Cores that a trial of this run could use: as a note counts them, else the most that any row used or asked for. Too few rather than
    /// too many where `train.cpu_threads` was given.
    cores: Option<u64>,
    /// Whether the points are every combination of their values, as those of a plain grid are.
    pub(super) is_plain_grid: bool,
    /// Of each axis: the points by their values on the others.
    beside: Vec<HashMap<Vec<&'a str>, Vec<&'a Point<'a>>>>,
}

impl<'a> Around<'a> {
    pub(super) fn new(axes: &'a [String], run: &'a [Point<'a>]) -> Self {
        let mut beside = vec![HashMap::new(); axes.len()];
        for point in run {
            for (place, points) in beside.iter_mut().enumerate() {
                points.entry(others(point, place)).or_insert_with(Vec::new).push(point);
            }
        }
        let combinations = (0..axes.len()).map(|place| run.iter().map(|point| &point.values[place]).collect::<HashSet<_>>().len());
        Self { axes, cores: cores(run), is_plain_grid: combinations.product::<usize>() == run.len(), beside }
    }
}

/// The values of a point but for one axis.
fn others<'a>(point: &Point<'a>, axis: usize) -> Vec<&'a str> {
    point.values.iter().enumerate().filter(|(place, _)| *place != axis).map(|(_, value)| value.as_str()).collect()
}

fn cores(run: &[Point<'_>]) -> Option<u64> {
    let rows = || run.iter().flat_map(|point| point.rows.iter().copied());
    let told = rows().filter_map(cores_of_note).max();
    let used = |row: &TrialRow| row.mean_cpu_cores.map(|cores| (cores - 0.05).ceil().max(0.0) as u64);
    told.or_else(|| rows().filter_map(|row| row.cpu_threads.max(used(row))).max())
}

/// A trial's row, the point it belongs to, and the run around it.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) row: &'a TrialRow,
    pub(super) point: &'a Point<'a>,
    pub(super) around: &'a Around<'a>,
    cells: Map<String, Value>,
}

impl<'a> Case<'a> {
    pub(super) fn new(row: &'a TrialRow, point: &'a Point<'a>, around: &'a Around<'a>) -> Self {
        // A row is a flat struct of numbers and text: it always becomes a map.
        let cells = match serde_json::to_value(row) {
            Ok(Value::Object(cells)) => cells,
            _ => Map::new(),
        };
        Self { row, point, around, cells }
    }

    pub(super) fn axes(&self) -> &'a [String] {
        self.around.axes
    }

    pub(super) fn is_on_gpu(&self) -> bool {
        self.row.device_uuid.is_some()
    }

    /// Whether batches come from a loader that `data.num_workers` and `data.synthetic` speak of.
    pub(super) fn has_loader(&self) -> bool {
        self.row.num_workers.is_some() && self.row.data_kind != "none"
    }

    /// Whether an optimizer updates anything; products of matrices have no batch of their own.
    pub(super) fn trains(&self) -> bool {
        self.row.model_kind != "matmul"
    }

    pub(super) fn sweeps(&self, key: &str) -> bool {
        self.axes().iter().any(|axis| axis == key)
    }

    /// What the row's notes say of a column, if it begins so.
    pub(super) fn note(&self, column: &str, beginning: &str) -> Option<&'a str> {
        note_on(self.row, column).filter(|note| note.starts_with(beginning))
    }

    /// A note on a column, as the table has it.
    pub(super) fn quoted(column: &str, note: &str) -> Evidence {
        Evidence { of: None, column: "notes", value: format!("{column}: {note}").into() }
    }

    /// The cells of these columns that hold something.
    pub(super) fn evidence(&self, columns: &[&'static str]) -> Vec<Evidence> {
        let cell =
            |column: &&'static str| Some(Evidence { of: None, column, value: self.cells.get(*column).filter(|cell| !cell.is_null())?.clone() });
        columns.iter().filter_map(cell).collect()
    }

    /// Device memory at its fullest as a share of the device's, by NVML, else by the allocator.
    pub(super) fn device_memory_share(&self) -> Option<f64> {
        let used = self.row.peak_nvml_used_bytes.filter(|used| *used > 0).or(self.row.peak_reserved_bytes)?;
        share(used, self.row.memory_limit_bytes?)
    }

    /// Samples of one pass over the training data, as its time and the rate tell.
    pub(super) fn samples_per_epoch(&self) -> Option<f64> {
        Some(self.row.epoch_seconds? * self.row.samples_per_second?)
    }

    /// Cores that a trial of this run could use, too few rather than too many.
    pub(super) fn cores(&self) -> Option<u64> {
        self.around.cores
    }

    /// Points that differ from this one in the value of one axis alone.
    pub(super) fn fellows(&self, axis: &str) -> Vec<&'a Point<'a>> {
        let Some(at) = self.axes().iter().position(|name| name == axis) else { return Vec::new() };
        let beside = self.around.beside[at].get(&others(self.point, at));
        beside.into_iter().flatten().copied().filter(|other| other.values[at] != self.point.values[at]).collect()
    }

    /// By how much another point is faster than the trial's own, as a ratio.
    pub(super) fn faster(&self, other: &Point<'_>) -> Option<f64> {
        faster(self.point, other)
    }

    /// The rates behind a comparison of this point with another.
    pub(super) fn rates(&self, other: &Point<'_>) -> Vec<Evidence> {
        let of = |point: &Point<'_>| mean_of(point, &point.name(self.axes()), "samples_per_second", |row| row.samples_per_second);
        [of(other), of(self.point).filter(|_| self.point.rows.len() > 1)].into_iter().flatten().collect()
    }

    /// Batch sizes to try from this one on: 4 and 16 times as much, as far as one step's samples exist and what ran out of memory allows.
    pub(super) fn larger_batches(&self) -> Vec<u64> {
        let row = self.row;
        let per_step = row.effective_batch_size.max(1) as f64 / row.batch_size.max(1) as f64;
        let of_data = self.samples_per_epoch().map_or(u64::MAX, |samples| (samples / per_step) as u64);
        let too_large = self.fellows("train.batch_size").into_iter().flat_map(|point| &point.rows);
        let too_large = too_large.filter(|row| row.outcome == Outcome::Oom).map(|row| row.batch_size).min();
        let most = of_data.min(too_large.map_or(u64::MAX, |batch| batch - 1)).min(1 << 20);
        let sizes = [row.batch_size.saturating_mul(4), row.batch_size.saturating_mul(16)].map(|size| size.min(most));
        let mut sizes: Vec<u64> = std::iter::once(row.batch_size).chain(sizes.into_iter().filter(|size| *size > row.batch_size)).collect();
        sizes.dedup();
        sizes
    }
}

/// Mean rate of a point's completed trials.
pub(super) fn rate(point: &Point<'_>) -> Option<Statistic> {
    point.statistic(|row| row.samples_per_second)
}

/// By how much the other point is faster, as a ratio, if it clearly is and the spreads do not reach each other.
pub(super) fn faster(own: &Point<'_>, other: &Point<'_>) -> Option<f64> {
    let (own, other) = (rate(own)?, rate(other)?);
    let least = if own.deviation.is_some() && other.deviation.is_some() { FASTER } else { FASTER_ONCE };
    let ratio = other.mean / own.mean;
    (own.mean > 0.0 && least.is_met(ratio - 1.0) && !other.overlaps(&own)).then_some(ratio)
}

/// The mean of a cell over a point's completed trials, as evidence; `name` says which point it is.
pub(super) fn mean_of(point: &Point<'_>, name: &str, column: &'static str, cell: impl Fn(&TrialRow) -> Option<f64>) -> Option<Evidence> {
    let runs = point.completed().filter_map(&cell).count();
    let of = if runs > 1 { format!("{name}, mean of {runs}") } else { name.to_owned() };
    Some(Evidence { of: Some(of), column, value: point.statistic(cell)?.mean.into() })
}

pub(super) fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// `other processes kept 0.9 of 2 cores busy in the window` knows how many cores there are.
fn cores_of_note(row: &TrialRow) -> Option<u64> {
    let note = note_on(row, "samples_per_second")?.strip_prefix("other processes kept ")?;
    note.split(" of ").nth(1)?.split(' ').next()?.parse().ok()
}
