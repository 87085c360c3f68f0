//! Whether the first place is certain: the lead of the best point against noise, the devices and the
//! data.

use std::collections::BTreeSet;

use kiln_core::{
    record::TrialRow,
    spec::{Goal, Metric, learned::OtherNumber},
    statistics::Nature,
    units::{listed, without_controls},
};

use super::{RankedPoint, Ranking};
use crate::report::{
    compare::{ColumnMetric, are_copies},
    objective::{RankedBy, words},
    points::{Point, sweeps_devices},
    rates::{Blocks, Doubt, Rates, Scale, each_with_each, order},
};

/// The doubt in a lead of points whose repeats do not vary, although their seeds do.
const COPIES: &str = "the repeats of both are equal: nothing is known of the noise";

impl Ranking<'_> {
    /// The goal of the objective.
    fn goal(&self) -> Goal {
        match self.objective.by {
            RankedBy::Speed => Goal::Max,
            RankedBy::Metric(_, goal) => goal,
        }
    }

    /// Whether the lead of the best point over the next is larger than noise, with the reason, in
    /// words, if it is not known to be; `None` for fewer than two points that may be the best.
    pub(super) fn order(&self) -> Option<Result<(), String>> {
        let [best, next, ..] = self.rivals() else {
            return None;
        };
        if let Some(doubt) = self.of_devices(best.point, next.point) {
            return Some(Err(doubt));
        }
        let (best, next) = (best.value?, next.value?);
        let points = self.rival_points();
        let (rates, scale) = self.rates(&points);
        let lead = scale.lead(best, next, self.goal());
        let superlative = self.objective.superlative();
        let in_words = |doubt: Doubt| doubt.in_words(&superlative, scale, lead, rates.within);
        let of_next = order(&rates, 0, 1, points.len()).map_err(in_words);
        // The next by its mean is not the nearest one if points ran in blocks of their own.
        let statements = each_with_each(points.len());
        let other = (2..points.len()).find_map(|other| {
            let gain = rates.gain(other, 0, statements)?;
            (!gain.is_ahead()).then_some((other, gain))
        });
        Some(match (of_next, other) {
            (Ok(()), Some((other, gain))) => Err(format!(
                "it is ahead of the next, but {} not of {} ({}): their order may be noise",
                rates.within.several(),
                self.name(&self.rivals()[other]),
                gain.interval(scale)
            )),
            (Ok(()), None) if self.has_copies() => Err(COPIES.to_owned()),
            (of_next, _) => of_next,
        })
    }

    /// Whether the best point and the next each have one value with every seed: their runs count as
    /// one.
    fn has_copies(&self) -> bool {
        let RankedBy::Metric(metric, _) = self.objective.by else {
            return false;
        };
        let Some(column) = ColumnMetric::named(metric.name(), metric.is_better_high()) else {
            return false;
        };
        let run = |row: &TrialRow| Some((row.seed, self.objective.value(row)?));
        let is_copied = |of: &RankedPoint<'_>| {
            let runs: Vec<(u64, f64)> = of.point.completed().filter_map(run).collect();
            are_copies(&runs, column.is_loss())
        };
        column.follows_seed() && self.rivals().iter().take(2).all(is_copied)
    }

    /// Why the best point by its mean may not be the best one: within blocks another is ahead of it by more
    /// than noise. So it can be where a run was interrupted and went on while the machine was faster: the
    /// points with more runs in that time have the higher means.
    pub(super) fn found_overtaken(&self) -> Option<String> {
        let [best, next, ..] = self.rivals() else {
            return None;
        };
        best.value.and(next.value)?;
        let points = self.rival_points();
        let (rates, scale) = self.rates(&points);
        let statements = each_with_each(points.len());
        let ahead = (1..points.len()).filter_map(|other| {
            let gain = rates.gain(0, other, statements)?;
            gain.is_ahead().then_some((other, gain))
        });
        let (other, gain) = ahead.max_by(|one, other| one.1.ratio.total_cmp(&other.1.ratio))?;
        Some(format!(
            "{} {} is {} ahead of {} ({}), although that one has the best mean",
            rates.within.several(),
            self.name(&self.rivals()[other]),
            scale.words(gain.ratio),
            self.name(best),
            gain.interval(scale)
        ))
    }

    /// Says that the best points have one value, where nothing else tells them apart.
    pub(super) fn found_tied(&self) -> Option<String> {
        let is_judged_alone = !self.objective.is_trade_off && self.objective.by != RankedBy::Speed;
        let rivals = self.rivals();
        let best = rivals.first().filter(|_| is_judged_alone)?;
        best.value?;
        let tied = rivals.iter().take_while(|other| other.value == best.value);
        let names: Vec<String> = tied.map(|ranked| self.name(ranked)).collect();
        (names.len() > 1).then(|| format!("{} have the same value", listed(&names, " and ")))
    }

    /// Why the values of the points do not stand for one question: an axis changes the data on which
    /// they are measured.
    pub(super) fn found_incomparable(&self) -> Option<String> {
        let RankedBy::Metric(metric, _) = self.objective.by else {
            return None;
        };
        let points: Vec<&RankedPoint<'_>> = self.compared().collect();
        let value = |axis: usize, point: usize| points[point].point.values.get(axis);
        let rows = points.iter().flat_map(|ranked| ranked.point.completed());
        let is_same = TrialRow::share_validation(rows);
        let of = |key: &str| OtherNumber::given(key, metric.name(), is_same);
        let (axis, other) = OtherNumber::among(self.axes, of, points.len(), value)?;
        let why = other.in_words(&self.axes[axis], words(metric));
        Some(format!(
            "{why}; compare points of one value of it, or name another `objective`"
        ))
    }

    /// The doubt that a lead is that of a device, where two points ran on kinds of their own; not
    /// if devices are swept, or what is learned ranks.
    fn of_devices(&self, best: &Point<'_>, next: &Point<'_>) -> Option<String> {
        if matches!(self.objective.by, RankedBy::Metric(metric, _) if is_learned(metric))
            || sweeps_devices(self.axes)
        {
            return None;
        }
        let kinds = |point: &Point<'_>| -> BTreeSet<String> {
            let named = point
                .completed()
                .filter_map(|row| row.device_name.as_deref());
            named.map(without_controls).collect()
        };
        let (of_best, of_next) = (kinds(best), kinds(next));
        let is_apart = !of_best.is_empty() && !of_next.is_empty() && of_best.is_disjoint(&of_next);
        let listed = |kinds: BTreeSet<String>| kinds.into_iter().collect::<Vec<_>>().join(", ");
        is_apart.then(|| {
            format!(
                "it ran on {} and the next on {}: their order may be that of the devices",
                listed(of_best),
                listed(of_next)
            )
        })
    }

    /// The numbers of points by the objective, higher for a better one, and their scale. Those of
    /// one seed are compared where the objective is learned, else those of one block: a time, or a
    /// metric of a command, may depend on the state of the machine.
    ///
    /// Differences are those of the first two points alone: how far a number varies may grow with
    /// it, and a point that is far off would hide what lies between the best two.
    fn rates(&self, points: &[Point<'_>]) -> (Rates, Scale) {
        let RankedBy::Metric(metric, goal) = self.objective.by else {
            return (Rates::of(points, self.rate), Scale::Ratio);
        };
        let blocks = match is_learned(metric) {
            true => Blocks::of_seeds(points),
            false => Blocks::of(points),
        };
        let values = |points: &[Point<'_>]| -> Vec<f64> {
            let rows = points.iter().flat_map(Point::completed);
            rows.filter_map(|row| self.objective.value(row)).collect()
        };
        let (points, scale) = match values(points).iter().all(|value| *value > 0.0) {
            true => (points, Scale::Ratio),
            false => (&points[..2], Scale::of_differences(&values(&points[..2]))),
        };
        let rate = |row: &TrialRow| Some(scale.rate(self.objective.value(row)?, goal));
        (Rates::within(points, &blocks, rate), scale)
    }

    /// Whether the lead of the best point is larger than noise.
    pub(in crate::report) fn is_certain(&self) -> bool {
        self.lacking().is_none() && self.untold.is_none() && self.order() == Some(Ok(()))
    }
}

/// Whether the state of the machine has no effect on a metric.
fn is_learned(metric: Metric) -> bool {
    ColumnMetric::named(metric.name(), metric.is_better_high())
        .is_some_and(|column| column.nature() == Nature::Settled)
}
