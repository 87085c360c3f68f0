//! `snapshots.csv`: facts of the host and the devices, one field per row: all fields at each
//! launch, later only changes.

use std::collections::HashMap;

use kiln_core::folder::Folder;
use kiln_core::plan::TrialId;
use kiln_core::record::{
    GONE, SnapshotMoment, SnapshotRow,
    table::{TableError, TableWriter, cells_of},
    tables::SNAPSHOTS,
};
use kiln_hardware::{Entry, Reading, Snapshot};

use super::identity::Privacy;

/// The value of each field, by device, section and field.
type Values = HashMap<(String, &'static str, String), Reading<String>>;

/// Writes `snapshots.csv` for one launch, and remembers the last value of each field.
#[derive(Debug)]
pub struct SnapshotWriter {
    table: TableWriter,
    launch: u64,
    privacy: Privacy,
    run_seconds: Option<f64>,
    last: Values,
    /// The rows of the launch's own snapshot, and its values.
    launch_rows: Vec<Vec<String>>,
    at_launch: Values,
    is_restored: bool,
}

impl SnapshotWriter {
    /// Opens or creates the table in the folder of a run. A torn last line is cut; a damaged table is
    /// moved aside, and its new name returned.
    ///
    /// # Errors
    /// When the file cannot be read or written, or has other columns.
    pub fn open(
        folder: &Folder,
        launch: u64,
        privacy: Privacy,
    ) -> Result<(Self, Option<String>), TableError> {
        let (table, aside) = TableWriter::open_side(folder, SNAPSHOTS.file, &SNAPSHOTS.spec(&[]))?;
        Ok((
            Self {
                table,
                launch,
                privacy,
                run_seconds: None,
                last: HashMap::new(),
                launch_rows: Vec::new(),
                at_launch: HashMap::new(),
                is_restored: false,
            },
            aside,
        ))
    }

    /// Sets the time of the next rows, in seconds since the run's start.
    pub fn at(&mut self, run_seconds: f64) -> &mut Self {
        self.run_seconds = Some(run_seconds);
        self
    }

    /// The launch's own snapshot: every field.
    ///
    /// # Errors
    /// When the write fails; the file then ends with the rows before.
    pub fn write_all(&mut self, snapshot: &Snapshot) -> Result<(), TableError> {
        self.write(snapshot, SnapshotMoment::Launch, None)
    }

    /// Writes a snapshot at an attempt's start or end: the fields that changed since the last one
    /// of this launch, and those that disappeared.
    ///
    /// # Errors
    /// As [`SnapshotWriter::write_all`].
    pub fn write_changes(
        &mut self,
        snapshot: &Snapshot,
        moment: SnapshotMoment,
        trial: &TrialId,
        attempt: u64,
    ) -> Result<(), TableError> {
        self.write(snapshot, moment, Some((trial, attempt)))
    }

    /// Waits until the rows are on the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn sync(&mut self) -> Result<(), TableError> {
        self.table.sync()
    }

    /// Writes the launch's own snapshot again where somebody has removed or replaced the table; the
    /// next rows are changes since that.
    ///
    /// # Errors
    /// As [`SnapshotWriter::write_all`].
    pub fn settle(&mut self) -> Result<(), TableError> {
        if self.table.restore(&self.launch_rows)? {
            self.last.clone_from(&self.at_launch);
            self.is_restored = true;
        }
        Ok(())
    }

    /// Whether the snapshot was written again since this was asked last.
    pub fn take_restored(&mut self) -> bool {
        std::mem::take(&mut self.is_restored)
    }

    fn write(
        &mut self,
        snapshot: &Snapshot,
        moment: SnapshotMoment,
        attempt: Option<(&TrialId, u64)>,
    ) -> Result<(), TableError> {
        if moment != SnapshotMoment::Launch {
            self.settle()?;
        }
        let mut rows = Vec::new();
        let mut seen = HashMap::new();
        for entry in snapshot
            .entries
            .iter()
            .map(|entry| self.privacy.apply(entry))
        {
            let key = (snapshot.device.clone(), entry.section, entry.field.clone());
            if seen.contains_key(&key) {
                // Two masked processes have the same field name.
                continue;
            }
            if moment == SnapshotMoment::Launch || self.last.get(&key) != Some(&entry.value) {
                rows.push(self.row(&snapshot.device, &entry, moment, attempt)?);
            }
            seen.insert(key, entry.into_owned().value);
        }
        // An ended process is a field that disappeared.
        let mut gone: Vec<_> = self
            .last
            .iter()
            .filter(|(key, last)| {
                key.0 == snapshot.device && !seen.contains_key(key) && last.value().is_some()
            })
            .collect();
        gone.sort_by(|one, other| one.0.cmp(other.0));
        for ((_, section, field), _) in gone {
            let entry = Entry {
                section,
                field: field.clone(),
                value: Reading::absent(GONE),
                unit: "",
                is_identifying: false,
            };
            rows.push(self.row(&snapshot.device, &entry, moment, attempt)?);
        }
        self.table.append_all(rows.iter().map(Vec::as_slice))?;
        self.last.retain(|key, _| key.0 != snapshot.device);
        self.last.extend(seen);
        if moment == SnapshotMoment::Launch {
            self.launch_rows.extend(rows);
            self.at_launch.clone_from(&self.last);
        }
        Ok(())
    }

    fn row(
        &self,
        device: &str,
        entry: &Entry,
        moment: SnapshotMoment,
        attempt: Option<(&TrialId, u64)>,
    ) -> Result<Vec<String>, TableError> {
        let row = SnapshotRow {
            kiln_table: SNAPSHOTS.version.to_owned(),
            launch: self.launch,
            trial: attempt.map(|(trial, _)| trial.clone()),
            attempt: attempt.map(|(_, attempt)| attempt),
            moment,
            device: device.to_owned(),
            section: entry.section.to_owned(),
            field: entry.field.clone(),
            value: entry.value.value().cloned(),
            unit: (!entry.unit.is_empty()).then(|| entry.unit.to_owned()),
            reason: entry.value.reason(),
            run_seconds: self.run_seconds,
        };
        cells_of(&row).map_err(|problem| TableError::Row {
            path: self.table.path().to_owned(),
            problem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readings::identity::MASKED;
    use kiln_core::record::table::Table;

    fn entry(field: &str, value: &str, is_identifying: bool) -> Entry {
        Entry {
            section: "identity",
            field: field.to_owned(),
            value: Reading::Value(value.to_owned()),
            unit: "",
            is_identifying,
        }
    }

    fn snapshot(entries: Vec<Entry>) -> Snapshot {
        Snapshot {
            device: "GPU-1".to_owned(),
            entries,
        }
    }

    fn rows(path: &std::path::Path) -> Vec<SnapshotRow> {
        Table::read(path, SNAPSHOTS.version)
            .unwrap()
            .rows()
            .unwrap()
    }

    #[test]
    fn a_launch_writes_all_and_a_trial_only_what_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshots.csv");
        let (mut writer, _) = SnapshotWriter::open(
            &Folder::open(path.parent().unwrap()).unwrap(),
            1,
            Privacy::Masked,
        )
        .unwrap();
        let trial = TrialId("0123456789".into());
        writer
            .write_all(&snapshot(vec![
                entry("name", "A", false),
                entry("clock", "1", false),
                entry("x", "7", false),
            ]))
            .unwrap();
        let started = snapshot(vec![entry("name", "A", false), entry("clock", "2", false)]);
        writer
            .at(1.5)
            .write_changes(&started, SnapshotMoment::Start, &trial, 1)
            .unwrap();
        writer
            .write_changes(
                &snapshot(vec![entry("name", "A", false), entry("clock", "2", false)]),
                SnapshotMoment::End,
                &trial,
                1,
            )
            .unwrap();
        let rows = rows(&path);
        assert_eq!(rows.len(), 5);
        assert!(
            rows[..3]
                .iter()
                .all(|row| row.moment == SnapshotMoment::Launch && row.trial.is_none())
        );
        assert_eq!(
            (
                rows[3].field.as_str(),
                rows[3].value.as_deref(),
                rows[3].trial.as_ref()
            ),
            ("clock", Some("2"), Some(&trial))
        );
        assert_eq!(
            (rows[2].run_seconds, rows[3].run_seconds),
            (None, Some(1.5))
        );
        assert_eq!(
            (rows[4].field.as_str(), rows[4].reason.as_deref()),
            ("x", Some("no longer there"))
        );
    }

    #[test]
    fn the_snapshot_of_a_launch_comes_back_after_its_table_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshots.csv");
        let opened = Folder::open(folder.path()).unwrap();
        let (mut writer, _) = SnapshotWriter::open(&opened, 1, Privacy::Masked).unwrap();
        let trial = TrialId("0123456789".into());
        let clock = |value| {
            snapshot(vec![
                entry("name", "A", false),
                entry("clock", value, false),
            ])
        };
        let start = |writer: &mut SnapshotWriter, value| {
            let changes = clock(value);
            writer
                .write_changes(&changes, SnapshotMoment::Start, &trial, 1)
                .unwrap();
        };
        let fields = || -> Vec<(String, Option<String>)> {
            rows(&path)
                .into_iter()
                .map(|row| (row.field, row.value))
                .collect()
        };
        let field = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        writer.write_all(&clock("1")).unwrap();
        start(&mut writer, "2");
        // A copy that has the rows is no reason.
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        start(&mut writer, "2");
        assert_eq!(fields().len(), 3);
        assert!(!writer.take_restored());
        std::fs::remove_file(&path).unwrap();
        start(&mut writer, "2");
        let restored = [field("name", "A"), field("clock", "1"), field("clock", "2")];
        assert_eq!(fields(), restored);
        assert!(writer.take_restored() && !writer.take_restored());
    }

    #[test]
    fn a_table_from_before_the_times_is_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshots.csv");
        let text = "kiln_table,launch,trial,attempt,moment,device,section,field,value,unit,reason\n\
                    snapshots/1,1,,,launch,host,cpu,model,Xeon,,\n";
        std::fs::write(&path, text).unwrap();
        let row = rows(&path).remove(0);
        assert_eq!(
            (row.value.as_deref(), row.run_seconds),
            (Some("Xeon"), None)
        );
    }

    #[test]
    fn identity_is_masked_unless_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        for (privacy, wanted) in [(Privacy::Masked, MASKED), (Privacy::Full, "1650000000001")] {
            let place = folder.path().join(format!("{privacy:?}"));
            std::fs::create_dir(&place).unwrap();
            let path = place.join("snapshots.csv");
            let (mut writer, _) =
                SnapshotWriter::open(&Folder::open(&place).unwrap(), 1, privacy).unwrap();
            writer
                .write_all(&snapshot(vec![
                    entry("name", "A", false),
                    entry("serial_number", "1650000000001", true),
                ]))
                .unwrap();
            let rows = rows(&path);
            assert_eq!(
                (rows[0].value.as_deref(), rows[1].value.as_deref()),
                (Some("A"), Some(wanted))
            );
        }
    }

    #[test]
    fn a_gap_keeps_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshots.csv");
        let (mut writer, _) = SnapshotWriter::open(
            &Folder::open(path.parent().unwrap()).unwrap(),
            1,
            Privacy::Masked,
        )
        .unwrap();
        let gap = Entry {
            value: Reading::absent("not supported, \"really\""),
            ..entry("fan", "", true)
        };
        writer.write_all(&snapshot(vec![gap])).unwrap();
        assert_eq!(
            (
                rows(&path)[0].value.clone(),
                rows(&path)[0].reason.as_deref()
            ),
            (None, Some("not supported, \"really\""))
        );
    }
}
