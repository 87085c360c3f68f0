//! `trials.csv`: one row per ended attempt. What a row says beyond its cells; reading and writing.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    path::Path,
};

use serde_json::Value;

use super::{
    RunFolder,
    columns::AXES_AT,
    table::{Table, TableError, TableWriter, TornLine, cell_of, cells_of, line_of},
    trial_row::{TRIALS, TrialRow},
};
use crate::{folder::Folder, plan::TrialId, spec::Metric, units::listed};

/// Separator between the devices of one trial in a cell.
pub const DEVICE_SEPARATOR: &str = ";";

/// How a host id was made: its part before the hash. Ids that were made in different ways cannot be
/// compared.
pub fn host_id_kind(id: &str) -> &str {
    id.split_once('-').map_or(id, |(kind, _)| kind)
}

impl TrialRow {
    /// The value of a metric.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::ValidLoss => self.valid_loss,
            Metric::TrainLoss => self.train_loss,
            Metric::SamplesPerSecond => self.samples_per_second,
            Metric::TokensPerSecond => self.tokens_per_second,
            Metric::ValidTop1 => self.valid_top1,
            Metric::ValidMeanAbsoluteError => self.valid_mean_absolute_error,
            Metric::ValidHitRate => self.valid_hit_rate,
            Metric::ValidBleu4 => self.valid_bleu4,
            Metric::ValidChrf => self.valid_chrf,
            Metric::SecondsToTarget => self.seconds_to_target,
        }
    }

    /// Other processes on the device during the attempt; `None` if there were none or it is
    /// unknown.
    pub fn others_on_device(&self) -> Option<&str> {
        self.foreign_processes
            .as_deref()
            .filter(|seen| !["none", "unknown"].contains(seen))
    }

    /// Energy per sample over the measured window, in J; from the driver's counter if available.
    pub fn joules_per_sample(&self) -> Option<f64> {
        self.per_sample(self.energy_counter_joules.or(self.energy_integral_joules))
    }

    /// Divides a sum over the measured window by its samples.
    pub fn per_sample(&self, sum: Option<f64>) -> Option<f64> {
        let samples = self.samples_per_second? * self.window_seconds?;
        (samples > 0.0).then_some(sum? / samples)
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
    pub fixed: TrialRow,
    /// As printed, in the order of the table's axes.
    pub axes: Vec<String>,
}

impl TableRow {
    /// `values` are the trial's, one per axis.
    pub fn new(fixed: TrialRow, values: &[Value]) -> Self {
        Self {
            fixed,
            axes: values.iter().map(cell_of).collect(),
        }
    }
}

/// Writes `trials.csv`.
#[derive(Debug)]
pub struct TrialWriter {
    table: TableWriter,
    axes: usize,
}

impl TrialWriter {
    /// Opens or creates the table; `axes` are dotted keys in file order. A torn last line is cut
    /// and returned.
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
        let axes = axes.len();
        (Self { table, axes }, torn)
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

    /// Appends one row and waits until it is on the disk.
    ///
    /// # Errors
    /// As [`TrialWriter::append`], and when the disk reports an error.
    pub fn append_synced(&mut self, row: &TableRow) -> Result<(), TableError> {
        self.append(row)?;
        self.table.sync()
    }

    /// Appends rows in one write and waits until they are on the disk.
    ///
    /// # Errors
    /// As [`TrialWriter::append_synced`]; then none of them, all, or all for now are in the file.
    pub(super) fn append_all(&mut self, rows: &[TableRow]) -> Result<(), TableError> {
        let cells = rows
            .iter()
            .map(|row| self.cells(row))
            .collect::<Result<Vec<_>, _>>()?;
        self.table.append_all(cells.iter().map(Vec::as_slice))?;
        self.table.sync()
    }

    /// Replaces the table by one of these rows.
    ///
    /// # Errors
    /// It cannot be written; the old file then stays.
    pub(super) fn rewrite(&mut self, rows: &[&TableRow]) -> Result<(), TableError> {
        let cells = rows
            .iter()
            .map(|row| self.cells(row))
            .collect::<Result<Vec<_>, _>>()?;
        self.table.rewrite(cells.iter().map(Vec::as_slice))
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
        cells.splice(AXES_AT..AXES_AT, row.axes.iter().cloned());
        Ok(cells)
    }
}

/// `trials.csv` in memory.
#[derive(Clone, Debug, Default)]
pub struct TrialTable {
    /// Dotted keys in file order.
    pub axes: Vec<String>,
    pub rows: Vec<TableRow>,
    /// A torn last line, which is not among the rows.
    pub torn: Option<TornLine>,
}

