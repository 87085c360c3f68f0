//! Reads the files that a program writes its numbers to.

use std::{
    fmt,
    fs::{File, Metadata},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Component, Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use kiln_core::{input, limits::Limit, patience::patiently};
use serde_json::Value;

use super::number;

/// Largest JSON file.
const MOST_JSON_BYTES: u64 = 64 << 20;
/// More than the resolution of the times of files, which is that of the system's timer.
const TICK: Duration = Duration::from_millis(20);
/// Number of last bytes of a file by which one that was appended to is told from one written anew.
const END_BYTES: u64 = 64 << 10;

/// Reason why a file has no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileFault {
    path: PathBuf,
    why: String,
    /// Whether the machine could not read it, whatever the program wrote.
    pub(super) is_unreadable: bool,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

impl FileFault {
    /// The same with the path as an experiment names it, if the file is below the folder of its attempt.
    pub(super) fn in_attempt(&self, folder: Option<&Path>) -> String {
        let below = folder.and_then(|folder| self.path.strip_prefix(folder).ok());
        match below {
            Some(file) => format!("{{folder}}/{} {}", file.display(), self.why),
            None => self.to_string(),
        }
    }
}

fn fault(path: &Path, why: impl Into<String>) -> FileFault {
    FileFault {
        path: path.to_owned(),
        why: why.into(),
        is_unreadable: false,
    }
}

/// The fault of a file that could not be read.
fn unreadable(path: &Path, error: &io::Error) -> FileFault {
    FileFault {
        is_unreadable: !is_other(error),
        ..fault(path, format!("cannot be read: {error}"))
    }
}

/// Whether an error says that no file, or something else than a file of this kind, is at a path.
fn is_other(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput};
    input::is_absent(error) || matches!(error.kind(), InvalidData | InvalidInput)
}

