//! The gates of a comparison: the reasons of `--fail-on` and their answers.

use crate::report::compare::{
    Compared, ComparedMetric, Comparisons, Gate, Verdict, gate, gate_of_all, unsaid, word,
};

/// A reason to exit with status 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A verdict on a metric, by its name.
    Verdict(String),
    /// A point of BASE that NEW does not have.
    Missing,
    /// Trials of either side that did not complete.
    Ends,
}

/// A gate of `--fail-on`, and its answer.
pub(super) struct ReasonGate {
    /// As it is written.
    pub(super) spelled: String,
    pub(super) gate: Gate,
    /// The number of the gate's last entries, which are about the runs as a whole.
    of_runs: usize,
}

impl ReasonGate {
    pub(super) fn sentence(&self) -> String {
        self.gate.sentence_beside(self.of_runs)
    }
}

/// Verdicts that `--fail-on` accepts.
const VERDICTS: [&str; 11] = [
    "slower",
    "longer-step",
    "more-memory",
    "more-energy",
    "worse-loss",
    ComparedMetric::ACCURACY_WORSE,
    "worse",
    "ambiguous",
    "cannot-tell",
    "too-few-runs",
    "not-comparable",
];

/// A word of `--fail-on`.
pub(super) fn reason(text: &str) -> Result<Reason, String> {
    match text {
        "missing" => Ok(Reason::Missing),
        "not-completed" => Ok(Reason::Ends),
        verdict if VERDICTS.contains(&verdict) => Ok(Reason::Verdict(verdict.to_owned())),
        _ => Err(format!(
            "`{text}` is not a verdict to fail on; use one of {}, missing, not-completed",
            VERDICTS.join(", ")
        )),
    }
}

impl Reason {
    /// A change for the worse of a column of `--metric`, or of an accuracy.
    pub(super) fn of_columns() -> Self {
        Self::Verdict(ComparedMetric::COLUMNS_WORSE.to_owned())
    }

    pub(super) fn spelled(&self) -> &str {
        match self {
            Self::Verdict(word) => word,
            Self::Missing => "missing",
            Self::Ends => "not-completed",
        }
    }

    /// Whether the gate passes, and the points at which it does not.
    pub(super) fn answer(&self, found: &Comparisons) -> ReasonGate {
        let (gate, of_runs) = match self {
            _ if *self == Self::of_columns() => {
                let is_one = |metric: ComparedMetric| metric.is_column() || metric.is_accuracy();
                gate_of(found, is_one, "no column was compared")
            }
            Self::Verdict(wanted) if wanted == ComparedMetric::ACCURACY_WORSE => gate_of(
                found,
                ComparedMetric::is_accuracy,
                "no accuracy was compared",
            ),
            _ => (self.at_points(found), 0),
        };
        ReasonGate {
            spelled: self.spelled().to_owned(),
            gate,
            of_runs,
        }
    }

    /// The answer of a reason that is of points alone.
    fn at_points(&self, found: &Comparisons) -> Gate {
        let fails = |names: Vec<String>| {
            if names.is_empty() {
                Gate::Pass
            } else {
                Gate::Fail(names)
            }
        };
        // A gate without a result on the page does not pass.
        let said = |names: Vec<String>| match (names.is_empty(), unsaid(found)) {
            (true, unsaid) if !unsaid.is_empty() => Gate::CannotTell(unsaid),
            _ => fails(names),
        };
        let names = |holds: &dyn Fn(&Compared) -> bool| {
            found
                .pairs
                .iter()
                .filter(|pair| holds(pair))
                .map(|pair| pair.name.clone())
                .collect()
        };
        match self {
            Self::Missing => fails(found.only_base.clone()),
            Self::Ends => fails(names(&|pair| pair.ends.is_some())),
            Self::Verdict(wanted) => match ComparedMetric::of_word(wanted) {
                Some(metric) => gate(found, metric),
                None if wanted == "not-comparable" => said(names(&|pair| {
                    !pair.unlike.is_empty() || !found.unnamed.is_empty()
                })),
                None => {
                    let is_so = |pair: &Compared| {
                        pair.comparisons.iter().any(|comparison| {
                            comparison.verdict != Verdict::NotComparable
                                && word(comparison) == wanted
                        })
                    };
                    said(names(&is_so))
                }
            },
        }
    }
}

/// The answer for all these metrics together, and the number of its entries that are about the runs
/// as a whole; `nothing` is the reason if there is no metric. An accuracy that no run has is left out.
fn gate_of(
    found: &Comparisons,
    is_one: fn(ComparedMetric) -> bool,
    nothing: &str,
) -> (Gate, usize) {
    let metrics = found.metrics.iter().copied();
    let metrics: Vec<ComparedMetric> = metrics
        .filter(|metric| is_one(*metric) && (metric.is_column() || found.has(*metric)))
        .collect();
    match metrics.is_empty() {
        true => (Gate::CannotTell(vec![nothing.to_owned()]), 1),
        false => (gate_of_all(found, &metrics), 0),
    }
}
