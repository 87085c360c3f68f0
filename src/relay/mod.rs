//! `kiln relay trial.yaml`: runs a command as a trial. The trial's file comes in; the messages, the
//! result and the exit of a trial's process come out (`docs/child-protocol.md`).
//!
//! It starts the program, reads its output without ever holding it up, and turns lines and files into
//! metrics and the program's end into an outcome. The parent sees a child like any other.

mod end;
mod files;
mod forward;
mod guard;
mod keeper;
mod kept_attempt;
mod kept_output;
mod life;
mod lines;
mod messages;
mod metrics;
mod near_miss;
mod number;
mod pattern;
mod program;
mod program_ended;
mod result;
mod resumed;
mod streams;
mod words;

use std::{
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use kiln_core::{
    kinds::{Model, command::Command},
    plan::{Outcome, TrialFile},
    record::{Message, message::exit_status, trial_file},
};
use libc::{SIGINT, SIGTERM};

pub use end::{shortened, shown};
pub use keeper::keep;
pub use kept_attempt::{KeptAttempt, NotReadable, check_kept, read_again};
pub use kept_output::KeptOutput;
pub use program::{Exit, ProgramFault, find_program, placeholders};
pub use words::{STDERR_LINES, Words};

use crate::processes;
use end::{EndFacts, ProgramVerdict};
use guard::Guard;
use messages::Talk;
use metrics::{Measurements, Metrics};
use program::{ProgramEnd, Started};
use program_ended::ProgramEnded;
use streams::{ProgramEvent, ReadOutput, Streams};

/// Standard output of a program, in the folder of its attempt.
pub const STDOUT: &str = "stdout.txt";
/// Time between two looks at the program.
const LOOK: Duration = Duration::from_millis(250);
/// Longest time that an ended program's output may stay open: a process that it left holds it.
const PIPES_MAY_LINGER: Duration = Duration::from_secs(2);
/// Longest time for the end of the processes that an ended program left.
const PROCESSES_MAY_LINGER: Duration = Duration::from_secs(2);
/// Time for a signal that reached the program to reach the relay as well.
const SIGNAL_DELAY: Duration = Duration::from_millis(100);

/// Runs the command of a trial's file; the exit status of the relay.
pub fn run(trial_file: &Path) -> i32 {
    let (file, command) = match read(trial_file) {
        Ok(read) => read,
        Err(why) => {
            complain(&why);
            return exit_status::BAD_FILE;
        }
    };
    let guard = match Guard::start() {
        Ok(guard) => guard,
        Err(error) => {
            complain(&format!(
                "the thread for signals cannot be started: {}",
                program::start_fault(&error)
            ));
            return exit_status::NO_DEVICE;
        }
    };
    Relay {
        file: &file,
        command: &command,
        trial_file,
        guard,
        talk: Talk::default(),
        finds_checkpoint: resumed::finds_checkpoint(
            file.attempt,
            file.checkpoint_folder.as_deref(),
        ),
    }
    .run()
}

fn read(path: &Path) -> Result<(TrialFile, Command), String> {
    let file = trial_file::read(path).map_err(|error| error.to_string())?;
    match file.model.clone() {
        Model::Command(command) => Ok((file, command)),
        other => Err(format!(
            "{}: `model.kind` is `{}`; `kiln relay` runs trials of `command`",
            path.display(),
            other.kind()
        )),
    }
}

/// Standard error of the relay is the attempt's `stderr.txt`.
fn complain(text: &str) {
    streams::write_to_stderr(format!("kiln relay: {text}\n").as_bytes());
}

/// A `prepare` that the machine cannot start now is not a fault of the trial.
fn prepare_not_started(fault: ProgramFault) -> ProgramVerdict {
    let why = format!("prepare: {fault}");
    match fault {
        ProgramFault::NotStarted { .. } => ProgramVerdict::unable(why),
        _ => ProgramVerdict::failed(why),
    }
}

struct Relay<'a> {
    file: &'a TrialFile,
    command: &'a Command,
    trial_file: &'a Path,
    guard: Guard,
    talk: Talk,
    /// Whether an earlier attempt left a checkpoint.
    finds_checkpoint: bool,
}

