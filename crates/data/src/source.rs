//! Finds the files of data in `data.path`, `$KILN_DATA/<folder>` or `data/<folder>`. `text`, `images`, `panel` and `pairs` interpret them.

use std::{
    env, io,
    path::{Path, PathBuf, absolute},
};

use kiln_core::{input, kinds::data::Data, limits::DATA_BYTES};
use md5::Md5;

use super::{
    dataset::{Checksum, Dataset, DatasetFile},
    error::DataError,
    files::{digest_of, existing, folders, found, sha256_of},
    panel,
};

/// Names the folder of data sets.
pub const DATA_VARIABLE: &str = "KILN_DATA";

/// `$KILN_DATA` as it is written; `None` if it is not set, or empty.
pub fn data_folder() -> Option<PathBuf> {
    let folder = env::var_os(DATA_VARIABLE).filter(|folder| !folder.is_empty());
    folder.map(PathBuf::from)
}

/// The same for a process that may be in another folder.
pub fn absolute_data_folder() -> Option<PathBuf> {
    absolute(data_folder()?).ok()
}

/// Returns the paths of the parts of `data`, in reading order: the files of a known set, else one
/// file or folder; last the file of a tokenizer, if there is one. Empty for generated data.
///
/// # Errors
/// A part is in none of the searched places, which the error lists; `kind: none` has no text.
pub fn locate(data: &Data, data_folder: Option<&Path>) -> Result<Vec<PathBuf>, DataError> {
    let forms = data.dataset().map(|set| set.forms);
    if let Some(forms) = forms.filter(|forms| !forms.is_empty()) {
        return locate_either(data, data_folder, forms);
    }
    match data {
        Data::None(_) => Err(DataError::NoText),
        Data::Generated(_) | Data::GeneratedImages(_) => Ok(Vec::new()),
        Data::Text(text) => locate_own([
            ("data.path", Some(&text.path)),
            ("data.tokenizer_file", text.tokenizer_file.as_ref()),
        ]),
        Data::SftJsonl(own) => locate_own([
            ("data.path", Some(&own.path)),
            ("data.valid_path", own.valid_path.as_ref()),
            ("data.tokenizer", Some(&own.tokenizer)),
        ]),
        Data::ImageFolder(_) => {
            let path = Path::new(data.path().unwrap_or_default());
            if found(path)?.is_some() {
                Ok(vec![path.to_owned()])
            } else {
                Err(not_found(data, vec![path.to_owned()]))
            }
        }
        // A panel is found by its content.
        _ => panel::locate(data, data_folder).map(|path| vec![path]),
    }
}

/// Returns the path of the tokenizer of prompts and responses; the rows need not be there.
///
/// # Errors
/// It is in none of the searched places.
pub(super) fn locate_tokenizer(
    data: &Data,
    data_folder: Option<&Path>,
) -> Result<PathBuf, DataError> {
    if let Data::SftJsonl(own) = data {
        let path = Path::new(&own.tokenizer);
        return existing(path)?.ok_or_else(|| DataError::NoFile {
            key: "data.tokenizer",
            path: path.to_owned(),
        });
    }
    // A complete set has priority.
    match locate(data, data_folder) {
        Ok(parts) => parts
            .last()
            .cloned()
            .ok_or_else(|| not_found(data, Vec::new())),
        Err(error @ DataError::NotFound { .. }) => last_of_set(data, data_folder)?.ok_or(error),
        Err(error) => Err(error),
    }
}

