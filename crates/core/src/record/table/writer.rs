//! Appends rows to a table file, and replaces it by one of other rows.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    TableError, TableSpec, TornLine, cells_of,
    extent::{check_rest, whole_extent},
    head::check_head,
    line_of, open_plain,
};
use crate::{
    folder::{self, Folder},
    limits::SAMPLES_BYTES,
};

/// Appends rows to one table file. Every file has one writer.
///
/// The rows go to the file that has the table's name at that moment: a file that was replaced since
/// the last row (by an editor, by `git stash`) is opened again.
#[derive(Debug)]
pub struct TableWriter {
    folder: Folder,
    name: OsString,
    file: File,
    path: PathBuf,
    spec: TableSpec,
    /// Bytes of complete rows.
    length: u64,
}

impl TableWriter {
    /// Opens or creates the table. A torn last line of an earlier writer is cut and returned.
    ///
    /// # Errors
    /// The file cannot be read or written, or its first line is not this table's header: then it
    /// stays unchanged.
    pub fn open(path: &Path, spec: TableSpec) -> Result<(Self, Option<TornLine>), TableError> {
        let (folder, name) = folder::split(path)
            .and_then(|(folder, name)| Ok((Folder::follow(folder)?, name)))
            .map_err(|cause| TableError::Io {
                path: path.to_owned(),
                doing: "opening",
                cause,
            })?;
        Self::open_in(folder, name.to_owned(), spec)
    }

    /// Opens or creates the table of this name in a folder, as [`TableWriter::open`] does.
    ///
    /// # Errors
    /// As [`TableWriter::open`].
    pub fn open_in(
        folder: Folder,
        name: OsString,
        spec: TableSpec,
    ) -> Result<(Self, Option<TornLine>), TableError> {
        let path = folder.path().join(&name);
        let at = |doing| {
            let path = path.clone();
            move |cause| TableError::Io { path, doing, cause }
        };
        let mut file = folder.append(&name).map_err(at("opening"))?;
        // This comes first: a file that is not kiln's must stay unchanged.
        check_head(&mut file, &path, &spec)?;
        let extent = whole_extent(&mut file).map_err(at("reading"))?;
        check_rest(&mut file, &path, &extent, spec.version)?;
        if extent.torn.is_some() {
            file.set_len(extent.bytes)
                .map_err(at("cutting a torn line"))?;
        }
        let mut writer = Self {
            folder,
            name,
            file,
            path,
            spec,
            length: extent.bytes,
        };
        if extent.bytes == 0 {
            let header = writer.header();
            writer.write_here(&header)?;
        }
        if extent.lacks_line_feed {
            writer.write_here(b"\n")?;
        }
        Ok((writer, extent.torn))
    }

    /// Opens or creates a table that only kiln writes. A file that a power failure left without a
    /// complete header is begun anew.
    ///
    /// # Errors
    /// As [`TableWriter::open`].
    pub fn open_own(
        folder: Folder,
        name: OsString,
        spec: TableSpec,
    ) -> Result<(Self, Option<TornLine>), TableError> {
        let at = |doing| {
            let path = folder.path().join(&name);
            move |cause| TableError::Io { path, doing, cause }
        };
        if folder.kind(&name).map_err(at("opening"))?.is_some() {
            let mut file = folder.read(&name).map_err(at("opening"))?;
            let extent = whole_extent(&mut file).map_err(at("reading"))?;
            if extent.has_no_header() {
                let header = line_of(spec.columns.iter().map(String::as_str));
                folder.write_whole(&name, &header).map_err(at("writing"))?;
            }
        }
        Self::open_in(folder, name, spec)
    }

