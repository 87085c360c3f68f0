//! The commands, one file each; they call the other modules. This file has the list of commands,
//! and the only place where the result of a command becomes an exit status.

mod calibrate;
mod check;
mod compare;
mod completions;
mod data;
mod doctor;
mod initial_weights;
mod launching;
mod ls;
mod machine;
mod man;
mod own_file;
mod plan;
mod planned;
mod report;
mod reproduce;
mod rerun;
mod run;
mod schema;
mod snapshot;
mod sources;
mod tune;
mod watch;

use std::{
    fmt,
    io::{IsTerminal, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Declarative experiment runner for deep learning: YAML sweeps on libtorch, hardware readings,
/// tables to compare.
#[derive(Parser)]
#[command(name = "kiln", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check experiment files: lists every problem at once, with its line.
    Check(check::Args),
    /// Show the trials that would run.
    Plan(plan::Args),
    /// Run an experiment, or resume an unfinished run of it.
    Run(run::Args),
    /// Search instead of sweeping: the largest or fastest batch size, the number of workers, the
    /// best setting.
    Tune(tune::Args),
    /// Compare two runs: faster, slower, unchanged, or within noise.
    Compare(compare::Args),
    /// Repeat a run with its resolved experiment and compare: exits with 0 if the losses are the
    /// same, 1 if not, 4 if undecided.
    Reproduce(reproduce::Args),
    /// Explain a run: its summary, and findings with evidence and the next experiment.
    Report(report::Args),
    /// List the runs under results/.
    Ls(ls::Args),
    /// Show all current readings of all GPUs: text like nvidia-smi -q, CSV, JSON, an explanation,
    /// or selected properties.
    Snapshot(snapshot::Args),
    /// Show the readings of the devices live, or write them to a table.
    Watch(watch::Args),
    /// Measure the peak matrix-product speed of a device per precision, for MFU.
    Calibrate(calibrate::Args),
    /// Check machine, driver, libtorch, devices and disk; prints a remedy for each problem.
    Doctor(doctor::Args),
    /// List, fetch and verify data sets.
    Data(data::Args),
    /// Print the JSON Schema of the experiment file.
    Schema(schema::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Print the manual page, or write one per command.
    Man(man::Args),
}

/// Result of a command, as an exit status (`docs/design.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// 0: every trial has a result.
    Success = 0,
    /// 1: a trial failed, timed out or was killed; a gate fails; a run is not reproduced; or the
    /// command failed.
    Failed = 1,
    /// 2: bad file or command line.
    BadInput = 2,
    /// 3: the machine cannot run it.
    CannotRun = 3,
    /// 4: these runs cannot decide a gate of `--fail-on`, or whether a run is reproduced.
    CannotTell = 4,
    /// 130: interrupted.
    Interrupted = 130,
}

/// A command that stopped early: the message to print and the exit status.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Stop {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Self {
        Self {
            status,
            message: message.to_string(),
        }
    }

    pub(crate) fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(Status::BadInput, message)
    }
}

/// Writes to standard output; a closed pipe (`kiln plan | head`) ends the command without a
/// message.
pub(crate) fn print(text: &str) -> Result<(), Stop> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Stop::new(
            Status::Failed,
            format!("standard output could not be written: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Writes a line to standard error; ignores the error if it is closed.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// As wide as the terminal; without a limit for a file or a pipe.
pub(crate) fn page_style() -> crate::report::PageStyle {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return crate::report::PageStyle {
            width: None,
            has_color: false,
        };
    }
    let width = rustix::termios::tcgetwinsize(&stdout)
        .ok()
        .map(|size| size.ws_col)
        .filter(|columns| *columns > 0);
    crate::report::PageStyle {
        width,
        has_color: std::env::var_os("NO_COLOR").is_none(),
    }
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Status::BadInput as u8
            } else {
                0
            });
        }
    };
    match kiln_hardware::check_setting()
        .map_err(Stop::bad_input)
        .and_then(|()| perform(cli.verb))
    {
        Ok(status) => ExitCode::from(status as u8),
        Err(stop) => {
            let _ = writeln!(std::io::stderr(), "{}", stop.message);
            ExitCode::from(stop.status as u8)
        }
    }
}

fn perform(verb: Verb) -> Result<Status, Stop> {
    match verb {
        Verb::Check(args) => check::run(args),
        Verb::Plan(args) => plan::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Tune(args) => tune::run(args),
        Verb::Compare(args) => compare::run(args),
        Verb::Reproduce(args) => reproduce::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Ls(args) => ls::run(args),
        Verb::Snapshot(args) => snapshot::run(args),
        Verb::Watch(args) => watch::run(args),
        Verb::Calibrate(args) => calibrate::run(args),
        Verb::Data(args) => data::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Schema(args) => schema::run(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => man::run(args),
    }
}

/// The whole command line, for completions.
pub(crate) fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
