//! One check of the machine, as stored in `run.json` and `kiln doctor --json`. `schedule` performs
//! the checks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check, such as `power-limit`; the same in every version of kiln.
    pub name: String,
    /// nvidia-smi's index of the checked GPU; absent for checks of the whole machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u64>,
    pub state: CheckState,
    /// The observation, in words.
    pub evidence: String,
    /// The remedy; absent if there is nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Severity, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Ok,
    /// Skipped because it was not requested.
    Skipped,
    /// The machine does not report it.
    Unknown,
    /// Trials run, but slower, less accurately or less reliably than possible.
    Warning,
    /// A part does not work.
    Problem,
}

impl fmt::Display for CheckState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

impl Check {
    fn new(name: &str, state: CheckState, evidence: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            gpu: None,
            state,
            evidence: evidence.into(),
            remedy: None,
        }
    }

    pub fn ok(name: &str, evidence: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, evidence)
    }

    pub fn skipped(name: &str, evidence: impl Into<String>) -> Self {
        Self::new(name, CheckState::Skipped, evidence)
    }

    pub fn unknown(name: &str, evidence: impl Into<String>) -> Self {
        Self::new(name, CheckState::Unknown, evidence)
    }

    pub fn warning(name: &str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..Self::new(name, CheckState::Warning, evidence)
        }
    }

    pub fn problem(name: &str, evidence: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..Self::new(name, CheckState::Problem, evidence)
        }
    }

    /// The same check, for the GPU with this index.
    #[must_use]
    pub fn of_gpu(self, index: u64) -> Self {
        Self {
            gpu: Some(index),
            ..self
        }
    }

    /// Whether the user should see it without asking.
    pub fn is_worth_saying(&self) -> bool {
        self.state >= CheckState::Warning
    }

    /// Name of the check for a page: `GPU 0 power-limit`.
    pub fn label(&self) -> String {
        match self.gpu {
            Some(index) => format!("GPU {index} {}", self.name),
            None => self.name.clone(),
        }
    }
}
