//! The evidence of findings: cells of the table, and the thresholds that they are compared with.

use std::fmt;

use kiln_core::units::{Bytes, Fraction, Seconds};
use serde::Serialize;
use serde_json::Value;

/// A cell that a finding rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Whose it is, where it is not a cell of the finding's own row:
    /// `data.num_workers 8, mean of 3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    pub column: &'static str,
    /// As in the table.
    pub value: Value,
}

/// A number that decides whether a rule fires, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// Expression that is compared with it: columns and how they are combined.
    pub of: &'static str,
    pub bound: Bound,
    pub value: f64,
    pub unit: ThresholdUnit,
    pub source: &'static str,
}

/// On which side of its number a threshold is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtLeast,
    AtMost,
}

/// Unit of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdUnit {
    /// A fraction of 1.
    Fraction,
    Seconds,
    Bytes,
    Count,
}

impl Threshold {
    pub(super) const fn at_least(
        of: &'static str,
        value: f64,
        unit: ThresholdUnit,
        source: &'static str,
    ) -> Self {
        Self {
            of,
            bound: Bound::AtLeast,
            value,
            unit,
            source,
        }
    }

    pub(super) const fn at_most(
        of: &'static str,
        value: f64,
        unit: ThresholdUnit,
        source: &'static str,
    ) -> Self {
        Self {
            of,
            bound: Bound::AtMost,
            value,
            unit,
            source,
        }
    }

    /// Whether a number meets it; `None` does not.
    pub(super) fn is_met(&self, value: impl Into<Option<f64>>) -> bool {
        value.into().is_some_and(|value| match self.bound {
            Bound::AtLeast => value >= self.value,
            Bound::AtMost => value <= self.value,
        })
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = if self.bound == Bound::AtLeast {
            "at least"
        } else {
            "at most"
        };
        write!(f, "{} {bound} ", self.of)?;
        match self.unit {
            ThresholdUnit::Fraction => write!(f, "{}", Fraction(self.value)),
            ThresholdUnit::Seconds => write!(f, "{}", Seconds(self.value)),
            ThresholdUnit::Bytes => write!(f, "{}", Bytes(self.value as u64)),
            ThresholdUnit::Count => write!(f, "{}", self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_met_at_their_number_and_never_by_nothing() {
        const SHARE: Threshold = Threshold::at_least("`x`", 0.2, ThresholdUnit::Fraction, "chosen");
        const STEP: Threshold = Threshold::at_most("`y`", 0.01, ThresholdUnit::Seconds, "chosen");
        assert!(
            SHARE.is_met(0.2)
                && !SHARE.is_met(0.199)
                && !SHARE.is_met(None)
                && !SHARE.is_met(f64::NAN)
        );
        assert!(STEP.is_met(0.01) && !STEP.is_met(0.011));
        assert_eq!(
            (SHARE.to_string(), STEP.to_string()),
            (
                "`x` at least 20.0 %".to_owned(),
                "`y` at most 10.0 ms".to_owned()
            )
        );
    }
}