impl TrialTable {
    /// # Errors
    /// The file cannot be read, is not a `trials.csv`, is newer than this kiln, has an invalid
    /// cell, or has an id in both forms.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        Self::of(&Table::read(path, TRIALS.version)?)
    }

    /// Reads the table of a run on this machine. A power failure may have left it without its
    /// header; then it has no rows.
    ///
    /// # Errors
    /// As [`TrialTable::read`]; the file is a link.
    pub fn read_of(run: &RunFolder) -> Result<Self, TableError> {
        let path = run.trials_table();
        let mut file = run
            .open()
            .and_then(|folder| folder.read(TRIALS.file.as_ref()))
            .map_err(|cause| TableError::Io {
                path: path.clone(),
                doing: "opening",
                cause,
            })?;
        match Table::read_begun(&mut file, &path, TRIALS.version)? {
            Some(table) => Self::of(&table),
            None => Ok(Self {
                axes: Vec::new(),
                rows: Vec::new(),
                torn: None,
            }),
        }
    }

    /// Reads a table from any seekable source (a file of another commit in memory); `path` names it
    /// in messages.
    ///
    /// # Errors
    /// As [`TrialTable::read`].
    pub fn read_from<R: Read + Seek>(source: &mut R, path: &Path) -> Result<Self, TableError> {
        Self::of(&Table::read_from(source, path, TRIALS.version)?)
    }

    pub(super) fn of(table: &Table) -> Result<Self, TableError> {
        check_columns(table)?;
        // An axis is a dotted key, a fixed column never has a dot.
        let axis_places: Vec<usize> = (0..table.columns.len())
            .filter(|place| table.columns[*place].contains('.'))
            .collect();
        let values = |index| -> Vec<String> {
            let cells: Vec<&str> = table.cells(index).into_iter().flatten().collect();
            axis_places
                .iter()
                .map(|place| cells.get(*place).copied().unwrap_or_default().to_owned())
                .collect()
        };
        let rows = table.rows::<TrialRow>()?;
        check_ids(table, &rows)?;
        let rows = rows
            .into_iter()
            .enumerate()
            .map(|(index, fixed)| TableRow {
                fixed,
                axes: values(index),
            })
            .collect();
        let axes = axis_places
            .iter()
            .map(|place| table.columns[*place].clone())
            .collect();
        Ok(Self {
            axes,
            rows,
            torn: table.torn.clone(),
        })
    }

    /// The valid row of each trial: that of its last attempt, in the plan's order.
    pub fn last_attempts(&self) -> Vec<&TableRow> {
        let mut last: HashMap<&TrialId, &TableRow> = HashMap::new();
        for row in &self.rows {
            if last
                .get(&row.fixed.trial)
                .is_none_or(|known| row.fixed.attempt >= known.fixed.attempt)
            {
                last.insert(&row.fixed.trial, row);
            }
        }
        let mut rows: Vec<_> = last.into_values().collect();
        rows.sort_by_key(|row| row.fixed.number);
        rows
    }
}

/// An id with and without its letter is the same trial, and kiln writes one form into a table. If a
/// table has both, two runs were joined, and of two attempts with the same number one would hide
/// the other.
fn check_ids(table: &Table, rows: &[TrialRow]) -> Result<(), TableError> {
    let mut forms: HashMap<&TrialId, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        let first = *forms.entry(&row.trial).or_insert(index);
        if rows[first].trial.0 != row.trial.0 {
            let problem = format!(
                "`trial` is `{}`, and record {} has `{}`: an id with and without the letter `{}` \
                 is the same trial, and a table uses only one form; keep the rows of each run in a \
                 separate table, and compare the two tables",
                row.trial,
                first + 1,
                rows[first].trial,
                TrialId::LETTER
            );
            return Err(table.problem_at(index, problem));
        }
    }
    Ok(())
}

/// A missing column would look like one without values: every column of the oldest version among
/// the rows must be present.
fn check_columns(table: &Table) -> Result<(), TableError> {
    let version = |row: usize| {
        table
            .cells(row)?
            .next()?
            .split('/')
            .nth(1)?
            .parse::<u32>()
            .ok()
    };
    let Some(oldest) = (0..table.len()).filter_map(version).min() else {
        return Ok(());
    };
    let is_there = |name: &str| table.columns.iter().any(|found| found == name);
    let missing: Vec<String> = TRIALS
        .columns
        .iter()
        .filter(|column| column.since <= oldest && !is_there(column.name))
        .map(|column| format!("`{}`", column.name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "there is no column {}; every column of a row's version (trials/{oldest}) must be present",
        listed(&missing, ", ")
    );
    Err(TableError::Head {
        path: table.path.clone(),
        problem,
    })
}
