//! `weights-removed.json` in the folder of a trial: it says that `kiln rm --weights` removed the
//! checkpoints, so that nobody takes them for lost.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    folder::Folder, input, limits::STATE_BYTES, record::run_file::json, units::without_controls,
};

/// Version of the file.
const WEIGHTS_REMOVED: u32 = 1;
/// The file's name.
const MARK: &str = "weights-removed.json";

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct RemovalMark {
    /// Format version, [`WEIGHTS_REMOVED`].
    kiln_weights_removed: u32,
    removed_utc: String,
}

/// Writes it into the folder of a trial; `removed_utc` is the time now.
pub(super) fn write(trial: &Folder, removed_utc: &str) -> io::Result<()> {
    let mark = RemovalMark {
        kiln_weights_removed: WEIGHTS_REMOVED,
        removed_utc: removed_utc.to_owned(),
    };
    trial.write_whole(MARK.as_ref(), &json(&mark)?)
}

/// The rest of a sentence on the checkpoints of the trial in this folder: that they were removed, and
/// when. `None` if they were not. A later attempt may have written others since.
pub fn removal_in(trial: &Path) -> Option<String> {
    let bytes = input::read(&trial.join(MARK), &STATE_BYTES).ok()?;
    let when = match serde_json::from_slice::<RemovalMark>(&bytes) {
        Ok(mark) => format!(" ({})", without_controls(&mark.removed_utc)),
        Err(_) => String::new(),
    };
    Some(format!("were removed by `kiln rm --weights`{when}"))
}
