//! The size of a folder: of all its files, and of those that would be gone with it. `kiln run --keep`
//! links files of another run instead of copying them.

use std::{fmt, fs, io, os::unix::fs::MetadataExt, path::Path};

use kiln_core::{input::is_absent, patience::patiently, units::Bytes};

/// Bytes of the files below a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FolderSize {
    /// Bytes of all files.
    pub(super) all: u64,
    /// Bytes of files with further links, mostly in other runs; removing the folder does not free
    /// them.
    pub(super) shared: u64,
}

impl FolderSize {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            all: self.all + other.all,
            shared: self.shared + other.shared,
        }
    }

    fn of_file(file: &fs::Metadata) -> Self {
        Self {
            all: file.len(),
            shared: if file.nlink() > 1 { file.len() } else { 0 },
        }
    }
}

/// The bytes that a removal frees, then those that it shares with other runs.
impl fmt::Display for FolderSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Bytes(self.all - self.shared))?;
        match self.shared {
            0 => Ok(()),
            shared => write!(f, "; shares {} with other runs", Bytes(shared)),
        }
    }
}

/// Bytes of all files below a folder; symbolic links are not followed.
///
/// # Errors
/// Something in it cannot be looked at. What has gone meanwhile counts as nothing.
pub(super) fn size(folder: &Path) -> io::Result<FolderSize> {
    let mut sum = FolderSize::default();
    let listed = match patiently(|| fs::read_dir(folder)) {
        Err(error) if is_absent(&error) => return Ok(sum),
        listed => listed?,
    };
    for entry in listed {
        let entry = entry?;
        sum = match entry.metadata() {
            Ok(found) if found.is_dir() => sum.plus(size(&entry.path())?),
            Ok(found) => sum.plus(FolderSize::of_file(&found)),
            Err(error) if is_absent(&error) => sum,
            Err(error) => return Err(error),
        };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_a_further_link_is_not_freed_and_is_told() {
        let results = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| results.path().join(name));
        for run in [&one, &other] {
            fs::create_dir_all(run.join("trials")).unwrap();
            fs::write(run.join("trials.csv"), [b' '; 1024]).unwrap();
        }
        fs::write(one.join("trials/weights"), [b' '; 2048]).unwrap();
        assert_eq!(size(&one).unwrap().to_string(), "3.0 KiB");
        fs::hard_link(one.join("trials/weights"), other.join("trials/weights")).unwrap();
        let found = size(&other).unwrap();
        assert_eq!((found.all, found.shared), (3072, 2048));
        assert_eq!(found.to_string(), "1.0 KiB; shares 2.0 KiB with other runs");
        fs::remove_dir_all(&one).unwrap();
        assert_eq!(size(&other).unwrap().to_string(), "3.0 KiB");
    }
}
