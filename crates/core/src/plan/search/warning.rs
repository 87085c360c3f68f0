//! What the reader of a recommendation must know: each warning says what was seen and what to do about it.

use std::fmt;

use crate::{
    plan::Outcome,
    units::{Count, Fraction, counted},
};

/// An end of a range of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Lowest,
    Highest,
}

/// Something that limits what a recommendation is worth.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// No value could be chosen.
    NothingFitted {
        smallest: String,
    },
    /// The choice changes how many examples one update sees, and the learning rate stays.
    EffectiveBatch {
        was: u64,
        is: u64,
        learning_rate: f64,
    },
    /// The best two differ by less than their repeats do.
    WithinSpread {
        chosen: String,
        other: String,
        difference: f64,
        spread: f64,
    },
    /// Several values may be the fastest.
    CannotTell,
    /// Between these neighbours among the values that were run a faster one may lie: the speed was rising there.
    NotRunBetween {
        gaps: Vec<(u64, u64)>,
    },
    /// Nothing was run twice, so nothing is known of the spread.
    OneRunEach,
    /// The most workers that were tried were slower than the chosen number.
    MoreWorkersSlower {
        workers: u64,
        chosen: u64,
        slower: f64,
    },
    /// The choice lies at an end of what was allowed: something beyond may be better.
    EndOfRange {
        key: String,
        value: String,
        end: End,
    },
    /// Trials held too little or too much to know their share of memory.
    MemoryUnknown,
    /// A larger value fitted after a smaller one did not.
    NotMonotone {
        fits: u64,
        did_not: u64,
    },
    /// Of trials that ended otherwise than completed or out of memory, the first.
    NotCompleted {
        choice: String,
        outcome: Outcome,
        trials: usize,
    },
    /// Completed trials lack the number that is looked at; the first of them.
    NoNumber {
        choice: String,
        what: String,
        trials: usize,
    },
    Disturbed {
        trials: usize,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingFitted { smallest } => {
                write!(
                    f,
                    "no trial that could be chosen completed, not even {smallest}; shrink the model, lower `from`, or look at the reasons in trials.csv"
                )
            }
            Self::EffectiveBatch { was, is, learning_rate } => write!(
                f,
                "one update sees {is} examples in place of the file's {was}, at the same learning rate {learning_rate}: it will not learn the same; \
                 scale the learning rate, or keep the effective batch with `train.grad_accumulation`"
            ),
            Self::WithinSpread { chosen, other, difference, spread } => write!(
                f,
                "{chosen} and {other} differ by {}, less than the {} that chance makes of it; more `repeats` would tell them apart",
                Fraction(*difference),
                Fraction(*spread)
            ),
            Self::CannotTell => {
                write!(
                    f,
                    "several values may be the fastest, and the one that is proposed may be slower than another; more `repeats` would tell more of them apart"
                )
            }
            Self::NotRunBetween { gaps } => {
                let gaps: Vec<String> = gaps.iter().map(|(low, high)| format!("between {low} and {high}")).collect();
                write!(f, "nothing {} was run, and it may be faster there; with more `repeats` more values are tried", gaps.join(" and "))
            }
            Self::OneRunEach => {
                write!(f, "each trial ran once, so nothing is known of how far two runs of the same differ; set `repeats` to 2 or more")
            }
            Self::MoreWorkersSlower { workers, chosen, slower } => {
                write!(f, "with {workers} workers it is {} slower than with {chosen}: they take cores from training", Fraction(*slower))
            }
            Self::EndOfRange { key, value, end } => {
                let (which, where_to) = if *end == End::Lowest { ("smallest", "below") } else { ("largest", "above") };
                write!(f, "`{key}` {value} is the {which} that was allowed; look {where_to} it too")
            }
            Self::MemoryUnknown => write!(f, "how much memory there is was not known, so that only running out of it was a limit; leave some room"),
            Self::NotMonotone { fits, did_not } => {
                write!(f, "{fits} fitted although {did_not} did not: memory was not the same for both; run the search again on an idle machine")
            }
            Self::NotCompleted { choice, outcome, trials } => {
                write!(f, "{} did not complete; the first ({choice}) ended as {outcome}, see its reason in trials.csv", counted(*trials, "trial"))
            }
            Self::NoNumber { choice, what, trials } => {
                write!(f, "{} completed without `{what}`, the first at {choice}, and could not be ranked", counted(*trials, "trial"))
            }
            Self::Disturbed { trials } => write!(
                f,
                "{} shared the device or was throttled, so the numbers may be off; run the search again on an idle machine",
                counted(*trials, "trial")
            ),
        }
    }
}

/// A speed as a sentence has it: `12.3 k`.
pub(super) fn speed(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { Count(value).to_string() }
}
