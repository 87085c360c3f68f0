//! The objective of a run: the metric that ranks its points, from the experiment's `objective` or
//! from the axes of its table.

use kiln_core::{
    record::{TrialRow, TrialTable},
    spec::{self, Goal, Metric, ObjectiveSource, Search},
};

use super::points::{Point, Speed, short_names};

/// Axes that change how fast a trial trains, and are not meant to change what it learns.
const OF_SPEED: [&str; 13] = [
    "train.batch_size",
    "train.grad_accumulation",
    "train.precision",
    "train.cpu_threads",
    "train.cuda_graph",
    "train.cudnn_benchmark",
    "data.num_workers",
    "data.prefetch",
    "data.pin_memory",
    "data.persistent_workers",
    "data.synthetic",
    "data.length_bucket",
    "data.sort_by_length",
];
/// The same for all axes below these.
const SECTIONS_OF_SPEED: [&str; 5] = [
    "run.",
    "train.memory",
    "train.checkpoint",
    "train.evaluate",
    "train.sample",
];
/// The length of trials in a search by successive halving.
const ROUND_STEPS: &str = "train.steps";
/// An axis that only repeats trials.
const SEED: &str = "train.seed";

/// Effect of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AxisKind {
    Speed,
    Learned,
    /// It repeats trials, or has one value.
    Neither,
}

impl AxisKind {
    fn of(axis: &str) -> Self {
        if axis == SEED {
            Self::Neither
        } else if OF_SPEED.contains(&axis)
            || SECTIONS_OF_SPEED
                .iter()
                .any(|section| axis.starts_with(section))
        {
            Self::Speed
        } else {
            Self::Learned
        }
    }
}

/// The quantity that ranks points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankedBy {
    /// Samples per second, or tokens where samples have different lengths.
    Speed,
    Metric(Metric, Goal),
}

/// The ranking of the points of a run, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankingObjective {
    pub(super) by: RankedBy,
    /// Whether the axes also change the speed, so that no point is the best at both.
    pub(super) is_trade_off: bool,
    /// The key of the experiment that chose the metric; `None` if the axes chose it.
    pub(super) asked: Option<ObjectiveSource>,
    /// Whether only trials of one length compare ([`spec::Objective::is_in_rounds`]).
    pub(super) is_in_rounds: bool,
    /// The axes that decide it, in words; `None` if speed is all they change.
    pub(super) why: Option<String>,
}

impl RankingObjective {
    /// The metric that ranks, unless it is the speed.
    pub(super) fn metric(&self) -> Option<Metric> {
        match self.by {
            RankedBy::Metric(metric, _) => Some(metric),
            RankedBy::Speed => None,
        }
    }

    /// `asked` is the experiment's own objective.
    pub(super) fn of(table: &TrialTable, asked: Option<spec::Objective>) -> Self {
        if let Some(asked) = asked {
            return Self::asked(asked);
        }
        let speed = Self {
            by: RankedBy::Speed,
            is_trade_off: false,
            asked: None,
            is_in_rounds: false,
            why: None,
        };
        let kinds = kinds(table);
        let Some(first) = kinds.iter().position(|kind| *kind == AxisKind::Learned) else {
            return speed;
        };
        let Some(metric) = learned_metric(table) else {
            return speed;
        };
        let names = short_names(&table.axes);
        let goal = spec::Objective::of(metric, None).goal();
        let changing = format!("`{}` changes what is learned", names[first]);
        let fast = kinds.iter().position(|kind| *kind == AxisKind::Speed);
        Self {
            by: RankedBy::Metric(metric, goal),
            is_trade_off: fast.is_some(),
            asked: None,
            is_in_rounds: false,
            why: Some(match fast {
                Some(fast) => format!("{changing}, and `{}` how fast", names[fast]),
                None => changing,
            }),
        }
    }

    fn asked(asked: spec::Objective) -> Self {
        let by = match asked.metric {
            Metric::SamplesPerSecond | Metric::TokensPerSecond if asked.goal() == Goal::Max => {
                RankedBy::Speed
            }
            metric => RankedBy::Metric(metric, asked.goal()),
        };
        Self {
            by,
            is_trade_off: false,
            asked: Some(asked.source),
            is_in_rounds: asked.is_in_rounds,
            why: None,
        }
    }

    /// The value of a row; `None` for speed.
    pub(super) fn value(&self, row: &TrialRow) -> Option<f64> {
        match self.by {
            RankedBy::Speed => None,
            RankedBy::Metric(metric, _) => {
                let value = row.metric_of_whole_work(metric);
                value.filter(|value| value.is_finite())
            }
        }
    }

