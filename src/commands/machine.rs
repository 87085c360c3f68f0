//! Settings of this machine from the environment and the command line: the program that runs a
//! trial, the NVML library, the selected GPUs, and whether the terminal can draw.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use kiln_core::record::note::BusyHost;
use kiln_hardware::{
    Nvml, NvmlAbsent, VISIBLE_DEVICES,
    gpu::{NoSuchGpu, select},
    host,
    nvml::START_LIMITS,
};

use super::{Status, Stop, note, warning};
use crate::{
    schedule::{Instruments, instruments::LeasedGpu, visible_gpus, why_none_visible},
    subprocess::not_started,
};

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

/// Starts the trial program on one GPU, or on the CPU, with pipes for what it writes; `stdin` is what
/// it reads.
///
/// # Errors
/// It cannot be started.
pub(super) fn start_trial_program(
    arguments: &[&str],
    gpu: Option<&LeasedGpu>,
    stdin: Stdio,
) -> Result<Child, Stop> {
    let program = trial_program()?;
    Command::new(&program)
        .args(arguments)
        .env(VISIBLE_DEVICES, gpu.map_or("", |gpu| &gpu.uuid))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let text = format!(
                "{} could not be started: {}; build it with `cargo build --release`, or set \
                 `KILN_TRIAL`",
                program.display(),
                not_started(&error)
            );
            Stop::new(Status::CannotRun, text)
        })
}

/// For so long the use of the cores is read.
const LOOK: Duration = Duration::from_millis(400);

/// Warns that other processes use the CPU now; `means` says what that does to the numbers. Takes a
/// moment.
pub(super) fn warn_of_busy_host(means: &str) {
    let host = host::read();
    let Some(cores) = host::allowed_cores() else {
        return;
    };
    let busy = host::busy_fraction_over(LOOK).map(|fraction| fraction * cores as f64);
    busy_host(busy, cores, host.load_1_minute.value().copied(), means)
        .iter()
        .for_each(|text| warning(text));
}

/// The warning; `None` for a machine that is nearly idle.
fn busy_host(busy: Option<f64>, cores: u64, load: Option<f64>, means: &str) -> Option<String> {
    let busy = busy.filter(|busy| *busy >= BusyHost::LEAST_SHARE * cores as f64)?;
    let load = load
        .map(|load| format!(" (load average of the last minute {load})"))
        .unwrap_or_default();
    Some(format!(
        "warning: other processes keep {busy:.1} of {cores} cores busy{load}: {means}"
    ))
}

/// `$KILN_NVML_LIB`: a library to use instead of the driver's.
pub(super) fn nvml_library() -> Option<PathBuf> {
    std::env::var_os("KILN_NVML_LIB")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Starts the driver, and says so on standard error if that is slow.
///
/// # Errors
/// There is no driver, or it does not start.
pub(super) fn open_nvml() -> Result<Nvml, NvmlAbsent> {
    Nvml::open_telling(nvml_library().as_deref(), tell_slow_driver)
}

/// Opens the instruments for work that may need a GPU, in the same way.
pub(super) fn open_instruments() -> Instruments {
    Instruments::open_telling(nvml_library().as_deref(), tell_slow_driver)
}

fn tell_slow_driver() {
    note(&format!(
        "waiting up to {} s for the NVIDIA driver to start; `sudo nvidia-smi -pm 1` keeps it started",
        START_LIMITS.most.as_secs()
    ));
}

/// The GPUs that this process's `CUDA_VISIBLE_DEVICES` leaves visible, in its order.
pub(super) fn visible_here(instruments: &Instruments) -> Vec<LeasedGpu> {
    let visible = std::env::var(VISIBLE_DEVICES).ok();
    let devices = instruments.devices();
    visible_gpus(&devices, instruments.unusable(), visible.as_deref())
}

/// Why [`visible_here`] has no GPU.
pub(super) fn why_none_here(instruments: &Instruments) -> String {
    let visible = std::env::var(VISIBLE_DEVICES).ok();
    why_none_visible(instruments, visible.as_deref())
}

/// Returns the indices of the GPUs that `-i` names by index, UUID or PCI address, separated by
/// commas or spaces, in the given order. Calls the driver, which may hang.
pub(super) fn named_gpus(nvml: &Nvml, asked: &[String]) -> Result<Vec<u32>, Stop> {
    let names = gpu_names(asked);
    let count = nvml.device_count().map_err(|why| {
        let text = format!("`-i`: the driver does not say how many GPUs there are: {why}");
        Stop::new(Status::CannotRun, text)
    })?;
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

    #[test]
    fn a_busy_host_is_warned_of_with_its_evidence_and_an_idle_one_is_not() {
        let said = |busy| busy_host(busy, 8, Some(5.25), "the peak is too low");
        assert_eq!(
            said(Some(4.96)).as_deref(),
            Some(
                "warning: other processes keep 5.0 of 8 cores busy (load average of the last minute \
                 5.25): the peak is too low"
            )
        );
        assert_eq!((said(Some(1.19)), said(None)), (None, None));
        assert!(said(Some(1.2)).is_some());
    }
}
