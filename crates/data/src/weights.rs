//! Files of trained parameters, identified by their content.

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::{input, limits::WEIGHTS_BYTES};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::files::digest_of;

/// Why the file that `train.initial_weights` names is not usable.
#[derive(Debug, Error)]
pub enum WeightsError {
    #[error("`train.initial_weights.path` names {}, which cannot be read: {error}; correct the \
             path, or put the file there", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "`train.initial_weights.path` names {}, whose SHA-256 is {found}, but \
         `train.initial_weights.sha256` is {wanted}; if this is the right file, write its SHA-256 \
         there", .path.display()
    )]
    Other {
        path: PathBuf,
        found: String,
        wanted: String,
    },
}

/// Checks that the file exists and has this SHA-256 (hex).
///
/// # Errors
/// It cannot be read, or its SHA-256 differs.
pub fn check(path: &Path, sha256: &str) -> Result<(), WeightsError> {
    let sum = input::open_within(path, &WEIGHTS_BYTES)
        .and_then(|mut file| digest_of::<Sha256>(&mut file));
    let (found, _) = sum.map_err(|error| unreadable(path, error))?;
    same(path, found, sha256)
}

/// Returns all bytes of the file with this SHA-256 (hex).
///
/// # Errors
/// As [`check`].
pub fn read(path: &Path, sha256: &str) -> Result<Vec<u8>, WeightsError> {
    let bytes = input::read(path, &WEIGHTS_BYTES).map_err(|error| unreadable(path, error))?;
    same(path, hex::encode(Sha256::digest(&bytes)), sha256).map(|()| bytes)
}

fn unreadable(path: &Path, error: io::Error) -> WeightsError {
    WeightsError::Unreadable {
        path: path.to_owned(),
        error,
    }
}

fn same(path: &Path, found: String, wanted: &str) -> Result<(), WeightsError> {
    if found == wanted {
        Ok(())
    } else {
        Err(WeightsError::Other {
            path: path.to_owned(),
            found,
            wanted: wanted.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_known_by_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(
            check(&path, of_abc)
                .unwrap_err()
                .to_string()
                .contains("which cannot be read: No such file")
        );
        fs::write(&path, "abc").unwrap();
        check(&path, of_abc).unwrap();
        assert_eq!(read(&path, of_abc).unwrap(), b"abc");
        fs::write(&path, "abd").unwrap();
        let (checked, read) = (
            check(&path, of_abc).unwrap_err().to_string(),
            read(&path, of_abc).unwrap_err().to_string(),
        );
        assert_eq!(checked, read);
        assert!(
            checked.contains("whose SHA-256 is a52d159f262b2c6d") && checked.contains(of_abc),
            "{checked}"
        );
    }
}
