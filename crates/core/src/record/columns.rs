//! The definition of each table and the meaning of each of its columns: the one list for writers,
//! readers and `docs/tables.md`.
//!
//! Columns have the order of the file; tests check that they equal the fields of the structs and
//! the page.

use super::{table::TableSpec, trial_columns};

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// Unit; empty for words, names and plain counts.
    pub unit: &'static str,
    pub meaning: &'static str,
}

/// One table.
#[derive(Clone, Copy, Debug)]
pub struct TableDescription {
    /// Name and version; repeated in every row.
    pub version: &'static str,
    /// Path of the file in a run's folder.
    pub file: &'static str,
    pub about: &'static str,
    pub columns: &'static [Column],
    /// Whether the table has a column per axis.
    pub has_axes: bool,
}

impl TableDescription {
    /// Returns the expected header; `axes` are dotted keys in file order, empty for a table without
    /// them.
    pub fn spec(&self, axes: &[String]) -> TableSpec {
        let mut columns: Vec<String> = self.names().into_iter().map(str::to_owned).collect();
        columns.splice(AXES_AT..AXES_AT, axes.iter().cloned());
        TableSpec {
            version: self.version,
            columns,
        }
    }

    /// The names of its columns, in the order of the file, without axes.
    pub fn names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.name).collect()
    }
}

/// Position of the axes in `trials.csv`: after the columns that identify a row and its outcome.
pub const AXES_AT: usize = 6;

/// All tables of a run.
pub const TABLES: [&TableDescription; 5] = [&TRIALS, &SAMPLES, &SNAPSHOTS, &STEPS, &EPOCHS];

pub const TRIALS: TableDescription = TableDescription {
    version: super::trials::TRIALS_TABLE,
    file: "trials.csv",
    about: "One row per ended attempt. Rows never change; the last attempt of a trial counts. \
            After `outcome` comes one column per axis of the sweep, named by its dotted key \
            (`train.batch_size`), in the order of the experiment file; until `trials/5` they came \
            last. Committed.",
    columns: &trial_columns::COLUMNS,
    has_axes: true,
};

pub const SAMPLES: TableDescription = TableDescription {
    version: "samples/2",
    file: "samples.csv",
    about: "One row per running trial and tick: its device, its process and the host, read every \
            `measure.sample_interval` and at both ends of the measured window. Not committed.",
    columns: &SAMPLE_COLUMNS,
    has_axes: false,
};

pub const SNAPSHOTS: TableDescription = TableDescription {
    version: "snapshots/2",
    file: "snapshots.csv",
    about: "All facts of the host and of each device, one field per row: all fields at each \
            launch, then at a trial's start and end only fields that changed since the previous \
            row. Serial numbers and processes of other users read `masked` unless \
            `record.identity` is `full`. Committed. Beside it, `snapshot-<launch>.txt` has the \
            launch's rows as a page ([snapshot](snapshot.md)).",
    columns: &SNAPSHOT_COLUMNS,
    has_axes: false,
};

pub const STEPS: TableDescription = TableDescription {
    version: super::steps::STEPS_TABLE,
    file: "trials/<id>/<attempt>/steps.csv",
    about: "One row per optimizer step, written by the trial. Not committed.",
    columns: &STEP_COLUMNS,
    has_axes: false,
};

pub const EPOCHS: TableDescription = TableDescription {
    version: super::epochs::EPOCHS_TABLE,
    file: "trials/<id>/<attempt>/epochs.csv",
    about: "One row per evaluation: at the end of each epoch or every given number of steps \
            (`train.evaluate`), and at the end. Written by the trial. Not committed.",
    columns: &EPOCH_COLUMNS,
    has_axes: false,
};

pub const fn column(name: &'static str, unit: &'static str, meaning: &'static str) -> Column {
    Column {
        name,
        unit,
        meaning,
    }
}

pub(super) const KILN_TABLE: Column = column(
    "kiln_table",
    "",
    "Name and version of the table, in every row, so that joined tables stay self-describing.",
);

