//! The exceptions of Python's tracebacks in an output. Pure.

use std::collections::BTreeMap;

use kiln_core::plan::{speaks_of_memory, without_rank};

use super::aside::is_trailer;

const TRACEBACK: &str = "Traceback (most recent call last)";
/// Lines of an exception's message that may speak of memory.
const MESSAGE_LINES: usize = 6;
/// Lines behind an exception that may still be its message, or words of what started the program.
const FOLLOWING_LINES: usize = 8;
/// Lines between an exception and the traceback that it led to.
const LINKS: [&str; 2] = [
    "During handling of the above exception",
    "The above exception was the direct cause",
];
/// Lines before tracebacks that Python writes while it ends for another reason.
const IGNORED: [&str; 2] = ["Exception ignored ", "Error in atexit"];

/// After so many lines a program went on, whatever they say.
const MANY_LINES: usize = 50;
/// Beginnings of lines with which a program ends, in lower case.
const ENDS: [&str; 7] = [
    "error", "fatal", "panic", "abort", "cannot ", "can't ", "failed",
];

/// Exceptions that follow from the end of another process: of programs that start others, and of
/// those that lose a connection.
const CONSEQUENCES: [&str; 7] = [
    OF_TORCHRUN,
    "CalledProcessError",
    "EOFError",
    "BrokenPipeError",
    "ConnectionResetError",
    "ConnectionRefusedError",
    "ConnectionAbortedError",
];
/// Texts in a message that mark such an exception.
const LOST: [&str; 2] = ["Connection closed by peer", "DataLoader worker (pid"];
/// The exception of `torchrun`; a box with the ends of all processes follows it.
const OF_TORCHRUN: &str = "ChildFailedError";
/// Exceptions of TensorFlow for memory and for other faults: which of them it was may come after a
/// blank line and the stack of the graph.
const OF_TENSORFLOW: [&str; 2] = ["ResourceExhaustedError", "InternalError"];

/// The tracebacks of an output.
#[derive(Debug, Default)]
pub(super) struct Tracebacks<'a> {
    /// The exceptions of the last traceback of each process, with those that led to it.
    pub(super) exceptions: Vec<Exception<'a>>,
    /// Number of lines up to the last exception.
    pub(super) until: usize,
    /// Number of lines up to the end of the last exception's message.
    until_message: usize,
    /// The process of the last exception.
    rank: &'a str,
}

impl Tracebacks<'_> {
    /// Whether the process of the last exception went on after it: its later lines are many, or one
    /// says another end. Others may belong to a long message, or to cleaning up.
    pub(super) fn are_handled(&self, lines: &[&str]) -> bool {
        let telling: Vec<&str> = lines[self.until_message..]
            .iter()
            .map(|line| parts(line))
            .filter(|(rank, rest)| *rank == self.rank && is_telling(rest))
            .map(|(_, rest)| rest)
            .collect();
        self.until > 0 && (telling.len() >= MANY_LINES || telling.into_iter().any(says_an_end))
    }
}

#[derive(Debug)]
pub(super) struct Exception<'a> {
    /// The name of the process in front of its lines, or nothing.
    pub(super) rank: &'a str,
    pub(super) line: &'a str,
    /// The exception with the lines that follow.
    pub(super) message: String,
}

pub(super) fn tracebacks<'a>(lines: &[&'a str]) -> Tracebacks<'a> {
    let mut found = Tracebacks::default();
    // Processes whose traceback has begun, and whose exception has not come yet, with the line before
    // it.
    let mut open: BTreeMap<&str, &str> = BTreeMap::new();
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    // Processes that wrote a telling line between their last exception and the traceback after it.
    let mut went_on: BTreeMap<&str, bool> = BTreeMap::new();
    for (at, line) in lines.iter().copied().enumerate() {
        let (rank, rest) = parts(line);
        if begins_traceback(rest) {
            let before = match rest.starts_with("Original ") {
                true => LINKS[0],
                false => last.get(rank).copied().unwrap_or_default(),
            };
            open.insert(rank, before);
        } else if !is_frame(rest)
            && is_name(rest)
            && let Some(before) = open.remove(rank)
        {
            let begins_with_one_of = |words: &[&str]| words.iter().any(|it| before.starts_with(it));
            (found.until, found.rank) = (at + 1, rank);
            found.until_message = found.until_message.max(end_of_message(lines, at));
            if !begins_with_one_of(&IGNORED) {
                let is_other = went_on.get(rank).copied().unwrap_or(false);
                if is_other && !begins_with_one_of(&LINKS) && !is_consequence(rest) {
                    found.exceptions.retain(|earlier| earlier.rank != rank);
                }
                found.exceptions.push(exception(lines, at));
                went_on.insert(rank, false);
            }
        } else if is_telling(rest) && !open.contains_key(rank) && !is_of_child(rest) {
            went_on.insert(rank, true);
        }
        if !rest.trim().is_empty() {
            last.insert(rank, rest.trim());
        }
    }
    found
}