    /// Opens or creates a table beside `trials.csv`, as [`TableWriter::open_own`] does. A file that
    /// a power failure has damaged, or that is no table, is moved aside and a new one begun; returns
    /// the name that it has then.
    ///
    /// # Errors
    /// The file cannot be read or written, is a link, or has the columns of another version.
    pub fn open_side(
        folder: &Folder,
        name: &str,
        spec: &TableSpec,
    ) -> Result<(Self, Option<String>), TableError> {
        let failed = |cause| TableError::Io {
            path: folder.path().join(name),
            doing: "opening",
            cause,
        };
        let open = || {
            Self::open_own(
                folder.try_clone().map_err(failed)?,
                name.into(),
                spec.clone(),
            )
        };
        match open() {
            Ok((writer, _)) => Ok((writer, None)),
            Err(TableError::NoTable { .. } | TableError::OpenQuote { .. }) => {
                let aside = folder.put_aside(name.as_ref()).map_err(failed)?;
                let (writer, _) = open()?;
                Ok((writer, Some(aside.to_string_lossy().into_owned())))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks, without a change, that rows can be appended to this file: it is not there, or of this table
    /// and version.
    ///
    /// # Errors
    /// It cannot be read, or its first lines are not this table's.
    pub fn check(path: &Path, spec: &TableSpec) -> Result<(), TableError> {
        match open_plain(path, OpenOptions::new().read(true), &SAMPLES_BYTES) {
            Ok(mut file) => check_head(&mut file, path, spec),
            Err(TableError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the file of the table's name is the one that was opened, with all rows written and
    /// nothing else.
    pub fn is_as_left(&self) -> bool {
        let has_all = || {
            self.file
                .metadata()
                .is_ok_and(|found| found.len() == self.length)
        };
        self.folder.has(&self.name, &self.file) && has_all()
    }

    /// Replaces the table by one with these lines, and waits until it is on the disk.
    ///
    /// # Errors
    /// It cannot be written; the old file then stays.
    pub(in crate::record) fn rewrite(&mut self, lines: &[u8]) -> Result<(), TableError> {
        let mut bytes = self.header();
        bytes.extend_from_slice(lines);
        self.folder
            .write_whole(&self.name, &bytes)
            .map_err(|cause| self.failed("writing", cause))?;
        self.open_again()
    }

    /// Appends these rows, which are among those that were written, to a table that lacks them
    /// because somebody has removed or replaced it; returns whether it did.
    ///
    /// # Errors
    /// It cannot be opened, read or written.
    pub fn restore(&mut self, rows: &[Vec<String>]) -> Result<bool, TableError> {
        if rows.is_empty() || self.is_as_left() {
            return Ok(false);
        }
        self.open_again()?;
        let first = self.lines(rows.iter().take(1).map(Vec::as_slice))?;
        let mut there = Vec::new();
        self.folder
            .read(&self.name)
            .and_then(|mut file| file.read_to_end(&mut there))
            .map_err(|cause| self.failed("reading", cause))?;
        if there.windows(first.len()).any(|part| part == first) {
            return Ok(false);
        }
        let lines = self.lines(rows.iter().map(Vec::as_slice))?;
        self.write_here(&lines)?;
        Ok(true)
    }

    /// Appends one row and passes it to the operating system.
    ///
    /// # Errors
    /// The row has a different number of cells, or the write fails; the file then ends with the
    /// previous row.
    pub fn append(&mut self, cells: &[String]) -> Result<(), TableError> {
        self.append_all(std::iter::once(cells))
    }

    /// Appends several rows in one write; all of them or none.
    ///
    /// # Errors
    /// As [`TableWriter::append`].
    pub fn append_all<'a>(
        &mut self,
        rows: impl IntoIterator<Item = &'a [String]>,
    ) -> Result<(), TableError> {
        let bytes = self.lines(rows)?;
        self.append_lines(&bytes)
    }

    /// Appends whole lines in one write; all of them or none.
    ///
    /// # Errors
    /// The write fails; the file then ends with the previous row.
    pub(in crate::record) fn append_lines(&mut self, lines: &[u8]) -> Result<(), TableError> {
        if !self.is_as_left() {
            self.open_again()?;
        }
        self.write_here(lines)
    }

    /// Appends a struct whose fields are exactly the columns.
    ///
    /// # Errors
    /// As [`TableWriter::append`].
    pub fn append_row<T: Serialize>(&mut self, row: &T) -> Result<(), TableError> {
        let cells = cells_of(row).map_err(|problem| TableError::Row {
            path: self.path.clone(),
            problem,
        })?;
        self.append(&cells)
    }

    /// Waits until the rows and the file's name are on the disk. Takes milliseconds; used once per
    /// trial.
    ///
    /// # Errors
    /// The disk reports an error; the rows may then be lost although they can be read.
    pub fn sync(&mut self) -> Result<(), TableError> {
        self.file
            .sync_data()
            .and_then(|()| self.folder.sync())
            .map_err(|cause| self.failed("syncing", cause))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> Vec<u8> {
        line_of(self.spec.columns.iter().map(String::as_str))
    }

    fn lines<'a>(
        &self,
        rows: impl IntoIterator<Item = &'a [String]>,
    ) -> Result<Vec<u8>, TableError> {
        let mut bytes = Vec::new();
        for cells in rows {
            if cells.len() != self.spec.columns.len() {
                let problem = format!(
                    "it has {} cells, the table has {} columns",
                    cells.len(),
                    self.spec.columns.len()
                );
                return Err(TableError::Row {
                    path: self.path.clone(),
                    problem,
                });
            }
            bytes.extend(line_of(cells.iter().map(String::as_str)));
        }
        Ok(bytes)
    }

    fn open_again(&mut self) -> Result<(), TableError> {
        let folder = self
            .folder
            .try_clone()
            .map_err(|cause| self.failed("opening", cause))?;
        (*self, _) = Self::open_in(folder, self.name.clone(), self.spec.clone())?;
        Ok(())
    }

    /// Writes to the file that is open.
    fn write_here(&mut self, bytes: &[u8]) -> Result<(), TableError> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(cause) => {
                // Part of the row may remain in the file; the next opening cuts it if this fails.
                let _ = self.file.set_len(self.length);
                Err(self.failed("writing", cause))
            }
        }
    }

    fn failed(&self, doing: &'static str, cause: io::Error) -> TableError {
        TableError::Io {
            path: self.path.clone(),
            doing,
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn table() -> (tempfile::TempDir, PathBuf, TableWriter) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let spec = TableSpec {
            version: "trials/1",
            columns: ["kiln_table", "name"].map(str::to_owned).to_vec(),
        };
        let (writer, _) = TableWriter::open(&path, spec).unwrap();
        (folder, path, writer)
    }

    fn row(name: &str) -> [String; 2] {
        ["trials/1".to_owned(), name.to_owned()]
    }

    #[test]
    fn a_full_disk_is_known_as_one() {
        let (_folder, _path, mut writer) = table();
        let length = writer.length;
        writer.file = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let error = writer.write_here(b"trials/1,x\n").unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert_eq!(writer.length, length);
    }

    #[test]
    fn a_damaged_side_table_is_moved_aside_and_a_begun_one_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let own = Folder::open(folder.path()).unwrap();
        let spec = TableSpec {
            version: "trials/1",
            columns: ["kiln_table", "name"].map(str::to_owned).to_vec(),
        };
        let path = folder.path().join("t.csv");
        for begun in ["", "kiln_ta", "kiln_table,na\0\0", "\0\0\0\0"] {
            std::fs::write(&path, begun).unwrap();
            let (_, aside) = TableWriter::open_side(&own, "t.csv", &spec).unwrap();
            assert_eq!(aside, None, "{begun:?}");
        }
        for damaged in [
            "\0\0\0\0\ntrials/1,a\n",
            "kiln_table,\0\0\0\0\ntrials/1,a\n",
        ] {
            std::fs::write(&path, damaged).unwrap();
            let (mut writer, aside) = TableWriter::open_side(&own, "t.csv", &spec).unwrap();
            let aside = aside.unwrap();
            assert_eq!(
                std::fs::read_to_string(folder.path().join(aside)).unwrap(),
                damaged
            );
            writer.append(&row("b")).unwrap();
            assert_eq!(
                std::fs::read_to_string(&path).unwrap(),
                "kiln_table,name\ntrials/1,b\n"
            );
        }
        assert_eq!(
            own.names().unwrap(),
            ["t.csv", "t.csv.aside-1", "t.csv.aside-2"]
        );
    }

    #[test]
    fn rows_follow_the_name_of_the_table_to_another_file() {
        let (_folder, path, mut writer) = table();
        writer.append(&row("a")).unwrap();
        assert!(writer.is_as_left());
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        assert!(!writer.is_as_left());
        writer.append(&row("b")).unwrap();
        assert!(writer.is_as_left());
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "kiln_table,name\ntrials/1,b\n"
        );
        writer.rewrite(b"trials/1,c\n").unwrap();
        writer.append(&row("d")).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "kiln_table,name\ntrials/1,c\ntrials/1,d\n"
        );
    }
}
