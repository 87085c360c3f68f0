//! What the environment says of this machine: which program runs a trial, which NVML library is taken.

use std::path::PathBuf;

use super::{Status, Stop};

/// `$KILN_TRIAL`, else the program beside this one.
pub(super) fn trial_program() -> Result<PathBuf, Stop> {
    if let Some(named) = std::env::var_os("KILN_TRIAL").filter(|value| !value.is_empty()) {
        return std::path::absolute(named).map_err(|error| Stop::new(Status::CannotRun, format!("`KILN_TRIAL`: {error}")));
    }
    let own = std::env::current_exe().map_err(|error| Stop::new(Status::CannotRun, format!("kiln cannot find its own program: {error}")))?;
    Ok(own.with_file_name("kiln-trial"))
}

/// `$KILN_NVML_LIB`: a library to take instead of the driver's.
pub(super) fn nvml_library() -> Option<PathBuf> {
    std::env::var_os("KILN_NVML_LIB").filter(|value| !value.is_empty()).map(PathBuf::from)
}
