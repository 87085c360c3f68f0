//! Answers of the gates of `--fail-on`: a line of each, and the exit status of all.

use super::{Status, note};
use crate::report::compare::Gate;

/// Result of a gate that cannot be decided.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UndecidedGate {
    /// Exit with 4.
    #[value(name = "exit-4")]
    Exit4,
    /// It passes.
    Pass,
    /// It fails: exit with 1.
    Fail,
}

impl UndecidedGate {
    pub(super) fn status(self, gate: &Gate) -> Status {
        match (gate, self) {
            (Gate::Pass, _) | (Gate::CannotTell(_), Self::Pass) => Status::Success,
            (Gate::Fail(_), _) | (Gate::CannotTell(_), Self::Fail) => Status::Failed,
            (Gate::CannotTell(_), Self::Exit4) => Status::CannotTell,
        }
    }

    /// Prints the name and the sentence of each gate, and returns the exit status of all.
    pub(super) fn conclude<'g>(
        self,
        gates: impl IntoIterator<Item = (&'g str, &'g Gate, String)>,
    ) -> Status {
        let mut status = Status::Success;
        for (name, gate, sentence) in gates {
            note(&format!("gate {name}: {sentence}"));
            status = surer(status, self.status(gate));
        }
        status
    }
}

/// Combines two exit statuses: a failure takes precedence over an undecided gate.
pub(super) fn surer(one: Status, other: Status) -> Status {
    match (one, other) {
        (Status::Failed, Status::CannotTell) | (Status::CannotTell, Status::Failed) => {
            Status::Failed
        }
        (one, other) => one.max(other),
    }
}
