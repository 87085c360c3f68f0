//! What a pair of points says besides its verdicts: outcomes, equal losses, outliers, disturbances.

use std::collections::{HashMap, HashSet};

use kiln_core::{
    plan::TrialId,
    record::{TrialRow, disturbance::Disturbance},
};

use super::{
    Compared, ComparedMetric, DisturbedRun, Unlike,
    at_once::AtOnce,
    comparable::{self, is_same_row, is_same_run},
    matching::MatchedPair,
    outliers::outliers,
};
use crate::report::points::{ended, pieces};

/// Returns the fields in which the completed runs of both sides differ.
pub(super) fn unlike_in(pair: &MatchedPair<'_>) -> Vec<Unlike> {
    comparable::unlike(&completed(&pair.base), &completed(&pair.new))
}

pub(super) fn completed<'a>(rows: &[&'a TrialRow]) -> Vec<&'a TrialRow> {
    rows.iter()
        .copied()
        .filter(|row| row.is_completed())
        .collect()
}

/// The rows of a side by their trials: a table has one row that counts of each.
pub(super) fn by_trial<'a>(rows: &[&'a TrialRow]) -> HashMap<&'a TrialId, &'a TrialRow> {
    let rows = rows.iter().copied();
    rows.map(|row| (&row.trial, row)).collect()
}

/// The trials of which both sides have one and the same run: it is not a repeat of itself.
pub(super) fn shared_trials<'a>(pair: &MatchedPair<'a>) -> HashSet<&'a TrialId> {
    let in_new = by_trial(&pair.new);
    let is_in_new = |row: &&'a TrialRow| {
        let new = in_new.get(&row.trial);
        new.is_some_and(|new| is_same_run(row, new))
    };
    let shared = pair.base.iter().copied().filter(is_in_new);
    shared.map(|row| &row.trial).collect()
}

/// Removes the runs that both sides have, where each side has completed others: only these tell a
/// difference. Returns the number of runs that both sides have.
pub(super) fn drop_shared(pair: &mut MatchedPair<'_>) -> usize {
    let shared = shared_trials(pair);
    let is_own = |row: &&TrialRow| !shared.contains(&row.trial);
    let has_own = |rows: &[&TrialRow]| completed(rows).iter().any(is_own);
    if has_own(&pair.base) && has_own(&pair.new) {
        pair.base.retain(is_own);
        pair.new.retain(is_own);
    }
    shared.len()
}

pub(super) fn without_numbers(
    pair: &MatchedPair<'_>,
    unlike: Vec<Unlike>,
    metrics: &[ComparedMetric],
    is_other_mean: bool,
) -> Compared {
    let in_new = by_trial(&pair.new);
    let twice = pair
        .base
        .iter()
        .filter_map(|old| Some((*old, *in_new.get(&old.trial)?)));
    let twice: Vec<TwoLosses> = twice
        .map(|(old, new)| TwoLosses {
            train: [old, new].map(|row| row.train_loss.filter(|_| !is_other_mean)),
            valid: [old, new].map(|row| row.valid_loss),
        })
        .collect();
    let losses: Vec<bool> = twice.iter().filter_map(TwoLosses::are_equal).collect();
    let apart = twice.iter().flat_map(|two| [two.train, two.valid]);
    let apart = apart
        .filter_map(|[old, new]| Some(((new? - old?) / old?).abs()))
        .filter(|share| !share.is_nan())
        .map(|share| share.min(FURTHEST));
    let is_whole = |rows: &[&TrialRow]| rows.iter().all(|row| row.is_completed());
    let whole = is_whole(&pair.base) && is_whole(&pair.new);
    let is_in_new = |old: &&&TrialRow| {
        let new = in_new.get(&old.trial);
        new.is_some_and(|new| is_same_row(old, new))
    };
    let equal = pair.base.iter().filter(is_in_new).count();
    let [base, new] = [&pair.base, &pair.new].map(|rows| completed(rows));
    Compared {
        name: pair.name.clone(),
        values: pair.values.clone(),
        is_in_pieces: pair.base.iter().any(|row| pieces(row).is_some()),
        side: None,
        blocks: None,
        comparisons: Vec::new(),
        unlike,
        losses: losses.len(),
        equal_losses: losses.iter().filter(|equal| **equal).count(),
        lacking_losses: twice.iter().filter(|two| two.is_one_lacking()).count(),
        losses_apart: apart.reduce(f64::max),
        ends: (!whole).then(|| [ends(&pair.base), ends(&pair.new)]),
        outliers: [("base", &pair.base), ("new", &pair.new)]
            .into_iter()
            .flat_map(|(side, rows)| outliers(side, rows, metrics))
            .collect(),
        shared: 0,
        is_one_run: [&pair.base, &pair.new]
            .iter()
            .all(|rows| rows.len() == equal),
        boards: comparable::boards(&base, &new),
        unusable: metrics
            .iter()
            .filter_map(|metric| metric.unusable(&base, &new))
            .collect(),
        not_positive: metrics
            .iter()
            .filter_map(|metric| metric.not_positive(&base, &new))
            .collect(),
        one_sided: metrics
            .iter()
            .filter(|metric| metric.is_column() || metric.is_accuracy())
            .filter_map(|metric| metric.one_sided(&base, &new))
            .map(|(column, side)| (column, ["new", "base"][side]))
            .collect(),
        completed: [base.len(), new.len()],
        disturbed: Default::default(),
    }
}