    /// The value of a row; where speed ranks points, this one.
    pub(super) fn value_or(&self, rate: Speed, row: &TrialRow) -> Option<f64> {
        match self.by {
            RankedBy::Speed => rate(row),
            RankedBy::Metric(..) => self.value(row),
        }
    }

    /// The steps of a point's round; `None` where trials of different lengths compare.
    pub(super) fn round_steps(&self, axes: &[String], point: &Point<'_>) -> Option<u64> {
        let axis = axes.iter().position(|axis| axis == ROUND_STEPS)?;
        let steps = point.values.get(axis).filter(|_| self.is_in_rounds)?;
        steps.parse().ok()
    }

    /// Trials of a point that failed, in words; where the time until a target ranks points, also
    /// those that did not reach it.
    pub(super) fn failures(&self, point: &Point<'_>) -> Option<String> {
        let missed = match self.by {
            RankedBy::Metric(metric @ Metric::SecondsToTarget, _) => {
                point.lacking(|row| row.metric(metric))
            }
            _ => None,
        };
        let missed = missed.map(|missed| {
            let (count, all) = (missed.rows.len(), point.rows.len());
            format!("{count} of {all} did not reach the target")
        });
        let parts: Vec<String> = point.failures().into_iter().chain(missed).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Whether this value is better.
    pub(super) fn is_better(&self, one: f64, other: f64) -> bool {
        match self.by {
            RankedBy::Metric(_, Goal::Min) => one < other,
            _ => one > other,
        }
    }

    /// `fastest`, `lowest validation loss`; the best of a metric whose name begins with such a word.
    pub(super) fn superlative(&self) -> String {
        let is_superlative = |name: &str| name.starts_with("lowest") || name.starts_with("highest");
        match self.by {
            RankedBy::Speed => "fastest".to_owned(),
            RankedBy::Metric(metric, _) if is_superlative(words(metric)) => {
                format!("best `{}`", words(metric))
            }
            RankedBy::Metric(metric, Goal::Min) => format!("lowest {}", words(metric)),
            RankedBy::Metric(metric, Goal::Max) => format!("highest {}", words(metric)),
        }
    }
}

/// The goal of a search; `None` for one that asks only whether a size fits.
fn of_search(search: &Search) -> Option<RankingObjective> {
    let metric = match search {
        Search::LargestBatch { .. } => return None,
        Search::SuccessiveHalving { metric, .. } => *metric,
        Search::BestThroughputBatch { .. } | Search::Workers { .. } => Metric::SamplesPerSecond,
    };
    Some(RankingObjective::asked(spec::Objective::of(metric, None)))
}

/// The property in which the choice of a search is best, in the words of a report: `fastest`,
/// `lowest validation loss`; `soonest at a loss` if it ranks batches by the time until one.
pub fn goal_of_search(search: &Search, until: UntilTarget) -> String {
    match of_search(search) {
        _ if until == UntilTarget::Ranked => "soonest at a loss".to_owned(),
        Some(found) => found.superlative(),
        None => "largest that fits".to_owned(),
    }
}

/// How a search ranks batches if the objective is the time until a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntilTarget {
    /// By their speed: the experiment does not ask for more.
    NotAsked,
    /// By their speed, because no trial measured a noise scale.
    Unmeasured,
    /// By their speed over the samples that they need.
    Ranked,
}

/// Says that a search does not optimize the experiment's own objective; `None` if it does, or the
/// experiment names none.
pub fn objective_not_searched(
    search: &Search,
    asked: Option<spec::Objective>,
    until: UntilTarget,
) -> Option<String> {
    let (asked, own) = (asked?, of_search(search));
    let wanted = RankingObjective::asked(asked);
    if until == UntilTarget::Ranked || own.is_some_and(|own| own.by == wanted.by) {
        return None;
    }
    let is_of_batch = matches!(search, Search::BestThroughputBatch { .. });
    let also = match (is_of_batch, asked.metric, until) {
        (true, Metric::SecondsToTarget, UntilTarget::NotAsked) => {
            "; with `measure.gradient_noise`, and without `keep_effective`, this search ranks sizes by \
             the time until a loss"
        }
        _ => "",
    };
    Some(format!(
        "the `objective` of this experiment, {}, is not what the search {} optimizes: its choice is \
         the {}; `kiln report` ranks the trials by the objective, and the search \
         successive-halving with `metric: {}` looks for it{also}",
        wanted.superlative(),
        search.kind(),
        goal_of_search(search, until),
        asked.metric.name(),
    ))
}

