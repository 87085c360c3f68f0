//! `trials.csv`: one row per ended attempt. What a row says beyond its cells; reading and writing.

mod row_reader;

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::{File, OpenOptions},
    io::{Read, Seek},
    path::Path,
};

use serde_json::Value;

use self::row_reader::RowReader;
use super::{
    RunFolder,
    columns::AXES_AT,
    table::{
        Table, TableError, TableHead, TableWriter, TornLine, cells_of, is_begun, line_of,
        open_plain, scan,
    },
    trial_row::{TRIALS, TrialRow},
};
use crate::{
    folder::Folder,
    kinds::{
        Model,
        command::{COMMAND, METRIC_PREFIX},
        text_of,
    },
    limits::TABLE_BYTES,
    plan::{Outcome, Trial, TrialId},
    spec::{Metric, may_vary},
    statistics::MeasuredNoise,
};

/// Separator between the devices of one trial in a cell.
pub const DEVICE_SEPARATOR: &str = ";";

/// How a host id was made: its part before the hash. Ids that were made in different ways cannot be
/// compared.
pub fn host_id_kind(id: &str) -> &str {
    id.split_once('-').map_or(id, |(kind, _)| kind)
}

impl TrialRow {
    /// Whether these rows are known to be evaluated on the same data; not if there are none.
    pub fn share_validation<'a>(mut rows: impl Iterator<Item = &'a Self>) -> bool {
        let first = rows.next().and_then(|row| row.validation_data.as_ref());
        first.is_some() && rows.all(|row| row.validation_data.as_ref() == first)
    }

    /// Whether its attempt completed.
    pub fn is_completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// Its attempt, if that completed.
    pub fn completed_attempt(&self) -> Option<u64> {
        self.is_completed().then_some(self.attempt)
    }

    /// Whether it ran on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.device_uuid.is_some()
    }

    /// Whether it ran a command.
    pub fn is_command(&self) -> bool {
        self.model_kind == COMMAND
    }

    /// The value of a metric.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::ValidLoss => self.valid_loss,
            Metric::LowestValidLoss => self.lowest_valid_loss,
            Metric::TrainLoss => self.train_loss,
            Metric::SamplesPerSecond => self.samples_per_second,
            Metric::TokensPerSecond => self.tokens_per_second,
            Metric::ValidTop1 => self.valid_top1,
            Metric::ValidMeanAbsoluteError => self.valid_mean_absolute_error,
            Metric::ValidHitRate => self.valid_hit_rate,
            Metric::ValidBleu4 => self.valid_bleu4,
            Metric::ValidChrf => self.valid_chrf,
            Metric::SecondsToTarget => self.seconds_to_target,
            Metric::Own(column) => self.metric_of_column(column),
        }
    }

    /// The value of a column `metric.NAME`.
    pub fn metric_of_column(&self, column: &str) -> Option<f64> {
        let name = column.strip_prefix(METRIC_PREFIX)?;
        self.metrics.get(name).copied()
    }

    /// Other processes on the device during the attempt; `None` if there were none or it is
    /// unknown.
    pub fn others_on_device(&self) -> Option<&str> {
        self.foreign_processes
            .as_deref()
            .filter(|seen| !["none", "unknown"].contains(seen))
    }

    /// Energy per sample over the measured window, in J, by one of its two energies. `None` on a MIG
    /// instance: only the whole GPU's energy is known, which others use too.
    pub fn energy_per_sample(&self, joules: Option<f64>) -> Option<f64> {
        let joules = joules.filter(|_| self.mig_profile.is_none());
        self.per_sample(self.of_whole_work(joules))
    }

    /// Divides a sum over the measured window by its samples.
    pub fn per_sample(&self, sum: Option<f64>) -> Option<f64> {
        let samples = self.samples_per_second? * self.window_seconds?;
        (samples > 0.0).then_some(sum? / samples)
    }

    /// The gradient noise scale, if both ends of its interval are known.
    pub fn gradient_noise(&self) -> Option<MeasuredNoise> {
        Some(MeasuredNoise {
            scale: self.gradient_noise_scale?,
            low: self.gradient_noise_scale_low?,
            high: self.gradient_noise_scale_high?,
            step: self.gradient_noise_step?,
            loss: self.gradient_noise_loss?,
        })
    }

    /// The formula of its FLOPs. Tables before `trials/2` do not tell it; what they counted is known of
    /// the models of text whose formula has changed since.
    pub fn counted_formula(&self) -> Option<&str> {
        let of_first = || {
            self.flops_per_sample?;
            self.table_version().filter(|version| *version < 2)?;
            match self.model_kind.as_str() {
                "gpt" => Some("6N+12LHQT"),
                "mlp" => Some("6N"),
                _ => None,
            }
        };
        self.flops_formula.as_deref().or_else(of_first)
    }

    /// The version of the table that the row is of; `None` if its cell is not a table's name.
    pub fn table_version(&self) -> Option<u32> {
        self.kiln_table.split_once('/')?.1.parse().ok()
    }

    /// Start of the attempt, in s since 1970; `None` if the cell is not a time.
    pub fn started_seconds(&self) -> Option<f64> {
        let started: jiff::Timestamp = self.started_utc.as_deref()?.parse().ok()?;
        Some(started.as_millisecond() as f64 / 1000.0)
    }

    /// UUIDs of the GPUs that the trial used; none on the CPU.
    pub fn device_uuids(&self) -> impl Iterator<Item = &str> {
        self.device_uuid
            .iter()
            .flat_map(|uuids| uuids.split(DEVICE_SEPARATOR))
            .map(str::trim)
    }

    /// Maximum memory of the kind that `memory_limit_bytes` limits: of its tensors on a GPU, or, if
    /// the allocator does not report it, all memory in use there; of the process on the CPU. `None`
    /// if it was not read.
    pub fn memory_held_bytes(&self) -> Option<u64> {
        match self.device_uuid {
            Some(_) => self.peak_allocated_bytes.or(self.peak_nvml_used_bytes),
            None => self.peak_resident_bytes,
        }
    }
}

