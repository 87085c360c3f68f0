//! Files of data: the folders where they may be, and their bytes, plain, `.gz` or `.xz`.

use std::{
    fs::Metadata,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use kiln_core::{
    input::{self, Bounded, Counted},
    limits::{DATA_BYTES, Limit},
};
use sha2::{Digest, Sha256};

use super::error::DataError;

/// Extensions of compressed files, which kiln unpacks while it reads them.
pub const COMPRESSED: [&str; 2] = ["gz", "xz"];

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

/// Returns the file itself, or the same with `.gz` or `.xz`; `None` if none of them is there.
///
/// # Errors
/// One of these paths cannot be looked at.
pub fn existing(path: &Path) -> Result<Option<PathBuf>, DataError> {
    let compressed = COMPRESSED.iter().map(|ending| {
        let mut whole = path.as_os_str().to_owned();
        whole.push(".");
        whole.push(ending);
        PathBuf::from(whole)
    });
    for path in [path.to_owned()].into_iter().chain(compressed) {
        if found(&path)?.is_some_and(|found| found.is_file()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The metadata of a path; `None` if nothing is there.
///
/// # Errors
/// The path cannot be looked at.
pub(super) fn found(path: &Path) -> Result<Option<Metadata>, DataError> {
    input::find(path).map_err(|error| DataError::unreadable(path, error))
}

/// Whether a folder is at a path.
///
/// # Errors
/// The path cannot be looked at.
pub(super) fn is_folder(path: &Path) -> Result<bool, DataError> {
    Ok(found(path)?.is_some_and(|found| found.is_dir()))
}

/// Memory that unpacking xz may take; a file of `xz -9` takes 65 MiB.
const MOST_XZ_MEMORY: u64 = 256 << 20;

/// Streams a file's uncompressed bytes, at most the limit; the suffix of `named` selects the
/// decompression.
///
/// # Errors
/// The file cannot be opened, or is no regular file.
pub fn open(path: &Path, named: &Path, limit: &'static Limit) -> io::Result<Box<dyn Read>> {
    open_at_most(path, named, limit, limit.value())
}

fn open_at_most(
    path: &Path,
    named: &Path,
    limit: &'static Limit,
    most: u64,
) -> io::Result<Box<dyn Read>> {
    let (file, packed) = Counted::new(input::open_within(path, limit)?);
    let file = BufReader::new(file);
    Ok(match named.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => {
            let unpacked = flate2::bufread::MultiGzDecoder::new(file);
            Box::new(Bounded::at_most(unpacked, limit, most).unpacking(packed))
        }
        Some("xz") => {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                MOST_XZ_MEMORY,
                liblzma::stream::CONCATENATED,
            )?;
            let unpacked = liblzma::bufread::XzDecoder::new_stream(file, stream);
            Box::new(Bounded::at_most(unpacked, limit, most).unpacking(packed))
        }
        _ => Box::new(Bounded::at_most(file, limit, most)),
    })
}

/// All uncompressed bytes of a file of data; at most `most` if that is known.
pub(super) fn read(path: &Path, most: Option<u64>) -> Result<Vec<u8>, DataError> {
    let most = most.unwrap_or(u64::MAX).min(DATA_BYTES.value());
    read_stream(path, open_at_most(path, path, &DATA_BYTES, most))
}

/// All uncompressed bytes of a file, at most the limit.
pub(super) fn read_within(path: &Path, limit: &'static Limit) -> Result<Vec<u8>, DataError> {
    read_stream(path, open(path, path, limit))
}

/// The same as [`read`], of a text whose lines have at most the limit.
pub(super) fn read_lines(
    path: &Path,
    most: Option<u64>,
    limit: &'static Limit,
) -> Result<Vec<u8>, DataError> {
    let most = most.unwrap_or(u64::MAX).min(DATA_BYTES.value());
    let read = || {
        let mut stream = open_at_most(path, path, &DATA_BYTES, most)?;
        let (longest, mut line, mut length) = (limit.value(), 1_u64, 0_u64);
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let count = stream.read(&mut piece)?;
            if count == 0 {
                return Ok(bytes);
            }
            for part in piece[..count].split_inclusive(|byte| *byte == b'\n') {
                length += part.len() as u64;
                if length > longest {
                    let message = format!("line {line}: {}", limit.exceeded(longest));
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                if part.ends_with(b"\n") {
                    (line, length) = (line + 1, 0);
                }
            }
            bytes.extend_from_slice(&piece[..count]);
        }
    };
    read().map_err(|error| DataError::unreadable(path, error))
}

fn read_stream(path: &Path, opened: io::Result<Box<dyn Read>>) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let result = opened.and_then(|mut reader| reader.read_to_end(&mut bytes));
    result
        .map(|_| bytes)
        .map_err(|error| DataError::unreadable(path, error))
}

/// The bytes of a file in a tar archive.
///
/// # Errors
/// They cannot be read, or the archive ends within them: it would look like one with a shorter file.
pub(super) fn read_entry<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < entry.size() {
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("it ends in the middle of {name}"),
        ));
    }
    Ok(bytes)
}

/// Returns SHA-256 of a file's uncompressed bytes, in hex, and their number. `named` is as in
/// [`super::source::checksum_of`].
///
/// # Errors
/// The file cannot be read, or is not a complete archive.
pub fn sha256_of(path: &Path, named: &Path) -> io::Result<(String, u64)> {
    digest_of::<Sha256>(&mut open(path, named, &DATA_BYTES)?)
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
    fn a_file_that_cannot_be_looked_at_is_not_taken_for_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        assert_eq!(existing(&path).unwrap(), None);
        let packed = folder.path().join("a.txt.gz");
        std::os::unix::fs::symlink("a.txt.gz", &packed).unwrap();
        let error = existing(&path).unwrap_err();
        assert!(error.to_string().contains("a.txt.gz"), "{error}");
        assert!(!error.is_malformed());
        std::fs::write(&path, "a").unwrap();
        assert_eq!(existing(&path).unwrap(), Some(path));
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.xz");
        std::fs::write(&path, b"no xz at all").unwrap();
        let error = read(&path, None).unwrap_err().to_string();
        assert!(error.contains("text.xz"), "{error}");
    }
}
