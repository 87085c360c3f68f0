//! Warnings of a recommendation: each states an observation and a remedy.

use std::fmt;

use crate::{
    plan::Outcome,
    units::{Count, Fraction, counted},
};

/// An end of a range of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    Lowest,
    Highest,
}

/// A limitation of a recommendation.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// No value could be chosen.
    NothingFitted {
        smallest: String,
    },
    /// The choice changes the number of examples per update, while the learning rate stays the
    /// same.
    EffectiveBatch {
        was: u64,
        is: u64,
        learning_rate: f64,
    },
    /// The best two differ by less than the noise of their repeats.
    WithinSpread {
        chosen: String,
        other: String,
        difference: f64,
        spread: f64,
    },
    /// Settings were dropped in a round although their difference from one that went on is within
    /// the noise of their repeats; the first of them.
    DroppedWithinSpread {
        first: String,
        settings: usize,
    },
    /// Settings with other values of this key saw other numbers of samples in the same steps.
    OtherSamples {
        key: String,
    },
    /// Several values may be the fastest.
    CannotTell,
    /// A faster value may lie between these neighboring tested values: the speed was rising there.
    NotRunBetween {
        gaps: Vec<(u64, u64)>,
    },
    /// Nothing ran twice, so the noise is unknown.
    OneRunEach,
    /// The highest number of workers tried was slower than the chosen number.
    MoreWorkersSlower {
        workers: u64,
        chosen: u64,
        slower: f64,
    },
    /// The choice is at an end of the allowed range: a value beyond it may be better.
    EndOfRange {
        key: String,
        value: String,
        end: RangeEnd,
    },
    /// The file's own value, which the search may not choose, was faster than the choice.
    OwnValueFaster {
        own: String,
    },
    /// The fraction of memory that trials used is unknown.
    MemoryUnknown,
    /// A larger value fitted after a smaller one did not.
    NotMonotone {
        fits: u64,
        did_not: u64,
    },
    /// The first of the trials that failed for a reason other than memory.
    NotCompleted {
        choice: String,
        outcome: Outcome,
        reason: Option<String>,
        trials: usize,
    },
    /// Completed trials lack the required number; the first of them.
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
                    "no trial that could be chosen completed, not even {smallest}; look at the reasons \
                     in trials.csv: a smaller model or value may run"
                )
            }
            Self::EffectiveBatch {
                was,
                is,
                learning_rate,
            } => write!(
                f,
                "one update uses {is} examples instead of the file's {was}, at the same learning \
                 rate {learning_rate}: training will differ; scale the learning rate, or keep the \
                 effective batch with `train.grad_accumulation`"
            ),
            Self::WithinSpread {
                chosen,
                other,
                difference,
                spread,
            } => write!(
                f,
                "{chosen} and {other} differ by {}, within run-to-run noise (±{}); increase \
                 `repeats` to separate them",
                Fraction(*difference),
                Fraction(*spread)
            ),
            Self::DroppedWithinSpread { first, settings } => write!(
                f,
                "{} did not go on to longer trials although their differences from one that did are \
                 within run-to-run noise, the first {first}; increase `repeats` to separate them",
                counted(*settings, "setting")
            ),
            Self::OtherSamples { key } => write!(
                f,
                "settings with a larger `{key}` saw more samples in the same number of steps, and may \
                 be better for that alone; search the others at one value of it"
            ),
            Self::CannotTell => {
                write!(
                    f,
                    "several values may be the fastest, and the proposed one may be slower than \
                     another; increase `repeats` to separate them"
                )
            }
            Self::NotRunBetween { gaps } => {
                let gaps: Vec<String> = gaps
                    .iter()
                    .map(|(low, high)| format!("{low} to {high}"))
                    .collect();
                write!(
                    f,
                    "no value inside {} was run, and a faster one may lie there; with more \
                     `repeats` a search can separate values better, and narrows further",
                    gaps.join(", ")
                )
            }
            Self::OneRunEach => {
                write!(
                    f,
                    "each trial ran once, so the run-to-run noise is unknown; set `repeats` to 2 \
                     or more"
                )
            }
            Self::MoreWorkersSlower {
                workers,
                chosen,
                slower,
            } => {
                write!(
                    f,
                    "training with {workers} workers is {} slower than with {chosen}: workers take \
                     cores from it",
                    Fraction(*slower)
                )
            }
            Self::EndOfRange { key, value, end } => {
                let (which, where_to) = if *end == RangeEnd::Lowest {
                    ("smallest", "below")
                } else {
                    ("largest", "above")
                };
                write!(
                    f,
                    "`{key}` {value} is the {which} that was allowed; also try values {where_to} it"
                )
            }
            Self::OwnValueFaster { own } => write!(
                f,
                "the file's own {own} was faster than the choice, and is not among the values of this \
                 search; let its range contain it"
            ),
            Self::MemoryUnknown => write!(
                f,
                "the amount of memory is unknown, so the only limit was running out of it; leave \
                 some room"
            ),
            Self::NotMonotone { fits, did_not } => {
                write!(
                    f,
                    "{fits} fitted although {did_not} did not: the free memory differed between \
                     them; run the search again on an idle machine"
                )
            }
            Self::NotCompleted {
                choice,
                outcome,
                reason,
                trials,
            } => {
                let trials = counted(*trials, "trial");
                write!(
                    f,
                    "{trials} did not complete; the first ({choice}) ended as {outcome}"
                )?;
                match reason {
                    Some(reason) => write!(f, ": {reason}"),
                    None => f.write_str(", and no reason was recorded"),
                }
            }
            Self::NoNumber {
                choice,
                what,
                trials,
            } => {
                write!(
                    f,
                    "{} completed without `{what}`, the first at {choice}, and could not be ranked: \
                     they may be the best; longer trials (`train.steps`) may have it",
                    counted(*trials, "trial")
                )
            }
            Self::Disturbed { trials } => write!(
                f,
                "{} ran beside other programs or on a throttled device, so the numbers may be off; \
                 run the search again on an idle machine",
                counted(*trials, "trial")
            ),
        }
    }
}

/// Formats a speed for a sentence: `12.3 k`.
pub(super) fn speed(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.2}")
    } else {
        Count(value).to_string()
    }
}
