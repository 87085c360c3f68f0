//! From values to places on an axis: units that suit the size, ticks at round numbers, places for
//! the values of a swept key.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{
    super::points::{number, shown},
    shortened,
    values::value_text,
};

/// Ticks of an axis of numbers, about.
const TICKS: f64 = 5.0;
/// Appended to the title of an axis whose values stand at the place of their logarithm.
const LOGARITHMIC: &str = " (log scale)";
/// From this ratio on the values of a key stand by their logarithms.
const WIDE: f64 = 10.0;
/// Two labels nearer than this share of the axis would touch; a letter's share comes on top.
const GAP: f64 = 0.02;
const LETTER: f64 = 0.018;
/// From here on a label has an exponent.
const MOST_PLAIN: f64 = 1e15;
/// Largest magnitude on an axis; steps beyond it would be infinite.
const FURTHEST: f64 = 1e300;
/// An axis of logarithms begins and ends this factor beyond its values.
const RIM: f64 = 1.15;
/// Letters of a tick.
const MOST_LETTERS: usize = 12;

/// Kind of quantity, which decides the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Quantity {
    /// A count or a loss.
    Number,
    Bytes,
    /// A fraction of 1.
    Fraction,
    Seconds,
    /// One of a kind: watts, °C.
    Of(&'static str),
}

/// By what values are divided, and what they are in then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct AxisUnit {
    pub(in crate::report) size: f64,
    pub(in crate::report) name: &'static str,
}

impl AxisUnit {
    /// In which the largest of the values is a small number.
    pub(in crate::report) fn of(quantity: Quantity, values: impl IntoIterator<Item = f64>) -> Self {
        let largest = values
            .into_iter()
            .map(f64::abs)
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        let pick = |units: &[(f64, &'static str)]| {
            let (size, name) = units
                .iter()
                .copied()
                .find(|(size, _)| largest >= *size)
                .unwrap_or(units[units.len() - 1]);
            Self { size, name }
        };
        match quantity {
            Quantity::Number => Self {
                size: 1.0,
                name: "",
            },
            Quantity::Of(name) => Self { size: 1.0, name },
            Quantity::Fraction => Self {
                size: 0.01,
                name: "%",
            },
            Quantity::Bytes => pick(&[
                (1099511627776.0, "TiB"),
                (1073741824.0, "GiB"),
                (1048576.0, "MiB"),
                (1024.0, "KiB"),
                (1.0, "B"),
            ]),
            Quantity::Seconds => pick(&[
                (7200.0 * 3.0, "h"),
                (360.0, "min"),
                (1.0, "s"),
                (1e-3, "ms"),
                (1e-6, "µs"),
            ])
            .divided(),
        }
    }

    /// Returns the unit with its real size: minutes are used from 6 min on and hours from 6 h on.
    fn divided(self) -> Self {
        let size = match self.name {
            "h" => 3600.0,
            "min" => 60.0,
            _ => self.size,
        };
        Self { size, ..self }
    }

    /// `Throughput, samples/s`.
    pub(in crate::report) fn after(self, what: &str) -> String {
        if self.name.is_empty() {
            what.to_owned()
        } else {
            format!("{what}, {}", self.name)
        }
    }
}

/// A direction of a picture: what its ends are, and where labels stand.
#[derive(Clone, Debug)]
pub(in crate::report) struct ChartAxis {
    pub(super) label: String,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<(f64, String)>,
    /// The values of a swept key by their places; empty of an axis of numbers.
    names: Vec<(f64, String)>,
    /// Whether values stand at the place of their logarithm.
    is_by_logarithm: bool,
}

impl ChartAxis {
    /// From 0 to a round number above the largest value.
    pub(in crate::report) fn from_zero(
        label: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        Self::of_numbers(label, values.into_iter().chain([0.0]))
    }

