//! Ranks the points of a run by its objective.

mod certainty;
mod front;
mod peers;
pub(super) mod words;

use std::cmp::Ordering;

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    plan::TrialId,
    record::{TrialRow, TrialTable, note::StoppedEarly},
    spec::{self, Metric},
    units::{decimals, without_controls},
};

use self::{
    front::Front,
    peers::{Apart, Peers},
};
use super::{
    layout::significant,
    objective::{RankedBy, RankingObjective},
    points::{Point, SAMPLES, Speed, TOKENS, points, speed},
};

/// The points of a run with a completed trial, best first.
pub(super) struct Ranking<'a> {
    pub(super) objective: RankingObjective,
    /// Points of which a trial failed come after all others with a value of the objective: those
    /// of their runs that are left are chosen by how they went. Points without a value come last, in
    /// the plan's order.
    pub(super) points: Vec<RankedPoint<'a>>,
    peers: Peers,
    /// The throughput of the run: samples, tokens or steps per second.
    pub(super) rate: Speed,
    unit: &'static str,
    /// Whether any point has repeats.
    pub(super) has_repeats: bool,
    pub(super) axes: &'a [String],
    /// The columns of a command's own metrics.
    metrics: &'a [String],
    /// Why the first point is not called the best, although its mean is.
    untold: Option<String>,
    /// A sentence on points that are faster by their means and not on the Pareto front.
    front_doubt: Option<String>,
}

/// How many completed trials lack a value.
struct LackingCount {
    trials: usize,
    all: usize,
}

impl LackingCount {
    /// Counts the trials of points without failures; `None` if each has the value.
    fn of<'a>(
        points: impl Iterator<Item = &'a RankedPoint<'a>>,
        value: impl Fn(&TrialRow) -> Option<f64>,
    ) -> Option<Self> {
        let whole = points.filter(|of| of.failures.is_none());
        let rows: Vec<&TrialRow> = whole.flat_map(|of| of.point.completed()).collect();
        let trials = rows.iter().filter(|row| value(row).is_none()).count();
        (trials > 0).then_some(Self {
            trials,
            all: rows.len(),
        })
    }
}

/// A point and its place.
pub(super) struct RankedPoint<'a> {
    pub(super) point: &'a Point<'a>,
    /// Among the points of the run, in the plan's order.
    pub(super) place: usize,
    /// Mean of the objective.
    pub(super) value: Option<f64>,
    /// Its trials that failed, in words ([`Point::failures`]).
    pub(super) failures: Option<String>,
    /// Points that stand apart come after those that are compared.
    pub(super) apart: Option<Apart>,
    /// Whether the point is the best one, or one of the Pareto front.
    pub(super) is_marked: bool,
}

impl RankedPoint<'_> {
    /// Whether it may be the best: it has a value, and none of its trials failed.
    pub(super) fn is_rival(&self) -> bool {
        self.value.is_some() && self.failures.is_none() && self.apart.is_none()
    }
}

