//! The table of the runs, with as many columns as fit.

use kiln_core::units::{Bytes, without_controls};

use super::run_line::RunLine;
use crate::output::table::TextTable;

/// A column of the table. Of columns that do not fit, the one with the highest number is left out
/// first; those with 0 always stay.
struct LsColumn {
    head: &'static str,
    left_out: u8,
    cell: fn(&RunLine) -> String,
}

/// Head of the column of trials without a result.
const FAILED: &str = "failed";

const COLUMNS: [LsColumn; 8] = [
    LsColumn {
        head: "experiment",
        left_out: 0,
        cell: |line| line.experiment.clone(),
    },
    LsColumn {
        head: "run",
        left_out: 0,
        cell: |line| line.run.clone(),
    },
    LsColumn {
        head: "state",
        left_out: 0,
        cell: |line| line.state.name().to_owned(),
    },
    LsColumn {
        head: "done",
        left_out: 0,
        cell: |line| {
            let more = if line.is_searching { "+" } else { "" };
            match (line.done, line.trials) {
                (Some(done), Some(trials)) => format!("{done}/{trials}{more}"),
                _ => String::new(),
            }
        },
    },
    LsColumn {
        head: FAILED,
        left_out: 1,
        cell: |line| {
            line.failed
                .map(|failed| failed.to_string())
                .unwrap_or_default()
        },
    },
    LsColumn {
        head: "age",
        left_out: 3,
        cell: |line| line.age_seconds.map(age).unwrap_or_default(),
    },
    LsColumn {
        head: "best",
        left_out: 2,
        cell: |line| line.best.clone().unwrap_or_default(),
    },
    LsColumn {
        head: "size",
        left_out: 4,
        cell: |line| {
            let size = line.size_bytes.map(|bytes| Bytes(bytes).to_string());
            let unknown = if line.is_size_unknown { "unknown" } else { "" };
            size.unwrap_or_else(|| unknown.to_owned())
        },
    },
];

/// An age in its largest unit: `45 s`, `5 min`, `3 h`, `12 d`.
fn age(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let found = units.iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = found.unwrap_or(&(1.0, "s"));
    format!("{:.0} {name}", (seconds / unit).floor())
}

/// Whether all columns fit before sizes are known; otherwise that column is not shown.
pub(super) fn has_room_for_sizes(lines: &[RunLine], width: usize) -> bool {
    fits(&columns_text(lines, u8::MAX), width)
}

fn fits(text: &str, width: usize) -> bool {
    text.lines().all(|line| line.chars().count() <= width)
}

/// The columns whose `left_out` is at most `kept`, as text.
fn columns_text(lines: &[RunLine], kept: u8) -> String {
    // Zeros alone say nothing.
    let is_empty = |column: &LsColumn| {
        column.head == FAILED && lines.iter().all(|line| line.failed.unwrap_or(0) == 0)
    };
    let columns = || {
        let fitting = COLUMNS.iter().filter(|column| column.left_out <= kept);
        fitting.filter(|column| !is_empty(column))
    };
    let mut table = TextTable::plain(columns().map(|column| column.head));
    for line in lines {
        table.add_row(columns().map(|column| (column.cell)(line)));
    }
    table.text()
}

/// A table that fits into `width`, as far as names allow; notes stand below it.
pub(super) fn table(lines: &[RunLine], width: usize) -> String {
    let most = COLUMNS.iter().map(|column| column.left_out).max();
    let mut text = String::new();
    for kept in (0..=most.unwrap_or(0)).rev() {
        text = columns_text(lines, kept);
        if fits(&text, width) {
            break;
        }
    }
    text.push('\n');
    for line in lines {
        if let Some(note) = &line.note {
            let note = format!("{}/{}: {note}", line.experiment, line.run);
            text.push_str(&(without_controls(&note) + "\n"));
        }
    }
    text
}
