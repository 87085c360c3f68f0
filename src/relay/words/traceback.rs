//! The exceptions of Python's tracebacks in an output. Pure.

use std::collections::BTreeMap;

use kiln_core::plan::without_rank;

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

/// Exceptions of programs that start others, which follow those of the others.
const OF_LAUNCHERS: [&str; 2] = [OF_TORCHRUN, "CalledProcessError"];
/// A box with the ends of all processes follows it.
const OF_TORCHRUN: &str = "ChildFailedError";

/// The tracebacks of an output.
#[derive(Debug, Default)]
pub(super) struct Tracebacks<'a> {
    /// Those of the last traceback of each process, with those that led to it.
    pub(super) exceptions: Vec<Exception<'a>>,
    /// Number of lines up to the last exception.
    pub(super) until: usize,
    /// The same with its message.
    until_message: usize,
    /// The process of the last exception.
    rank: &'a str,
}

impl Tracebacks<'_> {
    /// Whether the process of the last exception went on after it.
    pub(super) fn are_handled(&self, lines: &[&str]) -> bool {
        let is_telling = |line: &&str| {
            let (rank, rest) = parts(line);
            rank == self.rank && !is_frame(rest) && !is_trailer(rest)
        };
        self.until > 0 && lines[self.until_message..].iter().any(is_telling)
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
                if !begins_with_one_of(&LINKS) && !is_of_launcher(rest) {
                    found.exceptions.retain(|earlier| earlier.rank != rank);
                }
                found.exceptions.push(exception(lines, at));
            }
        }
        if !rest.trim().is_empty() {
            last.insert(rank, rest.trim());
        }
    }
    found
}

/// The exception of the line at a place.
fn exception<'a>(lines: &[&'a str], at: usize) -> Exception<'a> {
    let (rank, _) = parts(lines[at]);
    let message: Vec<&str> = lines[at..]
        .iter()
        .copied()
        .map(parts)
        .filter(|(of, _)| *of == rank)
        .map(|(_, rest)| rest)
        .take_while(|rest| !is_frame(rest) && !begins_traceback(rest))
        .take(MESSAGE_LINES)
        .collect();
    Exception {
        rank,
        line: lines[at].trim(),
        message: message.join("\n"),
    }
}

/// Number of lines up to the last one that may belong to the exception at a place: of the lines of
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

/// Also of the worker of a PyTorch data loader, and as Rich draws it.
fn begins_traceback(rest: &str) -> bool {
    rest.contains(TRACEBACK)
        && (rest.starts_with(TRACEBACK) || rest.starts_with("Original ") || rest.starts_with('╭'))
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

/// Whether a line is an exception of a program that starts others.
pub(super) fn is_of_launcher(rest: &str) -> bool {
    OF_LAUNCHERS
        .iter()
        .any(|end| class_name(rest).ends_with(end))
}

pub(super) fn class_name(rest: &str) -> &str {
    rest.split_once(':').map_or(rest, |(name, _)| name).trim()
}
