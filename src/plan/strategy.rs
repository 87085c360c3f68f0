//! Who says which trial comes next: the plan's own order now, searches that look at outcomes later.

use std::collections::VecDeque;

use super::{Outcome, Trial, TrialId};

/// Hands out trials one by one.
pub trait Strategy {
    /// The next trial, given those that have ended so far; `None` when there is no more.
    fn next(&mut self, ended: &[(TrialId, Outcome)]) -> Option<Trial>;
}

/// All trials in the plan's order, whatever their outcomes.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    rest: VecDeque<Trial>,
}

impl Grid {
    /// Gives the trials in this order.
    pub fn new(trials: impl IntoIterator<Item = Trial>) -> Self {
        Self { rest: trials.into_iter().collect() }
    }
}

impl Strategy for Grid {
    fn next(&mut self, _ended: &[(TrialId, Outcome)]) -> Option<Trial> {
        self.rest.pop_front()
    }
}
