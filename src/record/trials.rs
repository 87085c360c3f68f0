//! `trials.csv`: one row per ended attempt; a struct is the table, a field is a column.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Read, Seek},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    columns::TRIALS,
    table::{Table, TableError, TableWriter, TornLine, cell_of, cells_of},
};
use crate::plan::{Outcome, TrialId};

/// Version of the table, in every row.
pub const TRIALS_TABLE: &str = "trials/1";

/// The fixed columns, in this order; the axes follow, one column each, named by their dotted keys. An unknown value is an
/// empty cell. Units are in the names; fractions are of 1; `docs/tables.md` says what each means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    pub kiln_table: String,
    pub trial: TrialId,
    pub attempt: u64,
    pub launch: u64,
    pub number: u64,
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub started_utc: Option<String>,
    pub trial_seconds: Option<f64>,
    pub model_kind: String,
    pub data_kind: String,
    pub engine: String,
    pub device_name: Option<String>,
    pub device_uuid: Option<String>,
    pub driver: Option<String>,
    pub libtorch: Option<String>,
    pub precision: String,
    pub batch_size: u64,
    pub grad_accumulation: u64,
    pub effective_batch_size: u64,
    pub num_workers: Option<u64>,
    pub seed: u64,
    pub parameters: Option<u64>,
    pub flops_per_sample: Option<u64>,
    pub steps: Option<u64>,
    pub window_seconds: Option<f64>,
    pub left_out_steps: Option<u64>,
    pub samples_per_second: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub median_step_seconds: Option<f64>,
    pub epoch_seconds: Option<f64>,
    pub data_wait_fraction: Option<f64>,
    pub load_seconds: Option<f64>,
    pub transfer_fraction: Option<f64>,
    pub evaluation_seconds: Option<f64>,
    pub checkpoint_seconds: Option<f64>,
    pub train_loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub seconds_to_target: Option<f64>,
    pub mfu: Option<f64>,
    pub peak_flops: Option<f64>,
    pub peak_source: Option<String>,
    pub peak_allocated_bytes: Option<u64>,
    pub peak_reserved_bytes: Option<u64>,
    pub peak_nvml_used_bytes: Option<u64>,
    pub peak_resident_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub mean_gpu_utilization: Option<f64>,
    pub mean_sm_active: Option<f64>,
    pub mean_power_watts: Option<f64>,
    pub energy_counter_joules: Option<f64>,
    pub energy_integral_joules: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    pub throttled_fraction: Option<f64>,
    pub throttle_reasons: Option<String>,
    pub foreign_processes: Option<String>,
    pub concurrent_trials: u64,
    pub cpu_threads: Option<u64>,
    pub resumed_at_step: Option<u64>,
    pub fallback_of: Option<TrialId>,
    /// `column: reason; …` for empty cells a reader would ask about.
    pub notes: Option<String>,
}

/// The cell `notes`: `column: reason; …`, or nothing. A `;` inside a reason becomes a comma, so that the cell can be split.
pub fn notes_cell(notes: &BTreeMap<String, String>) -> Option<String> {
    let each = notes.iter().map(|(column, reason)| format!("{column}: {}", reason.replace(';', ",")));
    (!notes.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
}

/// Writes `trials.csv`.
#[derive(Debug)]
pub struct TrialWriter {
    table: TableWriter,
    axes: usize,
}

impl TrialWriter {
    /// Opens or creates the table; `axes` are dotted keys in file order. A torn last line is cut and returned.
    ///
    /// # Errors
    /// When the file cannot be read or written, or has other columns (another sweep wrote it).
    pub fn open(path: &Path, axes: &[String]) -> Result<(Self, Option<TornLine>), TableError> {
        let (table, torn) = TableWriter::open(path, TRIALS.spec(axes))?;
        Ok((Self { table, axes: axes.len() }, torn))
    }

    /// Appends one row; `values` are the trial's, one per axis.
    ///
    /// # Errors
    /// When their number is not the axes', or the write fails; the file then ends with the row before.
    pub fn append(&mut self, row: &TrialRow, values: &[Value]) -> Result<(), TableError> {
        let refuse = |problem| TableError::Row { path: self.table.path().to_owned(), problem };
        if values.len() != self.axes {
            return Err(refuse(format!("trial {} has {} axis values, the table has {} axes", row.trial, values.len(), self.axes)));
        }
        let mut cells = cells_of(row).map_err(refuse)?;
        cells.extend(values.iter().map(cell_of));
        self.table.append(&cells)
    }

    /// Waits until the rows are on the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn sync(&mut self) -> Result<(), TableError> {
        self.table.sync()
    }
}

/// `trials.csv`, read.
#[derive(Clone, Debug)]
pub struct TrialTable {
    /// Dotted keys in file order.
    pub axes: Vec<String>,
    /// Every row with the cells of its axes.
    pub rows: Vec<(TrialRow, Vec<String>)>,
    /// A torn last line, left out of the rows.
    pub torn: Option<TornLine>,
}

impl TrialTable {
    /// # Errors
    /// When the file cannot be read, is no `trials.csv`, is newer than this kiln, or has a cell that is no value of its column.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        Self::of(&Table::read(path, TRIALS_TABLE)?)
    }

    /// Reads from anything that can seek (a file of another commit in memory); `path` names it in messages.
    ///
    /// # Errors
    /// As [`TrialTable::read`].
    pub fn read_from<R: Read + Seek>(source: &mut R, path: &Path) -> Result<Self, TableError> {
        Self::of(&Table::read_from(source, path, TRIALS_TABLE)?)
    }

    fn of(table: &Table) -> Result<Self, TableError> {
        // An axis is a dotted key, a fixed column never has a dot.
        let axis_places: Vec<usize> = (0..table.columns.len()).filter(|place| table.columns[*place].contains('.')).collect();
        let values = |index| -> Vec<String> {
            let cells: Vec<&str> = table.cells(index).into_iter().flatten().collect();
            axis_places.iter().map(|place| cells.get(*place).copied().unwrap_or_default().to_owned()).collect()
        };
        let rows = table.rows::<TrialRow>()?.into_iter().enumerate().map(|(index, row)| (row, values(index))).collect();
        let axes = axis_places.iter().map(|place| table.columns[*place].clone()).collect();
        Ok(Self { axes, rows, torn: table.torn.clone() })
    }

    /// The row that counts of each trial: its last attempt's, in the plan's order.
    pub fn last_attempts(&self) -> Vec<&(TrialRow, Vec<String>)> {
        let mut last: HashMap<&TrialId, &(TrialRow, Vec<String>)> = HashMap::new();
        for entry in &self.rows {
            let counts = last.get(&entry.0.trial).is_none_or(|(row, _)| entry.0.attempt >= row.attempt);
            if counts {
                last.insert(&entry.0.trial, entry);
            }
        }
        let mut rows: Vec<_> = last.into_values().collect();
        rows.sort_by_key(|(row, _)| row.number);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_can_be_split_again() {
        let notes = [("mfu", "no peak; run `kiln calibrate`"), ("steps", "killed")].map(|(column, reason)| (column.to_owned(), reason.to_owned()));
        assert_eq!(notes_cell(&notes.into()).as_deref(), Some("mfu: no peak, run `kiln calibrate`; steps: killed"));
        assert_eq!(notes_cell(&BTreeMap::new()), None);
    }
}