/// The exception whose line is `lines[at]`.
fn exception<'a>(lines: &[&'a str], at: usize) -> Exception<'a> {
    let (rank, first) = parts(lines[at]);
    let name = class_name(first);
    let is_long = OF_TENSORFLOW.iter().any(|end| name.ends_with(end));
    let (end, most) = match is_long {
        true => (end_of_message(lines, at), usize::MAX),
        false => (lines.len(), MESSAGE_LINES),
    };
    let message: Vec<&str> = lines[at..end]
        .iter()
        .copied()
        .map(parts)
        .filter(|(of, _)| *of == rank)
        .map(|(_, rest)| rest)
        .take_while(|rest| is_long || !(is_frame(rest) || begins_traceback(rest)))
        .take(most)
        .collect();
    Exception {
        rank,
        line: lines[at].trim(),
        message: message.join("\n"),
    }
}

/// Number of lines up to the last one that may belong to the exception in `lines[at]`: of the lines of
/// its process, all that are indented or say nothing, and some others.
fn end_of_message(lines: &[&str], at: usize) -> usize {
    let (rank, exception) = parts(lines[at]);
    if class_name(exception).ends_with(OF_TORCHRUN) {
        return lines.len();
    }
    let (mut end, mut others) = (at + 1, 0);
    for (place, line) in lines.iter().copied().enumerate().skip(at + 1) {
        let (of, rest) = parts(line);
        if of != rank {
            continue;
        }
        if !is_frame(rest) && !is_trailer(rest) {
            others += 1;
        }
        if others == FOLLOWING_LINES || begins_traceback(rest) {
            break;
        }
        end = place + 1;
    }
    end
}

/// The names of a line's process, and the rest of it.
fn parts(line: &str) -> (&str, &str) {
    let rest = without_rank(line);
    (line[..line.len() - rest.len()].trim_end(), rest)
}

/// Whether a line begins a traceback, also one of a PyTorch data loader's worker (`Original …`) or one
/// that Rich draws.
fn begins_traceback(rest: &str) -> bool {
    rest.contains(TRACEBACK)
        && (rest.starts_with(TRACEBACK) || rest.starts_with("Original ") || rest.starts_with('╭'))
}

/// Whether a line is the program's own, and not of a traceback or of what may follow its end.
fn is_telling(rest: &str) -> bool {
    !is_frame(rest) && !is_trailer(rest)
}

/// The line before the traceback of a child of `multiprocessing`.
fn is_of_child(rest: &str) -> bool {
    rest.starts_with("Process ") && rest.trim_end().ends_with(':')
}

/// Whether a line is one with which a program ends.
fn says_an_end(rest: &str) -> bool {
    let lower = rest.to_lowercase();
    is_error(rest) || speaks_of_memory(rest) || ENDS.iter().any(|words| lower.starts_with(words))
}

/// Whether a line begins with the name of an error.
pub(super) fn is_error(rest: &str) -> bool {
    let name = class_name(rest);
    is_name(rest) && (name.ends_with("Error") || name.ends_with("Exception"))
}

fn is_frame(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([' ', '\t', '│', '╰', '>'])
}

/// Whether a line begins with the name of a class: `torch.OutOfMemoryError: CUDA out of memory`.
pub(super) fn is_name(rest: &str) -> bool {
    let name = class_name(rest);
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '<' | '>');
    !name.is_empty() && name.chars().all(is_of_name)
}

/// Whether a line is an exception that follows from the end of another process.
pub(super) fn is_consequence(rest: &str) -> bool {
    let name = class_name(rest);
    CONSEQUENCES.iter().any(|end| name.ends_with(end))
        || LOST.iter().any(|words| rest.contains(words))
}

pub(super) fn class_name(rest: &str) -> &str {
    rest.split_once(':').map_or(rest, |(name, _)| name).trim()
}
