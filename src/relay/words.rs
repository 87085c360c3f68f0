//! What the last part of a program's output says about its end. Pure.

use std::collections::BTreeSet;

use kiln_core::plan::{speaks_of_memory, without_rank};

const TRACEBACK: &str = "Traceback (most recent call last)";
/// Lines of an exception's message that may speak of memory.
const MESSAGE_LINES: usize = 6;
/// Words of the lines with which a runtime ends its process.
const FATAL: [&str; 3] = ["terminate called", "what():", "memory allocation of "];

/// Exceptions of programs that start others, which follow those of the others.
const OF_LAUNCHERS: [&str; 2] = ["ChildFailedError", "CalledProcessError"];
/// Words of lines that stand last in an output and say nothing about the end: the source of a
/// warning, a bar of progress, Hydra's hint.
const ASIDES: [&str; 5] = ["warn(", "%|", "it/s", "s/it", "HYDRA_FULL_ERROR=1"];

/// What is left of tqdm's second bar.
const CURSOR_UP: &str = "\u{1b}[A";

/// The end of an output, and the exceptions of Python's tracebacks in it.
#[derive(Debug)]
pub struct Words<'a> {
    /// What a Rust program says before its backtrace.
    said: &'a str,
    exceptions: Vec<Exception<'a>>,
}

#[derive(Debug)]
struct Exception<'a> {
    /// The name of the process in front of its lines, or nothing.
    rank: &'a str,
    line: &'a str,
    /// With the lines that follow.
    message: String,
}

impl<'a> Words<'a> {
    pub fn of(tail: &'a str) -> Self {
        let lines: Vec<&str> = tail.split(['\n', '\r']).collect();
        Self {
            said: tail.split("stack backtrace:").next().unwrap_or_default(),
            exceptions: exceptions(&lines),
        }
    }

    /// The line that says most about an end: the exception of the last traceback, of `torchrun` that
    /// of the process which failed first; else the last line that is no aside.
    pub fn telling_line(&self) -> Option<&'a str> {
        self.exception().or_else(|| self.last_words())
    }

    /// The same, or any last line.
    pub fn line(&self) -> Option<&'a str> {
        self.telling_line().or_else(|| self.lines().next())
    }

    /// The last line of a program that kiln then stopped. None with a traceback: the stop may have
    /// caused it.
    pub fn line_before_a_stop(&self) -> Option<&'a str> {
        match self.exceptions.is_empty() {
            true => self.last_words(),
            false => None,
        }
    }

    fn exception(&self) -> Option<&'a str> {
        let is_own = |exception: &&Exception| {
            let name = class_name(without_rank(exception.line));
            !OF_LAUNCHERS.iter().any(|end| name.ends_with(end))
        };
        let mut own = self.exceptions.iter().filter(is_own);
        let first = own.clone().find(|exception| !exception.rank.is_empty());
        let chosen = match first {
            Some(first) => own.rfind(|exception| exception.rank == first.rank),
            None => own.next_back(),
        };
        let chosen = chosen.or(self.exceptions.last());
        chosen.map(|exception| exception.line)
    }

    fn last_words(&self) -> Option<&'a str> {
        self.lines().find(|line| !is_aside(line))
    }

    /// Whether memory ran out: exceptions decide; without one, the last `count` lines, and those
    /// before them that look like the end of a process.
    pub fn speak_of_memory(&self, count: usize) -> bool {
        self.end_by_memory() || (self.exceptions.is_empty() && self.mention_memory(count))
    }

    /// The same of both outputs of a program, with the number of last lines of each.
    pub(super) fn either_speaks_of_memory(of: &[(Self, usize); 2]) -> bool {
        let has_exception = of.iter().any(|(words, _)| !words.exceptions.is_empty());
        of.iter().any(|(words, count)| {
            words.end_by_memory() || (!has_exception && words.mention_memory(*count))
        })
    }

    fn end_by_memory(&self) -> bool {
        let is_fatal = |line: &str| FATAL.iter().any(|words| line.contains(words));
        self.exceptions
            .iter()
            .any(|exception| speaks_of_memory(&exception.message))
            || self
                .lines()
                .any(|line| is_fatal(line) && speaks_of_memory(line))
    }

    fn mention_memory(&self, count: usize) -> bool {
        let last: Vec<&str> = self.said.lines().rev().take(count).collect();
        speaks_of_memory(&last.join("\n"))
            || self
                .lines()
                .any(|line| is_error(without_rank(line)) && speaks_of_memory(line))
    }

    /// The last line first.
    fn lines(&self) -> impl Iterator<Item = &'a str> {
        let lines = self.said.split(['\n', '\r']).rev().map(str::trim);
        lines.filter(|line| !line.is_empty())
    }
}

