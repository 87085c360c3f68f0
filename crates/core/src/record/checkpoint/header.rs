//! `checkpoint.json`: which files a checkpoint has, with their hashes, and whether they are still those.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    folder::may_be_read_later,
    input,
    limits::STATE_BYTES,
    plan::{TrialId, canonical},
    record::run_file::write_json,
};

/// Version of a checkpoint's files.
pub const CHECKPOINT: u32 = 1;
/// The file that lists the other files.
pub const HEADER: &str = "checkpoint.json";
/// The key of [`Header::header_sha256`].
const OWN_SUM: &str = "header_sha256";
const BUFFER_BYTES: usize = 1 << 20;

/// `checkpoint.json`, written last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Format version, [`CHECKPOINT`].
    pub kiln_checkpoint: u32,
    pub trial: TrialId,
    /// Optimizer updates made.
    pub step: u64,
    /// Validation loss after that step, if there was an evaluation.
    #[serde(default)]
    pub valid_loss: Option<f64>,
    /// The other files, by name.
    pub files: BTreeMap<String, FileContent>,
    /// The state that the training loop needs to resume.
    pub training: Value,
    /// SHA-256 of all other fields in canonical form; absent in checkpoints older than this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_sha256: Option<String>,
}

impl Header {
    /// Writes it into the folder of its checkpoint, with its sum.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&mut self, folder: &Path) -> io::Result<()> {
        self.header_sha256 = None;
        self.header_sha256 = Some(own_sum(serde_json::to_value(&*self)?));
        write_json(&folder.join(HEADER), &*self)
    }
}

/// Size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    pub bytes: u64,
    pub sha256: String,
}

/// Why a checkpoint is not usable.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The system could not read it; the next time it may.
    #[error("{0}")]
    Unread(io::Error),
    /// A newer kiln wrote it, in another format.
    #[error("{0}")]
    Newer(String),
    /// It is damaged, incomplete, of another trial, or not understood.
    #[error("{0}")]
    Content(String),
}

impl Unusable {
    /// A file of it that could not be read; one that is missing or no file is damage.
    pub(super) fn unreadable(name: &str, error: &io::Error) -> Self {
        let message = format!("{name}: {error}");
        match may_be_read_later(error) {
            false => Self::Content(message),
            true => Self::Unread(io::Error::new(error.kind(), message)),
        }
    }
}

pub(super) fn header(folder: &Path) -> Result<Header, Unusable> {
    let bytes = input::read(&folder.join(HEADER), &STATE_BYTES)
        .map_err(|error| Unusable::unreadable(HEADER, &error))?;
    let damaged = |error: serde_json::Error| Unusable::Content(format!("{HEADER}: {error}"));
    let value: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
    match value["kiln_checkpoint"].as_u64() {
        Some(version) if version == u64::from(CHECKPOINT) => {
            let header: Header = serde_json::from_value(value.clone()).map_err(damaged)?;
            match &header.header_sha256 {
                Some(sum) if *sum != own_sum(value) => Err(Unusable::Content(format!(
                    "{HEADER} has changed since it was written (its SHA-256 differs)"
                ))),
                _ => Ok(header),
            }
        }
        Some(version) if version > u64::from(CHECKPOINT) => Err(Unusable::Newer(format!(
            "{HEADER} has format {version}, newer than this kiln reads ({CHECKPOINT}); use the kiln \
             that wrote it"
        ))),
        Some(version) => Err(Unusable::Content(format!(
            "{HEADER} has format {version}, and this kiln reads {CHECKPOINT}"
        ))),
        None => Err(Unusable::Content(format!(
            "{HEADER} has no `kiln_checkpoint`"
        ))),
    }
}

/// SHA-256 of a header without its times and its own sum, as hex.
pub(super) fn content_sum(header: &[u8]) -> Result<String, String> {
    let mut content: Value =
        serde_json::from_slice(header).map_err(|error| format!("{HEADER}: {error}"))?;
    remove_times(&mut content);
    remove_own_sum(&mut content);
    // Runs that continue a checkpoint have recorded the sum of this form.
    Ok(hex::encode(Sha256::digest(content.to_string())))
}

/// SHA-256 of a header without its own sum, as hex: of its content, not of its text.
fn own_sum(mut header: Value) -> String {
    remove_own_sum(&mut header);
    hex::encode(Sha256::digest(canonical(&header)))
}

fn remove_own_sum(header: &mut Value) {
    if let Value::Object(fields) = header {
        fields.retain(|name, _| name != OWN_SUM);
    }
}

/// Removes each field that is a number of seconds.
fn remove_times(content: &mut Value) {
    match content {
        Value::Object(fields) => {
            fields.retain(|name, _| !name.contains("seconds"));
            fields.values_mut().for_each(remove_times);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_times),
        _ => {}
    }
}

pub(super) fn check(path: &Path, name: &str, expected: &FileContent) -> Result<(), Unusable> {
    let unreadable = |error: io::Error| Unusable::unreadable(name, &error);
    let file = input::open(path).map_err(unreadable)?;
    // A huge file is not hashed.
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes != expected.bytes {
        return Err(Unusable::Content(format!(
            "{name} has {bytes} bytes and should have {}",
            expected.bytes
        )));
    }
    let found = content(file).map_err(unreadable)?;
    if found.sha256 != expected.sha256 {
        return Err(Unusable::Content(format!(
            "{name} has changed since it was written (its SHA-256 differs)"
        )));
    }
    Ok(())
}

pub(super) fn content(file: File) -> io::Result<FileContent> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(FileContent {
                bytes,
                sha256: hex::encode(hasher.finalize()),
            });
        }
        hasher.update(buffer);
        let length = buffer.len();
        bytes += length as u64;
        reader.consume(length);
    }
}
