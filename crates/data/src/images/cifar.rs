//! CIFAR-10, binary version: five training files and one validation file, unpacked or in their
//! archive. A record is a label, then the red, the green and the blue pixels. Source: Krizhevsky
//! 2009, "Learning multiple layers of features from tiny images".

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::data::{Cifar10, Data, ImageShape},
    limits::ARCHIVE_BYTES,
};
use sha2::{Digest, Sha256};

use super::{ImagePixels, Images, LoadedImages, Normalization, unfit};
use crate::{error::DataError, files, source, split};

/// Over the 50,000 training images; the deviation is over all pixels, not the mean of each image's
/// deviation.
pub(super) const NORMALIZATION: Normalization = Normalization {
    mean: [0.4914, 0.4822, 0.4465],
    deviation: [0.2470, 0.2435, 0.2616],
};

pub(super) const SHAPE: ImageShape = ImageShape {
    channels: 3,
    height: 32,
    width: 32,
    classes: 10,
};
/// Source: `batches.meta.txt` of the published archive.
pub(super) const CLASSES: [&str; 10] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];
/// A label and 3 × 32 × 32 pixels.
const RECORD: usize = 1 + 3 * 32 * 32;
const PUBLISHED_TRAIN_BYTES: u64 = 50_000 * RECORD as u64;

/// One file of records, and its path.
struct Batch {
    path: PathBuf,
    bytes: Vec<u8>,
}

pub(super) fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedImages, DataError> {
    let paths = source::locate(data, data_folder)?;
    let batches = match paths.as_slice() {
        [archive] => read_archive(archive)?,
        files => files
            .iter()
            .map(|path| {
                Ok(Batch {
                    path: path.clone(),
                    bytes: files::read(path, source::most_bytes(data))?,
                })
            })
            .collect::<Result<_, DataError>>()?,
    };
    let mut hasher = Sha256::new();
    batches.iter().for_each(|batch| hasher.update(&batch.bytes));
    let (train, valid) = batches.split_at(batches.len().saturating_sub(1));
    let train_bytes = train.iter().map(|batch| batch.bytes.len()).sum();
    split::hash_train_end(&mut hasher, train_bytes, Some(PUBLISHED_TRAIN_BYTES));
    Ok(LoadedImages::of(
        SHAPE,
        [part(train)?, part(valid)?],
        hex::encode(hasher.finalize()),
    ))
}

/// The batches in an archive, in reading order, independent of their order in the archive.
fn read_archive(archive: &Path) -> Result<Vec<Batch>, DataError> {
    let found = entries(archive).map_err(|error| DataError::unreadable(archive, error))?;
    let batch = |(name, bytes): (&&str, Option<Vec<u8>>)| match bytes {
        Some(bytes) => Ok(Batch {
            path: archive.join(name),
            bytes,
        }),
        None => unfit(
            archive,
            format!("holds no `{name}`"),
            format!("an archive of {}", Cifar10::BATCHES.join(", ")),
        ),
    };
    Cifar10::BATCHES.iter().zip(found).map(batch).collect()
}

fn entries(archive: &Path) -> io::Result<[Option<Vec<u8>>; Cifar10::BATCHES.len()]> {
    let mut found: [Option<Vec<u8>>; Cifar10::BATCHES.len()] = Default::default();
    for entry in tar::Archive::new(files::open(archive, archive, &ARCHIVE_BYTES)?).entries()? {
        let mut entry = entry?;
        let place = entry
            .path()?
            .file_name()
            .and_then(|name| Cifar10::BATCHES.iter().position(|batch| name == *batch));
        if let Some(place) = place {
            found[place] = Some(files::read_entry(&mut entry)?);
        }
    }
    Ok(found)
}