fn exceptions<'a>(lines: &[&'a str]) -> Vec<Exception<'a>> {
    let mut found = Vec::new();
    // Processes whose traceback has begun, and whose exception has not come yet.
    let mut open = BTreeSet::new();
    for (at, line) in lines.iter().copied().enumerate() {
        let (rank, rest) = parts(line);
        if begins_traceback(rest) {
            open.insert(rank);
        } else if !is_frame(rest) && is_name(rest) && open.remove(rank) {
            let message: Vec<&str> = lines[at..]
                .iter()
                .copied()
                .map(parts)
                .filter(|(of, _)| *of == rank)
                .map(|(_, rest)| rest)
                .take_while(|rest| !is_frame(rest) && !begins_traceback(rest))
                .take(MESSAGE_LINES)
                .collect();
            found.push(Exception {
                rank,
                line: line.trim(),
                message: message.join("\n"),
            });
        }
    }
    found
}

/// The names of a line's process, and the rest of it.
fn parts(line: &str) -> (&str, &str) {
    let rest = without_rank(line);
    (line[..line.len() - rest.len()].trim_end(), rest)
}

/// Also of the worker of a PyTorch data loader, and as Rich draws it.
fn begins_traceback(rest: &str) -> bool {
    rest.contains(TRACEBACK)
        && (rest.starts_with(TRACEBACK) || rest.starts_with("Original ") || rest.starts_with('╭'))
}

fn is_frame(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([' ', '\t', '│', '╰', '>'])
}

fn is_aside(line: &str) -> bool {
    !line.contains(char::is_alphanumeric)
        || line.starts_with("note: ")
        || line == CURSOR_UP
        || ASIDES.iter().any(|words| line.contains(words))
        || is_warning_of_python(line)
}

/// `/x/resource_tracker.py:254: UserWarning: text`, or Lightning's `/x/tree.py:21: it is deprecated`.
fn is_warning_of_python(line: &str) -> bool {
    let after = line.split_once(".py:").map_or("", |(_, after)| after);
    let text = after.trim_start_matches(|c: char| c.is_ascii_digit());
    text.len() < after.len()
        && text.starts_with(": ")
        && (text.contains("Warning: ") || text.contains("deprecated"))
}

/// Whether a line begins with the name of a class: `torch.OutOfMemoryError: CUDA out of memory`.
fn is_name(rest: &str) -> bool {
    let name = class_name(rest);
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '<' | '>');
    !name.is_empty() && name.chars().all(is_of_name)
}

/// Whether it is also called an error.
fn is_error(rest: &str) -> bool {
    let name = class_name(rest);
    is_name(rest) && (name.ends_with("Error") || name.ends_with("Exception"))
}