const SAMPLE_COLUMNS: [Column; 41] = [
    KILN_TABLE,
    column(
        "launch",
        "",
        "Number of this start of `kiln run` on the folder, from 1.",
    ),
    column("run_seconds", "s", "Time since the run's start mark."),
    column("trial", "", "The trial's id."),
    column(
        "attempt",
        "",
        "Number of this start of the trial's process, from 1.",
    ),
    column("device", "", "UUID of the GPU, or `cpu`."),
    column(
        "gpu_utilization",
        "of 1",
        "Fraction of the driver's last sample period (1/6 to 1 s) in which any kernel ran; one \
         thread on one core of the GPU gives 1.",
    ),
    column(
        "memory_utilization",
        "of 1",
        "Fraction of that period in which device memory was read or written.",
    ),
    column(
        "memory_used_bytes",
        "B",
        "Device memory in use, by all processes.",
    ),
    column(
        "power_watts",
        "W",
        "Power draw; on most boards the mean of the last second.",
    ),
    column("temperature_celsius", "°C", "Temperature of the GPU."),
    column("sm_clock_megahertz", "MHz", "Clock of the multiprocessors."),
    column(
        "memory_clock_megahertz",
        "MHz",
        "Clock of the device memory.",
    ),
    column("performance_state", "", "P-state, 0 is the fastest."),
    column(
        "throttle_reasons",
        "",
        "Reasons why the clocks are not higher, separated by spaces; `idle` is one of them. Empty \
         if nothing limits the clocks.",
    ),
    column(
        "energy_counter_joules",
        "J",
        "The driver's energy counter; differences count, not the value.",
    ),
    column("resident_bytes", "B", "Memory of the trial's process."),
    column(
        "cpu_cores",
        "cores",
        "CPU cores that the trial's process used since the previous tick.",
    ),
    column(
        "host_cpu_fraction",
        "of 1",
        "Fraction of the time of all CPU cores that was busy since the previous tick.",
    ),
    column(
        "host_memory_available_bytes",
        "B",
        "Host memory available without swapping.",
    ),
    column(
        "host_load",
        "",
        "Mean number of runnable processes over the last minute.",
    ),
    column("reading_seconds", "s", "Duration of this tick's reading."),
    column(
        "sm_active",
        "of 1",
        "Fraction of the multiprocessors with work since the previous tick (GPM: Hopper and later, \
         like the next three).",
    ),
    column(
        "sm_occupancy",
        "of 1",
        "Resident warps divided by the maximum.",
    ),
    column(
        "tensor_active",
        "of 1",
        "Fraction of the time in which tensor cores of any kind were active.",
    ),
    column(
        "dram_bandwidth_utilization",
        "of 1",
        "Fraction of the device memory's bandwidth in use.",
    ),
    column(
        "pcie_receive_bytes_per_second",
        "B/s",
        "PCIe traffic to the device since the previous tick: from GPM, else from the driver's byte \
         counter, which may wrap unnoticed.",
    ),
    column(
        "pcie_transmit_bytes_per_second",
        "B/s",
        "The same, from the device.",
    ),
    column(
        "nvlink_receive_bytes_per_second",
        "B/s",
        "NVLink traffic to the device since the previous tick (GPM).",
    ),
    column(
        "nvlink_transmit_bytes_per_second",
        "B/s",
        "The same, from the device.",
    ),
    column("power_instant_watts", "W", "Instantaneous power draw."),
    column(
        "memory_temperature_celsius",
        "°C",
        "Temperature of the device memory.",
    ),
    column(
        "throttle_bits",
        "",
        "The reasons of `throttle_reasons` as NVML's bits; 0 if nothing limits the clocks.",
    ),
    column(
        "encoder_utilization",
        "of 1",
        "Fraction of the driver's sample period in which the video encoder was active.",
    ),
    column(
        "decoder_utilization",
        "of 1",
        "The same for the video decoder.",
    ),
    column(
        "ecc_corrected_errors",
        "",
        "Memory errors corrected since the attempt began.",
    ),
    column(
        "ecc_uncorrected_errors",
        "",
        "Memory errors that could not be corrected since the attempt began.",
    ),
    column(
        "process_memory_bytes",
        "B",
        "Device memory of the trial's own process; read at both ends of the window and every tenth \
         tick; unknown inside most containers.",
    ),
    column(
        "disk_read_bytes",
        "B",
        "Bytes that the trial's process has read from disks since it started, without page-cache \
         hits.",
    ),
    column(
        "disk_busy_fraction",
        "of 1",
        "Fraction of the time since the previous tick in which the host's busiest disk was busy.",
    ),
    column(
        "device_absence",
        "",
        "Why all cells of the device are empty: the driver does not respond, the GPU is lost.",
    ),
];

const SNAPSHOT_COLUMNS: [Column; 12] = [
    KILN_TABLE,
    column(
        "launch",
        "",
        "Number of this start of `kiln run` on the folder, from 1.",
    ),
    column("trial", "", "The trial's id; empty for the launch itself."),
    column(
        "attempt",
        "",
        "Number of this start of the trial's process, from 1; empty for the launch itself.",
    ),
    column("moment", "", "`launch`, `start` or `end` (of the attempt)."),
    column("device", "", "UUID of the GPU, or `host`."),
    column("section", "", "Group of fields, as in `nvidia-smi -q`."),
    column("field", "", "Name of the field."),
    column(
        "value",
        "",
        "Its value as text; empty if it could not be read.",
    ),
    column("unit", "", "Unit of the value; empty for words and counts."),
    column("reason", "", "Why there is no value."),
    column(
        "run_seconds",
        "s",
        "Time since the run's start mark, when the reading began.",
    ),
];

const STEP_COLUMNS: [Column; 9] = [
    KILN_TABLE,
    column(
        "run_seconds",
        "s",
        "Time since the run's start mark, at the end of the step.",
    ),
    column("epoch", "", "Pass over the training data, from 1."),
    column("step", "", "Optimizer step, from 1."),
    column(
        "loss",
        "nats",
        "Mean loss per target over the effective batch; nats per token for text.",
    ),
    column("learning_rate", "", "Learning rate of this update."),
    column(
        "step_seconds",
        "s",
        "Wall time of the step, loader waits included.",
    ),
    column(
        "data_wait_seconds",
        "s",
        "Part of the step in which the trainer was blocked in the loader.",
    ),
    column("is_warmup", "", "`true` for a step excluded from timing."),
];

