//! The reason of a trial whose program ended with status 0 and whose metrics are not complete. It is
//! written and read here alone, so that nothing else depends on its words.

/// After the program.
const ENDED: &str = " ended with status ";
/// The status, before what is wrong with a metric.
const WELL: &str = "0, and ";
/// Around the number of lines of an output, of which none has the metric.
const NONE_OF: &str = "none of ";
const LINES: &str = " lines";
/// Before the lines of an output that come nearest to a pattern.
const NEAREST: &str = "; the nearest in ";

/// `python train.py ended with status 0, and FAULT`.
pub fn of_program(program: &str, fault: &str) -> String {
    format!("{program}{ENDED}{WELL}{fault}")
}

/// The end of a fault: the lines of `output` that come nearest to the pattern.
pub fn nearest_lines(output: &str, lines: &str) -> String {
    format!("{NEAREST}{output}: {lines}")
}

/// Whether a reason is of this kind.
pub fn is_of_metric(reason: &str) -> bool {
    let ended = reason.split_once(ENDED);
    ended.is_some_and(|(_, status)| status.starts_with(WELL))
}

/// Splits the nearest lines, which are of one trial, from a reason of this kind.
pub fn split_nearest(reason: &str) -> (&str, &str) {
    let at = reason.find(NEAREST).filter(|_| is_of_metric(reason));
    reason.split_at(at.unwrap_or(reason.len()))
}

/// A reason of this kind without what each trial has for itself: the nearest lines, and how many
/// lines its output has.
pub fn without_own_lines(reason: &str) -> String {
    let (reason, _) = split_nearest(reason);
    let Some((before, rest)) = reason.rsplit_once(NONE_OF) else {
        return reason.to_owned();
    };
    let after = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    match after.starts_with(LINES) {
        true => format!("{before}{NONE_OF}its{after}"),
        false => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_recognized_and_split_from_its_lines() {
        let fault = "`loss` never came: 'x' matched none of 4 lines";
        let nearest = nearest_lines("trials/t1/1/stdout.txt", "'loss 2'");
        let plain = of_program("sh", fault);
        let whole = of_program("sh", &format!("{fault}{nearest}"));
        assert_eq!(split_nearest(&whole), (&*plain, &*nearest));
        assert_eq!(split_nearest(&plain), (&*plain, ""));
        assert!(is_of_metric(&whole) && is_of_metric(&plain));
        let common = plain.replace("of 4 lines", "of its lines");
        assert_eq!(without_own_lines(&whole), common);
        let of_key = of_program(
            "sh",
            "`loss` never came: none of 4 lines of stderr is a JSON object",
        );
        let common = of_key.replace("of 4 lines", "of its lines");
        assert_eq!(without_own_lines(&of_key), common);
        let few = of_program("sh", "`loss` came 5 times");
        assert_eq!(without_own_lines(&few), few);
        let other = format!("sh ended with status 1: {whole}");
        assert!(!is_of_metric(&other));
        assert_eq!(split_nearest(&other), (&*other, ""));
    }
}