impl<'a> Ranking<'a> {
    pub(super) fn new(
        all: &'a [Point<'a>],
        table: &'a TrialTable,
        asked: Option<spec::Objective>,
    ) -> Self {
        let objective = RankingObjective::of(table, asked);
        let (rate, unit) = match asked.map(|asked| asked.metric) {
            Some(Metric::SamplesPerSecond) => SAMPLES,
            Some(Metric::TokensPerSecond) => TOKENS,
            _ => speed(all, &table.axes),
        };
        let value = |row: &TrialRow| objective.value_or(rate, row);
        let mut points: Vec<RankedPoint<'_>> = all
            .iter()
            .enumerate()
            .filter(|(_, point)| point.completed().next().is_some())
            .map(|(place, point)| RankedPoint {
                point,
                place,
                value: point
                    .statistic(value)
                    .map(|value| value.mean)
                    .filter(|mean| !mean.is_nan()),
                failures: objective.failures(point),
                apart: None,
                is_marked: false,
            })
            .collect();
        let round = |ranked: &RankedPoint<'_>| objective.round_steps(&table.axes, ranked.point);
        let with_value = points.iter().filter(|ranked| ranked.value.is_some());
        let with_value = with_value.map(|ranked| ranked.point);
        let peers = Peers::of(&objective, &table.axes, all, with_value);
        for ranked in &mut points {
            ranked.apart = peers.apart(&objective, &table.axes, ranked.point);
        }
        let by_value =
            |one: &RankedPoint<'_>, other: &RankedPoint<'_>| match (one.value, other.value) {
                (Some(one), Some(other)) if objective.is_better(one, other) => Ordering::Less,
                (Some(one), Some(other)) if objective.is_better(other, one) => Ordering::Greater,
                (one, other) => other.is_some().cmp(&one.is_some()),
            };
        points.sort_by(|one, other| {
            let rivals_first = other.is_rival().cmp(&one.is_rival());
            rivals_first
                .then_with(|| round(other).cmp(&round(one)))
                .then_with(|| by_value(one, other))
        });
        let has_repeats = points
            .iter()
            .any(|ranked| ranked.point.completed().count() > 1);
        let mut ranking = Self {
            objective,
            points,
            peers,
            rate,
            unit,
            has_repeats,
            axes: &table.axes,
            metrics: &table.metrics,
            untold: None,
            front_doubt: None,
        };
        ranking.untold = ranking
            .found_incomparable()
            .or_else(|| ranking.found_overtaken())
            .or_else(|| ranking.found_tied());
        ranking.mark();
        ranking
    }

    /// The metrics of the command, in the order of the table.
    pub(super) fn metrics_of_command(&self) -> impl Iterator<Item = Metric> {
        let columns = self.metrics.iter();
        columns.filter_map(|column| Some(Metric::named(column.strip_prefix(METRIC_PREFIX)?)))
    }

    /// The points that are compared.
    fn compared(&self) -> impl Iterator<Item = &RankedPoint<'a>> + Clone {
        self.points.iter().filter(|ranked| ranked.apart.is_none())
    }

    /// The number of compared points with a value of the objective.
    fn with_value(&self) -> usize {
        self.compared().filter(|of| of.value.is_some()).count()
    }

    /// The points that may be the best, best first.
    fn rivals(&self) -> &[RankedPoint<'a>] {
        let count = self.points.iter().filter(|of| of.is_rival()).count();
        &self.points[..count]
    }

    fn rival_points(&self) -> Vec<Point<'a>> {
        let rivals = self.rivals().iter();
        rivals.map(|ranked| ranked.point.clone()).collect()
    }

    /// Completed trials without the value that ranks points, where each trial should have it; `None`
    /// if there are none. A point with such trials would be judged by its others, or not at all:
    /// where trials ended too soon to have a rate, the fastest are the first to lack it. A trial
    /// that did not reach its target has no time until it: that is its result.
    fn lacking(&self) -> Option<LackingCount> {
        let is_result = matches!(
            self.objective.by,
            RankedBy::Metric(Metric::SecondsToTarget, _)
        );
        let lacking = LackingCount::of(self.compared(), |row| self.value_of(row));
        lacking.filter(|_| !is_result && self.with_value() > 0)
    }

    /// How many completed trials lack a speed; `None` if all have one, or none has.
    fn lacking_rate(&self) -> Option<LackingCount> {
        LackingCount::of(self.compared(), self.rate).filter(|lacking| lacking.trials < lacking.all)
    }

    /// The value of a row by which points are ranked.
    fn value_of(&self, row: &TrialRow) -> Option<f64> {
        self.objective.value_or(self.rate, row)
    }

    /// Number of a point's runs that have the value that ranks points; of its completed runs where
    /// none has.
    pub(super) fn runs(&self, point: &Point<'_>) -> usize {
        let value = point.statistic(|row| self.value_of(row));
        value.map_or(point.completed().count(), |value| value.runs)
    }

    /// The speed of the fastest point without failures; `None` if trials without a speed may be
    /// faster.
    pub(super) fn fastest(&self) -> Option<f64> {
        let is_untold = self.objective.by == RankedBy::Speed && self.untold.is_some();
        if is_untold || self.lacking_rate().is_some() {
            return None;
        }
        self.compared()
            .filter(|ranked| ranked.failures.is_none())
            .filter_map(|ranked| Some(ranked.point.statistic(self.rate)?.mean))
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .reduce(f64::max)
    }

    /// The share of a point's speed in that of the fastest one; `None` for a point with failures,
    /// or one that is not compared with it.
    pub(super) fn share(&self, point: &Point<'_>, fastest: Option<f64>) -> Option<f64> {
        let rate = point.statistic(self.rate)?.mean;
        let is_told = rate.is_finite()
            && rate > 0.0
            && self.objective.failures(point).is_none()
            && self
                .peers
                .apart(&self.objective, self.axes, point)
                .is_none();
        Some(rate / fastest.filter(|_| is_told)?)
    }

    /// The column of `trials.csv` by which points are ranked.
    pub(super) fn column(&self) -> &'static str {
        match self.objective.by {
            RankedBy::Metric(metric, _) => metric.name(),
            RankedBy::Speed if self.unit == TOKENS.1 => Metric::TokensPerSecond.name(),
            RankedBy::Speed if self.unit == SAMPLES.1 => Metric::SamplesPerSecond.name(),
            RankedBy::Speed => "median_step_seconds",
        }
    }

    /// Whether beside synthetic twins it has one point, and nothing to choose from.
    fn is_a_pair(&self) -> bool {
        let has = |apart: Apart| self.points.iter().any(|of| of.apart == Some(apart));
        has(Apart::Twin) && !has(Apart::Shorter) && self.compared().count() == 1
    }

    fn mark(&mut self) {
        let Front { is_on, doubt } = match self.objective.is_trade_off {
            _ if self.lacking().is_some() || self.untold.is_some() => Front::default(),
            _ if self.is_a_pair() => Front::default(),
            true if self.lacking_rate().is_some() => Front::default(),
            true => self.front(),
            false => Front {
                is_on: (0..self.rivals().len()).map(|place| place == 0).collect(),
                doubt: None,
            },
        };
        for (ranked, is_marked) in self.points.iter_mut().zip(is_on) {
            ranked.is_marked = is_marked;
        }
        self.front_doubt = doubt;
    }

    /// Whether several points are marked, so that the best of the metric is not the fastest.
    pub(super) fn has_front(&self) -> bool {
        let marked = self.points.iter().filter(|ranked| ranked.is_marked);
        self.objective.is_trade_off && marked.count() > 1
    }

    fn name(&self, ranked: &RankedPoint<'_>) -> String {
        without_controls(&ranked.point.short_name(self.axes))
    }

    /// Whether the losses that are compared were reached after different numbers of samples, in words.
    pub(super) fn unequal_samples(&self) -> Option<String> {
        unequal_samples(self.compared().map(|ranked| ranked.point))
    }

    /// Whether the points can be ranked by step time only.
    pub(super) fn is_of_steps(&self) -> bool {
        let has_rate = |row: &TrialRow| SAMPLES.0(row).or(TOKENS.0(row)).is_some();
        self.objective.by == RankedBy::Speed
            && self.with_value() > 0
            && !self
                .points
                .iter()
                .flat_map(|ranked| ranked.point.completed())
                .any(has_rate)
    }
}

