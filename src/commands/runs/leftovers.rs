//! Folders that a switch to another branch has left of runs, without their records.

use std::path::{Path, PathBuf};

use kiln_core::record::RunFolder;

use super::below_here;
use crate::commands::Stop;

/// The sentence on a folder that a switch to another branch has left of a run.
pub(in crate::commands) const LEFTOVER: &str = "no record of a run is here, only what git \
                                                ignores; the record may be on another branch";

/// The leftover of a run that a path, alone or below `results`, leads to.
pub(in crate::commands) fn leftover(named: &str, results: &Path) -> Option<RunFolder> {
    let paths = [PathBuf::from(named), results.join(named)];
    let mut folders = paths
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .map(RunFolder::at);
    folders.find(RunFolder::is_leftover)
}

/// The refusal of a leftover.
pub(in crate::commands) fn refuse_leftover(left: &RunFolder) -> Stop {
    let path = below_here(left.path());
    Stop::bad_input(format!("{}: {LEFTOVER}", path.display()))
}