const EPOCH_COLUMNS: [Column; 15] = [
    KILN_TABLE,
    column(
        "run_seconds",
        "s",
        "Time since the run's start mark, at the end of the evaluation.",
    ),
    column("epoch", "", "Pass over the training data, from 1."),
    column("step", "", "Optimizer steps made so far."),
    column(
        "train_loss",
        "nats",
        "Mean training loss since the previous row; for returns, squared errors in units of their \
         standard deviation.",
    ),
    column(
        "valid_loss",
        "nats",
        "Mean loss over every target of the validation data, once; for returns as in `train_loss`.",
    ),
    column(
        "valid_perplexity",
        "",
        "e to the power of `valid_loss`; for text.",
    ),
    column(
        "evaluation_seconds",
        "s",
        "Wall time of the evaluation, excluded from the measured window.",
    ),
    column("samples", "", "Training samples seen so far."),
    column(
        "valid_top1",
        "of 1",
        "Fraction of validation images whose label has the highest output.",
    ),
    column(
        "valid_top5",
        "of 1",
        "Fraction of validation images whose label has one of the five highest outputs; empty with \
         fewer than six classes.",
    ),
    column(
        "valid_mean_absolute_error",
        "",
        "Mean absolute error of the validation log returns of a panel.",
    ),
    column(
        "valid_hit_rate",
        "of 1",
        "Fraction of a panel's validation returns whose direction (above 0 or not) was right.",
    ),
    column(
        "valid_bleu4",
        "of 1",
        "BLEU-4 of `train.evaluate.generate`'s responses, over characters.",
    ),
    column("valid_chrf", "of 1", "chrF of the same responses."),
];

/// `docs/tables.md` without its last part, the file of `kiln watch`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Tables\n\nEvery table is CSV (RFC 4180, UTF-8, `\\n`) with one header. A missing value \
         is an empty cell, never 0 and never NaN. Units are in the names; fractions are of 1; \
         times of day are UTC. Numbers have the shortest form that reads back to the same value. \
         Rows are only ever appended, and each file has one writer. Columns are added at the end \
         (of the fixed part) with a new version; older tables are still read, newer ones are \
         refused by name. A trial's id begins with a letter since `trials/6`, so that no reader \
         parses it as a number; kiln also reads ids without the letter, and one table has one form \
         of an id.\n\nThis page is generated from the program's list of columns \
         (`crates/core/src/record/columns.rs`), and a test compares the two: `KILN_BLESS=1 cargo \
         test --release --test suite tables::` writes it again.\n",
    );
    for table in TABLES {
        page.push_str(&format!(
            "\n## `{}`\n\nIn `{}`. {}\n\n| column | unit | meaning |\n\
             |---|---|---|\n",
            table.version, table.file, table.about
        ));
        for (place, column) in table.columns.iter().enumerate() {
            if table.has_axes && place == AXES_AT {
                page.push_str(
                    "| `<axis>` | | The value of each axis of the sweep, one column per axis; a \
                     list or a map is JSON. |\n",
                );
            }
            page.push_str(&format!(
                "| `{}` | {} | {} |\n",
                column.name,
                column.unit,
                column.meaning.replace('|', "\\|")
            ));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_begins_with_its_version_and_no_column_stands_twice() {
        for table in TABLES {
            assert_eq!(table.columns[0].name, crate::record::table::VERSION_COLUMN);
            let mut names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.columns.len(), "{}", table.version);
            assert!(
                table
                    .columns
                    .iter()
                    .all(|column| column.meaning.ends_with('.')),
                "{}: a meaning is a sentence",
                table.version
            );
        }
    }

    #[test]
    fn axes_stand_right_after_the_outcome() {
        let spec = TRIALS.spec(&["a.b".to_owned(), "c.d".to_owned()]);
        assert_eq!(spec.columns[5..9], ["outcome", "a.b", "c.d", "reason"]);
        assert_eq!(spec.columns.len(), TRIALS.columns.len() + 2);
    }

    #[test]
    fn a_unit_in_a_name_is_the_unit_of_the_column() {
        const UNITS: [(&str, &str); 8] = [
            ("_seconds", "s"),
            ("_bytes", "B"),
            ("_bytes_per_second", "B/s"),
            ("_watts", "W"),
            ("_joules", "J"),
            ("_celsius", "°C"),
            ("_fraction", "of 1"),
            ("_megahertz", "MHz"),
        ];
        for column in TABLES.iter().flat_map(|table| table.columns) {
            if let Some((_, unit)) = UNITS
                .iter()
                .find(|(suffix, _)| column.name.ends_with(suffix))
            {
                assert_eq!(column.unit, *unit, "{}", column.name);
            }
        }
    }
}
