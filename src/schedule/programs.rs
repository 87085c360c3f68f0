//! The program of a trial: `kiln-trial`, a program of `run.engines`, or, for a command, this program
//! as its relay.

use std::{
    collections::HashSet,
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::{Model, command::Placeholders},
    plan::Trial,
    spec::{Engine, EngineProgram},
};

use super::{RunRequest, RunStop};
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
    /// Whether the trial is what it starts, and not the process itself.
    pub(super) is_relay: bool,
}

impl TrialProgram {
    /// The program that runs a trial.
    ///
    /// # Errors
    /// It cannot be found.
    pub(super) fn of(request: &RunRequest, trial: &Trial, asked: &Path) -> io::Result<Self> {
        if let Model::Command(_) = trial.model {
            return Ok(Self {
                path: env::current_exe()?,
                arguments: vec![RELAY.into()],
                environment: Vec::new(),
                is_relay: true,
            });
        }
        let Some(engine) = engine(request, trial) else {
            return Ok(Self {
                path: request.trial_program.to_owned(),
                arguments: Vec::new(),
                environment: Vec::new(),
                is_relay: false,
            });
        };
        let path = engine_program(engine)
            .map_err(|fault| io::Error::new(io::ErrorKind::NotFound, fault.to_string()))?;
        let variables = engine.variables();
        Ok(Self {
            path,
            arguments: engine.argv.iter().skip(1).map(Into::into).collect(),
            environment: variables
                .map(|(name, value)| (name.to_owned(), value.into()))
                .chain([(ASKED.to_owned(), asked.as_os_str().to_owned())])
                .collect(),
            is_relay: false,
        })
    }
}

/// The engine of one's own that runs a trial, if one does.
pub(super) fn engine<'a>(request: &RunRequest<'a>, trial: &Trial) -> Option<&'a EngineProgram> {
    request.experiment.run.engines.get(trial.engine.own_name()?)
}

fn engine_program(engine: &EngineProgram) -> Result<PathBuf, ProgramFault> {
    let path = engine.variables().find(|(name, _)| *name == "PATH");
    let path = path.map(|(_, value)| value);
    let name = engine.argv.first().map_or("", String::as_str);
    relay::find_program(name, None, path.as_deref())
}

/// Whether a trial is computed by `kiln-trial`.
pub(crate) fn needs_kiln_trial(trial: &Trial) -> bool {
    let is_built_in = matches!(trial.engine, Engine::Libtorch | Engine::Flex);
    is_built_in && !matches!(trial.model, Model::Command(_))
}

/// Checks that every program of these trials is there and executable.
///
/// # Errors
/// The first one that is not, with the key of the file that names it.
pub(super) fn check<'a>(
    request: &RunRequest,
    trials: impl Iterator<Item = &'a Trial>,
) -> Result<(), RunStop> {
    let refused =
        |key: String| move |fault: ProgramFault| RunStop::CannotRun(format!("`{key}`: {fault}"));
    let mut checked = HashSet::new();
    for trial in trials {
        let name = trial.engine.name();
        if let Some(engine) = engine(request, trial)
            && checked.insert(("engine", name.to_owned(), None, None))
        {
            engine_program(engine).map_err(refused(format!("run.engines.{name}.argv")))?;
        }
        let Model::Command(command) = &trial.model else {
            continue;
        };
        // Only paths of the attempt itself are not known yet, and no program lies there.
        let expanded = command.expand(&Placeholders {
            seed: Some(trial.train.seed),
            trial: Some(trial.id.to_string()),
            ..Placeholders::default()
        });
        let path = expanded
            .environment
            .iter()
            .find_map(|(name, value)| (name == "PATH").then_some(value.as_str()));
        for (key, argv) in [("argv", &expanded.argv), ("prepare", &expanded.prepare)] {
            let Some(name) = argv.first() else {
                continue;
            };
            // The trials of a sweep mostly share their programs.
            let folder = expanded.folder.as_deref();
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
    Ok(())
}
