//! The content of a file that replaces another one if it differs: the draft is begun at the first
//! difference, so that an unchanged file costs no space and keeps its times.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
};

use super::Folder;

/// A content on its way into a folder.
pub(super) struct Draft<'a> {
    folder: &'a Folder,
    temporary: &'a OsStr,
    /// The file as it is, read as far as the content is the same.
    old: Option<BufReader<File>>,
    /// Bytes that are the same.
    same: u64,
    /// Whether the file could not be read to where it is needed: another one replaced it.
    is_lost: bool,
    new: Option<BufWriter<File>>,
}

impl<'a> Draft<'a> {
    /// `old` is the file as it is; without one the content is written whatever is there.
    pub(super) fn new(folder: &'a Folder, temporary: &'a OsStr, old: Option<File>) -> Self {
        Self {
            folder,
            temporary,
            old: old.map(BufReader::new),
            same: 0,
            is_lost: false,
            new: None,
        }
    }

    /// Whether the write failed because the old file could not be read.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn lose(&mut self, error: io::Error) -> io::Error {
        self.is_lost = true;
        error
    }

    /// The file to put in place; `None` if the content is that of the file that is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(&mut self) -> io::Result<Option<File>> {
        if self.new.is_none() {
            let rest = self.old.as_mut().map(|old| old.read(&mut [0]));
            let rest = rest.transpose().map_err(|error| self.lose(error))?;
            if rest == Some(0) {
                return Ok(None);
            }
            self.begin()?;
        }
        let new = self.new.take().map(BufWriter::into_inner);
        Ok(new.transpose()?)
    }

    /// Begins the draft with what is the same.
    fn begin(&mut self) -> io::Result<&mut BufWriter<File>> {
        let mut new = BufWriter::new(self.folder.new_file(self.temporary)?);
        if let Some(mut old) = self.old.take() {
            let again = |old: &mut BufReader<File>, new: &mut BufWriter<File>| {
                old.rewind()?;
                io::copy(&mut old.take(self.same), new)
            };
            match again(&mut old, &mut new) {
                Ok(copied) if copied == self.same => {}
                Ok(_) => return Err(self.lose(io::ErrorKind::UnexpectedEof.into())),
                Err(error) => return Err(self.lose(error)),
            }
        }
        Ok(self.new.insert(new))
    }

    /// Whether the file goes on with these bytes.
    fn goes_on_with(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let Some(old) = &mut self.old else {
            return Ok(false);
        };
        let mut there = Vec::new();
        let read = old.take(bytes.len() as u64).read_to_end(&mut there);
        read.map_err(|error| self.lose(error))?;
        Ok(there == bytes)
    }
}

impl Write for Draft<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(new) = &mut self.new {
            return new.write(bytes);
        }
        if self.goes_on_with(bytes)? {
            self.same += bytes.len() as u64;
            return Ok(bytes.len());
        }
        self.begin()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.new.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn a_file_is_replaced_only_where_its_content_differs() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let path = place.path().join("x.csv");
        let inode = || fs::metadata(&path).unwrap().ino();
        let write = |pieces: &[&str]| {
            folder
                .fill_among_others("x.csv".as_ref(), &mut |file| {
                    pieces
                        .iter()
                        .try_for_each(|piece| file.write_all(piece.as_bytes()))
                })
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), pieces.concat());
            assert_eq!(
                fs::read_dir(place.path()).unwrap().count(),
                1,
                "no draft is left"
            );
        };
        write(&["head\n", "one\n"]);
        let first = inode();
        write(&["head\none\n"]);
        write(&["he", "ad\no", "ne\n", ""]);
        assert_eq!(inode(), first, "unchanged");
        for pieces in [
            &["head\n", "two\n"][..],
            // Longer, shorter, empty, from the first byte on.
            &["head\n", "two\n", "three\n"],
            &["head\n", "two\n"],
            &[],
            &["x"],
            &["head\n"],
        ] {
            let before = inode();
            write(pieces);
            assert_ne!(inode(), before, "{pieces:?}");
        }
        let failed = folder.fill_among_others("x.csv".as_ref(), &mut |file| {
            file.write_all(b"other")?;
            Err(io::Error::other("no more"))
        });
        assert!(failed.unwrap_err().to_string().ends_with("no more"));
        write(&["head\n"]);
    }
}
