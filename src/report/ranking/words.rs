//! Says in sentences how the points of a run rank.

use std::collections::BTreeMap;

use kiln_core::{
    spec::{Metric, ObjectiveSource},
    units::{counted, decimals, without_controls},
};

use super::{Apart, LackingCount, RankedPoint, Ranking};
use crate::report::{
    layout::significant,
    objective::{RankedBy, words},
    points::{Statistic, short_names, shown},
};

/// Points that differ only in this key differ by chance.
const SEED: &str = "train.seed";

impl LackingCount {
    fn in_words(&self, what: &str) -> String {
        let have = if self.trials == 1 { "has" } else { "have" };
        let Self { trials, all } = self;
        format!(
            "{trials} of {} {have} no {what}",
            counted(*all, "completed trial")
        )
    }
}

impl Ranking<'_> {
    /// The answer in a sentence; `None` for a run of one point, or without a value.
    pub(in crate::report) fn verdict(&self) -> Option<String> {
        if self.axes.is_empty() || self.points.len() < 2 {
            return None;
        }
        let failed = self.failed_in_words() + &self.apart_in_words();
        if let Some(lacking) = self.lacking() {
            let reason = self.lacking_in_words(&lacking);
            return Some(format!("{}{failed}", self.cannot_tell(&reason)));
        }
        if self.with_value() < 2 {
            return None;
        }
        if let Some(reason) = &self.untold {
            return Some(format!("{}{failed}", self.cannot_tell(reason)));
        }
        let Some(first) = self.rivals().first() else {
            return Some(self.cannot_tell("each of them has failures"));
        };
        let name = self.name(first);
        let value = self.told(first)?;
        let said = match self.objective.by {
            RankedBy::Speed => format!("{name} is fastest: {value}"),
            RankedBy::Metric(..) => {
                format!("{name} has the {}: {value}", self.objective.superlative())
            }
        };
        let certainty = match self.order() {
            Some(Ok(())) => "its lead is larger than noise".to_owned(),
            Some(Err(doubt)) => doubt,
            None if self.objective.is_in_rounds => {
                "every other point of its round has failures".to_owned()
            }
            None => "every other point has failures".to_owned(),
        };
        let seeds = self.over_seeds().unwrap_or_default();
        let lowest = self.by_lowest_losses().unwrap_or_default();
        let front = self.front_in_words().unwrap_or_default();
        Some(format!("{said}; {certainty}{seeds}{lowest}{front}{failed}"))
    }

    /// Where the seed is an axis: compares settings of the other axes by their means over the seeds of the best
    /// point's setting, and tells the one with the best mean, unless it is that setting. The best point may owe its
    /// lead to its seed.
    fn over_seeds(&self) -> Option<String> {
        let seed = self.axes.iter().position(|axis| axis == SEED)?;
        // Values by seed, of each setting of the other axes.
        let mut settings: Vec<(Vec<&String>, BTreeMap<&String, f64>)> = Vec::new();
        for ranked in self.rivals() {
            let (Some(own), Some(value)) = (ranked.point.values.get(seed), ranked.value) else {
                continue;
            };
            let values = ranked.point.values.iter().enumerate();
            let values = values.filter(|(axis, _)| *axis != seed);
            let values: Vec<&String> = values.map(|(_, value)| value).collect();
            let place = settings.iter().position(|(known, _)| *known == values);
            let place = place.unwrap_or_else(|| {
                settings.push((values, BTreeMap::new()));
                settings.len() - 1
            });
            settings[place].1.insert(own, value);
        }
        // The best point comes first, and so does its setting.
        let (first, others) = settings.split_first()?;
        let seeds: Vec<&String> = first.1.keys().copied().collect();
        let mean = |(_, values): &(Vec<&String>, BTreeMap<&String, f64>)| {
            let own: Option<Vec<f64>> =
                seeds.iter().map(|seed| values.get(seed).copied()).collect();
            Statistic::of(own?)
        };
        let own = mean(first)?;
        let better = others
            .iter()
            .filter_map(|other| Some((other, mean(other)?)))
            .filter(|(_, value)| self.objective.is_better(value.mean, own.mean))
            .reduce(
                |one, other| match self.objective.is_better(other.1.mean, one.1.mean) {
                    true => other,
                    false => one,
                },
            );
        let ((values, _), best) = better.filter(|_| seeds.len() > 1)?;
        let names = short_names(self.axes).into_iter().enumerate();
        let names = names.filter(|(axis, _)| *axis != seed);
        let name: Vec<String> = names
            .zip(values)
            .map(|((_, axis), value)| without_controls(&format!("{axis} {}", shown(value))))
            .collect();
        let value = |value: Statistic| match self.objective.by {
            RankedBy::Speed => format!("{} {}", value.with_spread(), self.unit),
            RankedBy::Metric(metric, _) => metric_with_spread(metric, value),
        };
        Some(format!(
            "; but `{SEED}` is an axis, and the mean over its {} seeds is {}, of {} over the same seeds {}",
            seeds.len(),
            value(own),
            name.join(", "),
            value(best)
        ))
    }

    /// Names the point that would be the best by the lowest loss of each training, whose weights are kept, if
    /// it is another than by the last.
    fn by_lowest_losses(&self) -> Option<String> {
        if !matches!(self.objective.by, RankedBy::Metric(Metric::ValidLoss, _)) {
            return None;
        }
        let rivals = self.rivals().iter();
        let lowest = |ranked: &RankedPoint<'_>| {
            let whole = ranked
                .point
                .completed()
                .all(|row| row.lowest_valid_loss.is_some());
            let value = ranked.point.statistic(|row| row.lowest_valid_loss);
            value.filter(|_| whole)
        };
        let values: Option<Vec<Statistic>> = rivals.map(lowest).collect();
        let values = values?;
        let first = values.first()?;
        let by_mean =
            |one: &usize, other: &usize| values[*one].mean.total_cmp(&values[*other].mean);
        let best = (0..values.len()).min_by(by_mean)?;
        (values[best].mean < first.mean).then(|| {
            format!(
                "; by the lowest loss of each training (`lowest_valid_loss`), {} leads with {} (against {})",
                self.name(&self.rivals()[best]),
                metric_with_spread(Metric::LowestValidLoss, values[best]),
                metric_with_spread(Metric::LowestValidLoss, *first)
            )
        })
    }

    /// Says that no point can be called the best, with the reason.
    fn cannot_tell(&self, reason: &str) -> String {
        match self.objective.by {
            RankedBy::Speed => format!("cannot tell which point is fastest: {reason}"),
            RankedBy::Metric(..) => format!(
                "cannot tell which point has the {}: {reason}",
                self.objective.superlative()
            ),
        }
    }

    /// Trials without the value that ranks points, in words.
    fn lacking_in_words(&self, lacking: &LackingCount) -> String {
        match self.objective.by {
            RankedBy::Speed => {
                format!(
                    "{}, and may be the fastest",
                    lacking.in_words("measured rate")
                )
            }
            RankedBy::Metric(metric, _) => lacking.in_words(words(metric)),
        }
    }

    /// The points that rank behind the others because a trial of them failed, after a sentence.
    fn failed_in_words(&self) -> String {
        let failed: Vec<(&RankedPoint<'_>, &String)> = self
            .compared()
            .filter_map(|ranked| ranked.value.and(Some((ranked, ranked.failures.as_ref()?))))
            .collect();
        match failed[..] {
            [] => String::new(),
            [(ranked, failures)] => {
                let name = self.name(ranked);
                format!(". {name} ranks behind the points without failures: {failures}")
            }
            _ => format!(
                ". {} with failures rank behind those without",
                counted(failed.len(), "point")
            ),
        }
    }

    /// The points that are not compared, after a sentence.
    fn apart_in_words(&self) -> String {
        let sentences = [
            (Apart::Shorter, "their trials have another length"),
            (
                Apart::Twin,
                "with `data.synthetic: true` one batch is trained again and again",
            ),
        ];
        let sentences = sentences.into_iter().filter_map(|(apart, why)| {
            let those = self.points.iter().filter(|of| of.apart == Some(apart));
            let are = match those.count() {
                0 => return None,
                1 => "1 point is".to_owned(),
                count => format!("{count} points are"),
            };
            Some(format!(". {are} not compared: {why}"))
        });
        sentences.collect()
    }

    fn front_in_words(&self) -> Option<String> {
        if let Some(lacking) = self.lacking_rate().filter(|_| self.objective.is_trade_off) {
            let lacking = lacking.in_words("measured rate");
            return Some(format!(". cannot tell the Pareto front: {lacking}"));
        }
        if !self.has_front() {
            return self.front_doubt.as_ref().map(|doubt| format!(". {doubt}"));
        }
        let marked: Vec<&RankedPoint<'_>> = self.points.iter().filter(|of| of.is_marked).collect();
        let speeds = marked
            .iter()
            .filter_map(|of| Some((of.point.statistic(self.rate)?, of)));
        let (rate, fastest) = speeds.max_by(|one, other| one.0.mean.total_cmp(&other.0.mean))?;
        Some(format!(
            ". {} are on the Pareto front; {} is the fastest of them: {} {}",
            counted(marked.len(), "point"),
            self.name(fastest),
            rate.with_spread(),
            self.unit
        ))
    }

    /// A point's value of the objective: `1901 ± 6.8 % samples/s`, `0.5120`.
    fn told(&self, ranked: &RankedPoint<'_>) -> Option<String> {
        Some(match self.objective.by {
            RankedBy::Speed => format!(
                "{} {}",
                ranked.point.statistic(self.rate)?.with_spread(),
                self.unit
            ),
            RankedBy::Metric(metric, _) => {
                let value = ranked.point.statistic(|row| self.objective.value(row))?;
                metric_with_spread(metric, value)
            }
        })
    }

    /// Line on how the points are ordered.
    pub(in crate::report) fn order_in_words(&self) -> String {
        let order = match self.objective.by {
            RankedBy::Speed if self.is_of_steps() => "shortest step".to_owned(),
            _ => self.objective.superlative(),
        };
        let order = match self.objective.is_in_rounds {
            true => format!("longest trials first, of these {order}"),
            false => order,
        };
        match (self.objective.asked, &self.objective.why) {
            (Some(ObjectiveSource::Objective), _) => {
                format!("{order} first, as `objective` of the experiment says")
            }
            (Some(ObjectiveSource::Better), _) => {
                format!("{order} first, as `better` of this metric says")
            }
            (Some(ObjectiveSource::Search), _) => {
                format!("{order} first, as `metric` of the search says")
            }
            (Some(ObjectiveSource::Measured), _) => {
                format!("{order} first, because the experiment does not say what is better")
            }
            (None, Some(why)) => format!("{order} first, because {why}"),
            (None, None) => format!("{order} first"),
        }
    }

    /// Why the metrics of a command do not order the points; `None` if they do, or there are none.
    pub(in crate::report) fn unordered_in_words(&self) -> Option<&'static str> {
        let is_ordered = self.points.iter().any(|ranked| ranked.value.is_some());
        let has_metrics = self.metrics_of_command().next().is_some();
        let is_asked = self.objective.asked.is_some();
        (has_metrics && !is_ordered && !is_asked).then_some(
            "in the plan's order: no metric says which value is `better`, and the experiment has no \
             `objective`",
        )
    }

    /// Meaning of the mark.
    pub(in crate::report) fn mark_in_words(&self) -> String {
        match self.has_front() {
            true => format!(
                "* Pareto front: no other point without failures is as good in {} and in speed, and \
                 better in one; a lead in speed that may be noise does not count",
                match self.objective.by {
                    RankedBy::Metric(metric, _) => words(metric),
                    RankedBy::Speed => "speed",
                }
            ),
            false if self.objective.is_in_rounds => {
                format!("* {} of the longest trials", self.objective.superlative())
            }
            false => format!("* {}", self.objective.superlative()),
        }
    }
}

