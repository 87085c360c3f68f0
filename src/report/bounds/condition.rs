//! A condition of `kiln report --fail-on`, as it is written: a column of a point, a comparison and a
//! number, such as `valid_loss>2.6`, or the word `not-completed`.

use kiln_core::{
    spec::{Operator, condition},
    units::{ByteSize, TimeSpan},
};

/// The word of [`GateCondition::NotCompleted`].
const NOT_COMPLETED: &str = "not-completed";

/// The comparisons with a bound. Measured numbers are not compared for equality.
const OPERATORS: [Operator; 4] = [
    Operator::Below,
    Operator::AtMost,
    Operator::Above,
    Operator::AtLeast,
];

/// A reason to fail.
#[derive(Clone, Debug, PartialEq)]
pub enum GateCondition {
    /// A planned trial that did not complete.
    NotCompleted,
    /// A number of a point beyond a bound.
    Beyond(NumberBound),
}

/// The number of a column that a point must not have.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberBound {
    /// As written.
    text: String,
    pub(super) column: String,
    operator: Operator,
    number: f64,
}

impl GateCondition {
    /// Reads `valid_loss>2.6` or `not-completed`. Whether the column exists depends on the runs.
    ///
    /// # Errors
    /// The text is not a condition; the message shows one.
    pub fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            NOT_COMPLETED => Ok(Self::NotCompleted),
            text => NumberBound::read(text).map(Self::Beyond),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::NotCompleted => NOT_COMPLETED,
            Self::Beyond(bound) => &bound.text,
        }
    }
}

impl NumberBound {
    fn read(text: &str) -> Result<Self, String> {
        let at = text.find(['<', '>', '=', '!']).unwrap_or(text.len());
        let column = text[..at].trim();
        let comparison = condition(&text[at..]);
        let Some((operator, number)) =
            comparison.filter(|(operator, _)| OPERATORS.contains(operator) && !column.is_empty())
        else {
            return Err(format!(
                "`{text}` is not a condition; write `{NOT_COMPLETED}`, or a column, one of <, <=, > \
                 and >=, and a number, in quotes: `--fail-on \"valid_loss>2.6\"`"
            ));
        };
        Ok(Self {
            text: text.to_owned(),
            column: column.to_owned(),
            operator,
            number: number_of(column, number)
                .map_err(|what| format!("`{text}`: `{number}` is not {what}"))?,
        })
    }

    /// Whether a value is beyond the bound.
    pub(super) fn holds(&self, value: f64) -> bool {
        let ordering = value.partial_cmp(&self.number);
        ordering.is_some_and(|ordering| self.operator.holds(ordering))
    }
}

/// A number; of a column in bytes or in seconds also with a unit, as in an experiment file. The error
/// says what it should be.
fn number_of(column: &str, text: &str) -> Result<f64, &'static str> {
    if let Ok(number) = text.parse::<f64>() {
        return Some(number)
            .filter(|number| number.is_finite())
            .ok_or("a finite number");
    }
    if column.ends_with("_bytes") {
        let size =
            ByteSize::parse(text).map_err(|_| "a number of bytes, such as `1e9` or `8GiB`")?;
        return Ok(size.0 as f64);
    }
    if column.ends_with("_seconds") || column.starts_with("seconds_") {
        let span =
            TimeSpan::parse(text).map_err(|_| "a number of seconds, such as `90` or `30m`")?;
        return Ok(span.0.as_secs_f64());
    }
    Err("a number, such as `2.6` or `1e3`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> NumberBound {
        match GateCondition::read(text) {
            Ok(GateCondition::Beyond(bound)) => bound,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_condition_is_a_column_a_comparison_and_a_number() {
        for (text, below, equal, above) in [
            ("valid_loss>2.6", false, false, true),
            ("valid_loss >= 2.6", false, true, true),
            ("valid_loss<2.6", true, false, false),
            ("valid_loss<=26e-1", true, true, false),
        ] {
            let bound = bound(text);
            assert_eq!(bound.column, "valid_loss");
            let holds = [2.5, 2.6, 2.7].map(|value| bound.holds(value));
            assert_eq!(holds, [below, equal, above], "{text}");
        }
        assert!(!bound("valid_loss>2.6").holds(f64::NAN));
        assert_eq!(
            GateCondition::read(" not-completed "),
            Ok(GateCondition::NotCompleted)
        );
    }

    #[test]
    fn bytes_and_seconds_may_have_a_unit() {
        assert_eq!(bound("peak_memory_bytes>2GiB").number, 2_147_483_648.0);
        assert_eq!(bound("trial_seconds>=1h 30m").number, 5400.0);
        assert_eq!(bound("seconds_to_target>90").number, 90.0);
        let refused = GateCondition::read("valid_loss>30m").unwrap_err();
        assert!(refused.contains("`30m` is not a number"), "{refused}");
    }

    #[test]
    fn a_text_that_is_not_a_condition_is_refused_with_one() {
        for text in [
            "slower",
            "valid_loss",
            "valid_loss=2.6",
            "valid_loss!=2",
            ">2",
            "",
        ] {
            let refused = GateCondition::read(text).unwrap_err();
            assert!(
                refused.contains("is not a condition") && refused.contains("\"valid_loss>2.6\""),
                "{text}: {refused}"
            );
        }
        for text in [
            "valid_loss>",
            "valid_loss>high",
            "valid_loss>nan",
            "valid_loss<inf",
        ] {
            let refused = GateCondition::read(text).unwrap_err();
            assert!(refused.contains("number"), "{text}: {refused}");
        }
    }
}
