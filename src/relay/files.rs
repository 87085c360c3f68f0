//! Reads the files that a program writes its numbers to.

use std::{
    fmt,
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use kiln_core::input;
use serde_json::Value;

use super::number;

/// Largest JSON file.
const MOST_JSON_BYTES: u64 = 64 << 20;
/// More than the resolution of the times of files, which is that of the system's timer.
const TICK: Duration = Duration::from_millis(20);

/// Reason why a file has no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileFault {
    path: PathBuf,
    why: String,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

fn fault(path: &Path, why: impl Into<String>) -> FileFault {
    FileFault {
        path: path.to_owned(),
        why: why.into(),
    }
}

/// A file as it was before the attempt; the default if there was none. Times of files are compared with
/// each other alone: those of a file server are of another clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileBefore(Option<[i64; 6]>);

impl FileBefore {
    /// Waits a moment if the file has just been written, so that whatever is written from now on has
    /// another time.
    pub(super) fn of(path: &Path) -> Self {
        let Ok(facts) = path.metadata() else {
            return Self::default();
        };
        let is_new = |written: SystemTime| written.elapsed().is_ok_and(|age| age < TICK);
        if facts.modified().is_ok_and(is_new) {
            thread::sleep(TICK);
        }
        Self::with(&facts)
    }

    fn with(facts: &Metadata) -> Self {
        Self(Some([
            facts.ino() as i64,
            facts.size() as i64,
            facts.mtime(),
            facts.mtime_nsec(),
            facts.ctime(),
            facts.ctime_nsec(),
        ]))
    }
}

fn open(path: &Path, before: FileBefore) -> Result<File, FileFault> {
    let file = input::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault(path, "does not exist"),
        _ => fault(path, format!("cannot be read: {error}")),
    })?;
    let now = file.metadata();
    if now.is_ok_and(|facts| FileBefore::with(&facts) == before) {
        return Err(fault(path, "is older than this attempt"));
    }
    Ok(file)
}

/// Calls `cell` with each cell of a column that is not empty.
///
/// # Errors
/// The file is missing, older than the attempt or not a table, or has no such column.
pub(super) fn csv(
    path: &Path,
    column: &str,
    before: FileBefore,
    mut cell: impl FnMut(&str),
) -> Result<(), FileFault> {
    let broken = |error: csv::Error| fault(path, format!("cannot be read as CSV: {error}"));
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(open(path, before)?);
    let columns = reader.byte_headers().map_err(broken)?.clone();
    let names: Vec<String> = columns
        .iter()
        .map(|name| {
            String::from_utf8_lossy(name)
                .trim_start_matches('\u{feff}')
                .to_owned()
        })
        .collect();
    let Some(at) = names.iter().position(|name| name == column) else {
        let shown: Vec<&str> = names.iter().take(20).map(String::as_str).collect();
        let why = format!("has no column `{column}`; it has `{}`", shown.join("`, `"));
        return Err(fault(path, why));
    };
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(broken)? {
        match record.get(at) {
            Some(bytes) if !bytes.is_empty() => cell(&String::from_utf8_lossy(bytes)),
            _ => {}
        }
    }
    Ok(())
}

/// The number at a place of a JSON file; `None` if something else is there.
///
/// # Errors
/// The file is missing, older than the attempt or not JSON, or has nothing there.
pub(super) fn json(path: &Path, at: &str, before: FileBefore) -> Result<Option<f64>, FileFault> {
    let mut bytes = Vec::new();
    open(path, before)?
        .take(MOST_JSON_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(path, format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MOST_JSON_BYTES {
        let why = format!("is larger than {} MiB", MOST_JSON_BYTES >> 20);
        return Err(fault(path, why));
    }
    let text = String::from_utf8_lossy(&bytes);
    let value: Value = serde_json::from_str(&text)
        .or_else(|error| {
            number::with_quoted_words(&text)
                .and_then(|quoted| serde_json::from_str(&quoted).ok())
                .ok_or(error)
        })
        .map_err(|error| fault(path, format!("is not JSON: {error}")))?;
    match number::at(&value, at) {
        Some(Value::Null) | None => Err(fault(path, format!("has nothing at `{at}`"))),
        Some(value) => Ok(number::of_json(value)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn column(text: &str, name: &str) -> Result<Vec<String>, String> {
        let (_folder, path) = file(text);
        let mut cells = Vec::new();
        csv(&path, name, FileBefore::default(), |cell| {
            cells.push(cell.to_owned())
        })
        .map_err(|fault| fault.why)?;
        Ok(cells)
    }

    #[test]
    fn a_column_is_read_by_its_name() {
        let text = "\u{feff}step, loss ,x\n1,2.5,a\n2,,b\n3, 2.25 ,c\n4";
        assert_eq!(column(text, "loss").unwrap(), ["2.5", "2.25"]);
        assert_eq!(column(text, "step").unwrap(), ["1", "2", "3", "4"]);
        assert_eq!(
            column(text, "lost").unwrap_err(),
            "has no column `lost`; it has `step`, `loss`, `x`"
        );
        assert_eq!(column("", "a").unwrap_err(), "has no column `a`; it has ``");
    }

    #[test]
    fn a_place_of_a_json_file_is_read() {
        let text = r#"{"benchmarks": [{"real_time": 12.5, "name": "x"}], "nan": NaN}"#;
        let (_folder, path) = file(text);
        let at = |place| json(&path, place, FileBefore::default());
        assert_eq!(at("benchmarks.0.real_time"), Ok(Some(12.5)));
        assert_eq!(at("benchmarks.0.name"), Ok(None));
        assert!(at("nan").unwrap().is_some_and(f64::is_nan));
        assert_eq!(
            at("benchmarks.1").unwrap_err().why,
            "has nothing at `benchmarks.1`"
        );
    }

    #[test]
    fn a_file_of_an_attempt_before_is_refused() {
        let (_folder, path) = file("{\"a\": 1}");
        let before = FileBefore::of(&path);
        assert_eq!(
            json(&path, "a", before).unwrap_err().why,
            "is older than this attempt"
        );
        fs::write(&path, "{\"a\": 2}").unwrap();
        assert_eq!(json(&path, "a", before), Ok(Some(2.0)));
        let missing = json(Path::new("/nowhere/x"), "a", before).unwrap_err();
        assert_eq!(missing.to_string(), "/nowhere/x does not exist");
    }
}
