//! The compared metrics: the number of a row, which direction is better, and the smallest change
//! that counts.

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    plan::Outcome,
    record::{TrialRow, TrialTable},
    spec::{Metric, learned},
    statistics::{Nature, TimedRun, WORTH, WORTH_OF_LOSS},
};
use serde::{Serialize, Serializer};

use super::{at_once::AtOnce, column::ColumnMetric, copies::are_copies, matching::RunKeys, paired};
use crate::report::{
    energy::{by_counter, by_readings},
    launches::Launches,
};

/// A number that a verdict is given on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedMetric {
    /// Tokens per second, of a model without tokens samples per second.
    Throughput,
    StepTime,
    Memory,
    Energy,
    Loss,
    /// How good the model is on the validation data, besides its loss: one column, such as
    /// `valid_top1`.
    Accuracy(Metric),
    /// Any column, asked for by its name.
    Column(ColumnMetric),
}

impl Serialize for ComparedMetric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl ComparedMetric {
    /// The metrics of every comparison, besides those of [`Self::accuracies`].
    pub const ALL: [Self; 5] = [
        Self::Throughput,
        Self::StepTime,
        Self::Memory,
        Self::Energy,
        Self::Loss,
    ];

    /// The word for a change for the worse of a column that was asked for.
    pub const COLUMNS_WORSE: &str = "worse";

    /// The word for a change for the worse of an accuracy.
    pub const ACCURACY_WORSE: &str = "worse-accuracy";

    /// Every metric of the validation data that has a direction, besides the losses.
    pub(super) fn accuracies() -> impl Iterator<Item = Self> {
        let is_accuracy = |metric: &Metric| {
            learned::is_learned(metric.name())
                && *metric != Metric::LowestValidLoss
                && !Self::has_column(metric.name())
        };
        let metrics = Metric::COLUMNS.into_iter().filter(is_accuracy);
        metrics.map(Self::Accuracy)
    }

    /// Whether the metric is an accuracy, including one that `--metric` names.
    pub fn is_accuracy(self) -> bool {
        match self {
            Self::Accuracy(_) => true,
            Self::Column(column) => Self::accuracies().any(|one| one.name() == column.name),
            _ => false,
        }
    }

    /// Whether a run of the table has an accuracy.
    pub fn has_accuracy(table: &TrialTable) -> bool {
        let read = |row: &TrialRow, column: &ComparedColumn| column.read(row).is_some();
        let mut columns = Self::accuracies().flat_map(Self::columns);
        columns.any(|column| table.rows.iter().any(|row| read(&row.fixed, &column)))
    }

    /// Whether it is a column that was asked for by name.
    pub fn is_column(self) -> bool {
        matches!(self, Self::Column(_))
    }

    /// Whether one of the metrics of every comparison is read from this column.
    pub(super) fn has_column(name: &str) -> bool {
        let columns = Self::ALL.into_iter().flat_map(Self::columns);
        columns.into_iter().any(|column| column.name() == name)
    }

