//! The two values of a key that differs, side by side.

/// Values longer than this are cut, in characters.
const LONGEST: usize = 72;
/// Characters of a long value that stand before the first difference.
const BEFORE: usize = 24;

/// Both values, cut so that their first difference shows; `none` stands for a missing one.
pub(super) fn sides(values: [Option<&str>; 2], none: &str) -> [String; 2] {
    match values {
        [Some(a), Some(b)] => cut_both(a, b),
        values => values.map(|side| side.map_or_else(|| none.to_owned(), cut)),
    }
}

/// The beginning of a long value.
pub(super) fn cut(value: &str) -> String {
    cut_at(value, 0)
}

fn cut_both(a: &str, b: &str) -> [String; 2] {
    let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let is_long = [a, b].iter().any(|side| side.chars().count() > LONGEST);
    let from = match is_long && common > LONGEST / 2 {
        true => common - BEFORE,
        false => 0,
    };
    [cut_at(a, from), cut_at(b, from)]
}

/// So many characters of a value, from a place on.
fn cut_at(value: &str, from: usize) -> String {
    if value.is_empty() {
        return "(empty)".to_owned();
    }
    let shown: String = value.chars().skip(from).take(LONGEST).collect();
    let before = if from > 0 { "…" } else { "" };
    let after = match value.chars().count() > from + LONGEST {
        true => "…",
        false => "",
    };
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_that_begin_alike_are_cut_before_their_first_difference() {
        let (a, b) = ("=".repeat(100) + "a", "=".repeat(100) + "b");
        let before = format!("…{}", "=".repeat(24));
        assert_eq!(
            sides([Some(a.as_str()), Some(b.as_str())], "(none)"),
            [format!("{before}a"), format!("{before}b")]
        );
        let beginning = format!("{}…", "=".repeat(72));
        assert_eq!(
            sides([Some(a.as_str()), None], "(none)"),
            [beginning, "(none)".to_owned()]
        );
        assert_eq!(sides([Some(""), Some("8")], "(none)"), ["(empty)", "8"]);
    }
}
