//! Rows of a run's `trials.csv` as bytes, and what kiln said about them.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use serde_json::Value;

/// A trial's id and the number of the attempt.
pub(crate) type Key = (String, u64);

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Key,
    /// As it stands in the file; with a line feed, also if the file's last row has none.
    pub(crate) bytes: Vec<u8>,
    pub(crate) cells: HashMap<String, String>,
}

impl Row {
    pub(crate) fn outcome(&self) -> &str {
        self.cells.get("outcome").map_or("", String::as_str)
    }

    /// Whether a resume does not run the trial again.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self.outcome(), "killed" | "interrupted")
    }
}

/// The complete rows of a table, as kiln tells them; none if the file is missing.
pub(crate) fn read(path: &Path) -> Vec<Row> {
    let text = fs::read(path).unwrap_or_default();
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(text.as_slice());
    let Ok(columns) = reader.byte_headers().cloned() else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let mut record = csv::ByteRecord::new();
    loop {
        let begin = reader.position().byte() as usize;
        if !reader.read_byte_record(&mut record).unwrap_or(false) {
            return rows;
        }
        let end = reader.position().byte() as usize;
        let has_line_feed = text.get(end - 1) == Some(&b'\n');
        let is_whole = has_line_feed || is_whole_without_line_feed(&rows, &columns, &record);
        if record.len() != columns.len() || !is_whole {
            continue;
        }
        let words = |record: &csv::ByteRecord| -> Vec<String> {
            record
                .iter()
                .map(|cell| String::from_utf8_lossy(cell).into_owned())
                .collect()
        };
        let cells: HashMap<String, String> =
            words(&columns).into_iter().zip(words(&record)).collect();
        let attempt = cells
            .get("attempt")
            .and_then(|cell| cell.parse().ok())
            .unwrap_or(0);
        rows.push(Row {
            key: (cells.get("trial").cloned().unwrap_or_default(), attempt),
            bytes: [&text[begin..end], if has_line_feed { &[] } else { b"\n" }].concat(),
            cells,
        });
    }
}

/// Whether a last row without a line feed lacks nothing else, so that kiln takes it for whole: its last
/// cell is that of all rows before.
fn is_whole_without_line_feed(
    before: &[Row],
    columns: &csv::ByteRecord,
    last: &csv::ByteRecord,
) -> bool {
    let column = String::from_utf8_lossy(columns.iter().next_back().unwrap_or_default());
    let cell = String::from_utf8_lossy(last.iter().next_back().unwrap_or_default());
    let is_same = |row: &Row| row.cells.get(&*column).is_some_and(|known| *known == cell);
    !column.contains('.') && !before.is_empty() && before.iter().all(is_same)
}

/// The events of `--progress json`; a torn last line is not one.
pub(crate) fn events(stdout: &str) -> Vec<Value> {
    stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The rows that kiln announced: each attempt with its outcome.
pub(crate) fn announced(stdout: &str) -> BTreeMap<Key, String> {
    events(stdout)
        .iter()
        .filter(|event| event["event"] == "trial_ended")
        .filter_map(|event| {
            let key = (
                event["trial"].as_str()?.to_owned(),
                event["attempt"].as_u64()?,
            );
            Some((key, event["outcome"].as_str()?.to_owned()))
        })
        .collect()
}