    /// As a page and a table spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::StepTime => "step-time",
            Self::Memory => "memory",
            Self::Energy => "energy",
            Self::Loss => "loss",
            Self::Accuracy(metric) => metric.name(),
            Self::Column(column) => column.name,
        }
    }

    /// Its name on a page: of a command's metric, as the experiment spells it.
    pub(super) fn short_name(self) -> &'static str {
        let name = self.name();
        name.strip_prefix(METRIC_PREFIX).unwrap_or(name)
    }

    /// Whether this column of `trials.csv` is one of those with the metric's values.
    pub(super) fn has(self, column: &str) -> bool {
        self.columns().iter().any(|known| known.name() == column)
    }

    /// The columns that have it, the one that is taken first.
    fn columns(self) -> Vec<ComparedColumn> {
        let known: &[KnownColumn] = match self {
            Self::Column(column) => return vec![ComparedColumn::Named(column)],
            Self::Accuracy(metric) => return vec![ComparedColumn::Accuracy(metric)],
            Self::Throughput => &[
                ("tokens_per_second", |row| {
                    row.of_whole_work(row.tokens_per_second)
                }),
                ("samples_per_second", |row| {
                    row.of_whole_work(row.samples_per_second)
                }),
            ],
            Self::StepTime => &[("median_step_seconds", |row| {
                row.of_whole_work(row.median_step_seconds)
            })],
            // Both sides use one kind of memory: the memory of a process is not that of a device.
            Self::Memory => &[
                ("peak_allocated_bytes", |row| {
                    on_gpu(row, row.peak_allocated_bytes)
                }),
                ("peak_nvml_used_bytes", |row| {
                    on_gpu(row, row.peak_nvml_used_bytes)
                }),
                ("peak_resident_bytes", |row| {
                    row.peak_resident_bytes
                        .filter(|_| !row.is_on_gpu())
                        .map(|bytes| bytes as f64)
                }),
            ],
            Self::Energy => &[
                ("energy_counter_joules per sample", by_counter),
                ("energy_integral_joules per sample", by_readings),
            ],
            Self::Loss => &[
                ("valid_loss", |row| row.valid_loss),
                ("train_loss", |row| row.train_loss),
            ],
        };
        known.iter().copied().map(ComparedColumn::Known).collect()
    }

    fn column_named(self, name: &str) -> Option<ComparedColumn> {
        let mut columns = self.columns().into_iter();
        columns.find(|column| column.name() == name)
    }

    /// The numbers of the rows of both sides from one column, with its name: the first column in
    /// which both sides have a number. A row without a usable number there is excluded; another
    /// column would compare something else.
    pub(super) fn of_both(
        self,
        base: &[&TrialRow],
        new: &[&TrialRow],
        reader: RunReader<'_>,
    ) -> Option<(&'static str, [Vec<TimedRun>; 2])> {
        let of = |column: ComparedColumn| {
            let sides = [base, new].map(|rows| {
                let launches = Launches::of(rows.iter().copied());
                let run = |row: &&TrialRow| {
                    let value = column.read(row);
                    let value = value.filter(|value| self.is_usable(*value))?;
                    Some(self.run(row, value, reader, &launches))
                };
                rows.iter().filter_map(run).collect::<Vec<TimedRun>>()
            });
            (column.name(), sides)
        };
        let is_told = |column: &ComparedColumn| {
            [base, new]
                .iter()
                .all(|rows| rows.iter().any(|row| column.read(row).is_some()))
        };
        self.columns().into_iter().find(is_told).map(of)
    }

    /// The column that both sides have while one of them has no number in it that can be in a
    /// ratio.
    pub(super) fn unusable(self, base: &[&TrialRow], new: &[&TrialRow]) -> Option<&'static str> {
        let reader = RunReader {
            at_once: &AtOnce::default(),
            keys: RunKeys::Order,
        };
        let (name, sides) = self.of_both(base, new, reader)?;
        sides.iter().any(Vec::is_empty).then_some(name)
    }

    /// The column of [`Self::unusable`], if a side has only numbers in it that are negative or 0.
    pub(super) fn not_positive(
        self,
        base: &[&TrialRow],
        new: &[&TrialRow],
    ) -> Option<&'static str> {
        let name = self.unusable(base, new)?;
        let column = self.column_named(name)?;
        let is_not_positive = |rows: &[&TrialRow]| {
            let mut numbers = rows.iter().filter_map(|row| column.read(row));
            numbers.all(|number| number <= 0.0)
        };
        (is_not_positive(base) || is_not_positive(new)).then_some(name)
    }

    /// The column that one side alone has, which is 0 for base and 1 for new, where no other column of
    /// this metric is in both.
    pub(super) fn one_sided(
        self,
        base: &[&TrialRow],
        new: &[&TrialRow],
    ) -> Option<(&'static str, usize)> {
        if base.is_empty() || new.is_empty() {
            return None;
        }
        let of = |column: &ComparedColumn| {
            let has = |rows: &[&TrialRow]| rows.iter().any(|row| column.read(row).is_some());
            (column.name(), [base, new].map(has))
        };
        let columns: Vec<(&'static str, [bool; 2])> = self.columns().iter().map(of).collect();
        let is_in_both = columns.iter().any(|(_, has)| *has == [true, true]);
        let one_sided = columns.into_iter().filter(|_| !is_in_both);
        one_sided
            .filter_map(|(name, has)| match has {
                [true, false] => Some((name, 0)),
                [false, true] => Some((name, 1)),
                _ => None,
            })
            .next()
    }

    /// Whether completed runs have a number that cannot be compared. Those that are left would be a
    /// choice by their numbers.
    pub(super) fn has_unusable(self, column: &'static str, rows: &[&TrialRow]) -> bool {
        self.column_named(column).is_some_and(|column| {
            let mut numbers = rows.iter().filter_map(|row| column.read(row));
            numbers.any(|number| !self.is_usable(number))
        })
    }

    /// Whether runs of several seeds all have the same number in this column, although it should
    /// follow the seed. An accuracy at its floor of 0 or its ceiling of 1 may be so with each seed.
    pub(super) fn are_copies(self, column: &'static str, rows: &[&TrialRow]) -> bool {
        let column = self.column_named(column);
        let follows_seed = match self {
            Self::Loss | Self::Accuracy(_) => true,
            Self::Column(column) => column.follows_seed(),
            Self::Throughput | Self::StepTime | Self::Memory | Self::Energy => false,
        };
        column.filter(|_| follows_seed).is_some_and(|column| {
            let run = |row: &&TrialRow| Some((row.seed, column.read(row)?));
            let runs: Vec<(u64, f64)> = rows.iter().filter_map(run).collect();
            let has_ceiling = self.is_accuracy() && self.is_better_high();
            let is_at_end = |value: f64| value == 0.0 || (value == 1.0 && has_ceiling);
            runs.iter().all(|(_, value)| !is_at_end(*value)) && are_copies(&runs, self.is_loss())
        })
    }

    fn is_loss(self) -> bool {
        match self {
            Self::Loss => true,
            Self::Column(column) => column.is_loss(),
            _ => false,
        }
    }

    /// Whether a number can be in a ratio, or is an accuracy of 0, which is judged without one.
    fn is_usable(self, value: f64) -> bool {
        can_be_ratio(value) || (value == 0.0 && self.is_accuracy())
    }

    /// A column that comes before the one that is compared and that the runs of one side alone
    /// have: another thing may be compared than was asked for. Energy is the same by its counter
    /// and by its integral.
    pub(super) fn passed_over(self, base: &[&TrialRow], new: &[&TrialRow]) -> Option<&'static str> {
        let has = |column: &ComparedColumn| {
            [base, new].map(|rows| rows.iter().any(|row| column.read(row).is_some()))
        };
        let before = self
            .columns()
            .into_iter()
            .take_while(|column| has(column) != [true, true]);
        before
            .filter(|column| self != Self::Energy && has(column) != [false, false])
            .map(|column| column.name())
            .next()
    }

    /// A number of a row with its place in time.
    fn run(
        self,
        row: &TrialRow,
        value: f64,
        reader: RunReader<'_>,
        launches: &Launches,
    ) -> TimedRun {
        let block = match (self.nature(), reader.keys) {
            // The same seed gives the same weights and batches on both sides.
            (Nature::Settled, _) => Some(row.seed),
            (Nature::Drifting, RunKeys::Blocks) => Some(paired::block_of(row)),
            (Nature::Drifting, RunKeys::Order | RunKeys::Nothing) => None,
        };
        let is_at_once = reader.at_once.beside(row).is_some();
        TimedRun {
            value,
            // Neighbors in time are no pair on two devices.
            seconds: row
                .started_seconds()
                .filter(|_| reader.keys != RunKeys::Nothing),
            block,
            launch: Some(launches.number(row)),
            is_disturbed: is_at_once || !row.disturbances().is_empty(),
            is_at_once,
        }
    }

    /// Whether the state of the machine affects it.
    pub(super) fn nature(self) -> Nature {
        match self {
            Self::Throughput | Self::StepTime | Self::Energy => Nature::Drifting,
            Self::Memory | Self::Loss | Self::Accuracy(_) => Nature::Settled,
            Self::Column(column) => column.nature(),
        }
    }

    /// Whether a trial may end so because of this number, so that the completed runs are chosen by
    /// it: what was learned decides whether a training diverges, and speed whether it times out. A
    /// command's own metric may be either.
    pub(super) fn decides(self, outcome: Outcome) -> bool {
        let is_own = matches!(self, Self::Column(column) if column.is_own());
        let is_until_target = matches!(self, Self::Column(column) if column.is_until_target());
        let is_learned = match self {
            Self::Column(column) => column.is_learned() || is_own || is_until_target,
            _ => matches!(self, Self::Loss | Self::Accuracy(_)),
        };
        match outcome {
            Outcome::Diverged | Outcome::Failed => is_learned,
            Outcome::TimedOut => is_own || is_until_target || self.nature() == Nature::Drifting,
            _ => false,
        }
    }

    /// Whether it is what the comparison is mainly about: throughput, and what was asked for by
    /// name.
    pub(super) fn is_main(self) -> bool {
        matches!(self, Self::Throughput | Self::Column(_))
    }

    /// True for throughput and step time.
    pub(super) fn is_speed(self) -> bool {
        matches!(self, Self::Throughput | Self::StepTime)
    }

    /// The number of a row by itself.
    pub(super) fn of(self, row: &TrialRow) -> Option<f64> {
        self.columns()
            .iter()
            .find_map(|column| column.read(row))
            .filter(|value| can_be_ratio(*value))
    }

    /// A smaller change does not count: `docs/comparing.md`.
    pub(super) fn worth(self) -> f64 {
        match self.is_loss() || self.is_accuracy() {
            true => WORTH_OF_LOSS,
            false => WORTH,
        }
    }

    pub(super) fn is_better_high(self) -> bool {
        match self {
            Self::Column(column) => column.is_better_high,
            Self::Accuracy(metric) => metric.is_better_high(),
            _ => self == Self::Throughput,
        }
    }

    /// Returns the metric whose change for the worse has this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|metric| metric.word(false) == word)
    }

    /// The word for a change for the better or for the worse.
    pub fn word(self, is_better: bool) -> &'static str {
        match (self, is_better) {
            (Self::Throughput, true) => "faster",
            (Self::Throughput, false) => "slower",
            (Self::StepTime, true) => "shorter-step",
            (Self::StepTime, false) => "longer-step",
            (Self::Memory, true) => "less-memory",
            (Self::Memory, false) => "more-memory",
            (Self::Energy, true) => "less-energy",
            (Self::Energy, false) => "more-energy",
            (Self::Loss, true) => "better-loss",
            (Self::Loss, false) => "worse-loss",
            (Self::Accuracy(_), true) => "better-accuracy",
            (Self::Accuracy(_), false) => Self::ACCURACY_WORSE,
            (Self::Column(_), true) => "better",
            (Self::Column(_), false) => Self::COLUMNS_WORSE,
        }
    }
}

