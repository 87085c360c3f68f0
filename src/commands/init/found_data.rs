//! Looks at a file or folder and says which kind of data it is.

mod pairs;
mod panel;
mod parts;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    kinds::data::{Data, ImageFolder},
    limits::DATA_BYTES,
    units,
};
use kiln_data::{
    error::{DataError, TO_UTF8},
    files::{self, COMPRESSED},
    images::{self, IMAGE_ENDINGS},
};

pub(super) use self::panel::window;
use self::{
    pairs::{json_list_refusal, pairs},
    parts::{Parts, parts},
};
use crate::commands::Stop;

/// Entries of a folder that are looked at.
const MOST_ENTRIES: usize = 10_000;
/// Bytes of the beginning of a text that are looked at.
const MOST_BYTES: u64 = 1 << 20;
/// Longest line that is read whole, in bytes.
const LONGEST_LINE: u64 = 64 << 20;
/// Most names or cells that a message lists.
const NAMES_SHOWN: usize = 5;
/// The shortest text of which a model can be trained and validated.
const LEAST_TEXT: u64 = 200;
/// The `valid_fraction` of images that are few: one image of each class that has two to four.
pub(super) const FRACTION_OF_FEW: f64 = 0.25;

/// The data at a path. Strings are written as YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundData {
    Text {
        path: String,
        bytes: u64,
    },
    Images {
        path: String,
        images: u64,
        /// Whether there are files that are not images, which a run refuses unless it skips them.
        skip_bad: bool,
        /// Whether the default `valid_fraction` would leave no image for validation.
        has_few: bool,
    },
    Panel {
        path: String,
        date: String,
        price: String,
        /// The columns that the model reads; `None` for all columns of numbers.
        columns: Option<Vec<String>>,
        /// Rows of the file of median length.
        rows: u64,
        /// Other choices, and the columns left out.
        comments: Vec<String>,
    },
    Pairs {
        path: String,
        /// The file of validation rows.
        valid: Option<String>,
        tokenizer: PathBuf,
        /// The tokenizer to write, where there is none: its text.
        made: Option<String>,
        prompt: String,
        response: String,
        rows: u64,
        /// Keys that are not read.
        comments: Vec<String>,
    },
}

impl FoundData {
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Text { .. } => "a text",
            Self::Images { .. } => "images",
            Self::Panel { .. } => "a panel of time series",
            Self::Pairs { .. } => "prompts and responses",
        }
    }
}

/// Data, and what a user should know about the choices that were made.
#[derive(Debug)]
pub(super) struct DataProposal {
    pub(super) data: FoundData,
    /// A line each.
    pub(super) notes: Vec<String>,
}

impl From<FoundData> for DataProposal {
    fn from(data: FoundData) -> Self {
        let notes = Vec::new();
        Self { data, notes }
    }
}

/// Looks at what lies at a path. A table is a text only if it is asked for as one. `home` is the
/// folder of the experiment file.
pub(super) fn find(path: &Path, is_asked_as_text: bool, home: &Path) -> Result<DataProposal, Stop> {
    let refuse = |what: String| Stop::bad_input(format!("{}: {what}", path.display()));
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse("there is no such file or folder".to_owned()),
        _ => refuse(error.to_string()),
    })?;
    if path.to_str().is_none() {
        return Err(refuse(
            "this path is not UTF-8 text, which an experiment file holds; rename it".to_owned(),
        ));
    }
    let guessed = match found.is_dir() {
        true => of_folder(path, home),
        false if is_rows(path) => pairs(path, None, home),
        false if is_asked_as_text => text(path).map(DataProposal::from),
        false if has_ending(path, &["json"]) => json(path),
        false if has_ending(path, &["tsv"]) => Err(
            "this is a table whose cells are separated by tabs; write prompts and responses as one \
             JSON object per line into a .jsonl file, time series as CSV files into a folder, or add \
             `--kind gpt` to train on its characters"
                .to_owned(),
        ),
        false if has_ending(path, &["csv"]) => Err(
            "this is one CSV file; a panel of time series is a folder with one CSV file per series: \
             put it into a folder and name that; write prompts and responses as one JSON object per \
             line into a .jsonl file; or add `--kind gpt` to train on its characters"
                .to_owned(),
        ),
        false => text(path).map(DataProposal::from),
    };
    guessed.map_err(refuse)
}

/// A text as a YAML scalar.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A path as a YAML scalar.
pub(super) fn shown(path: &Path) -> String {
    scalar(&path.to_string_lossy())
}

/// A file of JSON that does not end in .jsonl: a text, unless it is a list.
fn json(path: &Path) -> Result<DataProposal, String> {
    let lines = lines(path, 1)?;
    match lines.first.first() {
        Some(line) if line.starts_with('[') => Err(json_list_refusal(path)),
        _ => text(path).map(DataProposal::from),
    }
}

/// Whether the name is that of a JSONL file, plain or compressed.
fn is_rows(path: &Path) -> bool {
    has_ending(&unpacked(path), &["jsonl", "ndjson"])
}

