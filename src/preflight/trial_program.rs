//! Runs `kiln-trial --examine` for facts that only the child knows. The program's path comes in;
//! its findings go out and, if it stopped early, the cause. `loading` and `libtorch` interpret
//! them.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use kiln_core::record::examination::{Build, Cuda, EXAMINATION, Finding, Nvrtc, Product};

use crate::subprocess::{Group, not_started, run_limited};

use super::loading::{LoadFault, LoadFaultKind, cut_off, load_fault, searched};

/// The child's findings.
#[derive(Clone, Debug, Default)]
pub struct ExamineAnswer {
    pub program: PathBuf,
    pub build: Option<Build>,
    pub cuda: Option<Cuda>,
    pub nvrtc: Vec<Nvrtc>,
    pub products: Vec<Product>,
    /// Cause of an early stop.
    pub fault: Option<ChildFault>,
    /// Whether it completed.
    pub is_done: bool,
    /// Whether the matrix products were skipped.
    pub is_quick: bool,
}

impl ExamineAnswer {
    /// Whether the program started but printed no findings in kiln's format.
    pub fn is_of_a_foreign_program(&self) -> bool {
        let is_foreign = matches!(self.fault, Some(ChildFault::Ended { status, .. }) if ![126, 127].contains(&status));
        self.build.is_none() && is_foreign
    }
}

/// Reason why the child stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChildFault {
    /// There is no such file.
    NotThere,
    /// The system refused to start it.
    NotStarted(String),
    /// The dynamic loader could not load it.
    Loading(LoadFault),
    /// It does not know `--examine`.
    Older,
    /// Its output has a newer format than this program supports.
    Newer(u32),
    Signal(i32),
    /// Another exit status, with the last line of its standard error.
    Ended {
        status: i32,
        last_line: String,
    },
    /// It did not end in time.
    Silent(Duration),
}

/// Options for the child.
#[derive(Clone, Copy, Debug)]
pub struct ExamineRequest {
    /// Skip the matrix products.
    pub is_quick: bool,
    /// Time limit; the child is then killed.
    pub time_limit: Duration,
}

/// Starts `program` and reads its findings.
pub fn ask(program: &Path, asking: ExamineRequest) -> ExamineAnswer {
    let mut answer = ExamineAnswer {
        program: program.to_owned(),
        is_quick: asking.is_quick,
        ..ExamineAnswer::default()
    };
    let heard = match start(program, asking) {
        Ok(heard) => heard,
        Err(fault) => {
            return ExamineAnswer {
                fault: Some(fault),
                ..answer
            };
        }
    };
    let newer = take_findings(&mut answer, &heard.said);
    answer.fault = newer
        .map(ChildFault::Newer)
        .or_else(|| fault(program, &heard, &answer, asking.time_limit));
    answer
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--examine");
    // Messages of the loader and the system are parsed here, so they must be in English.
    command.env("LC_ALL", "C").env_remove("RUST_BACKTRACE");
    command
}

fn start(program: &Path, asking: ExamineRequest) -> Result<ExaminedChild, ChildFault> {
    if !program.exists() {
        return Err(ChildFault::NotThere);
    }
    let mut command = command(program);
    if asking.is_quick {
        command.arg("--quick");
    }
    examined(command, asking.time_limit)
        .map_err(|error| ChildFault::NotStarted(not_started(&error)))
}

/// Most bytes of an answer; an examination has some kilobytes.
const MOST_ANSWER_BYTES: u64 = 16 << 20;

/// A child that ended or was killed, with what it had written.
struct ExaminedChild {
    /// `None` if it had to be killed.
    status: Option<ExitStatus>,
    said: String,
    complained: String,
}

fn examined(command: Command, time_limit: Duration) -> io::Result<ExaminedChild> {
    let heard = run_limited(command, Group::Ours, time_limit, MOST_ANSWER_BYTES)?;
    let text =
        |stream: Option<Vec<u8>>| String::from_utf8_lossy(&stream.unwrap_or_default()).into_owned();
    Ok(ExaminedChild {
        status: heard.status,
        said: text(heard.stdout),
        complained: text(heard.stderr),
    })
}

/// Parses the lines; returns the format's number if it is newer than this program's.
fn take_findings(answer: &mut ExamineAnswer, said: &str) -> Option<u32> {
    for line in said.lines() {
        match serde_json::from_str(line) {
            Ok(Finding::Build(build)) if build.kiln_examination > EXAMINATION => {
                return Some(build.kiln_examination);
            }
            Ok(Finding::Build(build)) => answer.build = Some(build),
            Ok(Finding::Cuda(cuda)) => answer.cuda = Some(cuda),
            Ok(Finding::Nvrtc(nvrtc)) => answer.nvrtc.push(nvrtc),
            Ok(Finding::Product(product)) => answer.products.push(product),
            Ok(Finding::Done) => answer.is_done = true,
            Ok(Finding::Unknown) | Err(_) => {}
        }
    }
    None
}

