//! The commands, one file each; they call the other modules. This file has the list of commands,
//! and the only place where the result of a command becomes an exit status.

mod calibrate;
mod check;
mod compare;
mod completions;
mod continuation;
mod copied_run;
mod data;
mod device_choice;
mod diff;
mod doctor;
mod evaluate;
mod examples;
mod excerpt;
mod experiment_plan;
mod export;
mod folder_size;
mod gates;
mod helper;
mod init;
mod initial_weights;
mod json_option;
mod launch;
mod launch_options;
mod launch_page;
mod local_run;
mod ls;
mod machine;
mod man;
mod mistake;
mod model_child;
mod own_file;
mod plan;
mod predict;
mod recorded_trial;
mod relay;
mod report;
mod reproduce;
mod rerun;
mod rerun_folders;
mod rm;
mod run;
mod run_and_trial;
mod run_name;
mod runs;
mod same_name;
mod sample;
mod schema;
mod secrets;
mod snapshot;
mod sources;
mod summary_table;
mod tickets;
mod tips;
mod trained_model;
mod tune;
mod watch;
mod workers;

use std::{
    ffi::OsString,
    fmt, io,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use clap::{Parser, Subcommand};
use kiln_core::{
    spec::{Problem, Problems},
    units::without_controls,
};

pub(crate) use crate::output::terminal::{note, warning};
use crate::output::{
    frame,
    terminal::{self, ColorChoice},
};

/// Folder of the runs where none is named.
const RESULTS: &str = "results";

/// Declarative experiment runner for deep learning: YAML sweeps on libtorch, hardware readings,
/// tables to compare.
#[derive(Parser)]
#[command(name = "kiln", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// When to use color: on a terminal and without `NO_COLOR` (`auto`), always, or never.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    color: ColorChoice,
}

#[derive(Subcommand)]
enum Verb {
    /// Write a commented experiment file that runs on this machine.
    #[command(after_long_help = examples::INIT)]
    Init(init::Args),
    /// Check experiment files: lists every problem at once, with its line.
    #[command(after_long_help = examples::CHECK)]
    Check(check::Args),
    /// Show the trials that would run.
    #[command(after_long_help = examples::PLAN)]
    Plan(plan::Args),
    /// Run an experiment, or resume an unfinished run of it.
    #[command(after_long_help = examples::RUN)]
    Run(run::Args),
    /// Work on a run that has a queue: take trials from it until none is left.
    #[command(after_long_help = examples::WORKER)]
    Worker(workers::WorkerArgs),
    /// Attend a run that workers work on: tell what they do, and collect their tables.
    #[command(after_long_help = examples::WAIT)]
    Wait(workers::WaitArgs),
    /// Ask the workers of a run to stop.
    #[command(after_long_help = examples::STOP)]
    Stop(workers::StopArgs),
    /// Search instead of sweeping: the largest or fastest batch size, the number of workers, the
    /// best setting.
    #[command(after_long_help = examples::TUNE)]
    Tune(tune::Args),
    /// Compare two runs: faster, slower, unchanged, or within noise.
    #[command(after_long_help = examples::COMPARE)]
    Compare(compare::Args),
    /// List what differs between two runs: settings, data, machine, versions, flags.
    #[command(after_long_help = examples::DIFF)]
    Diff(diff::Args),
    /// Repeat a run with its resolved experiment and compare: exits with 0 if the losses are the
    /// same, 1 if not, 4 if undecided.
    #[command(after_long_help = examples::REPRODUCE)]
    Reproduce(reproduce::Args),
    /// Explain a run: its summary, and findings with evidence and the next experiment.
    #[command(after_long_help = examples::REPORT)]
    Report(report::Args),
    /// List the runs under results/, newest first.
    #[command(after_long_help = examples::LS)]
    Ls(ls::Args),
    /// Remove runs, or their checkpoints alone, after a question.
    #[command(after_long_help = examples::RM)]
    Rm(rm::Args),
    /// Let a trained model write: continue a prompt, or answer it.
    #[command(after_long_help = examples::SAMPLE)]
    Sample(sample::Args),
    /// Let a trained model classify images or forecast series.
    #[command(after_long_help = examples::PREDICT)]
    Predict(predict::Args),
    /// Evaluate a trained model: its loss and scores on its validation data, or on other data.
    #[command(
        after_long_help = examples::EVALUATE,
        override_usage = "kiln evaluate <RUN[:TRIAL]> [OPTIONS] [--data <PATH>...]"
    )]
    Evaluate(evaluate::Args),
    /// Export a trained model for PyTorch and Hugging Face's transformers.
    #[command(after_long_help = examples::EXPORT)]
    Export(export::Args),
    /// Show all current readings of all GPUs: text like nvidia-smi -q, CSV, JSON, an explanation,
    /// or selected properties.
    #[command(after_long_help = examples::SNAPSHOT)]
    Snapshot(snapshot::Args),
    /// Show a run while it goes on (`kiln watch RUN`), or the readings of the devices live.
    #[command(after_long_help = examples::WATCH)]
    Watch(watch::Args),
    /// Measure the peak matrix-product speed of a device per precision, for MFU.
    #[command(after_long_help = examples::CALIBRATE)]
    Calibrate(calibrate::Args),
    /// Check machine, driver, libtorch, devices and disk; prints a remedy for each problem.
    #[command(after_long_help = examples::DOCTOR)]
    Doctor(doctor::Args),
    /// List, fetch and verify data sets; show what kiln reads of an experiment's data.
    #[command(after_long_help = examples::DATA)]
    Data(data::Args),
    /// Print the JSON Schema of the experiment file.
    #[command(after_long_help = examples::SCHEMA)]
    Schema(schema::Args),
    /// Print the file with which a program in Python becomes a trial.
    #[command(after_long_help = examples::HELPER)]
    Helper(helper::Args),
    /// Print a completion script for a shell.
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions(completions::Args),
    /// Print the manual page, or write one per command.
    #[command(after_long_help = examples::MAN)]
    Man(man::Args),
    /// Run the command of a trial's file; `kiln run` starts it.
    #[command(hide = true, after_long_help = examples::RELAY)]
    Relay(relay::Args),
}

