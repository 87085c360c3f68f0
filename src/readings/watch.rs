//! The table of `kiln watch --csv`: one row per device and reading. Its device and host columns are
//! those of `samples.csv`; columns of a trial are omitted.

use std::{io, path::Path};

use kiln_core::{
    kinds::text_of,
    record::{
        columns::{Column, KILN_TABLE, column},
        table::{TableError, TableSpec, TableWriter, TornLine},
        tables::SAMPLES,
    },
};
use kiln_hardware::{Tick, sampler::SampledTick};
use serde_json::Value;

use super::samples::sample_row;
use crate::output::{csv, terminal};

/// Version of the table, in every row.
pub const WATCH_TABLE: &str = "watch/1";

/// Columns before those shared with `samples.csv`.
const OWN: [Column; 5] = [
    KILN_TABLE,
    column("utc", "", "Time of the reading."),
    column("index", "", "nvidia-smi's index; empty for the host."),
    column("device", "", "UUID of the GPU, or `host`."),
    column("name", "", "The GPU's name; empty for the host."),
];

/// Columns of `samples.csv` that are a run's, a trial's or its process's.
const LEFT_OUT: [&str; 9] = [
    "kiln_table",
    "launch",
    "run_seconds",
    "trial",
    "attempt",
    "resident_bytes",
    "cpu_cores",
    "process_memory_bytes",
    "disk_read_bytes",
];

fn is_shared(name: &str) -> bool {
    !LEFT_OUT.contains(&name) && OWN.iter().all(|own| own.name != name)
}

/// The table's columns, in the order of the file.
pub fn columns() -> Vec<Column> {
    OWN.iter()
        .chain(
            SAMPLES
                .columns
                .iter()
                .filter(|column| is_shared(column.name)),
        )
        .copied()
        .collect()
}

fn names() -> Vec<String> {
    columns()
        .iter()
        .map(|column| column.name.to_owned())
        .collect()
}

/// One row: time, device and values of a reading.
#[derive(Clone, Debug)]
pub struct WatchRow<'a> {
    pub utc: &'a str,
    /// `None` for the host.
    pub index: Option<u32>,
    pub device: &'a str,
    pub name: Option<&'a str>,
    pub tick: &'a Tick,
}

impl WatchRow<'_> {
    fn cells(&self) -> Vec<String> {
        let sampled = SampledTick {
            trial: String::new(),
            attempt: 0,
            device_uuid: None,
            run_seconds: 0.0,
            tick: self.tick.clone(),
        };
        let own = [
            WATCH_TABLE.to_owned(),
            self.utc.to_owned(),
            self.index
                .map(|index| index.to_string())
                .unwrap_or_default(),
            self.device.to_owned(),
            self.name.unwrap_or_default().to_owned(),
        ];
        let shared = match serde_json::to_value(sample_row(0, &sampled)) {
            Ok(Value::Object(fields)) => fields,
            // A struct with named fields is always such an object.
            _ => serde_json::Map::new(),
        };
        own.into_iter()
            .chain(
                shared
                    .iter()
                    .filter(|(name, _)| is_shared(name))
                    .map(|(_, value)| text_of(value)),
            )
            .collect()
    }
}

/// Destination of the rows.
#[derive(Debug)]
pub enum WatchWriter {
    File(Box<TableWriter>),
    /// Standard output; `false` once nobody reads it any more.
    Stdout {
        is_read: bool,
    },
}

impl WatchWriter {
    /// Opens or creates the file. A torn last line of an earlier watch is cut and returned.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is not this table: it is then left as it was.
    pub fn file(path: &Path) -> Result<(Self, Option<TornLine>), TableError> {
        TableWriter::open(
            path,
            TableSpec {
                version: WATCH_TABLE,
                columns: names(),
            },
        )
        .map(|(table, torn)| (Self::File(Box::new(table)), torn))
    }

    /// Begins on standard output with the header.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn stdout() -> io::Result<Self> {
        Ok(Self::Stdout {
            is_read: write_line(&names())?,
        })
    }

    /// Appends the rows of one reading and flushes them.
    ///
    /// # Errors
    /// When the file or standard output cannot be written.
    pub fn append(&mut self, rows: &[WatchRow]) -> io::Result<()> {
        let cells: Vec<Vec<String>> = rows.iter().map(WatchRow::cells).collect();
        match self {
            Self::File(table) => Ok(table.append_all(cells.iter().map(Vec::as_slice))?),
            Self::Stdout { is_read } => {
                for row in &cells {
                    *is_read = *is_read && write_line(row)?;
                }
                Ok(())
            }
        }
    }

    /// Whether the reader went away.
    pub fn is_left(&self) -> bool {
        matches!(self, Self::Stdout { is_read: false })
    }
}

/// `false` if nobody reads.
fn write_line(cells: &[String]) -> io::Result<bool> {
    terminal::print(&csv::line(cells)?)
}

/// The table's part of `docs/tables.md`.
pub fn markdown() -> String {
    let mut page = format!(
        "\n## `{WATCH_TABLE}`\n\nWritten by `kiln watch --csv FILE`: one row per device and \
         reading, and one for the host with `--host`. After these columns come those of `{}` that \
         are not a run's or a trial's: `{}` are left out. Not committed.\n\n| column | unit | \
         meaning |\n|---|---|---|\n",
        SAMPLES.version,
        LEFT_OUT[1..].join("`, `"),
    );
    for column in OWN {
        page.push_str(&format!(
            "| `{}` | {} | {} |\n",
            column.name, column.unit, column.meaning
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_hardware::GpuTick;

    #[test]
    fn a_row_has_a_cell_for_every_column_and_nothing_of_a_trial() {
        let names = names();
        let tick = Tick {
            gpu: Some(GpuTick {
                utilization: Some(0.25),
                ..GpuTick::default()
            }),
            gpu_absence: None,
            ..Tick::default()
        };
        let row = WatchRow {
            utc: "2026-01-02T03:04:05Z",
            index: Some(3),
            device: "GPU-3",
            name: Some("x"),
            tick: &tick,
        };
        let cells = row.cells();
        assert_eq!(cells.len(), names.len());
        let cell = |name: &str| &cells[names.iter().position(|known| known == name).unwrap()];
        assert_eq!(
            (
                cell("index").as_str(),
                cell("device").as_str(),
                cell("gpu_utilization").as_str(),
                cell("power_watts").as_str()
            ),
            ("3", "GPU-3", "0.25", "")
        );
        assert!(
            LEFT_OUT
                .iter()
                .all(|name| *name == "kiln_table" || !names.iter().any(|known| known == name))
        );
        assert!(LEFT_OUT.iter().all(|name| SAMPLES.names().contains(name)));
    }

    #[test]
    fn a_file_is_gone_on_with_and_another_table_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.csv");
        let tick = Tick::default();
        let row = WatchRow {
            utc: "u",
            index: None,
            device: "host",
            name: None,
            tick: &tick,
        };
        for _ in 0..2 {
            WatchWriter::file(&path)
                .unwrap()
                .0
                .append(&[row.clone(), row.clone()])
                .unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 5);
        std::fs::write(&path, "kiln_table,a\n").unwrap();
        assert!(WatchWriter::file(&path).is_err());
    }
}
