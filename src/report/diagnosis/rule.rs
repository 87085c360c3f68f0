//! Types of rules and findings: data only, without any layout.

use std::cmp::Ordering;

use kiln_core::{plan::TrialId, record::note::BusyHost};
use serde::Serialize;

use super::{
    evidence::{Evidence, Threshold},
    next::Next,
    trial_context::TrialContext,
};

/// One observation that a row of `trials.csv` allows.
#[derive(Debug)]
pub struct Rule {
    /// In kebab-case.
    pub name: &'static str,
    /// Columns of `trials.csv` that it reads of the trial's own row.
    pub columns: &'static [&'static str],
    pub thresholds: &'static [Threshold],
    /// Meaning of the finding, in a sentence.
    pub means: &'static str,
    /// The experiment or the observation that would show that it is not so, in a sentence.
    pub refuted_by: &'static str,
    /// Rules that say nothing more of a trial of which this one has spoken.
    pub explains: &'static [&'static str],
    /// Whether something should be changed; otherwise the finding answers a question.
    pub is_fault: bool,
    pub(super) find: fn(&TrialContext<'_>) -> Option<RuleMatch>,
}

/// Weight of a finding; the greatest are shown first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// It answers a question and costs nothing that the row shows.
    Tells,
    /// The numbers are in doubt, or little is left of something.
    Doubts,
    /// So much of the window, of the trial or of the device is lost, as a fraction of 1.
    Costs(f64),
    /// A longer training may end by it.
    Threatens,
    /// The trial ended by it.
    Ended,
}

impl Weight {
    /// In the order of what matters: a greater one first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let class = |weight: &Self| match weight {
            Self::Tells => 0,
            Self::Doubts => 1,
            Self::Costs(_) => 2,
            Self::Threatens => 3,
            Self::Ended => 4,
        };
        match (self, other) {
            (Self::Costs(one), Self::Costs(other)) => other.total_cmp(one),
            _ => class(other).cmp(&class(self)),
        }
    }
}

/// Result of a rule that fires.
#[derive(Debug)]
pub(super) struct RuleMatch {
    /// One clause, with the numbers that matter.
    pub(super) says: String,
    pub(super) weight: Weight,
    /// Orders the findings of one rule that have one weight: the quantity that the rule is about,
    /// a greater one first.
    pub(super) degree: f64,
    /// Beside the rule's own columns: notes, and cells of other rows of the run.
    pub(super) more: Vec<Evidence>,
    /// The other processes that it tells of.
    pub(super) busy: Option<BusyHost>,
    pub(super) next: Next,
}

impl RuleMatch {
    pub(super) fn new(says: impl Into<String>, weight: Weight, next: Next) -> Self {
        Self {
            says: says.into(),
            weight,
            degree: 0.0,
            more: Vec::new(),
            busy: None,
            next,
        }
    }

    pub(super) fn of_degree(self, degree: f64) -> Self {
        Self { degree, ..self }
    }

    pub(super) fn with_busy_host(self, busy: BusyHost) -> Self {
        Self {
            busy: Some(busy),
            ..self
        }
    }

    pub(super) fn with(mut self, more: impl IntoIterator<Item = Evidence>) -> Self {
        self.more.extend(more);
        self
    }
}

/// A rule that fired on a trial, with everything it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct RuleFinding {
    pub rule: &'static str,
    pub trial: TrialId,
    /// `train.batch_size 8, data.num_workers 4`; `all trials` where nothing is swept.
    pub point: String,
    pub is_fault: bool,
    pub weight: Weight,
    #[serde(skip)]
    pub(super) degree: f64,
    /// The other processes that it tells of.
    #[serde(skip)]
    pub(in crate::report) busy: Option<BusyHost>,
    pub says: String,
    pub means: &'static str,
    pub refuted_by: &'static str,
    pub evidence: Vec<Evidence>,
    pub thresholds: &'static [Threshold],
    /// The next experiment: keys to lay on top of the trial's experiment.
    pub next_yaml: String,
}

impl RuleFinding {
    /// Orders findings of one rule: by weight, then by degree, the greatest first.
    pub(in crate::report) fn compare(&self, other: &Self) -> Ordering {
        let by_weight = self.weight.compare(&other.weight);
        by_weight.then_with(|| other.degree.total_cmp(&self.degree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_trial_comes_before_what_costs_and_the_dearer_first() {
        let mut weights = vec![
            Weight::Tells,
            Weight::Costs(0.2),
            Weight::Ended,
            Weight::Doubts,
            Weight::Costs(0.4),
            Weight::Threatens,
        ];
        weights.sort_by(Weight::compare);
        let wanted = [
            Weight::Ended,
            Weight::Threatens,
            Weight::Costs(0.4),
            Weight::Costs(0.2),
            Weight::Doubts,
            Weight::Tells,
        ];
        assert_eq!(weights, wanted);
    }
}