impl Relay<'_> {
    fn run(mut self) -> i32 {
        self.talk.say(&Message::Hello {
            protocol: kiln_core::record::message::PROTOCOL,
            kiln_trial: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        });
        let placeholders = placeholders(self.file, self.trial_file);
        let expanded = self.command.expand(&placeholders);
        // Before `prepare`, whose files are of this attempt too.
        let metrics = match Metrics::new(self.command, &placeholders) {
            Ok(metrics) => metrics,
            Err(why) => return self.end(ProgramVerdict::failed(why), None),
        };
        if let Some(why) = metrics.unknown_file() {
            complain(&why);
            return exit_status::NO_DEVICE;
        }
        if !expanded.prepare.is_empty()
            && let Err(verdict) = self.prepare(&expanded)
        {
            return self.end(verdict, None);
        }
        let started = match program::start(&expanded, &expanded.argv) {
            Ok(started) => started,
            // The values of this trial are at fault, not the machine.
            Err(fault @ ProgramFault::TooLong(_)) => {
                return self.end(ProgramVerdict::failed(fault.to_string()), None);
            }
            Err(fault) => {
                complain(&fault.to_string());
                return exit_status::NO_DEVICE;
            }
        };
        self.talk.say(&Message::Ready {
            parameters: None,
            total_steps: None,
            device_name: String::new(),
            libraries: Default::default(),
        });
        self.watch(started, metrics, &expanded.argv)
    }

    /// Runs `prepare` to its end; its output goes to `prepare.txt`.
    fn prepare(
        &mut self,
        expanded: &kiln_core::kinds::command::Expanded,
    ) -> Result<(), ProgramVerdict> {
        let path = self.file.folder.join("prepare.txt");
        let prepared = program::start(expanded, &expanded.prepare).map_err(prepare_not_started)?;
        let (sender, events) = channel();
        let streams = Streams::keep(prepared, &path, sender)
            .map_err(|error| ProgramVerdict::without_threads(&error))?;
        self.tell_unkept("prepare.txt", &streams);
        let ended = loop {
            match events.recv_timeout(LOOK) {
                Ok(ProgramEvent::Ended(ended)) => break ended,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ProgramVerdict::failed(
                        "prepare could not be waited for".to_owned(),
                    ));
                }
                _ if streams.has_worked() => self.talk.say(&Message::Alive),
                _ => {}
            }
        };
        // A process that it leaves, such as a server for the program, runs until the trial ends.
        let read = streams.finish(PIPES_MAY_LINGER, || ());
        if self.guard.is_told() {
            return Err(ProgramVerdict::interrupted());
        }
        match ended.exit {
            Exit::Status(0) => Ok(()),
            exit => Err(ProgramVerdict::failed(end::prepare_failed(
                exit,
                read.tail(),
            ))),
        }
    }

    /// Reads a started program to its end.
    fn watch(mut self, started: Started, metrics: Metrics, argv: &[String]) -> i32 {
        let (sender, events) = channel();
        let began = started.began;
        let window = self.command.window.as_ref();
        if window.is_none_or(|window| window.from.is_none()) {
            self.say_window(true, began);
        }
        let streams = match Streams::read(started, metrics, &self.file.folder, sender) {
            Ok(streams) => streams,
            Err(error) => return self.end(ProgramVerdict::without_threads(&error), None),
        };
        self.tell_unkept(STDOUT, &streams);
        let Some(ended) = self.listen(&streams, &events) else {
            let why = "the program could not be waited for".to_owned();
            return self.end(ProgramVerdict::failed(why), None);
        };
        let read = streams.finish(PIPES_MAY_LINGER, || {
            processes::end_descendants(PROCESSES_MAY_LINGER);
        });
        while let Ok(event) = events.try_recv() {
            if let ProgramEvent::WindowBegan(at) = event {
                self.say_window(true, at);
            }
        }
        if matches!(ended.exit, Exit::Signal(SIGTERM | SIGINT)) {
            self.wait_for_the_signal();
        }
        self.conclude(began, ended, read, argv)
    }

    /// Tells the parent of an output that is read and not kept.
    fn tell_unkept(&mut self, file: &str, streams: &Streams) {
        if let Some(fault) = &streams.kept_fault {
            let text = format!("{file} could not be written, so the output is not kept: {fault}");
            self.talk.say(&Message::Notice { text });
        }
    }

    /// Tells the parent what the program does until it ends; `None` if it cannot be waited for.
    fn listen(&mut self, streams: &Streams, events: &Receiver<ProgramEvent>) -> Option<ProgramEnd> {
        loop {
            match events.recv_timeout(LOOK) {
                Ok(ProgramEvent::Ended(ended)) => return Some(ended),
                Ok(ProgramEvent::WindowBegan(at)) => self.say_window(true, at),
                Ok(ProgramEvent::WindowEnded(at)) => self.say_window(false, at),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            self.talk
                .progress(&streams.progress(), || streams.has_worked());
            for text in streams.notices() {
                self.talk.say(&Message::Notice { text });
            }
        }
    }

    /// Takes the numbers of an ended program, and ends with them.
    fn conclude(
        mut self,
        began: u64,
        ended: ProgramEnd,
        mut read: ReadOutput,
        argv: &[String],
    ) -> i32 {
        let measured = Measurements {
            began,
            ended: ended.at,
            cpu_seconds: ended.cpu_seconds,
            peak_memory_bytes: ended.peak_memory_bytes,
        };
        read.metrics.read_files();
        let attempt = format!("trials/{}/{}", self.file.trial, self.file.attempt);
        read.metrics
            .find_near_misses(&attempt, &read.stdout_tail, &read.stderr_tail);
        let window = read.metrics.window(began, ended.at);
        let (numbers, fault) = read.metrics.numbers(&measured);
        self.record_end(ended.exit, measured, window.clone().ok(), &read);
        let verdict = end::decide(&EndFacts {
            exit: ended.exit,
            is_told: self.guard.is_told(),
            exits: &self.command.exits,
            fault: fault.as_ref(),
            program: &shown(argv),
            stderr_tail: &read.stderr_tail,
            stdout_tail: &read.stdout_tail,
        });
        if let Ok((_, at)) = &window {
            self.say_window(false, *at);
        }
        let mut figures = result::Figures {
            window: window.as_ref().ok().copied(),
            missing_window: window.err(),
            numbers,
            notes: read.metrics.notes(),
            peak_memory_bytes: ended.peak_memory_bytes,
        };
        resumed::mark(self.command, self.finds_checkpoint, &mut figures);
        self.end(verdict, Some(figures))
    }

    /// Writes `program.json`.
    fn record_end(
        &self,
        exit: Exit,
        measured: Measurements,
        window_nanoseconds: Option<(u64, u64)>,
        read: &ReadOutput,
    ) {
        let exit_status = match exit {
            Exit::Status(status) if !self.guard.is_told() => Some(status),
            _ => None,
        };
        ProgramEnded {
            kiln_program: program_ended::FORMAT,
            attempt: self.file.attempt,
            exit_status,
            measured,
            window_nanoseconds,
            finds_checkpoint: self.finds_checkpoint,
            stdout_bytes: read.stdout_bytes,
            stderr_bytes: read.stderr_bytes,
        }
        .write(&self.file.folder);
    }

    fn wait_for_the_signal(&self) {
        let until = Instant::now() + SIGNAL_DELAY;
        while !self.guard.is_told() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn say_window(&mut self, begins: bool, monotonic_nanoseconds: u64) {
        let step = self.talk.step();
        self.talk.say(&match begins {
            true => Message::WindowStarted {
                step,
                monotonic_nanoseconds,
            },
            false => Message::WindowEnded {
                step,
                monotonic_nanoseconds,
            },
        });
    }

    /// Writes the result, says `finished`, and returns the exit status; a signal that ended the
    /// program ends the relay as well, without `finished`.
    fn end(&mut self, verdict: ProgramVerdict, figures: Option<result::Figures>) -> i32 {
        processes::end_descendants(PROCESSES_MAY_LINGER);
        let (outcome, reason, status) = match verdict {
            ProgramVerdict::Signal(signal) => {
                // Keeps what was read so far; the parent decides on the outcome.
                if figures.is_some()
                    && let Err(error) = result::write(self.file, Outcome::Failed, None, figures)
                {
                    complain(&format!("trial.json: {error}"));
                }
                return program::end_by(signal);
            }
            ProgramVerdict::Finished {
                outcome,
                reason,
                status,
            } => (outcome, reason, status),
        };
        if let Err(error) = result::write(self.file, outcome, reason.as_deref(), figures) {
            complain(&format!("trial.json: {error}"));
            return match error.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    exit_status::DISK_FULL
                }
                _ => exit_status::FAILED,
            };
        }
        self.talk.say(&Message::Finished { outcome, reason });
        status
    }
}
