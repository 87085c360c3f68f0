//! The program `kiln-trial`: its command line, its file, its exit status.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use kiln_core::{
    limits,
    plan::TrialFile,
    record::{message::exit_status, trial_file},
};

use crate::{calibrate, error::TrialError, examine, flavour, model::Registry, model_use, train};

const HELP: &str = "\
The child process of one kiln trial: trains the model of the trial file FILE and writes steps.csv, epochs.csv, trial.json and what else the file asks for into its folder.
`kiln run` starts it; it can also be started by hand. Messages are JSON lines on standard output.

Usage: kiln-trial FILE
       kiln-trial --calibrate <cpu|cuda> <threads>
       kiln-trial --use
       kiln-trial --examine [--quick]

Options:
  --calibrate    Measure the peak matrix-multiplication speed of the device (used by `kiln calibrate`)
  --use          Use a trained model: reads a request as JSON from standard input (used by `kiln sample`, `predict`, `evaluate` and `export`)
  --examine      List libraries and devices and check a matrix product on each device (used by `kiln doctor`)
  -h, --help     Print help
  -V, --version  Print version
";

enum ProgramRequest {
    Help,
    Version,
    Run(PathBuf),
    Use,
    Calibrate(Vec<String>),
    Examine(Vec<String>),
    /// Not in the help: only `make check-cuda-flavour` uses it.
    CheckFlavour(Vec<String>),
}

/// Runs the program with this process's arguments; `registry` has the models that `model.kind`
/// custom can name.
pub fn main(registry: Registry) -> ExitCode {
    let status = match parse(std::env::args_os().skip(1).collect()) {
        Ok(ProgramRequest::Help) => say(HELP),
        Ok(ProgramRequest::Version) => say(&format!("kiln-trial {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(ProgramRequest::Run(path)) => run(&path, &registry),
        Ok(ProgramRequest::Use) => model_use::answer(&registry, io::stdin(), io::stdout()),
        Ok(ProgramRequest::Calibrate(rest)) => answered(calibrate::answer(&rest, io::stdout())),
        Ok(ProgramRequest::Examine(rest)) => answered(examine::examine(&rest, io::stdout())),
        Ok(ProgramRequest::CheckFlavour(rest)) => answered(flavour::check(&rest, io::stdout())),
        Err(reason) => refuse(reason),
    };
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

fn parse(arguments: Vec<OsString>) -> Result<ProgramRequest, String> {
    let rest = || {
        arguments[1..]
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    };
    match arguments.first().and_then(|first| first.to_str()) {
        Some("--calibrate") => return Ok(ProgramRequest::Calibrate(rest())),
        Some("--use") if arguments.len() == 1 => return Ok(ProgramRequest::Use),
        Some("--examine") => return Ok(ProgramRequest::Examine(rest())),
        Some("--check-cuda-flavour") => return Ok(ProgramRequest::CheckFlavour(rest())),
        _ => {}
    }
    let [argument] = arguments.as_slice() else {
        return Err(format!(
            "expected one trial file, got {} arguments; try --help",
            arguments.len()
        ));
    };
    match argument.to_str() {
        Some("-h" | "--help") => Ok(ProgramRequest::Help),
        Some("-V" | "--version") => Ok(ProgramRequest::Version),
        Some(option) if option.starts_with('-') => {
            Err(format!("unknown option `{option}`; try --help"))
        }
        _ => Ok(ProgramRequest::Run(PathBuf::from(argument))),
    }
}

fn run(path: &Path, registry: &Registry) -> i32 {
    let file = match limits::check_setting().and_then(|()| read(path)) {
        Ok(file) => file,
        Err(reason) => return refuse(reason),
    };
    match train::watch_signals() {
        Ok(is_interrupted) => {
            train::run(&file, registry, &mut io::stdout(), &is_interrupted).exit_status
        }
        Err(error) => {
            let status = error.exit_status();
            complain(error);
            status
        }
    }
}

/// The exit status of a mode that writes its answer itself.
fn answered(answer: Result<(), TrialError>) -> i32 {
    match answer {
        Ok(()) => exit_status::RESULT,
        Err(error) => {
            let status = error.exit_status();
            complain(error);
            status
        }
    }
}

/// Reads a trial file of the format this program knows, with an absolute folder that is there.
fn read(path: &Path) -> Result<TrialFile, String> {
    let file = trial_file::read(path).map_err(|error| error.to_string())?;
    if !file.folder.is_dir() {
        return Err(format!(
            "{}: `folder` {} is not a folder; it must exist",
            path.display(),
            file.folder.display()
        ));
    }
    Ok(file)
}

fn say(text: &str) -> i32 {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => exit_status::RESULT,
        Err(_) => exit_status::FAILED,
    }
}

fn refuse(reason: String) -> i32 {
    complain(reason);
    exit_status::BAD_FILE
}

fn complain(reason: impl Display) {
    // If standard error is closed, only the exit status remains.
    let _ = writeln!(io::stderr(), "kiln-trial: {reason}");
}