/// From here on four decimals show three digits of a metric.
const LEAST_PLAIN: f64 = 0.01;

/// The least deviation that four decimals show.
const LEAST_DEVIATION: f64 = 0.5e-4;

/// Whether a metric is printed with four decimals.
fn is_plain(metric: Metric) -> bool {
    !matches!(
        metric,
        Metric::Own(_)
            | Metric::ValidTop1
            | Metric::ValidHitRate
            | Metric::SecondsToTarget
            | Metric::SamplesPerSecond
            | Metric::TokensPerSecond
    )
}

/// A metric with its standard deviation over the runs, in its own unit.
pub(in crate::report) fn metric_with_spread(metric: Metric, value: Statistic) -> String {
    if let Metric::Own(_) = metric {
        return value.in_own_unit();
    }
    let print = |value: f64| match metric {
        Metric::ValidTop1 | Metric::ValidHitRate => format!("{} %", decimals(100.0 * value, 2)),
        Metric::SecondsToTarget => format!("{} s", significant(value)),
        Metric::SamplesPerSecond | Metric::TokensPerSecond => significant(value),
        _ => decimals(value, 4),
    };
    match value.deviation {
        // With the decimals of the mean.
        Some(deviation)
            if is_plain(metric)
                && value.mean.abs() >= LEAST_PLAIN
                && (deviation == 0.0 || deviation >= LEAST_DEVIATION) =>
        {
            format!("{} ± {deviation:.4}", print(value.mean))
        }
        Some(deviation) => format!("{} ± {}", print(value.mean), print(deviation)),
        None => print(value.mean),
    }
}
