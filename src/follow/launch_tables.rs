//! One table of a run as its launches write it: a single file, or one in the folder of each launch
//! where several work on the run.

use std::{collections::BTreeMap, path::PathBuf};

use kiln_core::record::{RunFolder, collect::is_collected, launch_folder};

use super::table::{GrowingTable, RowSink};

/// The key of the run's own file.
const WHOLE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct LaunchTables {
    run: RunFolder,
    path: fn(&RunFolder) -> PathBuf,
    /// Bytes at the end from which a table is read; `None` for the whole of it.
    from_end: Option<u64>,
    tables: BTreeMap<u64, GrowingTable>,
}

impl LaunchTables {
    /// `path` is that of the table in a folder. Nothing is read yet.
    pub(super) fn new(
        run: RunFolder,
        path: fn(&RunFolder) -> PathBuf,
        from_end: Option<u64>,
    ) -> Self {
        Self {
            run,
            path,
            from_end,
            tables: BTreeMap::new(),
        }
    }

    /// Reads what is new; returns whether there was anything.
    pub(super) fn read(&mut self, sink: &mut impl RowSink) -> bool {
        let (path, from_end) = (self.path, self.from_end);
        let open = |folder: &RunFolder| match from_end {
            Some(bytes) => GrowingTable::from_end(path(folder), bytes),
            None => GrowingTable::new(path(folder)),
        };
        if is_collected(&self.run) {
            self.tables.remove(&WHOLE);
            for launch in launch_folder::launches(&self.run) {
                let folder = launch_folder::folder(&self.run, launch);
                self.tables.entry(launch).or_insert_with(|| open(&folder));
            }
        } else {
            let run = &self.run;
            self.tables.entry(WHOLE).or_insert_with(|| open(run));
        }
        let mut has_grown = false;
        for table in self.tables.values_mut() {
            has_grown |= table.read(sink);
        }
        has_grown
    }

    /// The columns, once a table has them.
    pub(super) fn header(&self) -> &[String] {
        let mut headers = self.tables.values().map(GrowingTable::header);
        headers
            .find(|header| !header.is_empty())
            .unwrap_or_default()
    }
}
