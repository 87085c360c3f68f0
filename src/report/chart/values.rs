//! The values of a picture as text, each with the place of its mark: for readers who point at a
//! mark, move to it by keyboard, or do not see the picture.

use kiln_core::units::exact;

use super::shortened;

/// Letters of a name.
const MOST_LETTERS: usize = 80;
/// From here on a number is printed as an integer.
const INTEGERS_FROM: f64 = 1e5;
/// From here on a number has an exponent.
const MOST_PLAIN: f64 = 1e15;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct ChartValues {
    /// Name of the quantity along the picture.
    pub(in crate::report) x: String,
    /// Name of the values, with their unit.
    pub(in crate::report) y: String,
    pub(in crate::report) series: Vec<ValueSeries>,
}

/// The values of a line, of a row of a heat map, or of all bars.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct ValueSeries {
    /// Empty where there is nothing to distinguish.
    pub(in crate::report) label: String,
    pub(in crate::report) values: Vec<ChartValue>,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct ChartValue {
    /// Its place in the picture, in pixels from the upper left corner.
    pub(in crate::report) at: (i32, i32),
    pub(in crate::report) x: String,
    pub(in crate::report) y: String,
}

impl ValueSeries {
    pub(super) fn new(label: &str, values: Vec<ChartValue>) -> Self {
        Self {
            label: shortened(label, MOST_LETTERS),
            values,
        }
    }

    /// `104,300 230,120`.
    pub(in crate::report) fn places(&self) -> String {
        let places: Vec<String> = self
            .values
            .iter()
            .map(|value| format!("{},{}", value.at.0, value.at.1))
            .collect();
        places.join(" ")
    }

    /// A line for each value: `8: 120.5`.
    pub(in crate::report) fn text(&self) -> String {
        let lines: Vec<String> = self
            .values
            .iter()
            .map(|value| format!("{}: {}", shortened(&value.x, MOST_LETTERS), value.y))
            .collect();
        lines.join("\n")
    }
}

/// A number with five significant digits, or all digits before the point.
pub(super) fn value_text(value: f64) -> String {
    if (INTEGERS_FROM..MOST_PLAIN).contains(&value.abs()) {
        return format!("{value:.0}");
    }
    exact(format!("{value:.4e}").parse().unwrap_or(value))
}

/// `120.5 (110 to 131)`.
pub(super) fn with_interval(value: f64, interval: Option<(f64, f64)>) -> String {
    match interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
        Some((low, high)) => format!(
            "{} ({} to {})",
            value_text(value),
            value_text(low),
            value_text(high)
        ),
        None => value_text(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_five_digits_or_all_before_the_point() {
        let texts = [0.0, 2.314_567, 120.0, 12_345.67, 1_234_567.8, 1.5e-7, 1e308];
        assert_eq!(
            texts.map(value_text),
            ["0", "2.3146", "120", "12346", "1234568", "1.5e-7", "1e308"]
        );
        assert_eq!(with_interval(2.0, Some((1.5, 2.5))), "2 (1.5 to 2.5)");
        assert_eq!(with_interval(2.0, Some((0.0, f64::INFINITY))), "2");
    }
}
