//! The note on data that the tokenizer does not know.

use std::fmt;

use crate::record::TrialRow;

/// Many tokens of the data are unknown to the tokenizer; a note of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownTokens {
    /// Share of the tokens, of 1.
    pub share: f64,
    /// The part of the data: `training rows`, `validation rows`, `validation text`.
    pub part: String,
}

impl UnknownTokens {
    /// The name under which it is noted.
    pub const COLUMN: &str = "unknown_tokens";
    /// A smaller share is not noted.
    pub const LEAST_SHARE: f64 = 0.05;
    const END: &str = " are unknown to the tokenizer";

    /// `None` if the share is too small to be noted.
    pub fn noted(share: f64, part: &str) -> Option<Self> {
        (share > Self::LEAST_SHARE).then(|| Self {
            share,
            part: part.to_owned(),
        })
    }

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_suffix(Self::END)?;
        let (percent, part) = rest.split_once(" % of the tokens of the ")?;
        Some(Self {
            share: percent.parse::<f64>().ok()? / 100.0,
            part: part.to_owned(),
        })
    }
}

impl fmt::Display for UnknownTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, end) = (self.share * 100.0, Self::END);
        write!(f, "{percent:.1} % of the tokens of the {}{end}", self.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::note::noted;

    #[test]
    fn the_note_is_read_again() {
        let unknown = UnknownTokens {
            share: 0.981,
            part: "validation rows".to_owned(),
        };
        assert_eq!(
            unknown.to_string(),
            "98.1 % of the tokens of the validation rows are unknown to the tokenizer"
        );
        let row = noted(&[(UnknownTokens::COLUMN, &unknown.to_string())]);
        assert_eq!(UnknownTokens::of(&row), Some(unknown));
    }
}
