//! Decides what the end of a program means. Pure: the facts of the end come in, a verdict goes out.
//!
//! Exit statuses of a stranger mean nothing in the child's protocol, so they become outcomes; a
//! signal is passed on as a signal, so that the parent decides as for any crash.

use std::{io, path::Path};

use kiln_core::{
    kinds::command::Exits,
    plan::Outcome,
    record::{message::exit_status, metric_reason},
    units::shorten_line,
};

use super::{
    metrics::MetricFault,
    program::{Exit, start_fault},
    words::{STDERR_LINES, Words},
};

/// Lines at the end of standard output that may speak of memory where there is no traceback.
const STDOUT_LINES: usize = 20;
const LONGEST_SHOWN: usize = 300;

/// All facts about the end of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndFacts<'a> {
    pub(super) exit: Exit,
    /// Whether the relay was told to stop.
    pub(super) is_told: bool,
    pub(super) exits: &'a Exits,
    /// Why its metrics are not complete.
    pub(super) fault: Option<&'a MetricFault>,
    /// The program for the reason: `python train.py`.
    pub(super) program: &'a str,
    pub(super) stderr_tail: &'a str,
    pub(super) stdout_tail: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramVerdict {
    Finished {
        outcome: Outcome,
        reason: Option<String>,
        /// The exit status of the relay.
        status: i32,
    },
    /// The relay ends by the signal that ended the program, without a result.
    Signal(i32),
}

impl ProgramVerdict {
    pub(super) fn failed(reason: String) -> Self {
        Self::of(Outcome::Failed, Some(reason))
    }

    pub(super) fn interrupted() -> Self {
        Self::of(Outcome::Interrupted, Some("it was told to stop".to_owned()))
    }

    /// The verdict where this machine cannot run the program now: the parent interrupts the trial, and
    /// starts no other one.
    pub(super) fn unable(reason: String) -> Self {
        Self::Finished {
            outcome: Outcome::Failed,
            reason: Some(reason),
            status: exit_status::NO_DEVICE,
        }
    }

    /// The end where a thread that reads the program cannot be started.
    pub(super) fn without_threads(error: &io::Error) -> Self {
        let why = start_fault(error);
        Self::unable(format!(
            "a thread to read its program cannot be started: {why}"
        ))
    }

    fn of(outcome: Outcome, reason: Option<String>) -> Self {
        let status = match outcome {
            Outcome::Completed | Outcome::Diverged => exit_status::RESULT,
            Outcome::Oom => exit_status::OOM,
            Outcome::Interrupted => exit_status::INTERRUPTED,
            _ => exit_status::FAILED,
        };
        Self::Finished {
            outcome,
            reason,
            status,
        }
    }
}

pub(super) fn decide(ended: &EndFacts) -> ProgramVerdict {
    let EndFacts { program, exits, .. } = ended;
    if ended.is_told {
        return ProgramVerdict::interrupted();
    }
    let status = match ended.exit {
        Exit::Signal(signal) => return ProgramVerdict::Signal(signal),
        Exit::Status(status) => status,
    };
    let words = [
        (Words::of(ended.stdout_tail), STDOUT_LINES),
        (Words::of(ended.stderr_tail), STDERR_LINES),
    ];
    let with_line = |what: String| {
        let [(stdout, _), (stderr, _)] = &words;
        let telling = stderr.telling_line().or_else(|| stdout.telling_line());
        let line = telling.or_else(|| stderr.line().or_else(|| stdout.line()));
        Some(with_words(what, line))
    };
    let says = |what: &str| with_line(format!("{program} ended with status {status}, {what}"));
    if exits.oom.contains(&status) {
        return ProgramVerdict::of(Outcome::Oom, says("which means that memory ran out"));
    }
    if exits.diverged.contains(&status) {
        return ProgramVerdict::of(
            Outcome::Diverged,
            says("which means that the training diverged"),
        );
    }
    match (status, ended.fault) {
        (0, None) => ProgramVerdict::of(Outcome::Completed, None),
        (0, Some(MetricFault::Diverged(why))) => {
            ProgramVerdict::of(Outcome::Diverged, Some(why.clone()))
        }
        (0, Some(MetricFault::Missing(why))) => {
            ProgramVerdict::failed(metric_reason::of_program(program, why))
        }
        _ if Words::either_speaks_of_memory(&words) => ProgramVerdict::of(
            Outcome::Oom,
            with_line(format!(
                "{program} ran out of memory and ended with status {status}"
            )),
        ),
        (_, Some(MetricFault::Diverged(why))) => ProgramVerdict::of(
            Outcome::Diverged,
            with_line(format!("{why}, and {program} ended with status {status}")),
        ),
        _ => ProgramVerdict::of(
            Outcome::Failed,
            with_line(format!("{program} ended with status {status}")),
        ),
    }
}

/// `prepare ended with status 2: <line>`.
pub(super) fn prepare_failed(exit: Exit, tail: &str) -> String {
    let what = match exit {
        Exit::Status(status) => format!("prepare ended with status {status}"),
        Exit::Signal(signal) => format!("prepare was ended by signal {signal}"),
    };
    with_words(what, Words::of(tail).line())
}

fn with_words(what: String, line: Option<&str>) -> String {
    match line {
        Some(line) => format!("{what}: {}", shortened(line)),
        None => what,
    }
}