/// Result of a command, as an exit status (`docs/design.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// 0: every trial has a result.
    Success = 0,
    /// 1: a trial failed, timed out or was killed; a gate fails; a run is not reproduced; two runs
    /// differ (`kiln diff --exit-code`); or the command failed.
    Failed = 1,
    /// 2: bad file or command line.
    BadInput = 2,
    /// 3: the machine cannot run it.
    CannotRun = 3,
    /// 4: these runs cannot decide a gate of `--fail-on`, whether a run is reproduced, or whether
    /// two runs differ.
    CannotTell = 4,
    /// 130: interrupted.
    Interrupted = 130,
}

/// A command that stopped early: the message to print and the exit status.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) status: Status,
    /// One line, or several where a list was given.
    pub(crate) message: String,
    /// The problems of an experiment file that the message tells; empty for another message.
    problems: Vec<Problem>,
}

impl Stop {
    /// A message of one line: a line feed in a path or a value does not end it.
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Self {
        Self::of_lines(status, [message])
    }

    /// A message of several lines.
    pub(crate) fn of_lines(
        status: Status,
        lines: impl IntoIterator<Item = impl fmt::Display>,
    ) -> Self {
        let lines = lines
            .into_iter()
            .map(|line| without_controls(&line.to_string()));
        Self {
            status,
            message: lines.collect::<Vec<_>>().join("\n"),
            problems: Vec::new(),
        }
    }

    pub(crate) fn bad_input(message: impl fmt::Display) -> Self {
        Self::new(Status::BadInput, message)
    }

    /// Every problem of an experiment file, each with the line of the file in which it is.
    pub(crate) fn problems(problems: Problems) -> Self {
        let mut excerpts = excerpt::Excerpts::default();
        let problems = problems.as_slice().to_vec();
        let lines = problems
            .iter()
            .flat_map(|problem| excerpts.with_problem(problem));
        let stop = Self::of_lines(Status::BadInput, lines);
        Self { problems, ..stop }
    }

    /// Prints the message to standard error.
    pub(crate) fn print(&self) {
        // The lines of a file, and those of a list, begin with a space.
        for line in self.message.split('\n') {
            if line.starts_with(' ') {
                note(line);
                continue;
            }
            match terminal::stderr_columns() {
                Some(columns) => frame::wrapped(line, columns)
                    .iter()
                    .for_each(|part| terminal::problem(part)),
                None => terminal::problem(line),
            }
        }
    }
}

/// Writes a page to standard output; a closed pipe (`kiln plan | head`) ends the command without a
/// message. Values in the page must be on one line; a single line goes to [`print_line`].
pub(crate) fn print(page: &str) -> Result<(), Stop> {
    let page = match page_style().width {
        Some(columns) => frame::wrapped_prose(page, columns.into()),
        None => page.to_owned(),
    };
    written(terminal::print(&page)).map(drop)
}

/// Writes one line to standard output.
pub(crate) fn print_line(line: &str) -> Result<(), Stop> {
    written(terminal::print_line(line)).map(drop)
}

/// Writes JSON to standard output, for programs: its values stay exact.
pub(crate) fn print_json(text: &str) -> Result<(), Stop> {
    written(terminal::print_json(text)).map(drop)
}

/// Writes text made of kiln's own words alone to standard output, for a program.
pub(crate) fn print_own(text: &str) -> Result<(), Stop> {
    written(terminal::print_own(text)).map(drop)
}

/// Returns `false` once nobody reads standard output.
pub(crate) fn written(result: io::Result<bool>) -> Result<bool, Stop> {
    result.map_err(|error| {
        Stop::new(
            Status::Failed,
            format!("standard output could not be written: {error}"),
        )
    })
}