    /// From a round number below the least value to one above the largest.
    pub(in crate::report) fn of_numbers(
        label: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        let (low, high) = ends(values);
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let width = if high > low {
            high - low
        } else {
            Some(low.abs()).filter(|size| *size > 0.0).unwrap_or(1.0)
        };
        let step = round_step(width / TICKS);
        let (first, last) = (
            (low / step).floor(),
            (high / step).ceil().max((low / step).floor() + 1.0),
        );
        let digits = (-step.log10().floor()).clamp(0.0, 300.0) as usize;
        let count = (last - first) as usize;
        let values = || (0..=count).map(|place| (first + place as f64) * step);
        let mut ticks: Vec<(f64, String)> = values()
            .map(|value| (value, label_of(value, digits)))
            .collect();
        if ticks.windows(2).any(|pair| pair[0].1 == pair[1].1) {
            ticks = values()
                .map(|value| (value, exact_label(value, step)))
                .collect();
        }
        Self {
            label: label.into(),
            low: first * step,
            high: last * step,
            ticks,
            names: Vec::new(),
            is_by_logarithm: false,
        }
    }

    /// Around values above 0, at the places of their logarithms, with ticks at 1, 2 and 5 times powers
    /// of ten. Without such a value it is that of 1.
    pub(in crate::report) fn by_logarithm(
        label: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        let (low, high) = ends(values.into_iter().filter(|value| *value > 0.0));
        let (low, high) = if low > high { (1.0, 1.0) } else { (low, high) };
        let (low, high) = (low / RIM, high * RIM);
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let ticks = powers
            .flat_map(|power| [1.0, 2.0, 5.0].map(|times| (times * 10_f64.powi(power), power)))
            .filter(|(value, _)| (low..=high).contains(value))
            .map(|(value, power)| (value, label_of(value, usize::try_from(-power).unwrap_or(0))))
            .collect();
        let mut axis = Self {
            label: label.into() + LOGARITHMIC,
            low,
            high,
            ticks,
            names: Vec::new(),
            is_by_logarithm: true,
        };
        if axis.ticks.len() < 2 {
            // Over so short a stretch equal distances do.
            axis.ticks = Self::spanning("", [low, high]).ticks;
        }
        axis.thin_out();
        axis
    }

    /// From the least value to the largest, with ticks at round numbers between.
    pub(in crate::report) fn spanning(
        label: impl Into<String>,
        values: impl IntoIterator<Item = f64> + Clone,
    ) -> Self {
        let (low, high) = ends(values.clone());
        let mut axis = Self::of_numbers(label, values);
        if low < high {
            (axis.low, axis.high) = (low, high);
            axis.ticks.retain(|(at, _)| (low..=high).contains(at));
        }
        axis
    }

    /// The values of a swept key, in the order given. Numbers stand at their place, or at that of
    /// their logarithm where they are far apart; what is no number stands in a row.
    pub(in crate::report) fn of_values(label: impl Into<String>, values: &[&str]) -> Self {
        let (places, scale) = places(values);
        let mut ticks: Vec<(f64, String)> = places
            .iter()
            .copied()
            .zip(
                values
                    .iter()
                    .map(|value| shortened(shown(value), MOST_LETTERS)),
            )
            .collect();
        ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (first, last) = (
            ticks.first().map_or(0.0, |tick| tick.0),
            ticks.last().map_or(1.0, |tick| tick.0),
        );
        let rim = if last > first {
            (last - first) * 0.06
        } else {
            0.5
        };
        let mut axis = Self {
            label: label.into() + scale,
            low: first - rim,
            high: last + rim,
            ticks,
            names: places
                .into_iter()
                .zip(values.iter().map(|value| shown(value).to_owned()))
                .collect(),
            is_by_logarithm: false,
        };
        axis.thin_out();
        axis
    }

    /// Whether a value lies on the axis.
    pub(in crate::report) fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The text at a place: the value of a swept key, or a number.
    pub(super) fn text_at(&self, place: f64) -> String {
        let name = self.names.iter().find(|(at, _)| *at == place);
        name.map_or_else(|| value_text(place), |(_, name)| name.clone())
    }

    /// Whether the values are numbers. Words are placed at equal distances.
    pub(in crate::report) fn is_scale(values: &[&str]) -> bool {
        numbers(values).is_some()
    }

    /// Position of each value.
    pub(in crate::report) fn places(values: &[&str]) -> Vec<f64> {
        places(values).0
    }