/// Name of a column, and the function that reads it.
type KnownColumn = (&'static str, fn(&TrialRow) -> Option<f64>);

/// A column of a metric.
#[derive(Clone, Copy)]
enum ComparedColumn {
    Known(KnownColumn),
    Accuracy(Metric),
    Named(ColumnMetric),
}

impl ComparedColumn {
    fn name(&self) -> &'static str {
        match self {
            Self::Known((name, _)) => name,
            Self::Accuracy(metric) => metric.name(),
            Self::Named(column) => column.name,
        }
    }

    fn read(&self, row: &TrialRow) -> Option<f64> {
        match self {
            Self::Known((_, read)) => read(row),
            Self::Accuracy(metric) => row.metric(*metric),
            Self::Named(column) => column.read(row),
        }
    }
}

/// How runs are read from rows.
#[derive(Clone, Copy)]
pub(super) struct RunReader<'a> {
    pub(super) at_once: &'a AtOnce<'a>,
    pub(super) keys: RunKeys,
}

fn on_gpu(row: &TrialRow, bytes: Option<u64>) -> Option<f64> {
    bytes.filter(|_| row.is_on_gpu()).map(|bytes| bytes as f64)
}

/// Above 0, and neither so large nor so small that a ratio of two of them would be infinite or 0:
/// nothing that was measured is.
fn can_be_ratio(value: f64) -> bool {
    (1.0 / LARGEST..=LARGEST).contains(&value)
}

/// The largest number that a comparison takes; its inverse is the least.
const LARGEST: f64 = 1e150;