/// A row of `trials.csv`: the fixed columns, and one cell per axis.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// Two kilobytes: thousands of rows in one piece would need twice their size while they grow.
    pub fixed: Box<TrialRow>,
    /// As printed, in the order of the table's axes.
    pub axes: Vec<String>,
}

impl TableRow {
    /// `values` are the trial's, one per axis.
    pub fn new(fixed: TrialRow, values: &[Value]) -> Self {
        Self {
            fixed: Box::new(fixed),
            axes: values.iter().map(text_of).collect(),
        }
    }
}

/// Writes `trials.csv`.
#[derive(Debug)]
pub struct TrialWriter {
    table: TableWriter,
    axes: usize,
    /// The columns `metric.NAME`, in their order.
    metrics: Vec<String>,
}

impl TrialWriter {
    /// Opens or creates the table; `axes` are dotted keys in file order, followed by the columns
    /// `metric.NAME`. A torn last line is cut and returned.
    ///
    /// # Errors
    /// The file cannot be read or written, or has other columns (from another sweep).
    pub fn open(path: &Path, axes: &[String]) -> Result<(Self, Option<TornLine>), TableError> {
        let opened = TableWriter::open(path, TRIALS.spec(axes))?;
        Ok(Self::of(opened, axes))
    }

    /// Opens or creates it in the folder of a run.
    ///
    /// # Errors
    /// As [`TrialWriter::open`].
    pub(super) fn open_in(
        folder: Folder,
        axes: &[String],
    ) -> Result<(Self, Option<TornLine>), TableError> {
        let opened = TableWriter::open_own(folder, TRIALS.file.into(), TRIALS.spec(axes))?;
        Ok(Self::of(opened, axes))
    }

    fn of(
        (table, torn): (TableWriter, Option<TornLine>),
        axes: &[String],
    ) -> (Self, Option<TornLine>) {
        let (metrics, axes): (Vec<String>, Vec<String>) =
            axes.iter().cloned().partition(|column| is_metric(column));
        let axes = axes.len();
        let writer = Self {
            table,
            axes,
            metrics,
        };
        (writer, torn)
    }

    /// Appends one row.
    ///
    /// # Errors
    /// The row does not have one cell per axis, or the write fails; the file then ends with the
    /// previous row.
    pub fn append(&mut self, row: &TableRow) -> Result<(), TableError> {
        let cells = self.cells(row)?;
        self.table.append(&cells)
    }

    /// Appends lines of [`TrialWriter::line`] in one write and waits until they are on the disk.
    ///
    /// # Errors
    /// The write fails, or the disk reports an error; then none of them, all, or all for now are in
    /// the file.
    pub(super) fn append_lines(&mut self, lines: &[u8]) -> Result<(), TableError> {
        self.table.append_lines(lines)?;
        self.table.sync()
    }

