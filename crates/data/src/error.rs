//! Errors while finding and reading data.

mod pairs;
mod panel;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use pairs::PairsError;
pub use panel::PanelError;

/// The remedy for a text in another encoding.
pub const TO_UTF8: &str =
    "convert it, for example from Latin-1 with `iconv -f latin1 -t utf-8 FILE`";

/// Errors while loading data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{}", describe_absence(.kind, .looked, .fetch.as_ref()))]
    NotFound {
        kind: &'static str,
        looked: Vec<PathBuf>,
        fetch: Option<&'static str>,
    },
    #[error("`{key}` names {}, {}", .path.display(), describe_no_file(.path))]
    NoFile { key: &'static str, path: PathBuf },
    #[error("{} {found}; expected {expected}", .path.display())]
    Unfit {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{} could not be read: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is not UTF-8 text: byte {byte} of the uncompressed file; {TO_UTF8}", .path.display())]
    NotUtf8 { path: PathBuf, byte: usize },
    #[error("{} is empty; a text needs at least one sample of `seq_len` + 1 tokens", .path.display())]
    Empty { path: PathBuf },
    #[error("`data.kind` is none: there is no text to read")]
    NoText,
    #[error("`data.kind` {kind} has no {wanted}")]
    OtherContent {
        kind: &'static str,
        wanted: &'static str,
    },
    #[error("token {0:?} is not in the vocabulary")]
    UnknownToken(String),
    #[error(transparent)]
    Panel(#[from] PanelError),
    #[error(transparent)]
    Pairs(#[from] PairsError),
}

fn describe_absence(kind: &str, looked: &[PathBuf], fetch: Option<&&'static str>) -> String {
    let places: Vec<String> = looked
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let remedy = match fetch {
        Some(name) => {
            format!("run `kiln data fetch {name}`, or set `data.path` or KILN_DATA to where it is")
        }
        None => {
            "a relative `data.path` is relative to the directory where kiln was started".to_owned()
        }
    };
    let endings = if kind == "image-folder" {
        ""
    } else {
        " (each also with .gz and .xz)"
    };
    format!(
        "the data of `data.kind` {kind} was not found; looked for {}{endings}; {remedy}",
        places.join(", ")
    )
}

fn describe_no_file(path: &Path) -> &'static str {
    if path.is_dir() {
        "which is a folder; name a file in it"
    } else if path.exists() {
        "which is no ordinary file; copy what it gives into one"
    } else {
        "and there is no such file (nor one that also ends in .gz or .xz); a relative path is \
         relative to the directory where kiln was started"
    }
}
