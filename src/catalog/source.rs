//! Where the bytes of a text lie, and how they are read: plain, `.gz` or `.xz`, from `data.path`, `$KILN_DATA/<folder>` or
//! `data/<folder>`. Splitting and tokenizing them is `text`'s.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{data::Data, dataset, text::DataError};

/// Endings a file may have besides none.
const ENDINGS: [&str; 3] = ["", ".gz", ".xz"];
/// The folder, beside the experiment's, that is looked in last.
const DATA_FOLDER: &str = "data";

/// Training images and labels, then those of the test set.
const FASHION_MNIST_FILES: [&str; 4] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

/// Where the parts of `data` lie, in reading order: train and valid of WikiText-2, else one file. Empty for `generated`.
///
/// # Errors
/// A part is in none of the places looked in, which are named; `kind: none` has no text.
pub fn locate(data: &Data, data_folder: Option<&Path>) -> Result<Vec<PathBuf>, DataError> {
    match data {
        Data::None(_) => Err(DataError::NoText),
        Data::Generated(_) | Data::GeneratedImages(_) => Ok(Vec::new()),
        Data::Text(text) => {
            let path = Path::new(&text.path);
            existing(path).map(|found| vec![found]).ok_or_else(|| not_found(data, vec![path.to_owned()]))
        }
        Data::Wikitext2(_) => locate_parts(data, data_folder, &["train.txt", "valid.txt"]),
        Data::Tinyshakespeare(_) => locate_parts(data, data_folder, &["input.txt"]),
        Data::FashionMnist(_) => locate_parts(data, data_folder, &FASHION_MNIST_FILES),
        Data::Cifar10(_) => locate_parts(data, data_folder, &["cifar-10-binary.tar"]),
        Data::Stocknet(_) => locate_parts(data, data_folder, &["price-raw.tar"]),
        Data::ImageFolder(_) | Data::PanelCsv(_) => {
            let path = Path::new(data.path().unwrap_or_default());
            if path.exists() { Ok(vec![path.to_owned()]) } else { Err(not_found(data, vec![path.to_owned()])) }
        }
    }
}

/// The `path` that names the same bytes from any directory: the folder of a known set, the file of `text`. `None` for `generated`.
///
/// # Errors
/// As [`locate`], and where the current directory is gone.
pub fn absolute_path(data: &Data, data_folder: Option<&Path>) -> Result<Option<PathBuf>, DataError> {
    let Some(part) = locate(data, data_folder)?.into_iter().next() else { return Ok(None) };
    let whole = match data {
        Data::Text(_) | Data::ImageFolder(_) | Data::PanelCsv(_) => part,
        _ => part.parent().map(Path::to_owned).unwrap_or_default(),
    };
    std::path::absolute(&whole).map(Some).map_err(|error| DataError::Read { path: whole, error })
}

/// The folders that a known set may lie in, first choice first. A `data.path` is the only choice there is.
pub fn folders(set_folder: &str, path: Option<&str>, data_folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = path {
        return vec![PathBuf::from(path)];
    }
    let given = data_folder.map(|folder| folder.join(set_folder));
    given.into_iter().chain([Path::new(DATA_FOLDER).join(set_folder)]).collect()
}

fn locate_parts(data: &Data, data_folder: Option<&Path>, names: &[&str]) -> Result<Vec<PathBuf>, DataError> {
    let set_folder = dataset::of(data).map_or("", |set| set.folder);
    let folders = folders(set_folder, data.path(), data_folder);
    for folder in &folders {
        let parts: Option<Vec<PathBuf>> = names.iter().map(|name| existing(&folder.join(name))).collect();
        if let Some(parts) = parts {
            return Ok(parts);
        }
    }
    Err(not_found(data, folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()))
}

fn not_found(data: &Data, looked: Vec<PathBuf>) -> DataError {
    DataError::NotFound { kind: data.kind(), looked, fetch: dataset::of(data).map(|set| set.name) }
}

/// The file itself, or the same with `.gz` or `.xz`.
pub fn existing(path: &Path) -> Option<PathBuf> {
    ENDINGS.iter().map(|ending| with_ending(path, ending)).find(|path| path.is_file())
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(ending);
    PathBuf::from(whole)
}

/// Reads a file's uncompressed bytes as they are needed; the ending of `named` tells what to undo.
fn open(path: &Path, named: &Path) -> io::Result<Box<dyn Read>> {
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
    result.map(|_| bytes).map_err(|error| DataError::Read { path: path.to_owned(), error })
}

/// SHA-256 of a file's uncompressed bytes, as hex, and their number. `named` is the file, or what it will be called.
///
/// # Errors
/// The file cannot be read, or is no whole archive.
pub fn sha256_of(path: &Path, named: &Path) -> io::Result<(String, u64)> {
    let mut reader = open(path, named)?;
    let mut hasher = Sha256::new();
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
    use std::io::Write;

    use super::*;
    use crate::catalog::data::Data;

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
            let path = existing(&folder.path().join(name)).unwrap();
            sha256_of(&path, &path).unwrap()
        });
        assert_eq!(sums[0].1, text.len() as u64);
        assert!(sums.iter().all(|sum| sum == &sums[0]));
        assert_eq!(read(&folder.path().join("c.xz")).unwrap(), text);
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.xz");
        std::fs::write(&path, b"no xz at all").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("text.xz"), "{error}");
    }

    #[test]
    fn an_absent_set_names_every_place_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = locate(&data("{kind: wikitext2}"), Some(folder.path())).unwrap_err().to_string();
        for part in ["wikitext-2/train.txt", "data/wikitext-2/valid.txt", ".gz", "kiln data fetch wikitext2", "KILN_DATA"] {
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
        assert_eq!(absolute_path(&data("{kind: wikitext2}"), Some(folder.path())).unwrap(), Some(set));
        assert!(locate(&data("{kind: wikitext2, path: elsewhere}"), Some(folder.path())).is_err());
    }
}