    /// How far along the axis a value stands, of 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        match self.is_by_logarithm {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE),
        }
    }

    /// Labels that would touch the one before are left out; the last one stays.
    fn thin_out(&mut self) {
        let half = |label: &str| (label.chars().count() as f64 * LETTER + GAP) / 2.0;
        let mut kept: Vec<(f64, String)> = Vec::new();
        for tick in std::mem::take(&mut self.ticks).into_iter().rev() {
            let is_free = kept.last().is_none_or(|next| {
                self.share(next.0) - half(&next.1) > self.share(tick.0) + half(&tick.1)
            });
            if is_free {
                kept.push(tick);
            }
        }
        kept.reverse();
        self.ticks = kept;
    }
}

/// The places of the values of a key, and what the title of the axis says of its scale. What is no
/// number stands in a row.
fn places(values: &[&str]) -> (Vec<f64>, &'static str) {
    numbers(values).unwrap_or_else(|| {
        let in_a_row = (0..values.len()).map(|place| place as f64);
        (in_a_row.collect(), "")
    })
}

/// The places of values that are all numbers; `None` for others.
fn numbers(values: &[&str]) -> Option<(Vec<f64>, &'static str)> {
    let numbers: Option<Vec<f64>> = values
        .iter()
        .map(|value| number(value).filter(|number| number.is_finite()))
        .collect();
    let numbers = numbers?;
    let (least, largest) = ends(numbers.iter().copied());
    let is_wide = least > 0.0 && largest / least >= WIDE;
    Some(match is_wide {
        true => (numbers.into_iter().map(f64::log10).collect(), LOGARITHMIC),
        false => (numbers, ""),
    })
}

/// The least and the largest of those that have a place; the wrong way round where there is none.
fn ends(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.abs() <= FURTHEST);
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// 1, 2 or 5 times a power of ten, at least `width`.
fn round_step(width: f64) -> f64 {
    let power = 10_f64.powf(width.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= width * 0.999)
        .unwrap_or(10.0 * power)
}

/// A label with as many digits as a step of the axis needs: `1000001`, `1.23e-4`.
fn exact_label(value: f64, step: f64) -> String {
    let place = |number: f64| number.abs().log10().floor();
    let is_plain = value == 0.0 || (1e-4..1e12).contains(&value.abs());
    match is_plain {
        true => format!("{value:.*}", (-place(step)).clamp(0.0, 16.0) as usize),
        false => {
            let digits = (place(value) - place(step)).clamp(1.0, 16.0) as usize;
            format!("{value:.digits$e}")
        }
    }
}

/// `1200`, `0.05`, `12 k`, `3 M`.
pub(in crate::report) fn label_of(value: f64, digits: usize) -> String {
    if value.abs() >= MOST_PLAIN {
        return format!("{value:.1e}");
    }
    let thousands = [(1e9, " G"), (1e6, " M"), (1e4, " k")]
        .into_iter()
        .find(|(size, _)| value.abs() >= *size);
    let text = match thousands {
        Some((size, name)) => {
            let size = if size == 1e4 { 1e3 } else { size };
            let short = format!("{:.2}", value / size);
            format!(
                "{}{name}",
                short.trim_end_matches('0').trim_end_matches('.')
            )
        }
        // Numbers with more zeros are hard to read.
        None if digits > 6 && value != 0.0 => format!("{value:.1e}"),
        None => format!("{value:.*}", digits.min(6)),
    };
    // -0 is 0.
    if text
        .trim_start_matches('-')
        .chars()
        .all(|letter| matches!(letter, '0' | '.'))
    {
        text.trim_start_matches('-').to_owned()
    } else {
        text
    }
}

