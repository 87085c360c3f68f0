//! The cells of the table of the page.

use kiln_core::record::TrialRow;

use crate::report::points::{Point, Statistic};

#[derive(Clone, Default)]
pub(in crate::report::html) struct HtmlCell {
    pub(in crate::report::html) text: String,
    /// The sort key, where it differs from the number in the text.
    pub(in crate::report::html) sorts_as: Option<String>,
    /// Class in the style sheet of a cell whose text is wrapped: `text` or `value`; empty for others.
    pub(in crate::report::html) class: &'static str,
}

/// A cell of a number, which is sorted and filtered by seven of its digits: of a share by those of its
/// percentage, as it is shown.
pub(super) fn sorted(text: String, value: f64) -> HtmlCell {
    let is_share = text.split(' ').nth(1) == Some("%");
    let value = if is_share { value * 100.0 } else { value };
    HtmlCell {
        text,
        sorts_as: Some(format!("{value:.6e}")),
        class: "",
    }
}

pub(super) fn mean(point: &Point<'_>, of: impl Fn(&TrialRow) -> Option<f64>) -> Option<Statistic> {
    point.statistic(of).filter(|value| value.mean.is_finite())
}

/// The text of a mean, which says of how many runs it is if it is not of all that completed:
/// `515 (n 1)`.
pub(super) fn of_runs(point: &Point<'_>, value: &Statistic, text: String) -> String {
    match value.runs == point.completed().count() {
        true => text,
        false => format!("{text} (n {})", value.runs),
    }
}

pub(super) fn plain(text: String) -> HtmlCell {
    HtmlCell {
        text,
        ..HtmlCell::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_filtered_by_the_number_that_it_shows() {
        let cell = |text: &str, value| sorted(text.to_owned(), value).sorts_as.unwrap();
        assert_eq!(cell("94.0 %", 0.94), "9.400000e1");
        assert_eq!(cell("94.0 % (n 1)", 0.94), "9.400000e1");
        assert_eq!(cell("1901 ± 6.8 %", 1901.25), "1.901250e3");
        assert_eq!(cell("0.000060", 0.000_06), "6.000000e-5");
    }
}
