//! The options of the commands that run trials, and what follows from them: the scheduler's request, the
//! instruments, and the exit status of a run that cannot start.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{plan::Trial, spec::Experiment, units::without_controls};
use kiln_data::files::sha256_of;
use kiln_hardware::VISIBLE_DEVICES;

use super::{
    RESULTS, Status, Stop,
    machine::{nvml_library, open_instruments},
};
use crate::{
    progress::ProgressMode,
    schedule::{self, Budget, CopySource, Instruments, Preview, RunRequest, Selection, Tuning},
};

/// Why `--for` is refused where workers run the trials.
pub(super) const FOR_IS_HERE: &str = "`--for` goes with `--on here`; workers begin no trial that does \
                                      not fit into the time of their job (`run.slurm.time`)";

/// Options of commands that run trials.
#[derive(clap::Args)]
pub(super) struct LaunchOptions {
    /// Start a new run even if an unfinished run could be resumed.
    #[arg(long)]
    pub(super) fresh: bool,
    /// Print what would run, without running anything.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Set a key of the experiment: `train.batch_size=8`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Short for `--set run.devices=…`: auto, cpu, all, an index or a UUID.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Option<String>,
    /// Short for `--set run.engine=…`.
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Short for `--set run.on=…`: `here`; `workers`, which take the trials from the run's queue; or
    /// `slurm`, which starts such workers. `kiln tune` and `kiln reproduce` run `here` alone.
    #[arg(long, value_name = "PLACE")]
    on: Option<String>,
    /// Print only the result; with `--progress json`, only the events.
    #[arg(long)]
    pub(super) quiet: bool,
    /// How to report progress.
    #[arg(long, value_enum, default_value_t = ProgressOption::Auto)]
    progress: ProgressOption,
    /// Folder of the runs.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    pub(super) results: PathBuf,
    /// In place of `CUDA_VISIBLE_DEVICES`.
    #[arg(skip)]
    pub(super) visible: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProgressOption {
    /// Progress bars on a terminal, else lines.
    Auto,
    /// Lines with times on standard error.
    Plain,
    /// JSON events on standard output, documented in docs/running.md.
    Json,
}

/// The experiment and trials to run.
pub(super) struct WantedLaunch<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) resolved: &'a str,
    pub(super) trials: &'a [Trial],
    pub(super) search: Option<&'a Tuning<'a>>,
    pub(super) selection: Selection,
    /// The run of which the new run begins as a copy.
    pub(super) copied: Option<CopySource<'a>>,
    /// The time in which trials may begin.
    pub(super) budget: Option<&'a Budget>,
    pub(super) data: &'a BTreeMap<String, String>,
}

impl LaunchOptions {
    /// Options for launches into a given folder, without progress output of their own.
    pub(super) fn quiet_in(results: PathBuf) -> Self {
        Self {
            fresh: false,
            dry_run: false,
            set: Vec::new(),
            device: None,
            engine: None,
            on: None,
            quiet: true,
            progress: ProgressOption::Plain,
            results,
            visible: None,
        }
    }

    /// Options of a launch on a run that exists, which lies in `results`.
    pub(super) fn of_worker(results: PathBuf, quiet: bool, progress: ProgressOption) -> Self {
        Self {
            quiet,
            progress,
            ..Self::quiet_in(results)
        }
    }

    /// Builds the scheduler's request and passes it to `with`.
    pub(super) fn request<T>(
        &self,
        wanted: &WantedLaunch<'_>,
        program: &Path,
        with: impl FnOnce(&RunRequest) -> T,
    ) -> T {
        let variable = || std::env::var(VISIBLE_DEVICES).ok();
        let visible = self.visible.clone().or_else(variable);
        let WantedLaunch {
            experiment,
            resolved,
            trials,
            search,
            ref selection,
            copied,
            budget,
            data,
        } = *wanted;
        with(&RunRequest {
            experiment,
            resolved,
            trials,
            search,
            results: &self.results,
            trial_program: program,
            locks: &schedule::locks_folder(),
            visible_devices: visible.as_deref(),
            selection: selection.clone(),
            fresh: self.fresh || copied.is_some(),
            copied,
            budget,
            command_line: &command_line(),
            data,
            sha256: hash_of,
            listener: &*self.style().listener(),
        })
    }

    /// The `--set` values, with those of the dedicated flags.
    pub(super) fn settings(&self) -> Vec<String> {
        let device = self.device.iter().map(|device| match device.as_str() {
            "auto" | "cpu" | "all" => format!("run.devices={device}"),
            list if list.starts_with('[') => format!("run.devices={list}"),
            one => format!("run.devices=[{one}]"),
        });
        let engine = self
            .engine
            .iter()
            .map(|engine| format!("run.engine={engine}"));
        let on = self.on.iter().map(|place| format!("run.on={place}"));
        self.set
            .iter()
            .cloned()
            .chain(device)
            .chain(engine)
            .chain(on)
            .collect()
    }

    pub(super) fn style(&self) -> ProgressMode {
        match (self.progress, self.quiet) {
            (ProgressOption::Json, _) => ProgressMode::Json,
            (_, true) => ProgressMode::Quiet,
            (ProgressOption::Auto, false) => ProgressMode::for_terminal(),
            (ProgressOption::Plain, false) => ProgressMode::Plain,
        }
    }
}

/// The command line as typed.
fn command_line() -> Vec<String> {
    std::iter::once("kiln".to_owned())
        // A file may have any name.
        .chain(
            std::env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned()),
        )
        .collect()
}

/// The SHA-256 of a file as it is, without decompression.
pub(super) fn hash_of(path: &Path) -> io::Result<String> {
    sha256_of(path, Path::new("")).map(|(hash, _)| hash)
}

/// Opens the instruments; trials on the CPU do not wait for a driver that hangs.
pub(super) fn instruments(needs_gpu: bool) -> Instruments {
    match needs_gpu {
        true => open_instruments(),
        false => Instruments::open_for_the_cpu(nvml_library().as_deref()),
    }
}

/// Returns the folder that a launch would resume or create, and why a finished run is not used;
/// without a line feed.
pub(super) fn place(request: &RunRequest, preview: &Preview) -> String {
    let place = match &preview.resumes {
        Some(folder) => format!("would resume {}", folder.path().display()),
        None => format!(
            "would start a new run under {}",
            request.results.join(&request.experiment.name).display()
        ),
    };
    let notice = preview.notice.iter().flat_map(|text| text.lines());
    let notice: String = notice.map(|line| without_controls(line) + "\n").collect();
    notice + &without_controls(&place)
}

pub(super) fn stopped(stop: schedule::RunStop) -> Stop {
    let status = match stop {
        schedule::RunStop::Refused(_) => Status::BadInput,
        schedule::RunStop::CannotRun(_) => Status::CannotRun,
        schedule::RunStop::Interrupted(_) => Status::Interrupted,
    };
    // The changes of an experiment are a list, one a line.
    Stop::of_lines(status, stop.to_string().lines())
}
/// The value of `--device`; UUIDs have a hyphen.
fn device(text: &str) -> Result<String, String> {
    let is_index = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_known = ["auto", "cpu", "all"].contains(&text) || text.starts_with('[');
    match is_known || is_index || text.contains('-') {
        true => Ok(text.to_owned()),
        false => Err(
            "use auto (the first idle GPU, else the CPU), cpu, all, an index of nvidia-smi such as \
             0, a UUID, or a list such as [0, 1]"
                .to_owned(),
        ),
    }
}
