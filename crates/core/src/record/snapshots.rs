//! `snapshots.csv`: one row per field of the host or of a device.

use serde::{Deserialize, Serialize};

use super::columns::table;
use crate::plan::TrialId;

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
    /// at a trial's start and end only fields that changed since the previous row. Serial numbers
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
