//! A gate answers whether a metric became worse at any point. It has three answers; "cannot tell"
//! is not "no".

use kiln_core::{
    statistics::{MUCH_DISTURBED, Nature},
    units::{counted, listed},
};

use super::{
    Compared, ComparedMetric, Comparison, Comparisons, DisturbedRun, Verdict, word, words::USABLE,
};

/// Answer of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Pass,
    /// The points where the metric became worse.
    Fail(Vec<String>),
    /// The points where these runs cannot exclude it, each with the reason.
    CannotTell(Vec<String>),
}

/// Largest number of points that a sentence names.
const MOST_NAMED: usize = 5;

impl Gate {
    /// The answer to both questions: a failure counts first, then what cannot be told.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fail(mut one), Self::Fail(other)) => {
                one.extend(other);
                Self::Fail(one)
            }
            (Self::Fail(one), _) | (_, Self::Fail(one)) => Self::Fail(one),
            (Self::CannotTell(mut one), Self::CannotTell(other)) => {
                one.extend(other);
                Self::CannotTell(one)
            }
            (Self::CannotTell(one), _) | (_, Self::CannotTell(one)) => Self::CannotTell(one),
            (Self::Pass, Self::Pass) => Self::Pass,
        }
    }

    /// The answer for programs.
    pub fn answer(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
            Self::CannotTell(_) => "cannot-tell",
        }
    }

    /// The points for which it does not pass, with reasons where it cannot be told.
    pub fn points(&self) -> &[String] {
        match self {
            Self::Pass => &[],
            Self::Fail(points) | Self::CannotTell(points) => points,
        }
    }

    pub fn sentence(&self) -> String {
        let named = |points: &[String]| {
            let more = points.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 {
                format!("; and {more} more")
            } else {
                String::new()
            };
            format!(
                "{}{more}",
                listed(&points[..points.len().min(MOST_NAMED)], "; ")
            )
        };
        match self {
            Self::Pass => "pass".to_owned(),
            Self::Fail(points) => format!(
                "fail at {}: {}",
                counted(points.len(), "point"),
                named(points)
            ),
            Self::CannotTell(points) => format!(
                "cannot tell at {}: {}",
                counted(points.len(), "point"),
                named(points)
            ),
        }
    }
}

/// Decides whether a metric became worse at any point of base. It passes where the runs exclude
/// that at every point.
pub fn gate(found: &Comparisons, metric: ComparedMetric) -> Gate {
    let (mut worse, mut untold) = (Vec::new(), Vec::new());
    for pair in &found.pairs {
        let comparison = pair
            .comparisons
            .iter()
            .find(|comparison| comparison.metric == metric);
        match comparison {
            _ if !pair.unlike.is_empty() => untold.push(format!("{} (not comparable)", pair.name)),
            _ if !found.unnamed.is_empty() => untold.push(format!(
                "{} (the runs differ in {}; `--across {}` makes that the question)",
                pair.name,
                listed(&found.unnamed, ", "),
                found.unnamed.join(",")
            )),
            _ if pair.shared > 0 => untold.push(format!(
                "{} ({} on both sides the same)",
                pair.name,
                counted(pair.shared, "run")
            )),
            Some(comparison) if !found.is_clean && is_lopsided(pair, comparison) => {
                untold.push(format!("{} ({})", pair.name, disturbed(pair, comparison)))
            }
            Some(Comparison {
                verdict: Verdict::Worse,
                ..
            }) => worse.push(pair.name.clone()),
            _ if pair.ends.is_some() => {
                untold.push(format!("{} (not all its trials completed)", pair.name))
            }
            None => {
                let unusable = pair.unusable.iter().find(|column| metric.has(column));
                let why = match unusable {
                    Some(column) => format!("a `{column}` is not {USABLE}"),
                    _ => format!("no {} on both sides", metric.name()),
                };
                untold.push(format!("{} ({why})", pair.name));
            }
            Some(comparison) if comparison.base_missing + comparison.new_missing > 0 => {
                untold.push(format!(
                    "{} (a run lacks `{}`)",
                    pair.name, comparison.column
                ));
            }
            Some(Comparison {
                passed_over: Some(column),
                ..
            }) => untold.push(format!("{} (only one side has `{column}`)", pair.name)),
            Some(comparison) if !comparison.excludes_worse => untold.push(format!(
                "{} ({})",
                pair.name,
                word(comparison).replace('-', " ")
            )),
            Some(_) => {}
        }
    }
    untold.extend(
        found
            .only_base
            .iter()
            .map(|name| format!("{name} (only in base)")),
    );
    match (worse.is_empty(), untold.is_empty()) {
        (false, _) => Gate::Fail(worse),
        (true, false) => Gate::CannotTell(untold),
        (true, true) => Gate::Pass,
    }
}

/// Whether one side was disturbed so much more than the other that this may explain the difference.
fn is_lopsided(pair: &Compared, comparison: &Comparison) -> bool {
    let [base, new] = &pair.disturbed;
    let share =
        |disturbed: &Vec<DisturbedRun>, runs: usize| disturbed.len() as f64 / runs.max(1) as f64;
    let apart = share(base, comparison.base_runs) - share(new, comparison.new_runs);
    comparison.metric.nature() == Nature::Drifting && apart.abs() >= MUCH_DISTURBED
}

/// How many runs of each side were disturbed, and whether it goes without them.
fn disturbed(pair: &Compared, comparison: &Comparison) -> String {
    let [base, new] = pair.disturbed.each_ref().map(Vec::len);
    let counts = format!(
        "{base} of {} of base and {new} of {} of new",
        counted(comparison.base_runs, "run"),
        comparison.new_runs
    );
    let told = match base == 0 || new == 0 {
        true => format!("disturbed on one side: {counts}"),
        false => format!("{counts} were disturbed"),
    };
    match pair.has_enough_clean_runs() {
        true => format!("{told}; `--clean` judges without these runs"),
        false => told,
    }
}

/// Returns the points without a verdict: none of their trials can be compared, or only base has
/// them.
pub fn unsaid(found: &Comparisons) -> Vec<String> {
    let is_unsaid = |pair: &&Compared| {
        pair.unlike.is_empty() && (pair.comparisons.is_empty() || pair.ends.is_some())
    };
    let unsaid = found
        .pairs
        .iter()
        .filter(is_unsaid)
        .map(|pair| format!("{} (not all its trials completed with a number)", pair.name));
    unsaid
        .chain(
            found
                .only_base
                .iter()
                .map(|name| format!("{name} (only in base)")),
        )
        .collect()
}