/// The effects of the axes. An axis of one value decides nothing where another axis has several; the
/// values that the run plans count, so that the ranking of an unfinished run is that of the whole.
fn kinds(table: &TrialTable) -> Vec<AxisKind> {
    let first = table.rows.first().map(|row| &row.axes);
    let varies = |place: usize| {
        let cell = first.and_then(|axes| axes.get(place));
        table.varied.contains(&table.axes[place])
            || table.rows.iter().any(|row| row.axes.get(place) != cell)
    };
    let varied: Vec<bool> = (0..table.axes.len()).map(varies).collect();
    let has_varied = varied.contains(&true);
    let kind = |(axis, varies): (&String, bool)| match varies || !has_varied {
        true => AxisKind::of(axis),
        false => AxisKind::Neither,
    };
    table.axes.iter().zip(varied).map(kind).collect()
}

/// The metric of what is learned: the accuracy of images, else the validation loss, else the
/// training loss; `None` if nothing was trained.
fn learned_metric(table: &TrialTable) -> Option<Metric> {
    [Metric::ValidTop1, Metric::ValidLoss, Metric::TrainLoss]
        .into_iter()
        .find(|metric| {
            table
                .rows
                .iter()
                .any(|row| row.fixed.metric(*metric).is_some())
        })
}

