//! The reason of an end without the details that every trial has for itself.

use kiln_core::record::{TrialRow, attempt::STDERR, metric_reason, trial_reason::without_trial};

/// Units in which kiln writes a duration.
const UNITS: [&str; 5] = ["µs", "ms", "s", "min", "h"];
/// Follows the reason of a trial that ran out of memory.
const MEMORY: &str = "; its process used up to ";
/// A hexadecimal number of so many digits is an address.
const ADDRESS_DIGITS: usize = 6;

/// The reason of a row; the table in the file keeps its lines.
pub(super) fn on_one_line(row: &TrialRow) -> String {
    let reason = row.reason.as_deref().unwrap_or("no reason was recorded");
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The same without the trial's id, the path of its log, its duration and step, the memory of its
/// process, the lines of its output and the value of its metric, as kiln writes them, and without
/// addresses. Other numbers may tell two errors apart.
pub(super) fn without_own_details(row: &TrialRow, reason: &str) -> String {
    if metric_reason::is_of_metric(reason) {
        let common = metric_reason::without_own_details(reason);
        return without_addresses(&with_folder_in_words(row, &common));
    }
    let reason = match reason.rsplit_once(MEMORY) {
        Some((reason, _)) => reason,
        None => reason,
    };
    match without_trial(&row.trial, reason) {
        Some(end) => without_addresses(&common_end(row, end)),
        None => without_addresses(reason),
    }
}

/// The same with `{folder}` for the path of the attempt's folder, which stands in older reasons.
fn with_folder_in_words(row: &TrialRow, reason: &str) -> String {
    let folder = format!("/trials/{}/{}/", row.trial, row.attempt);
    let Some((before, file)) = reason.split_once(&folder) else {
        return reason.to_owned();
    };
    let begins = before.rfind(' ').map_or(0, |blank| blank + 1);
    format!("{}{{folder}}/{file}", &before[..begins])
}

/// Keeps the first words and the line of `was killed from outside by signal 9 after 41 s, at step 118;
/// see trials/…/stderr.txt: <line>`.
fn common_end(row: &TrialRow, end: &str) -> String {
    let log = format!("; see trials/{}/{}/{STDERR}", row.trial, row.attempt);
    let (what, line) = end.split_once(&log).unwrap_or((end, ""));
    let what = match what.rsplit_once(" after ") {
        Some((what, when)) if is_moment(when) => what,
        _ => what,
    };
    format!("{what}{line}")
}

/// Whether this is a duration, with or without a step: `2 min 3 s, at step 118`.
fn is_moment(text: &str) -> bool {
    let (time, step) = match text.split_once(", ") {
        Some((time, step)) => (time, Some(step)),
        None => (text, None),
    };
    let is_number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
    let is_time = time
        .split(' ')
        .all(|word| is_number(word) || UNITS.contains(&word));
    let is_step = |step: &str| step == "before its first step" || step.starts_with("at step ");
    is_time && step.is_none_or(is_step)
}

fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut common = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.chars().take_while(char::is_ascii_hexdigit).count();
        let rest = if digits >= ADDRESS_DIGITS {
            common.push_str("0x…");
            &part[digits..]
        } else {
            common.push_str("0x");
            part
        };
        common.push_str(rest);
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::row;

    #[test]
    fn only_the_details_of_a_trial_are_left_out_of_its_reason() {
        let own = row(1, 0.0);
        let (id, common) = (&own.trial, |reason: &str| without_own_details(&own, reason));
        let see = format!("; see trials/{id}/1/stderr.txt");
        let cases = [
            (
                format!(
                    "trial {id} crashed by signal 11 after 2 min 3 s, at step 118{see}: bad at \
                     0x7f00a1b2c3d4"
                ),
                "crashed by signal 11: bad at 0x…",
            ),
            (
                format!("trial {id} failed after 345 ms, before its first step{see}"),
                "failed",
            ),
            (
                format!("trial {id} was running after all"),
                "was running after all",
            ),
            (
                "x.py ran out: 3 after 4; its process used up to 8.6 MiB of 23.5 GiB".to_owned(),
                "x.py ran out: 3 after 4",
            ),
            (
                "x.py ended with status 1: bad shape 7, flags 0x1f after 3 s".to_owned(),
                "x.py ended with status 1: bad shape 7, flags 0x1f after 3 s",
            ),
            (
                "x.py ended with status 0, and `loss` never came: 'loss' matched none of 12 lines; \
                 the nearest in trials/t1/1/stdout.txt: 'los 0.1'"
                    .to_owned(),
                "x.py ended with status 0, and `loss` never came: 'loss' matched none of its lines",
            ),
            (
                format!(
                    "x.py ended with status 0, and `acc` never came: /a/results/x/r/trials/{id}/1/r.json \
                     has nothing at `acc`"
                ),
                "x.py ended with status 0, and `acc` never came: {folder}/r.json has nothing at `acc`",
            ),
        ];
        for (reason, wanted) in cases {
            assert_eq!(common(&reason), wanted, "{reason}");
        }
    }
}
