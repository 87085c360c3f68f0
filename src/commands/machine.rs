//! Settings of this machine from the environment and the command line: the program that runs a
//! trial, the NVML library, the selected GPUs, and whether the terminal can draw.

use std::path::PathBuf;

use kiln_hardware::{
    Nvml,
    gpu::{NoSuchGpu, select},
};

use super::{Status, Stop};

/// `$KILN_TRIAL`, else the program beside this one.
pub(super) fn trial_program() -> Result<PathBuf, Stop> {
    if let Some(named) = std::env::var_os("KILN_TRIAL").filter(|value| !value.is_empty()) {
        return std::path::absolute(named).map_err(|error| {
            Stop::new(
                Status::CannotRun,
                format!("`KILN_TRIAL` is not a usable path: {error}"),
            )
        });
    }
    let own = std::env::current_exe().map_err(|error| {
        Stop::new(
            Status::CannotRun,
            format!("kiln cannot find its own program: {error}"),
        )
    })?;
    Ok(own.with_file_name("kiln-trial"))
}

/// `$KILN_NVML_LIB`: a library to use instead of the driver's.
pub(super) fn nvml_library() -> Option<PathBuf> {
    std::env::var_os("KILN_NVML_LIB")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Returns the indices of the GPUs that `-i` names by index, UUID or PCI address, separated by
/// commas or spaces, in the given order. Calls the driver, which may hang.
pub(super) fn named_gpus(nvml: &Nvml, asked: &[String]) -> Result<Vec<u32>, Stop> {
    let names = gpu_names(asked);
    let count = nvml.device_count();
    let how = format!("there are {count}; name them by index (from 0), UUID or PCI address");
    if names.is_empty() {
        return Err(Stop::bad_input(format!("`-i` names no GPU; {how}")));
    }
    select(nvml, &names)
        .map_err(|NoSuchGpu(name)| Stop::bad_input(format!("`-i`: no GPU `{name}`; {how}")))
}

fn gpu_names(asked: &[String]) -> Vec<String> {
    asked
        .iter()
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gpus_may_have_spaces_and_a_comma_too_many() {
        let names = |asked: &[&str]| {
            gpu_names(
                &asked
                    .iter()
                    .map(|text| (*text).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(&["0, 1"]), ["0", "1"]);
        assert_eq!(names(&["0", " 91:00.0", ""]), ["0", "91:00.0"]);
        assert!(names(&["", " ,"]).is_empty());
    }
}
