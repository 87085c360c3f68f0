//! Quantities and their formats: one place decides how seconds, bytes, watts, degrees and fractions
//! are printed.
//!
//! In code and tables a number is plain and its unit is in its name (`step_seconds`,
//! `peak_memory_bytes`).

pub mod clock;
pub mod clock_limits;
mod foreign;

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use foreign::{is_hidden, shown_letter, without_controls};

/// Advice for the user when the limit of processes or threads is reached.
pub const MORE_THREADS: &str = "end other processes, or raise the limit (`ulimit -u`, `pids.max` of \
                                the control group)";

/// Formats names for a sentence: a long list ends after five, with the number of the rest.
pub fn listed(names: &[String], separator: &str) -> String {
    const MOST: usize = 5;
    const AND: &str = " and ";
    if names.len() > MOST && separator == AND {
        return few(names, MOST);
    }
    let mut text = names
        .iter()
        .take(MOST)
        .cloned()
        .collect::<Vec<_>>()
        .join(separator);
    if names.len() > MOST {
        text.push_str(&format!("{separator}and {} more", names.len() - MOST));
    }
    text
}

/// The first names of several, with the number of the others: `a, b and 3 more`.
pub fn few(names: &[String], most: usize) -> String {
    let shown = names[..names.len().min(most)].join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The first characters of a text, with `…` after them if it has more.
pub fn shorten(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Same as [`shorten`], on one line: control characters become spaces.
pub fn shorten_line(text: &str, characters: usize) -> String {
    shorten(text, characters).replace(char::is_control, " ")
}

/// The first digits of a hash, or of each of several that commas separate: `5c7710aa3e9d…`; any
/// other text as it is.
pub fn short_hash(text: &str) -> String {
    const DIGITS: usize = 12;
    let is_hash = |one: &str| one.len() >= 40 && one.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hashes: Vec<&str> = text.split(", ").collect();
    if !hashes.iter().all(|one| is_hash(one)) {
        return text.to_owned();
    }
    let short = hashes.iter().map(|one| format!("{}…", &one[..DIGITS]));
    short.collect::<Vec<_>>().join(", ")
}

/// A word of a shell's command line.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+:=,@%^~".contains(letter);
    // A `~` at the beginning of a path is a home folder.
    let has_home = text.starts_with('~') || text.contains(":~") || text.contains("=~");
    match !text.is_empty() && !has_home && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// `1 trial`, `2 trials`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// From here on numbers have an exponent: that many digits are unreadable, and a number may have
/// 309.
const MOST_PLAIN: f64 = 1e12;

/// A number in scientific notation with three digits: `1.00e308`.
fn with_exponent(value: f64) -> String {
    format!("{value:.2e}")
}

/// A number with three significant digits, or all digits before the point: `0.0123`, `4.56`,
/// `78.9`, `1234`. A nonzero number never prints as 0.
pub fn significant(value: f64) -> String {
    const LEAST: f64 = 1e-6;
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if value.abs() < LEAST || value.abs() >= MOST_PLAIN {
        return with_exponent(value);
    }
    // Rounded first: 9.996 becomes 10.0.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let before_point = rounded.abs().log10().floor() as i32 + 1;
    format!("{value:.*}", usize::try_from(3 - before_point).unwrap_or(0))
}

/// A number with a fixed number of decimals, for a column: `0.4652`; with three digits if of three or
/// more decimals fewer would count (`0.000140`), and with an exponent if that would be very long, or 0
/// for a nonzero number.
pub fn decimals(value: f64, digits: usize) -> String {
    let last = 10_f64.powi(-i32::try_from(digits).unwrap_or(i32::MAX));
    let least = 0.5 * last;
    if digits >= 3 && (least..100.0 * last).contains(&value.abs()) {
        return significant(value);
    }
    let is_plain = value == 0.0 || !value.is_finite() || (least..MOST_PLAIN).contains(&value.abs());
    if is_plain {
        format!("{value:.digits$}")
    } else {
        with_exponent(value)
    }
}

/// A number for programs: the shortest form that reads back to the same number.
pub fn exact(value: f64) -> String {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-5..1e16).contains(&value.abs());
    if is_plain {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// A duration as written in an experiment file: `500ms`, `30m`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    /// Makes a duration from milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }

    /// Makes a duration from seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Parses `30m`, `500ms`, `1h 30m`.
    ///
    /// # Errors
    /// The message names the invalid text and the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "`{text}` is not a duration; write a number with a unit, such as `500ms`, `2s`, \
                 `30m` or `1h 30m`"
            )
        };
        let span: jiff::SignedDuration = text.parse().map_err(|_| refuse())?;
        Duration::try_from(span).map(Self).map_err(|_| refuse())
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::SignedDuration::try_from(self.0) {
            Ok(span) => write!(f, "{span:#}"),
            Err(_) => write!(f, "{} s", self.0.as_secs()),
        }
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The pattern of [`TimeSpan::parse`], as far as a regular expression allows: numbers with units,
/// `1:30:00`, or ISO 8601 (`PT30M`).
const TIME_SPAN_PATTERN: &str = concat!(
    r"^(\+?[Pp][Tt]?[0-9].*|\+?[0-9]+:[0-9]+:[0-9]+([.,][0-9]+)?|",
    r"\+?([0-9]+([.,][0-9]+)?\s*(h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?|",
    r"ms|msecs?|millis?|milliseconds?|",
    r"us|µs|μs|usecs?|micros?|microseconds?|ns|nsecs?|nanos?|nanoseconds?),?\s*)+)$"
);

impl JsonSchema for TimeSpan {
    fn schema_name() -> Cow<'static, str> {
        "TimeSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "time-span",
            "pattern": TIME_SPAN_PATTERN,
            "examples": ["500ms", "2s", "30m"],
        })
    }
}

