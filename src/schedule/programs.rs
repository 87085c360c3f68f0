//! The program of a trial: `kiln-trial`, or this program as the relay of a command or of a program
//! of `run.engines`.

use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::{
        Model,
        command::{Command, Placeholders},
    },
    plan::Trial,
    record::programs::{COMMAND_PROGRAM, engine_key},
    spec::{DeviceName, Devices, Engine, EngineProgram, Experiment},
};
use kiln_data::source::{DATA_VARIABLE, data_folder};

use super::{RunRequest, RunStop, WantedTrials, provenance};
use crate::relay::{self, ProgramFault};

/// The hidden verb of this program that runs a command.
const RELAY: &str = "relay";

/// The variable with the path of `trial.asked.json`.
const ASKED: &str = "KILN_TRIAL_JSON";

/// A program to start for a trial. The path of `trial.yaml` is its last argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrialProgram {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(String, OsString)>,
    pub(super) kind: ChildKind,
}

/// Which program the child is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChildKind {
    /// `kiln-trial`, or what `KILN_TRIAL` names.
    KilnTrial,
    /// This program as the relay of a command.
    Relay,
    /// An engine of the experiment: its program and script.
    Engine(String),
}

impl ChildKind {
    /// Whether the trial is what it starts, and not the process itself.
    pub(super) fn is_relay(&self) -> bool {
        *self != Self::KilnTrial
    }
}

impl TrialProgram {
    /// The program that runs a trial.
    ///
    /// # Errors
    /// It cannot be found.
    pub(super) fn of(request: &RunRequest, trial: &Trial, asked: &Path) -> io::Result<Self> {
        if trial.model.command().is_some() {
            return Ok(Self {
                path: this_program(),
                arguments: vec![RELAY.into()],
                environment: Vec::new(),
                kind: ChildKind::Relay,
            });
        }
        let Some(engine) = engine(request, trial) else {
            return Ok(Self {
                path: request.trial_program.to_owned(),
                arguments: Vec::new(),
                environment: Vec::new(),
                kind: ChildKind::KilnTrial,
            });
        };
        let path = engine_program(engine)
            .map_err(|fault| io::Error::new(io::ErrorKind::NotFound, fault.to_string()))?;
        let variables = engine.variables();
        let own = [RELAY.into(), "--engine".into(), path.into_os_string()];
        Ok(Self {
            path: this_program(),
            arguments: own
                .into_iter()
                .chain(engine.argv.iter().skip(1).map(Into::into))
                .collect(),
            environment: variables
                .map(|(name, value)| (name.to_owned(), value.into()))
                .chain([(ASKED.to_owned(), asked.as_os_str().to_owned())])
                .collect(),
            kind: ChildKind::Engine(relay::shown(&engine.argv)),
        })
    }
}

/// Whether the program of a trial may read its input as JSON: an engine, or what `KILN_TRIAL` names
/// in place of `kiln-trial`.
pub(super) fn reads_json(request: &RunRequest, trial: &Trial) -> bool {
    let is_own = request.trial_program.file_name() == Some("kiln-trial".as_ref());
    let is_command = trial.model.command().is_some();
    engine(request, trial).is_some() || !is_own && !is_command
}

/// This very program, even if its file is replaced by another version while the launch runs.
fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// The engine of one's own that runs a trial, if one does.
pub(super) fn engine<'a>(request: &RunRequest<'a>, trial: &Trial) -> Option<&'a EngineProgram> {
    own_engine(request.experiment, trial)
}

fn own_engine<'a>(experiment: &'a Experiment, trial: &Trial) -> Option<&'a EngineProgram> {
    experiment.run.engines.get(trial.engine.own_name()?)
}

/// The key of a trial's program among those of a launch; `None` for `kiln-trial`.
pub(super) fn key(trial: &Trial) -> Option<String> {
    match &*trial.model {
        Model::Command(_) => Some(COMMAND_PROGRAM.to_owned()),
        _ => trial.engine.own_name().map(engine_key),
    }
}