/// The bytes of a file that an ended attempt kept; `None` if it is not there, or not such a file.
///
/// # Errors
/// It cannot be read.
pub(super) fn kept(path: &Path, limit: &'static Limit) -> Result<Option<Vec<u8>>, FileFault> {
    match input::read(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_other(&error) => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Whether a file is below a folder by its name, and not elsewhere behind a link.
///
/// # Errors
/// It cannot be told.
pub(super) fn is_below(file: &Path, folder: &Path) -> Result<bool, FileFault> {
    let leads_up = file.components().any(|part| part == Component::ParentDir);
    if leads_up || !file.starts_with(folder) {
        return Ok(false);
    }
    let real = |path: &Path| patiently(|| path.canonicalize());
    let below = match real(file) {
        Ok(file) => real(folder).map(|folder| file.starts_with(folder)),
        // A missing file leads nowhere, unlike a link to a missing file.
        Err(error) if input::is_absent(&error) => is_link(file).map(|is_link| !is_link),
        Err(error) => Err(error),
    };
    below.map_err(|error| unreadable(file, &error))
}

fn is_link(path: &Path) -> io::Result<bool> {
    match patiently(|| path.symlink_metadata()) {
        Ok(found) => Ok(found.is_symlink()),
        Err(error) if input::is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file as it was before the attempt. Times of files are compared with each other alone: those of a
/// file server are of another clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum FileBefore {
    #[default]
    Absent,
    There {
        facts: [i64; 5],
        bytes: u64,
        /// Its last bytes; empty if what they held counts for the attempt too.
        end: Vec<u8>,
    },
    /// It could not be looked at, so whatever is read later may be of before.
    Unknown(io::ErrorKind),
}

impl FileBefore {
    /// Waits a moment if the file has just been written, so that whatever is written from now on has
    /// another time.
    pub(super) fn of(path: &Path) -> Self {
        let facts = match input::find(path) {
            Ok(Some(facts)) => facts,
            Ok(None) => return Self::Absent,
            Err(error) => return Self::Unknown(error.kind()),
        };
        let end = match end_of(path, facts.size()) {
            Ok(end) => end,
            // A program cannot append to what is no file or what it may not open.
            Err(error) if is_other(&error) => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Self::Unknown(error.kind()),
        };
        let is_new = |written: SystemTime| written.elapsed().is_ok_and(|age| age < TICK);
        if facts.modified().is_ok_and(is_new) {
            thread::sleep(TICK);
        }
        Self::There {
            facts: facts_of(&facts),
            bytes: facts.size(),
            end,
        }
    }

    /// The same, where what the file already has is of the trial too.
    pub(super) fn of_trial(mut self) -> Self {
        if let Self::There { end, .. } = &mut self {
            end.clear();
        }
        self
    }

    /// The number of bytes of before that the file still begins with; 0 if it was written anew.
    fn kept_bytes(&self, file: &File, now: &Metadata) -> io::Result<u64> {
        let Self::There { bytes, end, .. } = self else {
            return Ok(0);
        };
        if end.is_empty() || now.size() <= *bytes {
            return Ok(0);
        }
        let mut there = vec![0; end.len()];
        patiently(|| file.read_exact_at(&mut there, bytes - end.len() as u64))?;
        Ok(if there == *end { *bytes } else { 0 })
    }

    /// Why no number of the file can be taken, whatever it has at the end of the attempt.
    pub(super) fn fault(&self, path: &Path) -> Option<FileFault> {
        match self {
            Self::Unknown(kind) => Some(FileFault {
                is_unreadable: true,
                ..fault(
                    path,
                    format!(
                        "could not be looked at before the attempt ({kind}), so an old number in \
                         it would pass for a new one"
                    ),
                )
            }),
            Self::Absent | Self::There { .. } => None,
        }
    }
}

fn facts_of(found: &Metadata) -> [i64; 5] {
    [
        found.ino() as i64,
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ]
}

/// The last bytes of a file of this size.
fn end_of(path: &Path, size: u64) -> io::Result<Vec<u8>> {
    let mut end = vec![0; size.min(END_BYTES) as usize];
    let file = input::open(path)?;
    let begin = size - end.len() as u64;
    patiently(|| file.read_exact_at(&mut end, begin))?;
    Ok(end)
}

/// Opens a file that has changed since the attempt began; with it, the number of its bytes that are of
/// before.
fn open(path: &Path, before: &FileBefore) -> Result<(File, u64), FileFault> {
    if let Some(fault) = before.fault(path) {
        return Err(fault);
    }
    let failed = |error: io::Error| unreadable(path, &error);
    let file = input::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault(path, "does not exist"),
        _ => failed(error),
    })?;
    let now = patiently(|| file.metadata()).map_err(failed)?;
    if let FileBefore::There { facts, bytes, .. } = before
        && *facts == facts_of(&now)
        && *bytes == now.size()
    {
        return Err(fault(path, "is older than this attempt"));
    }
    let kept = before.kept_bytes(&file, &now).map_err(failed)?;
    Ok((file, kept))
}

fn table<R: Read>(reader: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .flexible(true)
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_reader(reader)
}

/// The rest of a file behind its first bytes, from the beginning of a line.
fn behind(mut file: &File, bytes: u64) -> io::Result<BufReader<&File>> {
    // If the last byte of before ended its line, that line feed alone is passed over.
    file.seek(SeekFrom::Start(bytes.saturating_sub(1)))?;
    let mut rest = BufReader::new(file);
    rest.skip_until(b'\n')?;
    Ok(rest)
}

/// Calls `cell` with each cell of a column that is not empty. Of a file that was appended to, these are
/// the cells of the rows that were added; returns whether it was.
///
/// # Errors
/// The file is missing, older than the attempt or not a table, or has no such column.
pub(super) fn csv(
    path: &Path,
    column: &str,
    before: &FileBefore,
    mut cell: impl FnMut(&str),
) -> Result<bool, FileFault> {
    let broken = |error: csv::Error| match error.kind() {
        csv::ErrorKind::Io(error) => unreadable(path, error),
        _ => fault(path, format!("cannot be read as CSV: {error}")),
    };
    let (file, kept) = open(path, before)?;
    let mut whole = table(&file);
    let mut columns = csv::ByteRecord::new();
    whole.read_byte_record(&mut columns).map_err(broken)?;
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
    let mut row = |record: &csv::ByteRecord| match record.get(at) {
        Some(bytes) if !bytes.is_empty() => cell(&String::from_utf8_lossy(bytes)),
        _ => {}
    };
    let mut record = csv::ByteRecord::new();
    if kept == 0 {
        while whole.read_byte_record(&mut record).map_err(broken)? {
            row(&record);
        }
        return Ok(false);
    }
    let rest = behind(&file, kept).map_err(|error| unreadable(path, &error))?;
    let mut added = table(rest);
    let mut is_first = true;
    while added.read_byte_record(&mut record).map_err(broken)? {
        // A program that appends may write the header each time.
        if !(is_first && record == columns) {
            row(&record);
        }
        is_first = false;
    }
    Ok(true)
}

/// The number at a place of a JSON file; `None` if something else is there.
///
/// # Errors
/// The file is missing, older than the attempt or not JSON, or has nothing there.
pub(super) fn json(path: &Path, at: &str, before: &FileBefore) -> Result<Option<f64>, FileFault> {
    let (file, _) = open(path, before)?;
    let read = patiently(|| {
        let mut bytes = Vec::new();
        (&file).rewind()?;
        (&file).take(MOST_JSON_BYTES + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    });
    let bytes = read.map_err(|error| unreadable(path, &error))?;
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
        csv(&path, name, &FileBefore::default(), |cell| {
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

    /// The cells of column `loss` and whether the file counts as appended to, if it has this text
    /// before the attempt and `after` at its end.
    fn of_two(before: &str, after: &str) -> (Vec<String>, bool) {
        let (_folder, path) = file(before);
        let then = FileBefore::of(&path);
        fs::write(&path, after).unwrap();
        let mut cells = Vec::new();
        let appended = csv(&path, "loss", &then, |cell| cells.push(cell.to_owned()));
        (cells, appended.unwrap())
    }

    fn cells(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn of_a_file_that_was_appended_to_only_the_added_rows_are_read() {
        let old = "step,loss\n1,2.5\n2,2\n";
        let with = |added: &str| of_two(old, &format!("{old}{added}"));
        assert_eq!(with("1,7\n2,6\n"), (cells(&["7", "6"]), true));
        assert_eq!(with("step,loss\n1,7\n"), (cells(&["7"]), true));
        let no_line_feed = of_two("step,loss\n1,2.5", "step,loss\n1,2.5\n1,7\n");
        assert_eq!(no_line_feed, (cells(&["7"]), true));
        let header = of_two("step,loss\n", "step,loss\n1,7\n");
        assert_eq!(header, (cells(&["7"]), true));
    }

    #[test]
    fn a_file_that_was_written_anew_is_read_as_a_whole() {
        let longer = of_two("step,loss\n1,2.5\n", "step,loss\n1,2.4\n2,2\n");
        assert_eq!(longer, (cells(&["2.4", "2"]), false));
        let shorter = of_two("step,loss\n1,2.5\n2,2\n", "step,loss\n1,2.5\n");
        assert_eq!(shorter, (cells(&["2.5"]), false));
        assert_eq!(of_two("", "step,loss\n1,7\n"), (cells(&["7"]), false));
        // The same beginning, and another text before the end of the old file.
        let long = |last: &str| format!("step,loss\n{}{last}\n", "1,2.5\n".repeat(30_000));
        let (all, appended) = of_two(&long("1,3.5"), &format!("{}2,9\n", long("1,4.5")));
        assert_eq!((all.len(), appended), (30_002, false));
        let (added, appended) = of_two(&long("1,3.5"), &format!("{}2,9\n", long("1,3.5")));
        assert_eq!((added, appended), (cells(&["9"]), true));
    }

    #[test]
    fn a_file_of_the_trial_itself_is_read_as_a_whole() {
        let (_folder, path) = file("loss\n1\n");
        let before = FileBefore::of(&path).of_trial();
        let mut cells = 0;
        csv(&path, "loss", &before, |_| cells += 1).unwrap_err();
        fs::write(&path, "loss\n1\n2\n").unwrap();
        assert_eq!(csv(&path, "loss", &before, |_| cells += 1), Ok(false));
        assert_eq!(cells, 2);
    }

    #[test]
    fn a_place_of_a_json_file_is_read() {
        let text = r#"{"benchmarks": [{"real_time": 12.5, "name": "x"}], "nan": NaN}"#;
        let (_folder, path) = file(text);
        let at = |place| json(&path, place, &FileBefore::default());
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
            json(&path, "a", &before).unwrap_err().why,
            "is older than this attempt"
        );
        fs::write(&path, "{\"a\": 2}").unwrap();
        assert_eq!(json(&path, "a", &before), Ok(Some(2.0)));
        let missing = json(Path::new("/nowhere/x"), "a", &before).unwrap_err();
        assert_eq!(missing.to_string(), "/nowhere/x does not exist");
    }

    #[test]
    fn a_file_that_the_machine_cannot_read_is_told_from_one_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        std::os::unix::fs::symlink("gone", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let is_unreadable = |name: &str| {
            let of_json = json(&at(name), "a", &FileBefore::Absent).unwrap_err();
            let of_csv = csv(&at(name), "a", &FileBefore::Absent, |_| ()).unwrap_err();
            assert_eq!(of_json.is_unreadable, of_csv.is_unreadable, "{name}");
            let kept = kept(&at(name), &kiln_core::limits::STATE_BYTES);
            assert_eq!(kept.is_err(), of_json.is_unreadable, "{name}");
            of_json.is_unreadable
        };
        let found = ["loop", "absent", "link", "folder"].map(is_unreadable);
        assert_eq!(found, [true, false, false, false]);
        let below = |name: &str| is_below(&at(name), folder.path()).ok();
        assert_eq!(below("loop"), None);
        assert_eq!(below("absent"), Some(true));
        assert_eq!(below("link"), Some(false));
    }

    #[test]
    fn a_file_that_could_not_be_looked_at_before_is_never_taken_for_a_new_one() {
        let (_folder, path) = file("{\"a\": 1}");
        assert_eq!(FileBefore::of(&path).fault(&path), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(FileBefore::of(&path), FileBefore::Absent);
        std::os::unix::fs::symlink("log", &path).unwrap();
        let before = FileBefore::of(&path);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{\"a\": 1}").unwrap();
        let of_json = json(&path, "a", &before).unwrap_err();
        let of_csv = csv(&path, "a", &before, |_| ()).unwrap_err();
        assert_eq!(of_json, of_csv);
        assert!(
            of_json.why.starts_with("could not be looked at"),
            "{of_json}"
        );
    }
}