/// A metric in words.
pub(super) fn words(metric: Metric) -> &'static str {
    match metric {
        Metric::ValidLoss => "validation loss",
        Metric::LowestValidLoss => "validation loss of the best evaluation",
        Metric::TrainLoss => "training loss",
        Metric::SamplesPerSecond => "samples/s",
        Metric::TokensPerSecond => "tokens/s",
        Metric::ValidTop1 => "top-1 accuracy",
        Metric::ValidMeanAbsoluteError => "mean absolute error",
        Metric::ValidHitRate => "hit rate",
        Metric::ValidBleu4 => "BLEU-4",
        Metric::ValidChrf => "chrF",
        Metric::SecondsToTarget => "time to the target",
        Metric::Own(_) => metric.key(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::points::tests::{row, table},
        *,
    };

    fn trained(axes: &[&str], top1: Option<f64>) -> RankingObjective {
        let fixed = TrialRow {
            valid_loss: Some(2.0),
            valid_top1: top1,
            ..row(1, 10.0)
        };
        let cells: Vec<&str> = axes.iter().map(|_| "1").collect();
        RankingObjective::of(&table(axes, vec![(fixed, &cells)]), None)
    }

    #[test]
    fn axes_that_only_change_the_speed_rank_by_it() {
        for axes in [
            &[][..],
            &["train.batch_size"],
            &["data.num_workers", "run.engine"],
            &["train.seed"],
            &["train.checkpoint.every_steps", "train.precision"],
        ] {
            let found = trained(axes, None);
            assert_eq!(found.by, RankedBy::Speed, "{axes:?}");
            assert!(!found.is_trade_off && found.why.is_none());
        }
    }

    #[test]
    fn the_superlative_is_not_doubled() {
        let told = |metric, goal| {
            let asked = spec::Objective::of(metric, Some(goal));
            RankingObjective::asked(asked).superlative()
        };
        let own = Metric::Own;
        assert_eq!(told(own("metric.lowest"), Goal::Min), "best `lowest`");
        assert_eq!(
            told(own("metric.highest_fps"), Goal::Max),
            "best `highest_fps`"
        );
        assert_eq!(told(own("metric.fps"), Goal::Max), "highest fps");
    }

    #[test]
    fn an_axis_that_changes_what_is_learned_ranks_by_loss_or_accuracy() {
        let found = trained(&["train.optimizer.learning_rate"], None);
        assert_eq!(found.superlative(), "lowest validation loss");
        assert!(!found.is_trade_off);
        assert_eq!(
            found.why.unwrap(),
            "`learning_rate` changes what is learned"
        );
        let images = trained(&["model.depth", "train.seed"], Some(0.5));
        assert_eq!(images.superlative(), "highest top-1 accuracy");
        let both = trained(&["train.batch_size", "model.d_model"], None);
        assert!(both.is_trade_off);
        assert_eq!(
            both.why.unwrap(),
            "`d_model` changes what is learned, and `batch_size` how fast"
        );
    }

    #[test]
    fn an_axis_of_one_value_decides_nothing_beside_one_of_several() {
        let fixed = || TrialRow {
            valid_loss: Some(2.0),
            ..row(1, 10.0)
        };
        let found = |axes: &[&str], rows: [&[&str]; 2]| {
            let rows = rows.map(|cells| (fixed(), cells)).to_vec();
            RankingObjective::of(&table(axes, rows), None)
        };
        let axes = ["train.batch_size", "train.optimizer.learning_rate"];
        let rates = found(&axes, [&["16", "0.1"], &["16", "0.2"]]);
        assert_eq!(rates.superlative(), "lowest validation loss");
        assert!(!rates.is_trade_off);
        let sizes = found(&axes, [&["16", "0.1"], &["32", "0.1"]]);
        assert_eq!(sizes.by, RankedBy::Speed);
    }

    #[test]
    fn a_planned_value_that_no_row_has_yet_decides_how_an_unfinished_run_ranks() {
        let fixed = |id| TrialRow {
            valid_loss: Some(2.0),
            ..row(id, 10.0)
        };
        let axes = ["train.batch_size", "train.optimizer.learning_rate"];
        let rows = vec![
            (fixed(1), &["16", "0.1"][..]),
            (fixed(2), &["32", "0.1"][..]),
        ];
        let unfinished = TrialTable {
            varied: axes.map(str::to_owned).to_vec(),
            ..table(&axes, rows)
        };
        let found = RankingObjective::of(&unfinished, None);
        assert_eq!(found.superlative(), "lowest validation loss");
        assert!(found.is_trade_off);
    }

    #[test]
    fn a_run_without_losses_ranks_by_speed() {
        let products = table(&["model.size"], vec![(row(1, 10.0), &["64"])]);
        assert_eq!(RankingObjective::of(&products, None).by, RankedBy::Speed);
    }

    #[test]
    fn a_search_is_named_like_a_report_and_says_when_it_does_not_optimize_the_objective() {
        let search = |text: &str| -> Search { serde_yaml::from_str(text).unwrap() };
        let asked = |metric| Some(spec::Objective::of(metric, None));
        let halving = search(
            "{kind: successive-halving, metric: valid_loss, steps: 4, axes: {train.seed: [1, 2]}}",
        );
        let fastest = search("{kind: best-throughput-batch}");
        let largest = search("{kind: largest-batch}");
        assert_eq!(
            goal_of_search(&halving, UntilTarget::NotAsked),
            "lowest validation loss"
        );
        assert_eq!(goal_of_search(&fastest, UntilTarget::NotAsked), "fastest");
        assert_eq!(
            goal_of_search(&largest, UntilTarget::NotAsked),
            "largest that fits"
        );
        for (search, metric) in [
            (&halving, Metric::ValidLoss),
            (&fastest, Metric::SamplesPerSecond),
            (&fastest, Metric::TokensPerSecond),
        ] {
            assert_eq!(
                objective_not_searched(search, asked(metric), UntilTarget::NotAsked),
                None
            );
            assert_eq!(
                objective_not_searched(search, None, UntilTarget::NotAsked),
                None
            );
        }
        let told =
            objective_not_searched(&largest, asked(Metric::ValidLoss), UntilTarget::NotAsked)
                .unwrap();
        assert!(
            told.contains("lowest validation loss, is not what the search largest-batch optimizes")
                && told.contains("`metric: valid_loss`"),
            "{told}"
        );
        assert!(
            objective_not_searched(&halving, asked(Metric::ValidTop1), UntilTarget::NotAsked)
                .is_some()
        );
        assert!(
            objective_not_searched(&fastest, asked(Metric::ValidLoss), UntilTarget::NotAsked)
                .is_some()
        );
        let until = |until| objective_not_searched(&fastest, asked(Metric::SecondsToTarget), until);
        assert_eq!(
            goal_of_search(&fastest, UntilTarget::Ranked),
            "soonest at a loss"
        );
        assert_eq!(until(UntilTarget::Ranked), None);
        let advises = |told: String| told.contains("with `measure.gradient_noise`");
        assert!(until(UntilTarget::NotAsked).is_some_and(advises));
        assert!(until(UntilTarget::Unmeasured).is_some_and(|told| !advises(told)));
        let slowest = spec::Objective::of(Metric::SamplesPerSecond, Some(Goal::Min));
        assert!(objective_not_searched(&fastest, Some(slowest), UntilTarget::NotAsked).is_some());
    }

    #[test]
    fn the_experiments_own_objective_counts() {
        let asked = |metric, goal| {
            let table = table(&["train.batch_size"], vec![(row(1, 10.0), &["4"])]);
            RankingObjective::of(&table, Some(spec::Objective::of(metric, goal)))
        };
        assert_eq!(
            asked(Metric::ValidLoss, None).superlative(),
            "lowest validation loss"
        );
        assert_eq!(asked(Metric::TokensPerSecond, None).by, RankedBy::Speed);
        let slow = asked(Metric::SamplesPerSecond, Some(Goal::Min));
        assert!(slow.is_better(1.0, 2.0));
    }
}
