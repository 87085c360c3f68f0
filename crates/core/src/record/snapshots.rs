//! `snapshots.csv`: one row per field of the host or of a device.

use std::{
    collections::{HashMap, HashSet},
    fs::OpenOptions,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{
    columns::table,
    run_file::Launch,
    table::{Record, TableError, open_plain, scan},
};
use crate::{limits::SAMPLES_BYTES, plan::TrialId};

/// The reason of a field that was there and is not any more, such as a process that has ended.
pub const GONE: &str = "no longer there";

/// When a snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotMoment {
    #[default]
    Launch,
    /// At the start of an attempt.
    Start,
    /// At the end of an attempt.
    End,
}

table! {
    /// All facts of the host and of each device, one field per row: all fields at each launch, then
    /// at a trial's start and end only fields that changed since the previous row. Where several
    /// launches work on a run: all fields at the first launch of each node (`run.json` names a
    /// launch's node), and at its later ones those that changed since its previous row. Serial numbers
    /// and processes of other users read `masked` unless `record.identity` is `full`. Committed.
    /// Beside it, `snapshot-<launch>.txt` has the launch's rows as a page
    /// ([snapshot](snapshot.md)).
    SNAPSHOTS: SnapshotRow = "snapshots/2" in "snapshots.csv";
    since 1 {
        /// Number of this start of `kiln run` on the folder, from 1.
        launch: u64,
        /// The trial's id; empty for the launch itself.
        trial: Option<TrialId>,
        /// Number of this start of the trial's process, from 1; empty for the launch itself.
        attempt: Option<u64>,
        /// `launch`, `start` or `end` (of the attempt).
        moment: SnapshotMoment,
        /// UUID of the GPU, or `host`.
        device: String,
        /// Group of fields, as in `nvidia-smi -q`.
        section: String,
        /// Name of the field.
        field: String,
        /// Its value as text; empty if it could not be read.
        value: Option<String>,
        /// Unit of the value; empty for words and counts.
        unit: Option<String>,
        /// Why there is no value.
        reason: Option<String>,
    }
    since 2 {
        /// Time since the run's start mark, when the reading began.
        run_seconds: Option<f64> ["s"],
    }
}

/// The fields of the host and of the devices as they were at the last launch of the table, in the
/// order in which they were listed first. `launches` are those of `run.json`: where several worked on
/// the run, a launch lists only what changed on its node, and the devices that its other launches saw
/// are among the fields, too.
///
/// # Errors
/// The table cannot be read, or a row is damaged.
pub fn at_last_launch(path: &Path, launches: &[Launch]) -> Result<Vec<SnapshotRow>, TableError> {
    let mut file = open_plain(path, OpenOptions::new().read(true), &SAMPLES_BYTES)?;
    let mut last = 0;
    scan(&mut file, path, SNAPSHOTS.version, &mut |record| {
        last = last.max(launch_of(record)?.unwrap_or(0));
        Ok(())
    })?;
    let of_last = launches.iter().find(|of| of.launch == last);
    let of_last = of_last.filter(|of| of.node.is_some());
    let is_of_node = |of: &&Launch| {
        let is_it = |last: &Launch| of.node.is_some() && of.host() == last.host();
        of.launch < last && of_last.is_some_and(is_it)
    };
    let before: HashSet<u64> = launches
        .iter()
        .filter(is_of_node)
        .map(|of| of.launch)
        .collect();
    let mut rows: Vec<SnapshotRow> = Vec::new();
    let mut places = HashMap::new();
    scan(&mut file, path, SNAPSHOTS.version, &mut |record| {
        let launch = launch_of(record)?;
        let is_before = launch.is_some_and(|launch| before.contains(&launch));
        if !is_before && launch != Some(last) {
            return Ok(());
        }
        let row: SnapshotRow = record.parse()?;
        if !is_before && row.moment != SnapshotMoment::Launch {
            return Ok(());
        }
        let key = [&row.device, &row.section, &row.field].map(String::clone);
        match places.get(&key) {
            Some(at) => rows[*at] = row,
            None => {
                places.insert(key, rows.len());
                rows.push(row);
            }
        }
        Ok(())
    })?;
    rows.retain(|row| row.reason.as_deref() != Some(GONE));
    Ok(rows)
}

/// The launch of a row, if its cell holds a number.
fn launch_of(record: &Record<'_>) -> Result<Option<u64>, TableError> {
    let place = record.head().place("launch")?;
    Ok(record.cells().nth(place).and_then(|cell| cell.parse().ok()))
}
