//! The faults of a row, and their remedies.

use jiff::civil::DateTime;

/// A cell that makes a row unusable, and why.
pub(super) struct RowFault {
    pub(super) cell: usize,
    pub(super) reason: SkipReason,
    /// The date of the row before, for [`SkipReason::NotAfter`].
    pub(super) date_before: Option<DateTime>,
}

impl RowFault {
    pub(super) fn new(cell: usize, reason: SkipReason) -> Self {
        Self {
            cell,
            reason,
            date_before: None,
        }
    }
}

/// Why a row cannot be used: it is refused, or skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    CellCount,
    NoDate,
    NoNumber,
    NotAfter,
    BelowZero,
    NoPrice,
}

impl SkipReason {
    /// The phrase for one row and the one for several.
    pub fn words(self) -> [&'static str; 2] {
        match self {
            Self::CellCount => [
                "row with more or fewer cells than the header",
                "rows with more or fewer cells than the header",
            ],
            Self::NoDate => ["row without a date", "rows without a date"],
            Self::NoNumber => [
                "row with a cell that is not a number",
                "rows with a cell that is not a number",
            ],
            Self::NotAfter => [
                "row with a date out of order",
                "rows with a date out of order",
            ],
            Self::BelowZero => ["row with a number below 0", "rows with a number below 0"],
            Self::NoPrice => [
                "row with a price that is not above 0",
                "rows with a price that is not above 0",
            ],
        }
    }

    /// Whether the row can be read: without it the data are a selection by value or by order.
    pub(super) fn is_selection(self) -> bool {
        match self {
            Self::CellCount | Self::NoDate | Self::NoNumber => false,
            Self::NotAfter | Self::BelowZero | Self::NoPrice => true,
        }
    }
}

/// The remedies for a bad row, by the kind of its fault.
#[derive(Clone, Copy, Debug)]
pub(in crate::panel) struct Remedies {
    /// The row cannot be read.
    pub(in crate::panel) row: &'static str,
    /// A cell is not a number, in a column other than the price's.
    pub(in crate::panel) number: &'static str,
    /// The row can be read, and its number or its date is not allowed.
    pub(in crate::panel) value: &'static str,
}

impl Remedies {
    /// One remedy for all faults.
    pub(in crate::panel) const fn all(remedy: &'static str) -> Self {
        Self {
            row: remedy,
            number: remedy,
            value: remedy,
        }
    }
}
