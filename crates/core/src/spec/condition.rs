//! A comparison in an entry of `exclude`: parses text such as `>8` into its operator and its
//! number.

use std::cmp::Ordering;

/// How a point's value is compared with the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    AtLeast,
    AtMost,
    Equal,
    Unequal,
    Above,
    Below,
}

impl Operator {
    /// Longer operators come first, so that `>=8` is not read as `>`.
    const ALL: [Self; 6] = [
        Self::AtLeast,
        Self::AtMost,
        Self::Unequal,
        Self::Equal,
        Self::Above,
        Self::Below,
    ];

    /// The operator as written: `>=`.
    pub fn text(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::Equal => "==",
            Self::Unequal => "!=",
            Self::Above => ">",
            Self::Below => "<",
        }
    }

    /// Whether an ordering of value and number matches.
    pub fn holds(self, found: Ordering) -> bool {
        match self {
            Self::AtLeast => found.is_ge(),
            Self::AtMost => found.is_le(),
            Self::Equal => found.is_eq(),
            Self::Unequal => found.is_ne(),
            Self::Above => found.is_gt(),
            Self::Below => found.is_lt(),
        }
    }

    /// All operators, for a sentence or a pattern.
    pub fn listed(between: &str) -> String {
        Self::ALL.map(Self::text).join(between)
    }
}

/// Returns the operator and the text after it, trimmed; `None` if the text is not a comparison.
pub fn condition(text: &str) -> Option<(Operator, &str)> {
    let text = text.trim();
    Operator::ALL
        .into_iter()
        .find_map(|operator| Some((operator, text.strip_prefix(operator.text())?.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_an_operator_and_a_number() {
        assert_eq!(condition(">8"), Some((Operator::Above, "8")));
        assert_eq!(condition(" >= 8"), Some((Operator::AtLeast, "8")));
        assert_eq!(condition("!=0.5"), Some((Operator::Unequal, "0.5")));
        assert_eq!(condition("adamw"), None);
    }

    #[test]
    fn every_operator_matches_the_orderings_of_its_sign() {
        for operator in Operator::ALL {
            let (text, orders) = (
                operator.text(),
                [Ordering::Less, Ordering::Equal, Ordering::Greater],
            );
            let signs: String = orders
                .into_iter()
                .zip("<=>".chars())
                .filter(|(order, _)| operator.holds(*order))
                .map(|(_, sign)| sign)
                .collect();
            let wanted = match text {
                "!=" => "<>".to_owned(),
                "==" => "=".to_owned(),
                ">=" => "=>".to_owned(),
                other => other.to_owned(),
            };
            assert_eq!(signs, wanted, "{text}");
        }
    }
}
