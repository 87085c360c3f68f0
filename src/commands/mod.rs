//! One file per verb: joins the parts, owns no logic of its own. Here stands the list of verbs, and the one place where an
//! outcome of a command becomes an exit status.

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

/// Declarative experiment runner for deep learning: YAML sweeps on libtorch, hardware readings, tables to compare.
#[derive(Parser)]
#[command(name = "kiln", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check experiment files: every problem at once, with its place.
    Check(check::Args),
    /// Show the trials that would run.
    Plan(plan::Args),
    /// Run an experiment, or resume an unfinished run of it.
    Run(run::Args),
    /// Search instead of sweeping: the largest batch, the fastest batch, the workers, the best setting.
    Tune(tune::Args),
    /// Set two tables against each other: faster, slower, the same, or not to be told from chance.
    Compare(compare::Args),
    /// Run a run's experiment again, as it was resolved then, and compare: exit with 0 where the losses are the same, 1 where not, 4 where nobody can tell.
    Reproduce(reproduce::Args),
    /// Say what a run means: its summary, and what the numbers point to, with evidence and the next experiment.
    Report(report::Args),
    /// List the runs under results/.
    Ls(ls::Args),
    /// Show all readings of all GPUs now: text like nvidia-smi -q, CSV, JSON, words, or chosen properties.
    Snapshot(snapshot::Args),
    /// Show the devices' readings live, or write them as a table.
    Watch(watch::Args),
    /// Measure the matrix-product peak of a device per precision, for MFU.
    Calibrate(calibrate::Args),
    /// Check machine, driver, libtorch, devices and disk, with a remedy for each problem.
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

/// How a command ended, as an exit status (`docs/design.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// 0: every trial has a result.
    Success = 0,
    /// 1: some trial failed, timed out or was killed; a gate fails; a run is not reproduced; or the command could not do its work.
    Failed = 1,
    /// 2: bad file or command line.
    BadInput = 2,
    /// 3: the machine cannot run it.
    CannotRun = 3,
    /// 4: a gate of `--fail-on`, or whether a run is reproduced, that these runs cannot answer.
    CannotTell = 4,
    /// 130: interrupted.
    Interrupted = 130,
}

/// A command that did not get to its end: what to print and which status to exit with.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Stop {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Self {
        Self { status, message: message.to_string() }
    }

    pub(crate) fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(Status::BadInput, message)
    }
}

/// Writes to standard output; a reader that went away (`kiln plan | head`) ends the command quietly.
pub(crate) fn print(text: &str) -> Result<(), Stop> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Stop::new(Status::Failed, format!("standard output could not be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// A line for people beside what is printed: on standard error, and where that is closed nowhere.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// As wide as the terminal; plain text without limit into a file or a pipe.
pub(crate) fn page_style() -> crate::report::Style {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return crate::report::Style { width: None, has_color: false };
    }
    let width = rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col).filter(|columns| *columns > 0);
    crate::report::Style { width, has_color: std::env::var_os("NO_COLOR").is_none() }
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Status::BadInput as u8 } else { 0 });
        }
    };
    match kiln_hardware::check_setting().map_err(Stop::bad_input).and_then(|()| perform(cli.verb)) {
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
