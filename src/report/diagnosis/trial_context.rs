//! Context of one trial for the rules: its row and, where a rule needs them, the other rows of the
//! run.

use kiln_core::{kinds::kind_trains, plan::Outcome, record::TrialRow, statistics::WORTH};
use serde_json::{Map, Value};

use super::{
    crowds::Calmer,
    evidence::{Evidence, Threshold, ThresholdUnit},
    run_context::{RunContext, others},
};
use crate::report::{
    points::Point,
    rates::{Gain, Unknown},
};

/// Smallest lead at which another point counts as faster.
pub(super) const FASTER: Threshold = Threshold::at_least(
    "rate of another point / own rate - 1, where the interval of the ratio lies above 1",
    WORTH,
    ThresholdUnit::Fraction,
    "as between two tables (docs/comparing.md); the interval is adjusted for all comparisons of \
     the run that the rule could make: it fires by chance in at most 5 % of runs \
     (`benches/findings.rs`)",
);

/// Whether a rule searches for faster points on one side of each point along an axis, or on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighborSides {
    One,
    Both,
}

/// A trial's row, the point it belongs to, and the run around it.
#[derive(Debug)]
pub(super) struct TrialContext<'a> {
    pub(super) row: &'a TrialRow,
    pub(super) point: &'a Point<'a>,
    pub(super) around: &'a RunContext<'a>,
    /// Index of the point among all points of the run.
    place: usize,
    cells: Map<String, Value>,
}

impl<'a> TrialContext<'a> {
    pub(super) fn new(row: &'a TrialRow, place: usize, around: &'a RunContext<'a>) -> Self {
        // A row is a flat struct of numbers and text: it always becomes a map.
        let cells = match serde_json::to_value(row) {
            Ok(Value::Object(cells)) => cells,
            _ => Map::new(),
        };
        Self {
            row,
            point: &around.points[place],
            around,
            place,
            cells,
        }
    }