    /// Replaces the table by one of these lines.
    ///
    /// # Errors
    /// It cannot be written; the old file then stays.
    pub(super) fn rewrite(&mut self, lines: &[u8]) -> Result<(), TableError> {
        self.table.rewrite(lines)
    }

    /// [`TableWriter::sync`].
    pub(super) fn sync(&mut self) -> Result<(), TableError> {
        self.table.sync()
    }

    /// [`TableWriter::is_as_left`].
    pub(super) fn is_as_left(&self) -> bool {
        self.table.is_as_left()
    }

    pub fn path(&self) -> &Path {
        self.table.path()
    }

    /// A row as the bytes of its line.
    ///
    /// # Errors
    /// The row does not have one cell per axis.
    pub(super) fn line(&self, row: &TableRow) -> Result<Vec<u8>, TableError> {
        let cells = self.cells(row)?;
        Ok(line_of(cells.iter().map(String::as_str)))
    }

    /// The cells of a row, in the order of the columns.
    fn cells(&self, row: &TableRow) -> Result<Vec<String>, TableError> {
        let refuse = |problem| TableError::Row {
            path: self.table.path().to_owned(),
            problem,
        };
        if row.axes.len() != self.axes {
            return Err(refuse(format!(
                "trial {} has {} axis values, the table has {} axes",
                row.fixed.trial,
                row.axes.len(),
                self.axes
            )));
        }
        let mut cells = cells_of(&row.fixed).map_err(refuse)?;
        let metric = |column: &String| {
            let value = row.fixed.metric_of_column(column);
            value.map_or_else(String::new, |value| text_of(&value.into()))
        };
        let metrics = self.metrics.iter().map(metric);
        cells.splice(AXES_AT..AXES_AT, row.axes.iter().cloned().chain(metrics));
        Ok(cells)
    }
}

/// `trials.csv` in memory.
#[derive(Clone, Debug, Default)]
pub struct TrialTable {
    /// Dotted keys in file order.
    pub axes: Vec<String>,
    /// The columns `metric.NAME`, in their order.
    pub metrics: Vec<String>,
    /// Columns with a dot that somebody added: they are not read.
    pub others: Vec<String>,
    /// The axes that have several values in the run's experiment, in any order, also if no row has
    /// them yet; empty where the experiment is not known
    /// ([`PlannedValues::unify`](super::PlannedValues::unify)).
    pub varied: Vec<String>,
    pub rows: Vec<TableRow>,
    /// A torn last line, which is not among the rows.
    pub torn: Option<TornLine>,
}

impl TrialTable {
    /// The columns of these trials apart from the fixed ones, the same for every trial: the sweep's axes,
    /// and a command's own metrics.
    pub fn axes_of(trials: &[Trial]) -> Vec<String> {
        let Some(first) = trials.first() else {
            return Vec::new();
        };
        let axes = first.axes.iter().map(|(key, _)| key.clone());
        let metrics = match &*first.model {
            Model::Command(command) => command.own_metrics(),
            _ => Vec::new(),
        };
        let metrics = metrics.iter().map(|name| format!("{METRIC_PREFIX}{name}"));
        axes.chain(metrics).collect()
    }

