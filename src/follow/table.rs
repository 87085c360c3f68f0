//! A CSV table that grows while it is read.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    str::FromStr,
};

use kiln_core::{input, limits::SAMPLES_BYTES, record::trials::is_axis};

/// Longest row that is read, in bytes; a longer one is skipped.
const LONGEST_ROW: usize = 1 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// First column of kiln's tables.
const FIRST_COLUMN: &str = "kiln_table";

/// Receives the rows of a table.
pub(super) trait RowSink {
    /// The table was replaced by another: all rows come again.
    fn restart(&mut self);
    fn row(&mut self, row: &GrownRow<'_>);
}

/// One row.
pub(super) struct GrownRow<'a> {
    columns: &'a HashMap<String, usize>,
    cells: &'a csv::StringRecord,
}

impl GrownRow<'_> {
    /// The text of a cell; `None` if it is empty or there is no such column.
    pub(super) fn text(&self, column: &str) -> Option<&str> {
        let cell = self.cells.get(*self.columns.get(column)?)?;
        (!cell.is_empty()).then_some(cell)
    }

    /// The value of a cell; `None` also if it is not one.
    pub(super) fn value<T: FromStr>(&self, column: &str) -> Option<T> {
        self.text(column)?.parse().ok()
    }

    /// Key and value of each axis, in file order.
    pub(super) fn axes(&self) -> Vec<(String, String)> {
        let mut axes: Vec<(usize, &String)> = self
            .columns
            .iter()
            .filter(|(name, _)| is_axis(name))
            .map(|(name, place)| (*place, name))
            .collect();
        axes.sort_unstable();
        let value = |place| self.cells.get(place).unwrap_or_default().to_owned();
        axes.into_iter()
            .map(|(place, name)| (name.clone(), value(place)))
            .collect()
    }

    /// A finite number.
    pub(super) fn number(&self, column: &str) -> Option<f64> {
        self.value(column).filter(|number: &f64| number.is_finite())
    }
}

/// A table and how far it has been read.
#[derive(Debug)]
pub(super) struct GrowingTable {
    path: PathBuf,
    /// At first only so many bytes at the end are read.
    from_end: Option<u64>,
    /// Device and inode of the file that was read.
    identity: Option<(u64, u64)>,
    offset: u64,
    line: PartialLine,
    /// The columns' places; `None` before the header.
    columns: Option<HashMap<String, usize>>,
    /// The columns in their order.
    header: Vec<String>,
    /// The cells of the row that is read.
    cells: csv::StringRecord,
}

/// The beginning of a row whose end is not written yet.
#[derive(Debug, Default)]
struct PartialLine {
    bytes: Vec<u8>,
    /// Whether a quote is open, so that a line feed does not end the row.
    is_quoted: bool,
    /// Whether the rest of the line is skipped.
    is_skipped: bool,
}

impl GrowingTable {
    /// A table that is read from its beginning.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            from_end: None,
            identity: None,
            offset: 0,
            line: PartialLine::default(),
            columns: None,
            header: Vec::new(),
            cells: csv::StringRecord::new(),
        }
    }

    /// A table of which only the end matters.
    pub(super) fn from_end(path: PathBuf, bytes: u64) -> Self {
        Self {
            from_end: Some(bytes),
            ..Self::new(path)
        }
    }

    /// The names of the columns; empty before the header is written.
    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// Reads what was added since the last call; returns whether there was anything. A file that cannot
    /// be read has no rows.
    pub(super) fn read(&mut self, sink: &mut impl RowSink) -> bool {
        self.read_added(sink).unwrap_or(false)
    }

    fn read_added(&mut self, sink: &mut impl RowSink) -> std::io::Result<bool> {
        let mut file = input::open_within(&self.path, &SAMPLES_BYTES)?;
        let found = file.metadata()?;
        let identity = (found.dev(), found.ino());
        if self.identity.is_some_and(|known| known != identity) || found.len() < self.offset {
            sink.restart();
            *self = Self {
                from_end: self.from_end,
                ..Self::new(self.path.clone())
            };
        }
        self.identity = Some(identity);
        if found.len() == self.offset {
            return Ok(false);
        }
        if self.offset == 0
            && let Some(bytes) = self.from_end.filter(|bytes| found.len() > 2 * bytes)
        {
            let mut first = Vec::new();
            BufReader::new(&mut file)
                .take(CHUNK as u64)
                .read_until(b'\n', &mut first)?;
            self.add(&first, sink);
            self.offset = found.len() - bytes;
            self.line.is_skipped = true;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut left = found.len() - self.offset;
        let mut chunk = vec![0; CHUNK];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let length = file.read(&mut chunk[..most])?;
            if length == 0 {
                break;
            }
            self.add(&chunk[..length], sink);
            self.offset += length as u64;
            left -= length as u64;
        }
        Ok(true)
    }

    fn add(&mut self, bytes: &[u8], sink: &mut impl RowSink) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let Some(row) = self.line.add(piece) {
                self.take(&row, sink);
            }
        }
    }

    fn take(&mut self, row: &[u8], sink: &mut impl RowSink) {
        if !split(row, &mut self.cells) {
            return;
        }
        let cells = &self.cells;
        match &self.columns {
            Some(columns) if cells.len() == self.header.len() => {
                sink.row(&GrownRow { columns, cells });
            }
            None if cells.get(0) == Some(FIRST_COLUMN) => {
                self.header = cells.iter().map(str::to_owned).collect();
                let places = self.header.iter().cloned().enumerate();
                self.columns = Some(places.map(|(place, name)| (name, place)).collect());
            }
            // A damaged row, or a file that is not a table.
            _ => {}
        }
    }
}