/// Becomes true at Ctrl-C and SIGTERM, which then do not end this process.
///
/// # Errors
/// The system takes no handlers.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_stopped))?;
    }
    Ok(is_stopped)
}

/// As wide as the terminal; without a limit for a file or a pipe.
pub(crate) fn page_style() -> crate::report::PageStyle {
    let width = terminal::size()
        .map(|(_, columns)| columns)
        .filter(|columns| *columns > 0 && terminal::stdout_is_terminal());
    crate::report::PageStyle {
        width,
        has_color: terminal::has_color(),
    }
}

pub fn main() -> ExitCode {
    // A limit on the size of files is then an error of the write, and not a signal that ends kiln.
    let _ = signal_hook::flag::register(
        signal_hook::consts::SIGXFSZ,
        Arc::new(AtomicBool::new(false)),
    );
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(print_parsed(&error) as u8),
    };
    terminal::choose_color(cli.color);
    match kiln_hardware::check_setting()
        .and_then(|()| kiln_core::limits::check_setting())
        .and_then(|()| crate::schedule::check_setting())
        .map_err(Stop::bad_input)
        .and_then(|()| perform(cli.verb))
    {
        Ok(status) => ExitCode::from(status as u8),
        Err(stop) => {
            stop.print();
            ExitCode::from(stop.status as u8)
        }
    }
}

/// Reads the command line. A message about it repeats what was typed, so the words are then read
/// once more without hidden characters.
fn parse() -> Result<Cli, clap::Error> {
    let shown = |word: OsString| without_controls(&word.to_string_lossy());
    Cli::try_parse().map_err(|error| {
        let words: Vec<String> = std::env::args_os().map(shown).collect();
        let error = Cli::try_parse_from(&words).err().unwrap_or(error);
        tips::with_tip(error, &words)
    })
}

/// Prints the help that was asked for, or what is wrong with the command line.
fn print_parsed(error: &clap::Error) -> Status {
    let rendered = error.render();
    let text = |has_color: bool| {
        if has_color {
            rendered.ansi().to_string()
        } else {
            rendered.to_string()
        }
    };
    if error.use_stderr() {
        terminal::note_page(&text(terminal::stderr_has_color()));
        return Status::BadInput;
    }
    // As for every page, a closed pipe is not an error.
    match terminal::print(&text(terminal::has_color())) {
        Ok(_) => Status::Success,
        Err(_) => Status::Failed,
    }
}

fn perform(verb: Verb) -> Result<Status, Stop> {
    match verb {
        Verb::Init(args) => init::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Plan(args) => plan::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Tune(args) => tune::run(args),
        Verb::Compare(args) => compare::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Reproduce(args) => reproduce::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Ls(args) => ls::run(args),
        Verb::Rm(args) => rm::run(args),
        Verb::Sample(args) => sample::run(args),
        Verb::Predict(args) => predict::run(args),
        Verb::Evaluate(args) => evaluate::run(args),
        Verb::Export(args) => export::run(args),
        Verb::Snapshot(args) => snapshot::run(args),
        Verb::Watch(args) => watch::run(args),
        Verb::Worker(args) => workers::work(args),
        Verb::Wait(args) => workers::wait(args),
        Verb::Stop(args) => workers::stop(args),
        Verb::Calibrate(args) => calibrate::run(args),
        Verb::Data(args) => data::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Schema(args) => schema::run(args),
        Verb::Helper(args) => helper::run(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => man::run(args),
        Verb::Relay(args) => relay::run(args),
    }
}

/// The whole command line, for completions.
pub(crate) fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A build with debug assertions ends where two groups of one command have one name: those that
    /// clap makes of two structs `Args`.
    #[test]
    fn groups_of_arguments_have_names_of_their_own() {
        fn check(command: &clap::Command) {
            let mut names = HashSet::new();
            for group in command.get_groups() {
                assert!(
                    names.insert(group.get_id().clone()),
                    "{}: two groups `{}`",
                    command.get_name(),
                    group.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&command_line());
    }

    #[test]
    fn json_is_asked_for_by_either_option() {
        let commands: [&[&str]; 12] = [
            &["check", "x.yaml"],
            &["plan", "x.yaml"],
            &["doctor"],
            &["ls"],
            &["report"],
            &["compare", "a", "b"],
            &["diff", "a", "b"],
            &["reproduce", "a"],
            &["sample", "a"],
            &["predict", "a", "b"],
            &["evaluate", "a"],
            &["data", "show", "x.yaml"],
        ];
        let parsed = |command: &[&str], options: &[&str]| {
            let words = [&["kiln"], command, options].concat();
            command_line().try_get_matches_from(words).is_ok()
        };
        for command in commands {
            assert!(parsed(command, &["--json"]), "{command:?}");
            assert!(parsed(command, &["--format", "json"]), "{command:?}");
            let both = ["--json", "--format", "json"];
            assert!(!parsed(command, &both), "{command:?}");
        }
    }
}
