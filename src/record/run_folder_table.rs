//! `trials.csv` on the disk: rows are appended whole and synced, a torn last line is found and cut, nothing else ever changes.
//!
//! A row comes in as a [`TrialRow`] with its axis values; the same comes out on reading. One row is one line: line breaks
//! inside a cell become spaces.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::TrialRow;

/// A row of `trials.csv`: the fixed columns, then one cell per axis.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    pub fixed: TrialRow,
    /// As printed, in the order of the table's axes.
    pub axes: Vec<String>,
}

/// `trials.csv`, open for appending.
#[derive(Debug)]
pub struct TrialsTable {
    path: PathBuf,
    file: File,
    length: u64,
}

/// What [`TrialsTable::open`] found.
#[derive(Debug)]
pub struct Opened {
    pub table: TrialsTable,
    pub rows: Vec<TableRow>,
    /// Bytes of a torn last line, cut off.
    pub cut_bytes: u64,
}

impl TrialsTable {
    /// Makes a table that holds its header alone.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn create(path: &Path, header: &[String]) -> io::Result<()> {
        let mut file = OpenOptions::new().create_new(true).append(true).open(path)?;
        file.write_all(&line(header)?)?;
        file.sync_all()
    }

    /// Opens a table to go on with it; a torn last line is cut off.
    ///
    /// # Errors
    /// The file cannot be read, its header is not `header`, or a line before the last is no row.
    pub fn open(path: &Path, header: &[String]) -> Result<Opened, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(failed)?;
        let (rows, whole) = parse(&bytes, header).map_err(|what| format!("{}: {what}", path.display()))?;
        let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        let cut_bytes = (bytes.len() - whole) as u64;
        if cut_bytes > 0 {
            file.set_len(whole as u64).map_err(failed)?;
        }
        if whole == 0 {
            file.write_all(&line(header).map_err(failed)?).map_err(failed)?;
        }
        if cut_bytes > 0 || whole == 0 {
            file.sync_all().map_err(failed)?;
        }
        let length = file.metadata().map_err(failed)?.len();
        Ok(Opened { table: Self { path: path.to_owned(), file, length }, rows, cut_bytes })
    }

    /// Appends one row, flushed and synced; a row that does not fit leaves no part of itself behind.
    ///
    /// # Errors
    /// The row could not be written (a full disk): the table is as it was before.
    pub fn append(&mut self, row: &TableRow) -> io::Result<()> {
        let bytes = line(&cells(row)?)?;
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            Err(_) => self.file.set_len(self.length)?,
        }
        written
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads a table that a run may be appending to; a torn last line is left out.
///
/// # Errors
/// The file cannot be read or a line before the last is no row.
pub fn read_trials(path: &Path) -> Result<Vec<TableRow>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let header = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let header = csv::ReaderBuilder::new().has_headers(false).from_reader(header).records().next();
    let header = match header {
        Some(Ok(record)) => record.iter().map(str::to_owned).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    parse(&bytes, &header).map(|(rows, _)| rows).map_err(|what| format!("{}: {what}", path.display()))
}

/// The header of a table with these axes.
///
/// # Errors
/// None in practice; the csv writer's own.
pub fn header(any: &TrialRow, axes: &[String]) -> io::Result<Vec<String>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(any).map_err(io::Error::other)?;
    let bytes = writer.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let fixed = reader.headers().map_err(io::Error::other)?;
    Ok(fixed.iter().map(str::to_owned).chain(axes.iter().cloned()).collect())
}

/// An axis value as its cell: text bare, all else as JSON.
pub fn axis_cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The whole rows and the number of bytes they (and the header) take; what is after them is torn.
fn parse(bytes: &[u8], header: &[String]) -> Result<(Vec<TableRow>, usize), String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let names = csv::StringRecord::from(header.to_vec());
    let mut rows: Vec<TableRow> = Vec::new();
    let mut whole = 0;
    let mut first_axis = None;
    for (number, text) in bytes[..end].split_inclusive(|byte| *byte == b'\n').enumerate() {
        let last = whole + text.len() == end;
        let read = if number == 0 { check_header(text, header).map(|()| None) } else { row(text, &names, &mut first_axis).map(Some) };
        match read {
            Ok(found) => rows.extend(found),
            Err(_) if last && number > 0 => break,
            Err(what) => return Err(format!("line {}: {what}", number + 1)),
        }
        whole += text.len();
    }
    Ok((rows, whole))
}

