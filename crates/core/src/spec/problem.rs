//! The faults of an experiment file and their places: one line per problem, all of them at once.

use std::{fmt, sync::Arc};

use crate::{kinds::KeyFault, units::without_controls};

/// The place of a value: a file with line and column, or the name of a layer without lines
/// (`--set train.steps=5`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file as it was given, or the layer.
    pub source: Arc<str>,
    /// Line and column, both from 1; `None` outside files.
    pub position: Option<(usize, usize)>,
}

impl Location {
    pub(super) fn at(source: &Arc<str>, line: usize, column: usize) -> Self {
        Self {
            source: Arc::clone(source),
            position: Some((line, column)),
        }
    }

    /// A place outside of files, such as `default`.
    pub fn named(source: &str) -> Self {
        Self {
            source: source.into(),
            position: None,
        }
    }

    /// `experiments/width.yaml:14`, without the column: the layer of a value.
    pub(super) fn layer(&self) -> String {
        match self.position {
            Some((line, _)) => format!("{}:{line}", self.source),
            None => self.source.to_string(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.source),
            None => write!(f, "{}", self.source),
        }
    }
}

/// One fault to correct.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub location: Location,
    /// Dotted key; empty if the fault does not belong to a key.
    pub key: String,
    /// The fault, the allowed values, the remedy.
    pub message: String,
}

impl Problem {
    /// A fault of `key` at `location`; `message` says what is wrong, what is allowed and what to
    /// try.
    pub fn new(location: &Location, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            location: location.clone(),
            key: key.into(),
            message: message.into(),
        }
    }

    /// The fault of a key, at its place.
    pub(super) fn at(location: &Location, fault: KeyFault) -> Self {
        Self::new(location, fault.key, fault.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key may contain a newline, and a problem is one line.
        write!(f, "{}: {}", self.location, without_controls(&self.message))
    }
}

/// Every problem, each once, sorted by file and line. Prints one line per problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Sorts the problems; of two that differ only in the length of their advice, the longer one
    /// stays.
    pub fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup_by(|later, earlier| {
            let is_same = later.location == earlier.location
                && later.key == earlier.key
                && later.message.starts_with(&earlier.message);
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Self(problems)
    }

    /// All problems, in the order in which they are printed.
    pub fn as_slice(&self) -> &[Problem] {
        &self.0
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
