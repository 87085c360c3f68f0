//! The outcome of a trial.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The outcome of one attempt of a trial. `killed` and `interrupted` are not final: a resume makes
/// another attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Completed,
    /// Host or device ran out of memory.
    Oom,
    /// The loss became NaN or infinite.
    Diverged,
    /// By default: nothing is known of its end.
    #[default]
    Failed,
    /// Over `run.timeout`, or silent for `run.stall`.
    TimedOut,
    /// Not run, because of another point's outcome.
    Skipped,
    /// Ended from outside: by a signal, or with its parent.
    Killed,
    /// The user stopped the run.
    Interrupted,
}

impl Outcome {
    /// Every outcome, in the order above.
    pub const ALL: [Self; 8] = [
        Self::Completed,
        Self::Oom,
        Self::Diverged,
        Self::Failed,
        Self::TimedOut,
        Self::Skipped,
        Self::Killed,
        Self::Interrupted,
    ];

    /// The name in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Oom => "oom",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
            Self::Skipped => "skipped",
            Self::Killed => "killed",
            Self::Interrupted => "interrupted",
        }
    }

    /// The outcome of this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Whether a resume does not retry the trial.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Killed | Self::Interrupted)
    }

    /// Which of two rows of one attempt counts, the higher one: a final outcome, then that of the launch
    /// that ran it, as who took its ticket back mostly says `killed`.
    pub fn weight(self) -> u8 {
        match self {
            Self::Killed => 0,
            Self::Interrupted => 1,
            _ => 2,
        }
    }

    /// Whether the trial trained to its own end: all of it, or until its loss became NaN or infinite.
    pub fn is_end_of_training(self) -> bool {
        matches!(self, Self::Completed | Self::Diverged)
    }

    /// Whether the trial has a result (exit status 0), whatever its quality.
    pub fn is_result(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Oom | Self::Diverged | Self::Skipped
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