fn class_name(rest: &str) -> &str {
    rest.split_once(':').map_or(rest, |(name, _)| name).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes of torchrun, of which the second ran out of memory, and torchrun's own words.
    fn of_torchrun(exception: &str) -> String {
        let own = "  File \"torch/run.py\", line 990, in main\n    run(args)\n".repeat(40);
        format!(
            "W1130 12:31:22.413000 30369 torch/distributed/run.py:851] Setting OMP_NUM_THREADS\n\
             [rank1]: Traceback (most recent call last):\n\
             [rank0]: Traceback (most recent call last):\n\
             [rank1]:   File \"train.py\", line 9, in <module>\n\
             [rank1]: {exception}\n\
             [rank0]:   File \"train.py\", line 6, in <module>\n\
             [rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:17088\n\
             W1130 12:31:26.640000 30369 api.py:1012] Sending process 30378 closing signal\n\
             Traceback (most recent call last):\n{own}\
             torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
             ============================================================\n\
             ddp/train.py FAILED\n\
             ============================================================\n"
        )
    }

    #[test]
    fn exceptions_decide_whether_memory_ran_out() {
        let nccl = "Traceback (most recent call last):\n  File \"x.py\"\n\
                    torch.distributed.DistBackendError: NCCL error\nLast error:\n\
                    Cuda failure 2 'out of memory'\n";
        let chained = "Traceback (most recent call last):\n  File \"x.py\"\nMemoryError\n\n\
                       During handling of the above exception, another exception occurred:\n\n\
                       Traceback (most recent call last):\n  File \"x.py\"\nValueError: no batch\n";
        let of_cpp = format!(
            "terminate called after throwing an instance of 'std::bad_alloc'\n{}",
            "frame #0: x\n".repeat(60)
        );
        let of_default = "[default0]:Traceback (most recent call last):\n\
                          [default0]:  File \"x.py\"\n[default0]:MemoryError\n";
        let far = format!(
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory\n{}",
            "more\n".repeat(60)
        );
        let of_allocator = of_torchrun("RuntimeError: DefaultCPUAllocator: can't allocate memory");
        let of_python = of_torchrun("MemoryError");
        for text in [
            nccl,
            &of_allocator,
            &of_python,
            chained,
            &of_cpp,
            of_default,
            &far,
            "train: CUDA out of memory\nbye\n",
        ] {
            assert!(Words::of(text).speak_of_memory(50), "{text}");
        }
        let early = "warning: retrying after CUDA out of memory\n\
                     Traceback (most recent call last):\n  File \"x.py\", line 26\n    raise \
                     KeyError\nKeyError: 'unrelated'\n";
        let far = format!("probing: out of memory\n{}", "more\n".repeat(60));
        let of_value = of_torchrun("ValueError: boom");
        for text in [early, &of_value, &far, "out of memory errors: 0\n", ""] {
            assert!(!Words::of(text).speak_of_memory(50), "{text}");
        }
    }

    #[test]
    fn a_traceback_on_one_output_outweighs_words_on_the_other() {
        let both = |stdout: &str, stderr: &str| {
            Words::either_speaks_of_memory(&[(Words::of(stdout), 20), (Words::of(stderr), 50)])
        };
        let traceback = "Traceback (most recent call last):\n  File \"x.py\"\nKeyError: 'x'\n";
        assert!(both("CUDA out of memory\n", "bye\n"));
        assert!(!both("CUDA out of memory, trying again\n", traceback));
        assert!(both(
            "fine\n",
            &traceback.replace("KeyError: 'x'", "MemoryError")
        ));
    }

    const LOADER: &str = "Traceback (most recent call last):\n  File \"loader.py\"\n\
                          KeyError: Caught KeyError in DataLoader worker process 1.\n\
                          Original Traceback (most recent call last):\n  File \"fetch.py\"\n\
                          KeyError: 'sample 100'\n\n";
    const HYDRA: &str = "Traceback (most recent call last):\n  File \"train.py\"\n\
                         JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n--------\n\
                         For simplicity, JAX has removed its internal frames.\n\n\
                         Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack \
                         trace.\n";
    const WARNED: &str = "Traceback (most recent call last):\n  File x\nValueError: real\n\
                          /usr/lib/resource_tracker.py:254: UserWarning: There appear to be 1\n  \
                          warnings.warn('resource_tracker: There appear to be %d '\n";

    #[test]
    fn a_reason_has_the_line_that_says_most() {
        let of_torchrun = of_torchrun("ValueError: boom on rank 1");
        for (text, wanted) in [
            (of_torchrun.as_str(), "[rank1]: ValueError: boom on rank 1"),
            (
                "Traceback (most recent call last):\n  File x\nRuntimeError: bad\nsecond line\n",
                "RuntimeError: bad",
            ),
            (LOADER, "KeyError: 'sample 100'"),
            (HYDRA, "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory"),
            (WARNED, "ValueError: real"),
            (
                "Traceback (most recent call last):\n  File x\nsubprocess.CalledProcessError: x\n",
                "subprocess.CalledProcessError: x",
            ),
            (
                "loading\n/x/tree.py:21: `is` is deprecated, use `in`\n=====\n\
                 \r100%|####| 10/10 [00:01<00:00]\n\u{1b}[A",
                "loading",
            ),
            ("first\nplease give --data\n\n", "please give --data"),
            ("KiB\n3145728\n", "3145728"),
            (
                "\r100%|####| 10/10 [00:01<00:00]",
                "100%|####| 10/10 [00:01<00:00]",
            ),
            (
                "thread panicked\nno such file\nnote: run with x\nstack backtrace:\n 0: main\n",
                "no such file",
            ),
        ] {
            assert_eq!(Words::of(text).line(), Some(wanted), "{text}");
        }
        assert_eq!(Words::of("\n \n").line(), None);
    }

    #[test]
    fn an_exception_that_a_stop_may_have_caused_is_no_reason() {
        let of = |text: &'static str| Words::of(text).line_before_a_stop();
        assert_eq!(of("waiting for the lock\n"), Some("waiting for the lock"));
        assert_eq!(of(LOADER), None);
    }
}