/// Splits a row into its cells; `false` if it is not one.
fn split(row: &[u8], cells: &mut csv::StringRecord) -> bool {
    if row.contains(&b'"') {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_reader(row);
        return reader.read_record(cells).unwrap_or(false);
    }
    // Most rows have no quotes, and a reader of its own for each of a million would take its time.
    let Ok(text) = std::str::from_utf8(row) else {
        return false;
    };
    cells.clear();
    for cell in text.trim_end_matches(['\r', '\n']).split(',') {
        cells.push_field(cell);
    }
    true
}

impl PartialLine {
    /// Adds a piece that ends with a line feed, or is the end of what is written; returns the row that
    /// it completes.
    fn add(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let is_end = piece.last() == Some(&b'\n');
        if self.is_skipped {
            self.is_skipped = !is_end;
            return None;
        }
        let quotes = piece.iter().filter(|byte| **byte == b'"').count();
        self.is_quoted ^= quotes % 2 == 1;
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() > LONGEST_ROW {
            *self = Self {
                is_skipped: !is_end,
                ..Self::default()
            };
            return None;
        }
        (is_end && !self.is_quoted).then(|| std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[derive(Default)]
    struct Kept {
        rows: Vec<String>,
        restarts: usize,
    }

    impl RowSink for Kept {
        fn restart(&mut self) {
            self.rows.clear();
            self.restarts += 1;
        }

        fn row(&mut self, row: &GrownRow<'_>) {
            self.rows.push(row.text("b").unwrap_or("-").to_owned());
        }
    }

    fn append(path: &std::path::Path, text: &str) {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn rows_come_once_each_and_a_torn_one_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let mut table = GrowingTable::new(path.clone());
        let mut kept = Kept::default();
        assert!(!table.read(&mut kept), "there is no file yet");
        append(&path, "kiln_ta");
        assert!(table.read(&mut kept));
        append(&path, "ble,b\nx/1,one\nx/1,t");
        table.read(&mut kept);
        assert_eq!(kept.rows, ["one"]);
        append(
            &path,
            "wo\nx/1,\"a\nb, \"\"c\"\"\"\nx/1,\nshort\n\u{1},\u{2},3\n",
        );
        table.read(&mut kept);
        assert_eq!(kept.rows, ["one", "two", "a\nb, \"c\"", "-"]);
        assert!(!table.read(&mut kept) && kept.restarts == 0);
        fs::write(&path, "kiln_table,b\nx/1,anew\n").unwrap();
        table.read(&mut kept);
        assert_eq!(
            (kept.rows.as_slice(), kept.restarts),
            (&["anew".to_owned()][..], 1)
        );
    }

    #[test]
    fn only_the_end_of_a_long_table_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let rows: String = (0..10_000).map(|row| format!("x/1,{row}\n")).collect();
        append(&path, &format!("kiln_table,b\n{rows}"));
        let mut table = GrowingTable::from_end(path, 1000);
        let mut kept = Kept::default();
        table.read(&mut kept);
        assert!(kept.rows.len() < 130, "{}", kept.rows.len());
        assert_eq!(kept.rows.last().unwrap(), "9999");
    }

    #[test]
    fn a_row_without_an_end_does_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        append(&path, "kiln_table,b\nx/1,\"");
        append(&path, &"x".repeat(3 * LONGEST_ROW));
        append(&path, "\nx/1,after\n");
        let mut table = GrowingTable::new(path);
        let mut kept = Kept::default();
        table.read(&mut kept);
        assert_eq!(kept.rows, ["after"]);
        assert!(table.line.bytes.capacity() <= 2 * LONGEST_ROW);
    }
}