impl Ranged for ChartAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // A value without a position lies outside the picture.
        let share = self.share(*value).clamp(-10.0, 10.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Lines between the ticks are none.
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.ticks.iter().map(|tick| tick.0).collect()
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for ChartAxis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks
            .iter()
            .find(|tick| tick.0 == *value)
            .map(|tick| tick.1.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &ChartAxis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn logarithms_have_round_ticks_at_equal_ratios() {
        let axis = ChartAxis::by_logarithm("x", [160.0, 1100.0]);
        assert_eq!(labels(&axis), ["200", "500", "1000"]);
        let at = |value: f64| axis.map(&value, (0, 10_000));
        assert!((at(400.0) - at(200.0) - (at(800.0) - at(400.0))).abs() <= 1);
        assert!(at(160.0) > 0 && at(1100.0) < 10_000 && at(0.0) < 0);
        assert_eq!(
            labels(&ChartAxis::by_logarithm("x", [0.002, 0.05])),
            ["0.002", "0.005", "0.01", "0.02", "0.05"]
        );
        let short = ChartAxis::by_logarithm("x", [250.0, 400.0]);
        assert_eq!(labels(&short), ["250", "300", "350", "400", "450"]);
        let none = ChartAxis::by_logarithm("x", [0.0, -1.0]);
        assert!(labels(&none).contains(&"1.0"), "{:?}", labels(&none));
    }

    #[test]
    fn ticks_are_round_and_reach_around_all_values() {
        let axis = ChartAxis::from_zero("x", [3.0, 41.0]);
        assert_eq!(labels(&axis), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!((axis.low, axis.high), (0.0, 50.0));
        assert_eq!(
            labels(&ChartAxis::of_numbers("x", [2.31, 2.48])),
            ["2.30", "2.35", "2.40", "2.45", "2.50"]
        );
        assert_eq!(labels(&ChartAxis::of_numbers("x", [5.0])), ["5", "6"]);
        assert_eq!(labels(&ChartAxis::from_zero("x", [0.0, f64::NAN])).len(), 2);
        assert_eq!(
            labels(&ChartAxis::from_zero("x", [120_000.0])),
            ["0", "50 k", "100 k", "150 k"]
        );
        assert_eq!(
            labels(&ChartAxis::from_zero("x", [2e-10, 4e-10]))[1..3],
            ["1.0e-10", "2.0e-10"]
        );
        // Values that differ little have labels that differ.
        assert_eq!(
            labels(&ChartAxis::of_numbers("x", [1_000_001.0, 1_000_004.0])),
            ["1000001", "1000002", "1000003", "1000004"]
        );
        assert_eq!(
            labels(&ChartAxis::of_numbers("x", [1.231e-5, 1.234e-5]))[..2],
            ["1.231e-5", "1.232e-5"]
        );
        assert_eq!(
            labels(&ChartAxis::of_numbers("x", [-1.0, 1.0])),
            ["-1.0", "-0.5", "0.0", "0.5", "1.0"]
        );
        assert_eq!(
            labels(&ChartAxis::from_zero("x", [8e299]))[..2],
            ["0", "2.0e299"]
        );
        assert_eq!(
            labels(&ChartAxis::from_zero("x", [1e308, f64::INFINITY])).len(),
            2
        );
    }

    #[test]
    fn numbers_far_apart_stand_by_their_logarithms_and_words_in_a_row() {
        assert_eq!(ChartAxis::places(&["1", "10", "100"]), [0.0, 1.0, 2.0]);
        assert_eq!(ChartAxis::places(&["0", "4", "40"]), [0.0, 4.0, 40.0]);
        assert_eq!(ChartAxis::places(&["adamw", "", "7"]), [0.0, 1.0, 2.0]);
        assert_eq!(
            labels(&ChartAxis::of_values("x", &["", "b"])),
            ["(none)", "b"]
        );
    }

    #[test]
    fn labels_that_would_touch_are_left_out_but_for_the_last() {
        let values: Vec<String> = (0..200).map(|value| value.to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let axis = ChartAxis::of_values("x", &values);
        assert!(
            axis.ticks.len() > 5 && axis.ticks.len() < 20,
            "{:?}",
            axis.ticks
        );
        assert_eq!(axis.ticks.last().unwrap().1, "199");
    }

    #[test]
    fn units_suit_the_largest_value() {
        let name = |quantity, value: f64| AxisUnit::of(quantity, [value, 0.0]).name;
        assert_eq!(
            (name(Quantity::Bytes, 3e9), name(Quantity::Bytes, 5e6)),
            ("GiB", "MiB")
        );
        assert_eq!(
            (
                name(Quantity::Seconds, 0.02),
                name(Quantity::Seconds, 90.0),
                name(Quantity::Seconds, 1e5)
            ),
            ("ms", "s", "h")
        );
        assert_eq!(
            AxisUnit::of(Quantity::Seconds, [600.0]),
            AxisUnit {
                size: 60.0,
                name: "min"
            }
        );
        assert_eq!(
            AxisUnit::of(Quantity::Fraction, [0.5]).after("MFU"),
            "MFU, %"
        );
    }
}
