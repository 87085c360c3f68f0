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
    new: Option<BufWriter<File>>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(folder: &'a Folder, name: &OsStr, temporary: &'a OsStr) -> Self {
        Self {
            folder,
            temporary,
            // What cannot be read (a link, or nothing) is replaced.
            old: folder.read(name).map(BufReader::new).ok(),
            same: 0,
            new: None,
        }
    }

    /// The file to put in place; `None` if the content is that of the file that is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(mut self) -> io::Result<Option<File>> {
        if self.new.is_none() {
            let is_whole = match &mut self.old {
                Some(old) => old.read(&mut [0])? == 0,
                None => false,
            };
            if is_whole {
                return Ok(None);
            }
            self.begin()?;
        }
        Ok(match self.new {
            Some(new) => Some(new.into_inner()?),
            None => None,
        })
    }

    /// Begins the draft with what is the same.
    fn begin(&mut self) -> io::Result<&mut BufWriter<File>> {
        let mut new = BufWriter::new(self.folder.new_file(self.temporary)?);
        if let Some(mut old) = self.old.take() {
            old.rewind()?;
            io::copy(&mut old.take(self.same), &mut new)?;
        }
        Ok(self.new.insert(new))
    }

    /// Whether the file goes on with these bytes.
    fn goes_on_with(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let Some(old) = &mut self.old else {
            return Ok(false);
        };
        let mut there = Vec::new();
        old.take(bytes.len() as u64).read_to_end(&mut there)?;
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