/// The last file of a known set, whether the others are there or not.
fn last_of_set(data: &Data, data_folder: Option<&Path>) -> Result<Option<PathBuf>, DataError> {
    let Some(set) = data.dataset() else {
        return Ok(None);
    };
    for folder in folders(set.folder, data.path(), data_folder) {
        for name in set.forms.iter().filter_map(|names| names.last()) {
            if let Some(found) = existing(&folder.join(name))? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Returns the `path` that names the same bytes from any directory: the folder of a known set, the
/// file of `text`. `None` for `generated`.
///
/// # Errors
/// As [`locate`], and if the current directory no longer exists.
pub fn absolute_path(
    data: &Data,
    data_folder: Option<&Path>,
) -> Result<Option<PathBuf>, DataError> {
    let Some(part) = locate(data, data_folder)?.into_iter().next() else {
        return Ok(None);
    };
    let whole = match data {
        Data::Text(_)
        | Data::SftJsonl(_)
        | Data::ImageFolder(_)
        | Data::PanelCsv(_)
        | Data::Stocknet(_) => part,
        _ => part.parent().map(Path::to_owned).unwrap_or_default(),
    };
    absolute(&whole)
        .map(Some)
        .map_err(|error| DataError::unreadable(whole, error))
}

/// Files that the experiment names one by one, each by its key; the first missing file is reported.
fn locate_own<const N: usize>(
    named: [(&'static str, Option<&String>); N],
) -> Result<Vec<PathBuf>, DataError> {
    let locate = |(key, path)| {
        existing(Path::new(path))?.ok_or_else(|| DataError::NoFile {
            key,
            path: PathBuf::from(path),
        })
    };
    named
        .into_iter()
        .filter_map(|(key, path)| Some((key, path?)))
        .map(locate)
        .collect()
}

/// Returns the first of several forms of a set, each a list of names, that is complete in one
/// folder; earlier folders have priority.
fn locate_either(
    data: &Data,
    data_folder: Option<&Path>,
    forms: &[&[&str]],
) -> Result<Vec<PathBuf>, DataError> {
    let set_folder = data.dataset().map_or("", |set| set.folder);
    let folders = folders(set_folder, data.path(), data_folder);
    for folder in &folders {
        for names in forms {
            if let Some(parts) = whole(folder, names)? {
                return Ok(parts);
            }
        }
    }
    // With several forms, the error names only the first file of each.
    let count = |names: &[&str]| if forms.len() == 1 { names.len() } else { 1 };
    let looked = || {
        folders
            .iter()
            .flat_map(|folder| {
                forms
                    .iter()
                    .flat_map(|names| names[..count(names)].iter().map(|name| folder.join(name)))
            })
            .collect()
    };
    Err(not_found(data, looked()))
}

/// A file of a published set has at most so many times the bytes of the whole set: it may be
/// published compressed, and a folder may have a version of the user's own.
const OF_PUBLISHED: u64 = 10;

/// The most uncompressed bytes that a file of this data has, if its published size is known.
pub(super) fn most_bytes(data: &Data) -> Option<u64> {
    let published = data.dataset()?.bytes()?;
    Some(published.saturating_mul(OF_PUBLISHED))
}

/// Returns all of these files, if all are in the folder.
fn whole(folder: &Path, names: &[&str]) -> Result<Option<Vec<PathBuf>>, DataError> {
    names
        .iter()
        .map(|name| existing(&folder.join(name)))
        .collect()
}

/// Returns the path of a published file in a folder: plain or compressed; for a panel the folder
/// itself, if it contains one in any form.
///
/// # Errors
/// The folder cannot be searched for the file.
pub fn present(file: &DatasetFile, folder: &Path) -> Result<Option<PathBuf>, DataError> {
    match file.checksum {
        Checksum::Panel(_) => Ok(panel::is_in(folder)?.then(|| folder.to_owned())),
        _ => existing(&folder.join(file.name)),
    }
}

/// Whether the folder contains the unpacked files of a set that is published as an archive.
///
/// # Errors
/// The folder cannot be searched for the files.
pub fn is_unpacked(set: &Dataset, folder: &Path) -> Result<bool, DataError> {
    let is_published = |name: &&str| set.files.iter().any(|file| file.name == *name);
    for names in set.forms {
        if !names.iter().any(is_published) && whole(folder, names)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn not_found(data: &Data, looked: Vec<PathBuf>) -> DataError {
    DataError::NotFound {
        kind: data.kind(),
        looked,
        fetch: data.dataset().map(|set| set.name),
    }
}

/// Returns the checksum of a file, of the kind used for the published one, in hex, and the number
/// of bytes it covers. `named` is the current or future name of the file: its suffix selects the
/// decompression.
///
/// # Errors
/// The file cannot be read, or is not a complete archive.
pub fn checksum_of(path: &Path, named: &Path, published: &Checksum) -> io::Result<(String, u64)> {
    match published {
        Checksum::Sha256(_) => sha256_of(path, named),
        Checksum::Md5(_) => digest_of::<Md5>(&mut input::open_within(path, &DATA_BYTES)?),
        Checksum::Panel(_) => panel::published_sha256(path, named).map_err(io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::files::read;

    fn data(yaml: &str) -> Data {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn plain_gz_and_xz_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let text = b"one two\nthree\n".repeat(100);
        std::fs::write(folder.path().join("a"), &text).unwrap();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        std::fs::write(folder.path().join("b.gz"), gz.finish().unwrap()).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&text).unwrap();
        std::fs::write(folder.path().join("c.xz"), xz.finish().unwrap()).unwrap();
        let sums = ["a", "b", "c"].map(|name| {
            let path = existing(&folder.path().join(name)).unwrap().unwrap();
            sha256_of(&path, &path).unwrap()
        });
        assert_eq!(sums[0].1, text.len() as u64);
        assert!(sums.iter().all(|sum| sum == &sums[0]));
        assert_eq!(read(&folder.path().join("c.xz"), None).unwrap(), text);
        let md5 = |name| {
            checksum_of(
                &folder.path().join(name),
                Path::new(name),
                &Checksum::Md5("".into()),
            )
            .unwrap()
        };
        assert_eq!(md5("a").1, text.len() as u64);
        assert_ne!(md5("a"), md5("b.gz"), "MD5 is of the file as it is");
        std::fs::write(folder.path().join("abc"), "abc").unwrap();
        assert_eq!(
            md5("abc").0,
            "900150983cd24fb0d6963f7d28e17f72",
            "RFC 1321, A.5"
        );
    }

    #[test]
    fn an_absent_set_names_every_place_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = locate(&data("{kind: wikitext2}"), Some(folder.path()))
            .unwrap_err()
            .to_string();
        for part in [
            "wikitext-2/train.txt",
            "data/wikitext-2/valid.txt",
            ".gz",
            "kiln data fetch wikitext2",
            "KILN_DATA",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn a_folder_counts_only_with_all_its_parts_and_a_path_stands_alone() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("wikitext-2");
        std::fs::create_dir(&set).unwrap();
        std::fs::write(set.join("train.txt"), "a").unwrap();
        assert!(locate(&data("{kind: wikitext2}"), Some(folder.path())).is_err());
        std::fs::write(set.join("valid.txt.gz"), "a").unwrap();
        let found = locate(&data("{kind: wikitext2}"), Some(folder.path())).unwrap();
        assert_eq!(found, [set.join("train.txt"), set.join("valid.txt.gz")]);
        assert_eq!(
            absolute_path(&data("{kind: wikitext2}"), Some(folder.path())).unwrap(),
            Some(set)
        );
        assert!(
            locate(
                &data("{kind: wikitext2, path: elsewhere}"),
                Some(folder.path())
            )
            .is_err()
        );
    }

    #[test]
    fn a_folder_that_cannot_be_searched_is_not_passed_over_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("wikitext-2");
        std::os::unix::fs::symlink("wikitext-2", &set).unwrap();
        let error = locate(&data("{kind: wikitext2}"), Some(folder.path())).unwrap_err();
        assert!(matches!(error, DataError::Read { .. }), "{error}");
        let published = crate::dataset::find("wikitext2").unwrap();
        assert!(present(&published.files[0], &set).is_err());
        let images = format!("{{kind: image-folder, path: {}}}", set.display());
        assert!(matches!(
            locate(&data(&images), None),
            Err(DataError::Read { .. })
        ));
    }
}
