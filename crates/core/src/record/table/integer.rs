//! Integers that another program saved as decimal numbers: one with a gap in a column of integers
//! writes `106560.0`.

/// From here on a decimal number may have been rounded to an integer.
const MOST: u64 = 1 << 53;

/// The record with the cell of an error in digits, if the cell is an integer as a decimal number.
pub(super) fn in_digits(
    cells: &csv::StringRecord,
    error: &csv::Error,
) -> Option<csv::StringRecord> {
    let csv::ErrorKind::Deserialize { err, .. } = error.kind() else {
        return None;
    };
    if !matches!(err.kind(), csv::DeserializeErrorKind::ParseInt(_)) {
        return None;
    }
    let place = usize::try_from(err.field()?).ok()?;
    let digits = digits(cells.get(place)?)?;
    let changed = cells.iter().enumerate();
    let changed = changed.map(|(at, cell)| if at == place { digits.as_str() } else { cell });
    Some(changed.collect())
}

/// The digits of a decimal number that is exactly a non-negative integer below 2^53; `None` for
/// another text, and for what has only digits.
fn digits(text: &str) -> Option<String> {
    if !text.contains(['.', 'e', 'E']) {
        return None;
    }
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let zeros = exponent
        .parse::<usize>()
        .ok()?
        .checked_sub(fraction.len())?;
    let digits = format!("{whole}{fraction}{}", "0".repeat(zeros.min(20)));
    let value: u64 = digits.parse().ok()?;
    (value < MOST).then(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_exact_integer_is_read_from_a_decimal_number() {
        for (text, expected) in [
            ("106560.0", "106560"),
            ("1.0656e5", "106560"),
            ("1.5E+1", "15"),
            ("7.", "7"),
            ("0.0", "0"),
            ("0e400", "0"),
            ("9007199254740991.0", "9007199254740991"),
        ] {
            assert_eq!(digits(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "106560",
            "8.5",
            "7.99999999999999999999",
            "1.25e1",
            "8.0e-1",
            "-8.0",
            "9007199254740992.0",
            "1e30",
            "1e99999999999999999999",
            "1,000.0",
            "1.0.0",
            "1e2e3",
            ".",
            "e",
            "inf.",
        ] {
            assert_eq!(digits(text), None, "{text}");
        }
    }
}