fn fault(
    program: &Path,
    heard: &ExaminedChild,
    answer: &ExamineAnswer,
    time_limit: Duration,
) -> Option<ChildFault> {
    let Some(status) = heard.status else {
        return Some(ChildFault::Silent(time_limit));
    };
    if let Some(mut fault) = load_fault(&heard.complained) {
        fault.searched = look_again(program)
            .map(|said| searched(&said, &fault.library))
            .unwrap_or_default();
        return Some(ChildFault::Loading(fault));
    }
    // The loader itself crashes on a file that is shorter than its headers say.
    if status.signal().is_some()
        && answer.build.is_none()
        && let Some(library) = look_again(program).ok().and_then(|said| cut_off(&said))
    {
        return Some(ChildFault::Loading(LoadFault {
            library,
            kind: LoadFaultKind::Truncated,
            searched: Vec::new(),
        }));
    }
    let last_line = heard
        .complained
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .to_owned();
    match (status.signal(), status.code()) {
        (Some(signal), _) => Some(ChildFault::Signal(signal)),
        (_, Some(0)) if answer.is_done => None,
        (_, Some(2)) if answer.build.is_none() && last_line.contains("--examine") => {
            Some(ChildFault::Older)
        }
        (_, status) => Some(ChildFault::Ended {
            status: status.unwrap_or(-1),
            last_line,
        }),
    }
}

/// Starts the program again with the loader printing its search paths. It fails before the
/// program's first line runs.
fn look_again(program: &Path) -> io::Result<String> {
    let mut command = command(program);
    command.env("LD_DEBUG", "libs");
    Ok(examined(command, Duration::from_secs(20))?.complained)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::write_program;

    fn asked(script: &str, time_limit: Duration) -> ExamineAnswer {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kiln-trial");
        write_program(&program, &format!("#!/bin/sh\n{script}\n"));
        ask(
            &program,
            ExamineRequest {
                is_quick: true,
                time_limit,
            },
        )
    }

    const BUILD: &str = r#"echo '{"finding":"build","kiln_examination":1,"kiln_trial":"0.1.0","engines":["flex"]}'"#;

    #[test]
    fn each_way_to_fall_silent_is_told_apart() {
        let fault = |script: &str| asked(script, Duration::from_secs(60)).fault;
        assert_eq!(
            fault(&format!(
                "{BUILD}; echo '{{\"finding\":\"of next year\"}}'; echo '{{\"finding\":\"done\"}}'"
            )),
            None
        );
        assert_eq!(
            fault(BUILD),
            Some(ChildFault::Ended {
                status: 0,
                last_line: String::new()
            })
        );
        assert_eq!(
            fault("echo 'kiln-trial: unknown option `--examine`; try --help' >&2; exit 2"),
            Some(ChildFault::Older)
        );
        assert_eq!(fault("kill -SEGV $$"), Some(ChildFault::Signal(11)));
        assert_eq!(
            fault("echo first >&2; echo last >&2; exit 9"),
            Some(ChildFault::Ended {
                status: 9,
                last_line: "last".into()
            })
        );
        assert_eq!(
            fault("exit 0"),
            Some(ChildFault::Ended {
                status: 0,
                last_line: String::new()
            })
        );
        assert_eq!(
            fault(&BUILD.replace(":1,", ":7,")),
            Some(ChildFault::Newer(7))
        );
        let loading = fault(
            "echo 'x: error while loading shared libraries: libc10.so: cannot open shared object \
             file: No such file' >&2; exit 127",
        );
        assert!(
            matches!(loading, Some(ChildFault::Loading(LoadFault { ref library, .. })) if library == "libc10.so"),
            "{loading:?}"
        );
    }

    #[test]
    fn what_was_said_before_a_hang_is_kept() {
        // On a busy machine a script may need longer than the first limit to print a line.
        let is_kept = [200, 2_000, 20_000]
            .into_iter()
            .map(Duration::from_millis)
            .any(|limit| {
                let answer = asked(&format!("{BUILD}; exec sleep 600"), limit);
                assert_eq!(answer.fault, Some(ChildFault::Silent(limit)));
                answer
                    .build
                    .is_some_and(|build| build.kiln_trial == "0.1.0")
            });
        assert!(is_kept);
    }

    #[test]
    fn a_file_that_is_missing_or_no_program_is_no_panic() {
        let asking = ExamineRequest {
            is_quick: true,
            time_limit: Duration::from_secs(5),
        };
        assert_eq!(
            ask(Path::new("/nowhere/kiln-trial"), asking).fault,
            Some(ChildFault::NotThere)
        );
        assert!(matches!(
            ask(Path::new("Cargo.toml"), asking).fault,
            Some(ChildFault::NotStarted(_))
        ));
    }
}