/// A program for a message: the names of the program and of the script that it runs.
pub fn shown(argv: &[String]) -> String {
    let name = |text: &String| {
        let name = Path::new(text).file_name();
        name.map_or_else(|| text.clone(), |name| name.to_string_lossy().into_owned())
    };
    let script = argv.get(1).filter(|text| {
        let is_script = [".py", ".sh", ".pl", ".rb", ".js", ".R", ".jl"];
        is_script.iter().any(|end| text.ends_with(end))
    });
    argv.first()
        .into_iter()
        .chain(script)
        .map(name)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A line of a program's output for a reason: without control characters, and cut if it is long.
pub fn shortened(line: &str) -> String {
    shorten_line(line, LONGEST_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NO_EXITS: Exits = Exits {
        oom: Vec::new(),
        diverged: Vec::new(),
    };

    fn ended(exit: Exit) -> EndFacts<'static> {
        EndFacts {
            exit,
            is_told: false,
            exits: &NO_EXITS,
            fault: None,
            program: "python train.py",
            stderr_tail: "",
            stdout_tail: "",
        }
    }

    fn in_words(verdict: ProgramVerdict) -> String {
        match verdict {
            ProgramVerdict::Signal(signal) => format!("signal {signal}"),
            ProgramVerdict::Finished {
                outcome,
                reason,
                status,
            } => format!("{outcome} {status} {}", reason.unwrap_or_default()),
        }
    }

    #[test]
    fn a_limit_of_threads_is_a_fault_of_the_machine_with_its_remedy() {
        // No machine has room for such a stack; the system then says the same as at a limit of threads.
        let started = std::thread::Builder::new().stack_size(1 << 60).spawn(|| ());
        let words = in_words(ProgramVerdict::without_threads(&started.unwrap_err()));
        let status = format!("{} {} ", Outcome::Failed, exit_status::NO_DEVICE);
        assert!(words.starts_with(&status), "{words}");
        assert!(
            words.contains("`ulimit -u`") && words.contains("`pids.max`"),
            "{words}"
        );
    }

    #[test]
    fn every_row_of_the_table_of_ends() {
        let exits = Exits {
            oom: vec![3],
            diverged: vec![9],
        };
        let missing = MetricFault::Missing("`gflops` never came".to_owned());
        let diverged = MetricFault::Diverged("`train_loss` is NaN".to_owned());
        let status = |status| ended(Exit::Status(status));
        for (facts, expected) in [
            (status(0), "completed 0 "),
            (
                EndFacts {
                    fault: Some(&missing),
                    ..status(0)
                },
                "failed 1 python train.py ended with status 0, and `gflops` never came",
            ),
            (
                EndFacts {
                    fault: Some(&diverged),
                    ..status(0)
                },
                "diverged 0 `train_loss` is NaN",
            ),
            (
                EndFacts {
                    exits: &exits,
                    ..status(3)
                },
                "oom 4 python train.py ended with status 3, which means that memory ran out",
            ),
            (
                EndFacts {
                    exits: &exits,
                    stdout_tail: "boom\n",
                    ..status(9)
                },
                "diverged 0 python train.py ended with status 9, which means that the training \
                 diverged: boom",
            ),
            (
                EndFacts {
                    stderr_tail: "x\nMemoryError\n",
                    ..status(1)
                },
                "oom 4 python train.py ran out of memory and ended with status 1: MemoryError",
            ),
            (
                EndFacts {
                    stderr_tail: "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 \
                                  GiB\n",
                    ..status(1)
                },
                "oom 4 python train.py ran out of memory and ended with status 1: \
                 numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB",
            ),
            (
                EndFacts {
                    stderr_tail: "usage: train.py\n\n",
                    fault: Some(&missing),
                    ..status(2)
                },
                "failed 1 python train.py ended with status 2: usage: train.py",
            ),
            (
                EndFacts {
                    stderr_tail: "\r100%|####| 10/10 [00:01<00:00]",
                    stdout_tail: "cannot read x.bin\n",
                    ..status(1)
                },
                "failed 1 python train.py ended with status 1: cannot read x.bin",
            ),
            (
                EndFacts {
                    stderr_tail: "cannot open /data/images/item_3.png\n",
                    stdout_tail: "starting up\n",
                    ..status(1)
                },
                "failed 1 python train.py ended with status 1: cannot open /data/images/item_3.png",
            ),
            (status(3), "failed 1 python train.py ended with status 3"),
            (
                status(130),
                "failed 1 python train.py ended with status 130",
            ),
            (ended(Exit::Signal(11)), "signal 11"),
            (ended(Exit::Signal(9)), "signal 9"),
            (
                EndFacts {
                    is_told: true,
                    ..ended(Exit::Signal(15))
                },
                "interrupted 130 it was told to stop",
            ),
            (
                EndFacts {
                    is_told: true,
                    ..status(0)
                },
                "interrupted 130 it was told to stop",
            ),
        ] {
            assert_eq!(in_words(decide(&facts)), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_program_is_shown_with_its_script() {
        let shown = |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|text| (*text).to_owned()).collect();
            shown(&argv)
        };
        assert_eq!(
            shown(&[".venv/bin/python", "src/train.py", "--bs"]),
            "python train.py"
        );
        assert_eq!(shown(&["build/gemm", "-n", "3"]), "gemm");
    }
}