/// The name without `.gz` or `.xz`.
fn unpacked(path: &Path) -> PathBuf {
    match has_ending(path, &COMPRESSED) {
        true => path.with_extension(""),
        false => path.to_owned(),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The first names of several, and the number of the others.
fn few(names: &[String]) -> String {
    units::few(names, NAMES_SHOWN)
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listed
        .take(MOST_ENTRIES)
        .map(|entry| entry.path())
        .filter(|path| {
            !path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.'))
        })
        .collect();
    paths.sort();
    paths
}

fn text(path: &Path) -> Result<FoundData, String> {
    let open = || input::open(path).map_err(|error| error.to_string());
    let bytes = open()?.metadata().map_err(|error| error.to_string())?.len();
    let mut start = Vec::new();
    let read = open()?.take(MOST_BYTES).read_to_end(&mut start);
    read.map_err(|error| error.to_string())?;
    let is_packed = has_ending(path, &COMPRESSED);
    // The last character may be cut, because only the beginning is read.
    let fault = std::str::from_utf8(&start)
        .err()
        .filter(|error| error.error_len().is_some());
    if !is_packed && start.contains(&0) {
        return Err("this is a binary file; name a text file, a JSONL file or a folder".to_owned());
    }
    if let Some(fault) = fault.filter(|_| !is_packed) {
        return Err(format!(
            "this file is not UTF-8 text: byte {}; {TO_UTF8}",
            fault.valid_up_to()
        ));
    }
    if bytes < LEAST_TEXT && !is_packed {
        return Err(format!(
            "this text has {bytes} bytes, too few to train on; name one with at least {LEAST_TEXT}"
        ));
    }
    Ok(FoundData::Text {
        path: shown(path),
        bytes,
    })
}

fn of_folder(folder: &Path, home: &Path) -> Result<DataProposal, String> {
    let inside = entries(folder);
    let of_kind = |is_it: fn(&Path) -> bool| -> Vec<PathBuf> {
        let files = inside.iter().filter(|path| path.is_file() && is_it(path));
        files.cloned().collect()
    };
    let has_csv = !of_kind(|path| has_ending(path, &["csv"])).is_empty();
    let has_classes = has_classes(folder) || has_classes(&folder.join("train"));
    // Folders of images beside a panel may be plots of it.
    if has_classes && !(has_csv && panel::is_panel(folder)) {
        let is_table = |path: &Path| has_ending(&unpacked(path), &["csv", "jsonl", "ndjson"]);
        return class_folders(folder, &of_kind(is_table));
    }
    if has_csv {
        return panel::panel(folder);
    }
    let rows = of_kind(is_rows);
    if !rows.is_empty() {
        return pairs_among(folder, &rows, home);
    }
    if images_of(folder) > 0 {
        return class_folders(folder, &[]);
    }
    let texts = of_kind(|path| has_ending(&unpacked(path), &["txt"]));
    if !texts.is_empty() {
        return text_among(folder, &texts);
    }
    Err(
        "this folder has no data that kiln knows: one folder of PNG or JPEG files per class, CSV \
         files with a date in each row, a JSONL file, or a .txt file"
            .to_owned(),
    )
}

/// A folder with a folder of images per class, listed as a run lists it; `tables` lie beside these.
fn class_folders(folder: &Path, tables: &[PathBuf]) -> Result<DataProposal, String> {
    let names: Vec<String> = tables.iter().map(|file| name_of(file)).collect();
    let ListedImages { skipped, has_few } = listed_images(folder)?;
    let mut found = DataProposal::from(FoundData::Images {
        path: shown(folder),
        images: images_of(folder),
        skip_bad: skipped > 0,
        has_few,
    });
    if !names.is_empty() {
        found.notes.push(format!(
            "note: the folders are the classes of the images; not used: {}",
            few(&names)
        ));
    }
    // Files beside a folder `train` are not listed.
    let listed = if folder.join("train").is_dir() {
        0
    } else {
        names.len()
    };
    let bad = usize::try_from(skipped).unwrap_or(usize::MAX);
    let bad = bad.saturating_sub(listed);
    if bad > 0 {
        found.notes.push(format!(
            "note: {} in the folders cannot be read as images; `skip_bad: true` skips them",
            units::counted(bad, "file")
        ));
    }
    Ok(found)
}

/// A folder of images as a run lists it.
struct ListedImages {
    /// Files that are no images by their names or their first bytes.
    skipped: u64,
    /// Whether the default `valid_fraction` leaves no image for validation.
    has_few: bool,
}

/// # Errors
/// A run refuses the folder.
fn listed_images(folder: &Path) -> Result<ListedImages, String> {
    let keys = serde_json::json!({"path": folder.to_string_lossy(), "skip_bad": true});
    let mut data: ImageFolder = serde_json::from_value(keys).map_err(|error| error.to_string())?;
    let mut loaded = images::load(&Data::ImageFolder(data.clone()), None);
    let has_few = matches!(loaded, Err(DataError::NoValidation { .. }));
    if has_few {
        data.valid_fraction = FRACTION_OF_FEW;
        loaded = images::load(&Data::ImageFolder(data), None);
    }
    match loaded {
        Ok(loaded) => Ok(ListedImages {
            skipped: loaded.skipped_files,
            has_few,
        }),
        Err(error) => {
            let text = error.to_string();
            // The message of `kiln init` begins with the folder.
            let about = text.strip_prefix(&folder.display().to_string());
            let about = about.and_then(|rest| rest.strip_prefix(": ").or(rest.strip_prefix(' ')));
            Err(about.unwrap_or(&text).to_owned())
        }
    }
}

/// Prompts and responses in the files of rows of a folder.
fn pairs_among(folder: &Path, rows: &[PathBuf], home: &Path) -> Result<DataProposal, String> {
    let Parts {
        train,
        valid,
        unused,
    } = parts(folder, rows)?;
    let mut found = pairs(&train, valid.as_deref(), home)?;
    found.notes.extend(not_used(&train, &unused));
    Ok(found)
}

/// A text among those of a folder.
fn text_among(folder: &Path, texts: &[PathBuf]) -> Result<DataProposal, String> {
    let Parts {
        train,
        valid,
        mut unused,
    } = parts(folder, texts)?;
    // A text is validated on its own last part.
    unused.extend(valid);
    let mut found = DataProposal::from(text(&train)?);
    found.notes.extend(not_used(&train, &unused));
    Ok(found)
}

/// Names the files of a folder that are left aside.
fn not_used(train: &Path, unused: &[PathBuf]) -> Option<String> {
    let names: Vec<String> = unused.iter().map(|file| name_of(file)).collect();
    let (train, others) = (name_of(train), few(&names));
    (!names.is_empty()).then(|| format!("note: {train} is for training; not used: {others}"))
}

/// Whether at least two folders in a folder have images: a single one may hold plots of a report.
fn has_classes(folder: &Path) -> bool {
    let classes = entries(folder);
    let classes = classes.iter().filter(|class| class.is_dir());
    let mut classes = classes.filter(|class| entries(class).iter().any(|path| is_image(path)));
    classes.nth(1).is_some()
}

fn is_image(path: &Path) -> bool {
    path.is_file() && has_ending(path, &IMAGE_ENDINGS)
}

/// Number of images in the class folders of a folder, and of its part for training.
fn images_of(folder: &Path) -> u64 {
    images_in(folder) + images_in(&folder.join("train"))
}

/// Number of images in the folders of a folder.
fn images_in(folder: &Path) -> u64 {
    let classes = entries(folder).into_iter().filter(|path| path.is_dir());
    let images = classes.flat_map(|class| entries(&class));
    images
        .take(MOST_ENTRIES)
        .filter(|path| is_image(path))
        .count() as u64
}

/// The first lines of a file.
#[derive(Default)]
struct Lines {
    first: Vec<String>,
    /// Whether nothing of the first line is left out.
    is_first_whole: bool,
    /// The number of all lines.
    count: u64,
}

/// The first lines of a file, plain or compressed.
fn lines(path: &Path, most: usize) -> Result<Lines, String> {
    let file = files::open(path, path, &DATA_BYTES).map_err(|error| error.to_string())?;
    lines_of(BufReader::new(file), most, LONGEST_LINE).map_err(|error| error.to_string())
}

/// The same of a reader; of a line at most `longest` bytes are kept, and of all about twice that.
fn lines_of(mut reader: impl BufRead, most: usize, longest: u64) -> std::io::Result<Lines> {
    let (mut lines, mut kept) = (Lines::default(), 0);
    let mut is_begin = true;
    loop {
        let mut piece = Vec::new();
        let mut limited = reader.by_ref().take(longest);
        let read = limited.read_until(b'\n', &mut piece)? as u64;
        if read == 0 {
            return Ok(lines);
        }
        let is_end = piece.ends_with(b"\n");
        lines.count += u64::from(is_begin);
        if is_begin && lines.first.len() < most && kept < longest {
            if lines.first.is_empty() {
                lines.is_first_whole = is_end || read < longest;
            }
            kept += read;
            let line = String::from_utf8_lossy(&piece);
            // Some editors start a file with a byte order mark.
            let line = line.trim_start_matches('\u{feff}').trim_end();
            lines.first.push(line.to_owned());
        }
        is_begin = is_end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_one_line_and_whole_up_to_the_limit() {
        let read = |text: &str, longest: u64| {
            let lines = lines_of(text.as_bytes(), 2, longest).unwrap();
            (lines.first, lines.is_first_whole, lines.count)
        };
        let whole = vec!["abcdef".to_owned(), "g".to_owned()];
        assert_eq!(read("abcdef\ng\nh\n", 10), (whole.clone(), true, 3));
        assert_eq!(read("abcdef\ng", 7), (vec![whole[0].clone()], true, 2));
        assert_eq!(read("abcdef\ng", 4), (vec!["abcd".to_owned()], false, 2));
        assert_eq!(read("", 4), (Vec::new(), false, 0));
    }
}
