//! The reason of a trial whose program ended with status 0 and whose metrics are not complete. It is
//! written and read here alone, so that nothing else depends on its words.

/// After the program.
const ENDED: &str = " ended with status ";
/// The status, before what is wrong with a metric.
const WELL: &str = "0, and ";
/// After the name of a metric whose window was not measured.
const LENGTH: &str = " is the length of the window, and ";
/// Between the name of a metric and its value.
const IS: &str = " is ";
/// After a value that is no number.
const NO_NUMBER: &str = ", which is not a number";
/// After a number that the metric cannot have.
const BUT: &str = "; ";
/// In place of the value of a trial.
const A_VALUE: &str = "…";
/// Around the number of lines of an output, of which none has the metric.
const NONE_OF: &str = "none of ";
const LINES: &str = " lines";
/// Before the lines of an output that come nearest to a pattern.
const NEAREST: &str = "; the nearest in ";

/// `python train.py ended with status 0, and FAULT`.
pub fn of_program(program: &str, fault: &str) -> String {
    format!("{program}{ENDED}{WELL}{fault}")
}

/// The fault of the metric `name`, which is the length of a window that was not measured for the reason
/// `why`.
pub fn of_window(name: &str, why: &str) -> String {
    format!("`{name}`{LENGTH}{why}")
}

/// The fault of the metric `name` with a value that is no number: a text in quotes, NaN or an infinity.
pub fn of_no_number(name: &str, value: &str) -> String {
    format!("`{name}`{IS}{value}{NO_NUMBER}")
}

/// The fault of the metric `name` with an impossible number: `87.5; it is a share, from 0 to 1`.
pub fn of_impossible(name: &str, number_and_why: &str) -> String {
    format!("`{name}`{IS}{number_and_why}")
}

/// The end of a fault: the lines of `output` that come nearest to the pattern.
pub fn nearest_lines(output: &str, lines: &str) -> String {
    format!("{NEAREST}{output}: {lines}")
}

/// Whether a reason is of this kind.
pub fn is_of_metric(reason: &str) -> bool {
    fault_of(reason).is_some()
}

/// Whether a reason of this kind is that a window was not measured.
pub fn is_of_window(reason: &str) -> bool {
    let behind_name = fault_of(reason).and_then(split_name);
    behind_name.is_some_and(|(_, rest)| rest.starts_with(LENGTH))
}

/// The fault in a reason of this kind.
fn fault_of(reason: &str) -> Option<&str> {
    let (_, status) = reason.split_once(ENDED)?;
    status.strip_prefix(WELL)
}

/// Splits the name of its metric, without the quotes, from a fault.
fn split_name(fault: &str) -> Option<(&str, &str)> {
    fault.strip_prefix('`')?.split_once('`')
}

/// Splits the nearest lines, which are of one trial, from a reason of this kind.
pub fn split_nearest(reason: &str) -> (&str, &str) {
    let at = reason.find(NEAREST).filter(|_| is_of_metric(reason));
    reason.split_at(at.unwrap_or(reason.len()))
}

/// A reason of this kind without what each trial has for itself: the nearest lines, how many lines its
/// output has, and the value of the metric.
pub fn without_own_details(reason: &str) -> String {
    let (reason, _) = split_nearest(reason);
    without_value(reason).unwrap_or_else(|| without_count(reason))
}

/// `None` if the fault is not in a value.
fn without_value(reason: &str) -> Option<String> {
    let (_, rest) = fault_of(reason).and_then(split_name)?;
    let value = rest.strip_prefix(IS)?;
    let before = &reason[..reason.len() - value.len()];
    if value.ends_with(NO_NUMBER) {
        return Some(format!("{before}{A_VALUE}{NO_NUMBER}"));
    }
    let (number, why) = value.split_once(BUT)?;
    let is_number = number.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    is_number.then(|| format!("{before}{A_VALUE}{BUT}{why}"))
}

fn without_count(reason: &str) -> String {
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
        assert_eq!(without_own_details(&whole), common);
        let of_key = of_program(
            "sh",
            "`loss` never came: none of 4 lines of stderr is a JSON object",
        );
        let common = of_key.replace("of 4 lines", "of its lines");
        assert_eq!(without_own_details(&of_key), common);
        let few = of_program("sh", "`loss` came 5 times");
        assert_eq!(without_own_details(&few), few);
        let other = format!("sh ended with status 1: {whole}");
        assert!(!is_of_metric(&other) && !is_of_window(&other));
        let window = of_window("wall", "`window.from` never came");
        assert!(is_of_window(&of_program("sh", &window)));
        assert!(!is_of_window(&whole) && !is_of_window(&few));
        assert_eq!(split_nearest(&other), (&*other, ""));
    }

    #[test]
    fn the_value_of_a_trial_is_left_out() {
        let common = |fault: &str| without_own_details(&of_program("sh", fault));
        let share = of_impossible("valid_top1", "55.1; it is a share, from 0 to 1; see");
        assert_eq!(
            common(&share),
            "sh ended with status 0, and `valid_top1` is …; it is a share, from 0 to 1; see"
        );
        for value in ["'N/A; 1'", "'a, which is not a number'", "NaN"] {
            assert_eq!(
                common(&of_no_number("speed", value)),
                "sh ended with status 0, and `speed` is …, which is not a number"
            );
        }
        for other in [
            of_window("wall", "`window.to` never came; 3"),
            "`speed` is cut off: the group of '([0-9]+)' ends inside '1e5'; use `(\\S+)`"
                .to_owned(),
        ] {
            assert_eq!(common(&other), of_program("sh", &other));
        }
    }
}
