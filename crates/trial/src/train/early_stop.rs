//! The end of a training whose validation loss has stopped falling (`train.early_stop`).

use kiln_core::spec;
use serde::{Deserialize, Serialize};

/// Ends a training whose validation loss has stopped falling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EarlyStopping {
    /// `None` never ends it.
    patience: Option<u64>,
    lowest: f64,
    stalled: u64,
}

/// Saved state of an early stop: the evaluations so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EarlyStopState {
    /// `None` before the first evaluation.
    lowest: Option<f64>,
    stalled: u64,
}

impl EarlyStopping {
    pub(crate) fn new(asked: Option<&spec::EarlyStop>) -> Self {
        Self {
            patience: asked.map(|stop| stop.patience),
            lowest: f64::INFINITY,
            stalled: 0,
        }
    }

    pub(crate) fn state(&self) -> EarlyStopState {
        EarlyStopState {
            lowest: Some(self.lowest).filter(|lowest| lowest.is_finite()),
            stalled: self.stalled,
        }
    }

    pub(crate) fn restore(&mut self, state: &EarlyStopState) {
        self.lowest = state.lowest.unwrap_or(f64::INFINITY);
        self.stalled = state.stalled;
    }

    /// Takes in the loss of one evaluation; the reason to end, if there is one.
    pub(crate) fn hear(&mut self, loss: f64) -> Option<String> {
        self.stalled = if loss < self.lowest {
            0
        } else {
            self.stalled + 1
        };
        self.lowest = self.lowest.min(loss);
        self.reason()
    }

    /// The reason to end after the evaluations so far, if there is one.
    pub(crate) fn reason(&self) -> Option<String> {
        let patience = self.patience.filter(|patience| self.stalled >= *patience)?;
        Some(format!(
            "the validation loss did not fall below {:.4} in {patience} evaluations in a row \
             (`train.early_stop`)",
            self.lowest
        ))
    }
}