/// The losses of two attempts of a trial, base first, as far as they compare.
struct TwoLosses {
    train: [Option<f64>; 2],
    valid: [Option<f64>; 2],
}

impl TwoLosses {
    /// Whether one has a loss that the other lacks.
    fn is_one_lacking(&self) -> bool {
        [self.train, self.valid]
            .iter()
            .any(|[old, new]| old.is_some() != new.is_some())
    }

    /// Whether they are equal to the bit; `None` where a loss is missing.
    fn are_equal(&self) -> Option<bool> {
        let is_equal = |[old, new]: [Option<f64>; 2]| Some(old?.to_bits() == new?.to_bits());
        match (is_equal(self.train), is_equal(self.valid)) {
            // One of them was not evaluated.
            (Some(_), None) if self.valid[0].is_some() != self.valid[1].is_some() => Some(false),
            (Some(train), valid) => Some(train && valid.unwrap_or(true)),
            (None, valid) => valid,
        }
    }
}

/// `3 completed, 1 oom`.
fn ends(rows: &[&TrialRow]) -> String {
    ended(rows, |_| true).join(", ")
}

/// The completed runs that were disturbed; `other` is what the other side is called.
pub(super) fn disturbances(
    rows: &[&TrialRow],
    at_once: &AtOnce<'_>,
    other: &str,
) -> Vec<DisturbedRun> {
    let at_the_same_time = |row: &TrialRow| {
        let trial = &at_once.beside(row)?.trial;
        let words = format!("ran at the same time as trial {trial} of {other}");
        Some(Disturbance::Other(words))
    };
    let of_row = |row: &TrialRow| {
        let mut by = row.disturbances();
        by.extend(at_the_same_time(row));
        let trial = row.trial.clone();
        (!by.is_empty()).then_some(DisturbedRun { trial, by })
    };
    completed(rows).into_iter().filter_map(of_row).collect()
}

/// Relative distance of two losses of which one is 0, because a page has no infinite numbers.
const FURTHEST: f64 = 1e300;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::report::{compare::matching::RunKeys, points::tests::row};

    /// To look for each of 30,000 trials among all others takes half a minute; a look into a map takes
    /// milliseconds.
    #[test]
    fn a_point_of_many_trials_is_compared_in_time_that_grows_as_they_do() {
        let rows: Vec<TrialRow> = (0..30_000)
            .map(|id| TrialRow {
                started_utc: Some("2026-01-01T00:00:00Z".to_owned()),
                ..row(id, 1.0)
            })
            .collect();
        let pair = MatchedPair {
            name: "all trials".to_owned(),
            values: Vec::new(),
            base: rows.iter().collect(),
            new: rows.iter().skip(1).rev().collect(),
            keys: RunKeys::Order,
        };
        let begun = Instant::now();
        let found = without_numbers(&pair, Vec::new(), &[], false);
        let shared = shared_trials(&pair).len();
        assert_eq!((shared, found.is_one_run), (29_999, false));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