fn engine_program(engine: &EngineProgram) -> Result<PathBuf, ProgramFault> {
    let path = engine.variables().find(|(name, _)| *name == "PATH");
    let path = path.map(|(_, value)| value);
    let name = engine.argv.first().map_or("", String::as_str);
    relay::find_program(name, None, path.as_deref())
}

/// Whether trials of this kind take a GPU if there is one.
pub(crate) fn needs_gpu(engine: Engine, devices: &Devices) -> bool {
    engine != Engine::Flex && *devices != Devices::Named(DeviceName::Cpu)
}

/// Whether a trial is computed by `kiln-trial`.
pub(crate) fn needs_kiln_trial(trial: &Trial) -> bool {
    let is_built_in = matches!(trial.engine, Engine::Libtorch | Engine::Flex);
    is_built_in && trial.model.command().is_none()
}

/// Checks that `{data_folder}` stands for a folder where a command of these trials has it.
///
/// # Errors
/// The variable that names the folder is not set.
pub(super) fn check_data_folder<'a>(
    trials: impl IntoIterator<Item = &'a Trial>,
) -> Result<(), RunStop> {
    let mut commands = trials.into_iter().filter_map(|trial| trial.model.command());
    let is_named = commands.any(Command::names_data_folder);
    match is_named && data_folder().is_none() {
        false => Ok(()),
        true => Err(RunStop::CannotRun(format!(
            "`model` has `{{data_folder}}`, which is `${DATA_VARIABLE}`, and that is not set; set it to \
             the folder of the data, or write the path itself"
        ))),
    }
}

/// Checks that every program of these trials is there and executable, and that every entry of
/// `files` stands for a file.
///
/// # Errors
/// The first one that is not, with the key of the file that names it.
pub(super) fn check<'a>(
    wanted: &WantedTrials,
    trials: impl Iterator<Item = &'a Trial>,
) -> Result<(), RunStop> {
    let refused =
        |key: String| move |fault: ProgramFault| RunStop::CannotRun(format!("`{key}`: {fault}"));
    let trials: Vec<&Trial> = trials.collect();
    let mut checked = HashSet::new();
    for trial in &trials {
        let name = trial.engine.name();
        if let Some(engine) = own_engine(wanted.experiment, trial)
            && checked.insert(("engine", name.to_owned(), None, None))
        {
            engine_program(engine).map_err(refused(format!("run.engines.{name}.argv")))?;
        }
        let Some(command) = trial.model.command() else {
            continue;
        };
        // Only paths of the attempt itself are not known yet, and no program lies there.
        let expanded = command.expand(&Placeholders {
            seed: Some(trial.train.seed),
            trial: Some(trial.id.to_string()),
            ..Placeholders::default()
        });
        let is_in_attempt = command.is_in_attempt();
        let path = expanded
            .environment
            .iter()
            .find_map(|(name, value)| (name == "PATH").then_some(value.as_str()));
        for (key, argv) in [("argv", &expanded.argv), ("prepare", &expanded.prepare)] {
            let Some(name) = argv.first() else {
                continue;
            };
            let folder = expanded.folder.as_deref().filter(|_| !is_in_attempt);
            if is_in_attempt && name.contains('/') && !name.starts_with('/') {
                continue;
            }
            // The trials of a sweep mostly share their programs.
            let own = |text: &str| text.to_owned();
            if !checked.insert((key, name.clone(), folder.map(own), path.map(own))) {
                continue;
            }
            let is_made_by_prepare = key == "argv" && !expanded.prepare.is_empty();
            let found = relay::find_program(name, folder, path);
            match found {
                // `prepare` may build it.
                Err(ProgramFault::NotThere(_)) if is_made_by_prepare => {}
                found => {
                    found.map_err(refused(format!("model.{key}")))?;
                }
            }
        }
    }
    provenance::check(wanted.experiment, trials.into_iter(), wanted.results)
        .map_err(RunStop::Refused)
}