fn check_header(text: &[u8], header: &[String]) -> Result<(), String> {
    let expected = line(header).map_err(|error| error.to_string())?;
    if text == expected {
        return Ok(());
    }
    Err("the columns are not those of this experiment and this kiln; start a new run with `--fresh`".to_owned())
}

/// `first_axis` is where the fixed columns end; it is found with the first row.
fn row(text: &[u8], names: &csv::StringRecord, first_axis: &mut Option<usize>) -> Result<TableRow, String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).buffer_capacity(text.len()).from_reader(text);
    let record = match reader.records().next() {
        Some(Ok(record)) => record,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("an empty line".to_owned()),
    };
    if record.len() != names.len() {
        return Err(format!("{} cells where the header names {}", record.len(), names.len()));
    }
    let fixed: TrialRow = record.deserialize(Some(names)).map_err(|error| error.to_string())?;
    let first = match *first_axis {
        Some(first) => first,
        None => *first_axis.insert(header(&fixed, &[]).map_err(|error| error.to_string())?.len()),
    };
    let axes = record.iter().skip(first).map(str::to_owned).collect();
    Ok(TableRow { fixed, axes })
}

/// One row as cells, line breaks made spaces.
fn cells(row: &TableRow) -> io::Result<Vec<String>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.serialize(&row.fixed).map_err(io::Error::other)?;
    let bytes = writer.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(bytes.as_slice());
    let record = reader.records().next().transpose().map_err(io::Error::other)?.unwrap_or_default();
    let cells = record.iter().chain(row.axes.iter().map(String::as_str));
    Ok(cells.map(|cell| cell.replace(['\n', '\r'], " ")).collect())
}

fn line(cells: &[String]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(io::Error::other)?;
    writer.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Outcome, TrialId};

    fn row(reason: &str, axes: &[&str]) -> TableRow {
        let columns = "kiln_table,trial,attempt,launch,number,outcome,model_kind,data_kind,engine,precision,batch_size,grad_accumulation,\
            effective_batch_size,seed,concurrent_trials\ntrials/1,4f0c1a2b3d,1,1,1,failed,gpt,none,flex,f32,4,1,4,1,1\n";
        let fixed: Option<Result<TrialRow, _>> = csv::Reader::from_reader(columns.as_bytes()).deserialize().next();
        let fixed = TrialRow { reason: Some(reason.to_owned()), ..fixed.unwrap().unwrap() };
        TableRow { fixed, axes: axes.iter().map(|cell| (*cell).to_owned()).collect() }
    }

    #[test]
    fn rows_come_back_as_they_were_written_with_line_breaks_as_spaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trials.csv");
        let first = row("a \"quoted\", one", &["8", "[1,2]"]);
        let columns = header(&first.fixed, &["train.batch_size".into(), "run.devices".into()]).unwrap();
        TrialsTable::create(&path, &columns).unwrap();
        let mut opened = TrialsTable::open(&path, &columns).unwrap();
        opened.table.append(&first).unwrap();
        opened.table.append(&row("two\nlines", &["", "cpu"])).unwrap();
        let rows = read_trials(&path).unwrap();
        assert_eq!(rows, [first, row("two lines", &["", "cpu"])]);
        assert_eq!((&rows[0].fixed.trial, rows[0].fixed.outcome), (&TrialId("4f0c1a2b3d".into()), Outcome::Failed));
    }

    #[test]
    fn a_table_of_other_columns_is_refused_and_a_torn_one_is_cut_to_its_whole_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trials.csv");
        let first = row("x", &["8"]);
        let columns = header(&first.fixed, &["train.batch_size".into()]).unwrap();
        TrialsTable::create(&path, &columns).unwrap();
        TrialsTable::open(&path, &columns).unwrap().table.append(&first).unwrap();
        assert!(TrialsTable::open(&path, &columns[1..]).unwrap_err().contains("`--fresh`"));
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..20 {
            std::fs::write(&path, [whole.as_slice(), &whole[whole.len() - 20..whole.len() - cut]].concat()).unwrap();
            let opened = TrialsTable::open(&path, &columns).unwrap();
            assert_eq!((opened.rows.len(), opened.cut_bytes), (1, 20 - cut as u64));
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }
}
