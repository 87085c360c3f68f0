//! A public data set: address, size, license and content. Each kind that reads one declares it beside
//! its keys ([`super::DataKind::dataset`]).
//!
//! SHA-256 is over the uncompressed bytes, so a file kept as `.xz` or `.gz` counts as the same
//! file.

use std::borrow::Cow;

/// A public data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Dataset {
    /// The name in `data.kind` and `kiln data fetch NAME`.
    pub name: &'static str,
    /// Its folder under `$KILN_DATA` or `data/`.
    pub folder: &'static str,
    /// Description in a few words.
    pub about: &'static str,
    pub licence: &'static str,
    /// Base address; each file's name is appended to it.
    pub address: &'static str,
    pub files: &'static [DatasetFile],
    /// Names of the files to read in its folder, in reading order: one list for each form in which
    /// the folder may have them, the first one first. Empty for a panel, which is found by its
    /// content.
    pub forms: &'static [&'static [&'static str]],
}

/// One published file.
#[derive(Debug, PartialEq, Eq)]
pub struct DatasetFile {
    /// Name without the suffix of its compression.
    pub name: &'static str,
    /// Suffix of the published file: none, or `.gz`.
    pub ending: &'static str,
    /// Size of the published file, if known.
    pub bytes: Option<u64>,
    pub checksum: Checksum,
    pub origin: Origin,
}

/// The place where a file of a set is published.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// Under the set's address.
    Set,
    /// At a separate address.
    Own(&'static str),
    /// Not published as this file: the remedy, as text that follows the file's name.
    Nowhere(&'static str),
}

/// Expected checksum of a file, in hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the uncompressed bytes.
    Sha256(Cow<'static, str>),
    /// MD5 of the published file, compressed or not; used if nothing better is known.
    Md5(Cow<'static, str>),
    /// SHA-256 of the panel in the file, as in [`super::DataFacts`]; for archives that are
    /// packed again at each download.
    Panel(Cow<'static, str>),
}

impl Checksum {
    /// The name of the algorithm in messages.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Sha256(_) | Self::Panel(_) => "sha256",
            Self::Md5(_) => "md5",
        }
    }

    pub fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::Md5(hex) | Self::Panel(hex)) = self;
        hex
    }
}

impl DatasetFile {
    /// A file published uncompressed.
    pub(super) const fn plain(name: &'static str, bytes: u64, sha256: &'static str) -> Self {
        Self::plain_at(Origin::Set, name, bytes, sha256)
    }

    /// Same as [`DatasetFile::plain`], at a separate address.
    pub(super) const fn plain_at(
        origin: Origin,
        name: &'static str,
        bytes: u64,
        sha256: &'static str,
    ) -> Self {
        Self {
            name,
            ending: "",
            bytes: Some(bytes),
            checksum: Checksum::Sha256(Cow::Borrowed(sha256)),
            origin,
        }
    }

    /// A file published with `.gz`; `bytes` is the compressed size, `sha256` that of the content.
    pub(super) const fn gz(name: &'static str, bytes: u64, sha256: &'static str) -> Self {
        Self {
            name,
            ending: ".gz",
            bytes: Some(bytes),
            checksum: Checksum::Sha256(Cow::Borrowed(sha256)),
            origin: Origin::Set,
        }
    }

    /// The name of the fetched file in the set's folder.
    pub fn published_name(&self) -> String {
        format!("{}{}", self.name, self.ending)
    }
}

impl Dataset {
    /// Total size of its published files; `None` if one is unknown.
    pub fn bytes(&self) -> Option<u64> {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