fn part(batches: &[Batch]) -> Result<Images, DataError> {
    let records: usize = batches.iter().map(|batch| batch.bytes.len() / RECORD).sum();
    let (mut labels, mut pixels) = (
        Vec::with_capacity(records),
        Vec::with_capacity(records * (RECORD - 1)),
    );
    for Batch { path, bytes } in batches {
        if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
            return unfit(
                path,
                format!("has {} bytes", bytes.len()),
                format!("whole records of {RECORD} bytes, 10,000 in each published file"),
            );
        }
        for (number, record) in bytes.chunks_exact(RECORD).enumerate() {
            if u64::from(record[0]) >= SHAPE.classes {
                return unfit(
                    path,
                    format!("has label {} in record {number}", record[0]),
                    "labels from 0 to 9".to_owned(),
                );
            }
            labels.push(u32::from(record[0]));
            pixels.extend_from_slice(&record[1..]);
        }
    }
    Ok(Images {
        labels,
        pixels: ImagePixels::Memory(pixels),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::load;
    use kiln_core::kinds::data::Counts;

    /// Records in which every byte equals the label.
    fn batch(labels: &[u8]) -> Vec<u8> {
        labels.iter().flat_map(|label| [*label; RECORD]).collect()
    }

    fn data(folder: &Path) -> Data {
        serde_yaml::from_str(&format!("{{kind: cifar10, path: {}}}", folder.display())).unwrap()
    }

    fn write_batches(folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        for (number, name) in Cifar10::BATCHES.iter().enumerate() {
            std::fs::write(folder.join(name), batch(&[number as u8, 9])).unwrap();
        }
    }

    fn write_archive(folder: &Path, names: &[&str]) {
        let gz = flate2::write::GzEncoder::new(
            std::fs::File::create(folder.join("cifar-10-binary.tar.gz")).unwrap(),
            flate2::Compression::fast(),
        );
        packed(gz, names).finish().unwrap();
    }

    fn packed<W: io::Write>(into: W, names: &[&str]) -> W {
        let mut archive = tar::Builder::new(into);
        for name in names {
            let bytes = Cifar10::BATCHES
                .iter()
                .position(|batch| batch == name)
                .map_or_else(
                    || b"airplane\n".to_vec(),
                    |number| batch(&[number as u8, 9]),
                );
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive
                .append_data(
                    &mut header,
                    format!("cifar-10-batches-bin/{name}"),
                    bytes.as_slice(),
                )
                .unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn an_archive_that_ends_between_two_records_is_not_a_shorter_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = packed(Vec::<u8>::new(), &Cifar10::BATCHES);
        let last = batch(&[5, 9]);
        let begin = archive.windows(last.len()).position(|bytes| bytes == last);
        archive.truncate(begin.unwrap() + RECORD);
        std::fs::write(folder.path().join("cifar-10-binary.tar"), archive).unwrap();
        assert_eq!(
            fault(folder.path()),
            "set/cifar-10-binary.tar could not be read: it ends in the middle of \
             cifar-10-batches-bin/test_batch.bin"
        );
    }

    #[test]
    fn files_and_archives_read_the_same() {
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        write_batches(folders[0].path());
        write_batches(&folders[1].path().join("cifar-10-batches-bin"));
        // In a different order, and with the additional files of the published archive.
        write_archive(
            folders[2].path(),
            &[
                "data_batch_1.bin",
                "batches.meta.txt",
                "test_batch.bin",
                "data_batch_4.bin",
                "data_batch_2.bin",
                "data_batch_5.bin",
                "data_batch_3.bin",
            ],
        );
        let loaded: Vec<_> = folders
            .iter()
            .map(|folder| load(&data(folder.path()), None).unwrap())
            .collect();
        assert!(loaded.iter().all(|images| images.facts == loaded[0].facts));
        assert_eq!(
            loaded[0].facts.counts,
            Counts::Images {
                train_images: 10,
                valid_images: 2,
                shape: SHAPE
            }
        );
        assert_eq!(loaded[2].train.labels, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]);
        assert_eq!(loaded[2].valid.labels, [5, 9]);
        let ImagePixels::Memory(pixels) = &loaded[2].valid.pixels else {
            panic!("{:?}", loaded[2].valid.pixels)
        };
        assert_eq!(*pixels, [[5; 3072], [9; 3072]].concat());
    }

    #[test]
    fn a_record_moved_to_validation_changes_the_hash() {
        let folder = tempfile::tempdir().unwrap();
        write_batches(folder.path());
        let before = load(&data(folder.path()), None).unwrap().facts.sha256;
        let last = folder.path().join("data_batch_5.bin");
        let test = folder.path().join("test_batch.bin");
        let both = [std::fs::read(&last).unwrap(), std::fs::read(&test).unwrap()].concat();
        std::fs::write(&last, &both[..RECORD]).unwrap();
        std::fs::write(&test, &both[RECORD..]).unwrap();
        assert_ne!(
            load(&data(folder.path()), None).unwrap().facts.sha256,
            before
        );
    }

    fn fault(folder: &Path) -> String {
        load(&data(folder), None)
            .unwrap_err()
            .to_string()
            .replace(&folder.display().to_string(), "set")
    }

    #[test]
    fn every_fault_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(
            fault(folder).contains("looked for set/data_batch_1.bin, "),
            "{}",
            fault(folder)
        );
        std::fs::write(folder.join("cifar-10-binary.tar.gz"), b"no archive").unwrap();
        assert!(
            fault(folder).starts_with("set/cifar-10-binary.tar.gz could not be read: "),
            "{}",
            fault(folder)
        );
        write_archive(folder, &["data_batch_1.bin"]);
        assert!(fault(folder).starts_with(
            "set/cifar-10-binary.tar.gz holds no `data_batch_2.bin`; expected an archive of \
             data_batch_1.bin, "
        ));
        write_batches(folder);
        std::fs::write(folder.join("data_batch_3.bin"), &batch(&[1, 2])[1..]).unwrap();
        assert_eq!(
            fault(folder),
            "set/data_batch_3.bin has 6145 bytes; expected whole records of 3073 bytes, 10,000 in \
             each published file"
        );
        std::fs::write(folder.join("data_batch_3.bin"), batch(&[1, 10])).unwrap();
        assert_eq!(
            fault(folder),
            "set/data_batch_3.bin has label 10 in record 1; expected labels from 0 to 9"
        );
    }
}
