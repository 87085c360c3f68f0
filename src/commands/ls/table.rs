//! The table of the runs, with as many columns as fit.

use std::fmt::Write;

use kiln_core::units::{Bytes, without_controls};

use super::run_line::RunLine;
use crate::output::table::{TextTable, hidden_for_width};

/// A column of the table.
struct LsColumn {
    head: &'static str,
    cell: fn(&RunLine) -> String,
}

const SIZE: &str = "size";
const AGE: &str = "age";
const BEST: &str = "best";

/// Columns that a narrow terminal leaves out, in this order.
const DISPENSABLE: [&str; 3] = [SIZE, AGE, BEST];

const COLUMNS: [LsColumn; 7] = [
    LsColumn {
        head: "experiment",
        cell: |line| line.experiment.clone(),
    },
    LsColumn {
        head: "run",
        cell: |line| line.run.clone(),
    },
    LsColumn {
        head: "state",
        cell: |line| line.state.name().to_owned(),
    },
    LsColumn {
        head: "done",
        cell: done,
    },
    LsColumn {
        head: AGE,
        cell: |line| line.age_seconds.map(age).unwrap_or_default(),
    },
    LsColumn {
        head: BEST,
        cell: |line| line.best.clone().unwrap_or_default(),
    },
    LsColumn {
        head: SIZE,
        cell: |line| {
            let size = line.size_bytes.map(|bytes| Bytes(bytes).to_string());
            let unknown = if line.is_size_unknown { "unknown" } else { "" };
            size.unwrap_or_else(|| unknown.to_owned())
        },
    },
];

/// `5/6`, `5/6+` of a search that may plan more, `6/6, 2 failed` where trials have no result.
fn done(line: &RunLine) -> String {
    let (Some(done), Some(trials)) = (line.done, line.trials) else {
        return String::new();
    };
    let more = if line.is_searching { "+" } else { "" };
    let failed = match line.failed.unwrap_or(0) {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    format!("{done}/{trials}{more}{failed}")
}

/// An age in its largest unit: `45 s`, `5 min`, `3 h`, `12 d`.
fn age(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let found = units.iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = found.unwrap_or(&(1.0, "s"));
    format!("{:.0} {name}", (seconds / unit).floor())
}

/// Whether all columns fit before sizes are known; otherwise that column is not shown.
pub(super) fn has_room_for_sizes(lines: &[RunLine], width: usize) -> bool {
    whole_table(lines).fits(width)
}

/// All columns.
fn whole_table(lines: &[RunLine]) -> TextTable {
    let mut table = TextTable::plain(COLUMNS.iter().map(|column| column.head));
    for line in lines {
        table.add_row(COLUMNS.iter().map(|column| (column.cell)(line)));
    }
    table
}

/// A table that fits into `width`, as far as names allow; hidden columns and notes stand below it.
pub(super) fn table(lines: &[RunLine], width: usize) -> String {
    let mut table = whole_table(lines);
    let left_out = table.fit(width, &DISPENSABLE);
    let mut text = table.text() + "\n";
    if let Some(hidden) = hidden_for_width(&left_out, width) {
        let _ = writeln!(text, "{hidden}");
    }
    for line in lines {
        if let Some(note) = &line.note {
            let note = format!("{}/{}: {note}", line.experiment, line.run);
            text.push_str(&(without_controls(&note) + "\n"));
        }
    }
    text
}