/// The best point's value of a run's objective.
#[derive(Clone, Debug, PartialEq)]
pub struct BestValue {
    /// Short: `1901 samples/s`, `valid_loss 0.5120`.
    pub words: String,
    /// The column that ranks the points; `steps_per_second` where there is only a step time.
    pub objective: &'static str,
    pub value: f64,
}

/// `None` where no point can be called the best.
pub fn best_value(table: &TrialTable, asked: Option<spec::Objective>) -> Option<BestValue> {
    let all = points(table);
    let ranking = Ranking::new(&all, table, asked);
    let value = ranking.points.iter().find(|of| of.is_marked)?.value?;
    let words = match ranking.objective.by {
        RankedBy::Speed => format!("{} {}", significant(value), ranking.unit),
        RankedBy::Metric(metric @ Metric::Own(_), _) => {
            format!("{} {}", metric.key(), significant(value))
        }
        RankedBy::Metric(metric, _) => format!("{} {}", metric.name(), decimals(value, 4)),
    };
    let objective = match ranking.is_of_steps() {
        true => "steps_per_second",
        false => ranking.column(),
    };
    Some(BestValue {
        words,
        objective,
        value,
    })
}

/// A trial that stands for a ranked point.
pub struct RankedTrial {
    /// Its completed trial with the lowest seed.
    pub trial: TrialId,
    /// `batch_size 8, num_workers 4`.
    pub point: String,
    /// Whether the point is the best one, or one of the Pareto front.
    pub is_marked: bool,
    /// The best point of its run in words: `the point of the lowest validation loss`.
    pub best: String,
}

/// The points of a run with a completed trial, best first.
pub fn ranked_trials(table: &TrialTable, asked: Option<spec::Objective>) -> Vec<RankedTrial> {
    let all = points(table);
    let ranking = Ranking::new(&all, table, asked);
    let superlative = ranking.objective.superlative();
    let best = match ranking.objective.by {
        RankedBy::Speed => format!("the {superlative} point"),
        RankedBy::Metric(..) => format!("the point of the {superlative}"),
    };
    let of_point = |ranked: &RankedPoint<'_>| {
        let first = ranked.point.completed().min_by_key(|row| row.seed)?;
        Some(RankedTrial {
            trial: first.trial.clone(),
            point: ranking.name(ranked),
            is_marked: ranked.is_marked,
            best: best.clone(),
        })
    };
    ranking.points.iter().filter_map(of_point).collect()
}

/// Whether the losses of points were reached after different numbers of samples, in words.
pub(super) fn unequal_samples<'a>(
    points: impl Iterator<Item = &'a Point<'a>> + Clone,
) -> Option<String> {
    let mut seen: Vec<u64> = points
        .clone()
        .flat_map(Point::completed)
        .filter(|row| row.train_loss.is_some() || row.valid_loss.is_some())
        .filter_map(|row| Some(row.steps? * row.effective_batch_size))
        .collect();
    seen.sort_unstable();
    let (least, most) = (*seen.first()?, *seen.last()?);
    // The last partial batch of an epoch is dropped, so batch sizes differ by less than one batch.
    let mut of_commands = points.clone().flat_map(Point::completed);
    let has_command = of_commands.any(|row| row.is_command());
    let mut completed = points.flat_map(Point::completed);
    let why = match (completed.any(StoppedEarly::is_of), has_command) {
        (true, _) => {
            "`train.early_stop` ended some trainings, each where its validation loss no longer fell"
        }
        // It has no `train.epochs`.
        (false, true) => "a lower loss may only have seen more",
        (false, false) => {
            "a lower loss may only have seen more; `train.epochs` in place of `train.steps` gives \
             every point the same"
        }
    };
    (most as f64 > 1.05 * least as f64).then(|| {
        format!(
            "the losses were reached after different numbers of samples ({least} to {most}): {why}"
        )
    })
}

#[cfg(test)]
mod tests;
