//! Errors while finding and reading data.

mod pairs;
mod panel;

use std::{
    io,
    path::{Path, PathBuf},
    string::FromUtf8Error,
};

pub use pairs::PairsError;
pub use panel::PanelError;

/// The remedy for a text in another encoding.
pub const TO_UTF8: &str =
    "convert it, for example from Latin-1 with `iconv -f latin1 -t utf-8 FILE`";

/// The remedies for what begins with these bytes.
const TO_UTF8_BY_BEGINNING: [(&[u8], &str); 5] = [
    (b"\xff\xfe", FROM_UTF16),
    (b"\xfe\xff", FROM_UTF16),
    (
        b"\x1f\x8b",
        "it is compressed with gzip: give it a name that ends in .gz",
    ),
    (
        b"\xfd7zXZ\0",
        "it is compressed with xz: give it a name that ends in .xz",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with zstd, which kiln does not read: decompress it",
    ),
];
const FROM_UTF16: &str = "it is UTF-16: convert it with `iconv -f utf-16 -t utf-8 FILE`";

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
    /// An empty folder, such as a mount point without its file system.
    #[error("{} contains no folders; expected {expected}", .path.display())]
    NoFolders { path: PathBuf, expected: String },
    #[error("{} could not be read: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is not UTF-8 text: byte {byte} of the uncompressed file; {remedy}", .path.display())]
    NotUtf8 {
        path: PathBuf,
        byte: usize,
        remedy: &'static str,
    },
    #[error("{} is empty; a text needs at least 2 tokens", .path.display())]
    Empty { path: PathBuf },
    #[error(
        "{}: `data.valid_fraction` {valid_fraction} of {whole} leaves {left} for validation; expected \
         {expected}; raise it, or set it to 0 to train without validation",
        .path.display()
    )]
    NoValidation {
        path: PathBuf,
        valid_fraction: f64,
        /// The data before the split, in words: `10 tokens`.
        whole: String,
        left: String,
        expected: &'static str,
    },
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

impl DataError {
    /// Whether the data are here and cannot be used as they are. Otherwise they are missing, or this
    /// machine cannot read them.
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::NoFolders { .. }
            | Self::NoText
            | Self::OtherContent { .. } => false,
            Self::Panel(PanelError::NotFound { .. } | PanelError::NoFiles { .. }) => false,
            Self::NoFile { path, .. } => path.exists(),
            Self::Read { error, .. } => matches!(
                error.kind(),
                io::ErrorKind::InvalidData
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::UnexpectedEof
            ),
            _ => true,
        }
    }

    /// The path of data that are not there, if they can be nowhere else and cannot be downloaded.
    pub fn missing_path(&self) -> Option<&Path> {
        match self {
            Self::NoFile { path, .. } if !path.exists() => Some(path.as_path()),
            Self::NotFound {
                looked,
                fetch: None,
                ..
            }
            | Self::Panel(PanelError::NotFound {
                looked,
                fetch: None,
                ..
            }) if looked.len() == 1 => looked.first().map(PathBuf::as_path),
            _ => None,
        }
    }

    /// The error of a path that cannot be read.
    pub(super) fn unreadable(path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::Read {
            path: path.into(),
            error,
        }
    }

    /// The error of bytes that are not UTF-8.
    pub(super) fn not_utf8(path: PathBuf, error: &FromUtf8Error) -> Self {
        let bytes = error.as_bytes();
        let mut known = TO_UTF8_BY_BEGINNING.iter();
        let known = known.find(|(beginning, _)| bytes.starts_with(beginning));
        Self::NotUtf8 {
            path,
            byte: error.utf8_error().valid_up_to(),
            remedy: known.map_or(TO_UTF8, |(_, remedy)| remedy),
        }
    }
}

/// The places of data that was not found, and what to do; `fetch` is its name if it can be downloaded.
fn places_and_remedy(looked: &[PathBuf], fetch: Option<&str>) -> (String, String) {
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
    (places.join(", "), remedy)
}

fn describe_absence(kind: &str, looked: &[PathBuf], fetch: Option<&&'static str>) -> String {
    let (places, remedy) = places_and_remedy(looked, fetch.copied());
    let endings = if kind == "image-folder" {
        ""
    } else {
        " (each also with .gz and .xz)"
    };
    format!("the data of `data.kind` {kind} was not found; looked for {places}{endings}; {remedy}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_not_malformed() {
        let read = |kind: io::ErrorKind| DataError::Read {
            path: "a.txt.gz".into(),
            error: kind.into(),
        };
        let no_file = |path: &str| DataError::NoFile {
            key: "data.path",
            path: path.into(),
        };
        assert!(DataError::Empty { path: "a".into() }.is_malformed());
        assert!(read(io::ErrorKind::UnexpectedEof).is_malformed());
        assert!(!read(io::ErrorKind::PermissionDenied).is_malformed());
        assert!(no_file("/").is_malformed());
        assert!(!no_file("/there is no such file").is_malformed());
        let empty = PanelError::NoFiles { path: "a".into() };
        assert!(!DataError::Panel(empty).is_malformed());
    }

    #[test]
    fn a_missing_path_is_the_only_place() {
        let not_found = |looked: &[&str], fetch: Option<&'static str>| DataError::NotFound {
            kind: "x",
            looked: looked.iter().map(PathBuf::from).collect(),
            fetch,
        };
        let own = not_found(&["gone"], None);
        assert_eq!(own.missing_path(), Some(Path::new("gone")));
        assert_eq!(not_found(&["gone"], Some("x")).missing_path(), None);
        assert_eq!(not_found(&["gone", "other"], None).missing_path(), None);
        let folder = DataError::NoFile {
            key: "data.path",
            path: "/".into(),
        };
        assert_eq!(folder.missing_path(), None);
    }

    #[test]
    fn the_remedy_for_other_bytes_is_that_of_what_they_are() {
        let remedy = |bytes: &[u8]| {
            let error = String::from_utf8(bytes.to_vec()).unwrap_err();
            DataError::not_utf8("a.txt".into(), &error).to_string()
        };
        assert_eq!(
            remedy(b"\xff\xfea\0"),
            "a.txt is not UTF-8 text: byte 0 of the uncompressed file; it is UTF-16: convert it \
             with `iconv -f utf-16 -t utf-8 FILE`"
        );
        assert!(remedy(b"\x1f\x8b\x08").ends_with("a name that ends in .gz"));
        assert!(remedy(b"caf\xe9").ends_with(TO_UTF8));
    }
}
