//! Files of data: the folders where they may be, and their bytes, plain, `.gz` or `.xz`.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{error::DataError, suffix::COMPRESSED};

/// The folder, beside the experiment's, that is searched last.
const DATA_FOLDER: &str = "data";

/// The folders that may contain a known set, by priority. If `data.path` is given, it is the only
/// one.
pub fn folders(set_folder: &str, path: Option<&str>, data_folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = path {
        return vec![PathBuf::from(path)];
    }
    let given = data_folder.map(|folder| folder.join(set_folder));
    given
        .into_iter()
        .chain([Path::new(DATA_FOLDER).join(set_folder)])
        .collect()
}

/// Returns the file itself, or the same with `.gz` or `.xz`.
pub fn existing(path: &Path) -> Option<PathBuf> {
    COMPRESSED
        .iter()
        .map(|ending| with_ending(path, ending))
        .find(|path| path.is_file())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(ending);
    PathBuf::from(whole)
}

/// Streams a file's uncompressed bytes; the suffix of `named` selects the decompression.
pub(super) fn open(path: &Path, named: &Path) -> io::Result<Box<dyn Read>> {
    let file = BufReader::new(File::open(path)?);
    Ok(match named.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Some("xz") => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(file)),
        _ => Box::new(file),
    })
}

/// All uncompressed bytes of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let result = open(path, path).and_then(|mut reader| reader.read_to_end(&mut bytes));
    result.map(|_| bytes).map_err(|error| DataError::Read {
        path: path.to_owned(),
        error,
    })
}

/// Returns SHA-256 of a file's uncompressed bytes, in hex, and their number. `named` is as in
/// [`super::source::checksum_of`].
///
/// # Errors
/// The file cannot be read, or is not a complete archive.
pub fn sha256_of(path: &Path, named: &Path) -> io::Result<(String, u64)> {
    digest_of::<Sha256>(&mut open(path, named)?)
}

/// Returns the digest of all remaining bytes, in hex, and their number.
pub(super) fn digest_of<D: Digest>(reader: &mut dyn Read) -> io::Result<(String, u64)> {
    let mut hasher = D::new();
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok((hex::encode(hasher.finalize()), bytes)),
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.xz");
        std::fs::write(&path, b"no xz at all").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("text.xz"), "{error}");
    }
}