    /// # Errors
    /// The file cannot be read, is not a `trials.csv`, is newer than this kiln, has an invalid
    /// cell, or has an id in both forms.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let mut file = open_plain(path, OpenOptions::new().read(true), &TABLE_BYTES)?;
        Self::read_from(&mut file, path)
    }

    /// Reads the table of a run on this machine. A power failure may have left it without its
    /// header; then it has no rows.
    ///
    /// # Errors
    /// As [`TrialTable::read`].
    pub fn read_of(run: &RunFolder) -> Result<Self, TableError> {
        let path = run.trials_table();
        let mut file = open_plain(&path, OpenOptions::new().read(true), &TABLE_BYTES)?;
        let mut rows = Vec::new();
        let head = each_begun(&mut file, &path, &mut |row| rows.push(row))?;
        Ok(head.map_or_else(Self::default, |head| Self::with(&head, rows)))
    }

    /// Gives the rows of the table of a run one after another, as [`TrialTable::read_of`] would read
    /// them; `None` if it has no header. More rows may be appended to it.
    ///
    /// # Errors
    /// As [`TrialTable::read_of`]; some rows may have been given before. The file is a link.
    pub fn each_of(
        run: &RunFolder,
        keep: &mut dyn FnMut(TableRow),
    ) -> Result<Option<TableHead>, TableError> {
        let path = run.trials_table();
        let mut file = run
            .open()
            .and_then(|folder| folder.read(TRIALS.file.as_ref()))
            .map_err(|cause| TableError::Io {
                path: path.clone(),
                doing: "opening",
                cause,
            })?;
        each_begun(&mut file, &path, keep)
    }

    /// Reads a table from any seekable source (a file of another commit in memory); `path` names it
    /// in messages.
    ///
    /// # Errors
    /// As [`TrialTable::read`].
    pub fn read_from<R: Read + Seek>(source: &mut R, path: &Path) -> Result<Self, TableError> {
        let mut rows = Vec::new();
        let head = each_row(source, path, &mut |row| rows.push(row))?;
        Ok(Self::with(&head, rows))
    }

    pub(super) fn of(table: &Table) -> Result<Self, TableError> {
        let mut reader = RowReader::default();
        let rows: Result<Vec<TableRow>, TableError> =
            table.records().map(|record| reader.take(&record)).collect();
        let rows = rows?;
        reader.check_columns(&table.head)?;
        Ok(Self::with(&table.head, rows))
    }

    fn with(head: &TableHead, rows: Vec<TableRow>) -> Self {
        let axes = head.columns.iter().filter(|column| is_axis(column));
        let metrics = head.columns.iter().filter(|column| is_metric(column));
        let others = head.columns.iter().filter(|column| is_other(column));
        Self {
            axes: axes.cloned().collect(),
            metrics: metrics.cloned().collect(),
            others: others.cloned().collect(),
            varied: Vec::new(),
            rows,
            torn: head.torn.clone(),
        }
    }

    /// The valid row of each trial: that of its last attempt, in the plan's order. Of two rows of that
    /// attempt the one whose [`Outcome`] has the higher weight counts, then the
    /// later one.
    pub fn last_attempts(&self) -> Vec<&TableRow> {
        let rank = |row: &TableRow| (row.fixed.attempt, row.fixed.outcome.weight());
        let mut places: HashMap<&TrialId, usize> = HashMap::new();
        let mut rows: Vec<&TableRow> = Vec::new();
        for row in &self.rows {
            match places.entry(&row.fixed.trial) {
                Entry::Vacant(entry) => {
                    entry.insert(rows.len());
                    rows.push(row);
                }
                Entry::Occupied(entry) if rank(row) >= rank(rows[*entry.get()]) => {
                    rows[*entry.get()] = row;
                }
                Entry::Occupied(_) => {}
            }
        }
        // Trials of two plans may share a number; they keep the order of the table.
        rows.sort_by_key(|row| row.fixed.number);
        rows
    }
}

/// Gives the rows of a table, as [`each_row`]; `None` if it has no header.
fn each_begun(
    file: &mut File,
    path: &Path,
    keep: &mut dyn FnMut(TableRow),
) -> Result<Option<TableHead>, TableError> {
    match is_begun(file, path, TRIALS.version)? {
        true => each_row(file, path, keep).map(Some),
        false => Ok(None),
    }
}

/// Gives the rows of a table one after another, so that nobody needs to hold thousands of them.
///
/// # Errors
/// As [`TrialTable::read`]; some rows may have been given before.
pub(super) fn each_row<R: Read + Seek>(
    source: &mut R,
    path: &Path,
    keep: &mut dyn FnMut(TableRow),
) -> Result<TableHead, TableError> {
    let mut reader = RowReader::default();
    let head = scan(source, path, TRIALS.version, &mut |record| {
        keep(reader.take(record)?);
        Ok(())
    })?;
    reader.check_columns(&head)?;
    Ok(head)
}

/// The number of a version such as `trials/6`.
fn version_number(cell: &str) -> Option<u32> {
    cell.split('/').nth(1)?.parse().ok()
}

/// Whether a column of the table is an axis: a dotted key that a sweep may vary. A fixed column never
/// has a dot.
pub fn is_axis(column: &str) -> bool {
    may_vary(column)
}

/// Whether a column with a dot is neither an axis nor a metric: somebody added it.
fn is_other(column: &str) -> bool {
    column.contains('.') && !is_axis(column) && !is_metric(column)
}

/// Whether the name is that of a column `metric.NAME`.
fn is_metric(column: &str) -> bool {
    column.starts_with(METRIC_PREFIX)
}

#[cfg(test)]
mod tests;