    pub(super) fn axes(&self) -> &'a [String] {
        self.around.axes
    }

    pub(super) fn is_on_gpu(&self) -> bool {
        self.row.is_on_gpu()
    }

    /// Whether batches come from a loader to which `data.num_workers` and `data.synthetic` apply.
    pub(super) fn has_loader(&self) -> bool {
        self.row.num_workers.is_some() && self.row.data_kind != "none"
    }

    /// Whether the trial trains a model; what does not has no batch.
    pub(super) fn trains(&self) -> bool {
        kind_trains(&self.row.model_kind)
    }

    /// The learning rate of its point, where the sweep varies it.
    pub(super) fn learning_rate(&self) -> Option<f64> {
        let place = self
            .axes()
            .iter()
            .position(|axis| axis == "train.optimizer.learning_rate")?;
        self.point.values.get(place)?.parse().ok()
    }

    pub(super) fn is_command(&self) -> bool {
        self.row.is_command()
    }

    /// A key of the next experiment of this trial: of a command, the value that fills the column of
    /// the key; `None` if it has none.
    pub(super) fn key(&self, key: &str) -> Option<String> {
        if !self.is_command() {
            return Some(key.to_owned());
        }
        let name = key.split('.').next_back()?;
        let row = self.row;
        let has_value = match key {
            "train.batch_size" => row.batch_size > 0,
            "train.grad_accumulation" => row.grad_accumulation > 0,
            "data.num_workers" => row.num_workers.is_some(),
            "train.cpu_threads" => row.cpu_threads.is_some(),
            "train.precision" => !row.precision.is_empty(),
            "run.timeout" | "run.devices" => return Some(key.to_owned()),
            _ => false,
        };
        has_value.then(|| format!("model.values.{name}"))
    }

    fn place_of_axis(&self, axis: &str) -> Option<usize> {
        let axis = self.key(axis)?;
        self.axes().iter().position(|name| *name == axis)
    }

    pub(super) fn sweeps(&self, key: &str) -> bool {
        self.axes().iter().any(|axis| axis == key)
    }

    /// A note on a column, as the table has it.
    pub(super) fn quoted(column: &str, note: &str) -> Evidence {
        Evidence {
            of: None,
            column: "notes",
            value: format!("{column}: {note}").into(),
        }
    }

    /// The cells of these columns that are not empty.
    pub(super) fn evidence(&self, columns: &[&'static str]) -> Vec<Evidence> {
        let cell = |column: &&'static str| {
            Some(Evidence {
                of: None,
                column,
                value: self
                    .cells
                    .get(*column)
                    .filter(|cell| !cell.is_null())?
                    .clone(),
            })
        };
        columns.iter().filter_map(cell).collect()
    }

    /// Peak device memory as a share of the device's memory, by NVML, else by the allocator.
    pub(super) fn device_memory_share(&self) -> Option<f64> {
        let used = self
            .row
            .peak_nvml_used_bytes
            .filter(|used| *used > 0)
            .or(self.row.peak_reserved_bytes)?;
        share(used, self.row.memory_limit_bytes?)
    }

    /// Number of samples of one epoch, computed from its duration and the rate.
    pub(super) fn samples_per_epoch(&self) -> Option<f64> {
        Some(self.row.epoch_seconds? * self.row.samples_per_second?)
    }

    /// Whether a note of a row names the machine's cores; else they are those of the training threads.
    pub(super) fn has_told_cores(&self) -> bool {
        self.around.has_told_cores
    }

    /// Number of cores that a trial of this run could use; a lower estimate.
    pub(super) fn cores(&self) -> Option<u64> {
        self.around.cores
    }

    /// Points that differ from this one in the value of one axis alone.
    pub(super) fn fellows(&self, axis: &str) -> Vec<&'a Point<'a>> {
        self.fellow_places(axis)
            .into_iter()
            .map(|place| &self.around.points[place])
            .collect()
    }

    fn fellow_places(&self, axis: &str) -> Vec<usize> {
        let Some(at) = self.place_of_axis(axis) else {
            return Vec::new();
        };
        let beside = self.around.beside[at].get(&others(self.point, at));
        let differs =
            |place: &usize| self.around.points[*place].values[at] != self.point.values[at];
        beside
            .into_iter()
            .flatten()
            .copied()
            .filter(differs)
            .collect()
    }

    /// Returns the wanted points that differ in one axis only and whose rates can be compared with
    /// the trial's own rate.
    pub(super) fn comparable(
        &self,
        axis: &str,
        is_asked: impl Fn(&Point<'_>) -> bool,
    ) -> Vec<usize> {
        let places = if self.around.rates.has(self.place) {
            self.fellow_places(axis)
        } else {
            Vec::new()
        };
        places
            .into_iter()
            .filter(|place| self.around.rates.has(*place) && is_asked(&self.around.points[*place]))
            .collect()
    }

    /// The fastest of these points, which differ in one axis alone, where it is clearly faster than
    /// the trial's own.
    pub(super) fn faster_among(
        &self,
        axis: &str,
        places: &[usize],
        sides: NeighborSides,
    ) -> Option<(&'a Point<'a>, Gain)> {
        let at = self.place_of_axis(axis)?;
        let statements = self.around.pairs[at] * if sides == NeighborSides::Both { 2 } else { 1 };
        let gain = |place: usize| {
            let mut known = self.around.gains.borrow_mut();
            *known
                .entry((self.place, place, statements))
                .or_insert_with(|| self.around.rates.faster(self.place, place, statements))
        };
        let found = places
            .iter()
            .filter_map(|place| Some((&self.around.points[*place], gain(*place)?)));
        found.max_by(|one, other| one.1.ratio.total_cmp(&other.1.ratio))
    }

    /// Returns the repeats of the trial's point with fewer concurrent trials, where they are
    /// clearly faster.
    pub(super) fn calmer(&self) -> Option<Calmer<'a, 'a>> {
        self.around
            .crowds
            .faster(self.place, self.row.concurrent_trials)
    }

    /// Whether the run repeated its points one after the other; the next repeats should then be
    /// interleaved.
    pub(super) fn ran_apart(&self) -> bool {
        self.around.points.len() > 1 && self.around.rates.unknown() == Some(Unknown::Apart)
    }

    /// The rates behind a comparison of this point with another.
    pub(super) fn rates(&self, other: &Point<'_>) -> Vec<Evidence> {
        let of = |point: &Point<'_>| {
            mean_of(
                point,
                &point.name(self.axes()),
                "samples_per_second",
                |row| row.of_whole_work(row.samples_per_second),
            )
        };
        [
            of(other),
            of(self.point).filter(|_| self.point.rows.len() > 1),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Batch sizes to try: this one, 4 and 16 times as much, limited by the number of samples and
    /// by batches that ran out of memory.
    pub(super) fn larger_batches(&self) -> Vec<u64> {
        let row = self.row;
        let per_step = row.effective_batch_size.max(1) as f64 / row.batch_size.max(1) as f64;
        let of_data = self
            .samples_per_epoch()
            .map_or(u64::MAX, |samples| (samples / per_step) as u64);
        let too_large = self
            .fellows("train.batch_size")
            .into_iter()
            .flat_map(|point| &point.rows);
        let too_large = too_large
            .filter(|row| row.outcome == Outcome::Oom)
            .map(|row| row.batch_size)
            .min();
        let most = of_data
            .min(too_large.map_or(u64::MAX, |batch| batch - 1))
            .min(1 << 20);
        let sizes = [
            row.batch_size.saturating_mul(4),
            row.batch_size.saturating_mul(16),
        ]
        .map(|size| size.min(most));
        let mut sizes: Vec<u64> = std::iter::once(row.batch_size)
            .chain(sizes.into_iter().filter(|size| *size > row.batch_size))
            .collect();
        sizes.dedup();
        sizes
    }
}

/// The mean of a cell over a point's completed trials, as evidence; `name` says which point it is.
pub(super) fn mean_of(
    point: &Point<'_>,
    name: &str,
    column: &'static str,
    cell: impl Fn(&TrialRow) -> Option<f64>,
) -> Option<Evidence> {
    let runs = point.completed().filter_map(&cell).count();
    let of = if runs > 1 {
        format!("{name}, mean of {runs}")
    } else {
        name.to_owned()
    };
    Some(Evidence {
        of: Some(of),
        column,
        value: point.statistic(cell)?.mean.into(),
    })
}

pub(super) fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