/// An amount of memory as written in an experiment file: `512MiB`, `1.5GiB`, `8GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Parses `512MiB`, `1.5 GiB`, `8GB` (powers of 1000).
    ///
    /// # Errors
    /// The message names the invalid text and the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "`{text}` is not an amount of memory; write a number with a unit, such as \
                 `512MiB`, `1.5GiB` or `8GB`"
            )
        };
        // A number alone would be bytes, which is probably an error.
        let has_unit = text.trim_end().ends_with(['b', 'B']);
        let bytes = text
            .parse::<bytesize::ByteSize>()
            .ok()
            .filter(|bytes| has_unit && bytes.0 > 0);
        bytes.map(|bytes| Self(bytes.0)).ok_or_else(refuse)
    }
}

/// Prints in the largest unit that is exact: the text reads back to the same value.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 8] = [
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "kB"),
            (1, "B"),
        ];
        let (unit, name) = UNITS
            .into_iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
            .unwrap_or((1, "B"));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTtPpEe][Ii]?)?[Bb]\s*$";
        json_schema!({
            "type": "string",
            "format": "byte-size",
            "pattern": pattern,
            "examples": ["512MiB", "1.5GiB", "8GB"],
        })
    }
}

/// Bytes, printed in binary units: `1.5 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // From here on the number would be printed as 1024.0.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// A fraction of 1, printed as percent: `3.4 %`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(pub f64);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", percent(self.0))
    }
}

/// A fraction of 1 in whole percent, such as a threshold: `3 %`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct WholePercent(pub f64);

impl fmt::Display for WholePercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} %", self.0 * 100.0)
    }
}

/// A fraction of 1 in percent: `3.4`. Values below 0.05 print as 0.0.
fn percent(share: f64) -> String {
    let hundredths = share * 100.0;
    if hundredths.abs() < MOST_PLAIN {
        format!("{hundredths:.1}")
    } else {
        with_exponent(hundredths)
    }
}

/// The change of a ratio from 1: `+4.2 %`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Change(pub f64);

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Digits of a loss of nearly all, at most.
        const MOST_DIGITS: i32 = 6;
        let left = self.0 * 100.0;
        if left > 0.0 && left < 0.05 {
            // Not all is lost: as many digits as it takes to see that.
            let digits = (-left.log10()).ceil().clamp(2.0, f64::from(MOST_DIGITS)) as i32;
            let lost = (100.0 - left).min(100.0 - 10_f64.powi(-digits));
            return write!(f, "-{lost:.places$} %", places = digits as usize);
        }
        write!(
            f,
            "{}{} %",
            if self.0 < 1.0 { "" } else { "+" },
            percent(self.0 - 1.0)
        )
    }
}

/// Seconds, printed with readable precision: `530 ms`, `41 s`, `12 min 5 s`, `3 h 20 min`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        match seconds {
            s if s.abs() >= MOST_PLAIN => write!(f, "{} s", with_exponent(s)),
            0.0 => f.write_str("0 s"),
            s if s > 0.0 && s < 0.000_999_5 => write!(f, "{} µs", significant(s * 1e6)),
            s if s < 0.009_995 => write!(f, "{:.2} ms", s * 1e3),
            s if s < 0.099_95 => write!(f, "{:.1} ms", s * 1e3),
            s if s < 0.999_5 => write!(f, "{:.0} ms", s * 1e3),
            s if s < 9.995 => write!(f, "{s:.2} s"),
            s if s < 59.5 => write!(f, "{s:.0} s"),
            s if s < 3599.5 => write!(
                f,
                "{} min {} s",
                (s.round() as u64) / 60,
                (s.round() as u64) % 60
            ),
            s => write!(
                f,
                "{} h {} min",
                (s / 60.0).round() as u64 / 60,
                (s / 60.0).round() as u64 % 60
            ),
        }
    }
}

/// A large count with few digits: `13.9 M`, `854.8 G`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Count(pub f64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each unit ends where its number would be printed as 1000.0.
        let (value, unit) = match self.0 {
            n if n <= -MOST_PLAIN => return f.write_str(&with_exponent(n)),
            n if n < 1e4 => return write!(f, "{n:.0}"),
            n if n < 999_950.0 => (n / 1e3, "k"),
            n if n < 999_950_000.0 => (n / 1e6, "M"),
            n if n < 9.9995e11 => (n / 1e9, "G"),
            n if n < 9.9995e14 => (n / 1e12, "T"),
            n if n < 9.9995e17 => (n / 1e15, "P"),
            n => return f.write_str(&with_exponent(n)),
        };
        write!(f, "{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests;
