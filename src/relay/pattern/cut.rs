//! Whether a text is cut out of a longer number of its line. Pure.

use std::fmt;

use super::super::number;

/// A number of which a pattern's group holds only a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::relay) struct Cut {
    pub(super) longer: String,
    /// Whether its beginning is missing.
    pub(super) begins_inside: bool,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.begins_inside {
            true => "begins",
            false => "ends",
        };
        write!(f, "{verb} inside '{}'", self.longer)
    }
}

impl Cut {
    /// How to change the pattern so that it reads the number.
    pub(super) fn remedy(&self) -> String {
        if self.begins_inside {
            let remedy = r"put the text before the number into the pattern, as in `loss: (\S+)`";
            return remedy.to_owned();
        }
        let group = match self.longer.contains(',') {
            true => r"(\S+)",
            false => r"([^\s,\]]+)",
        };
        format!("use `{group}`, or put the text that follows the number into the pattern")
    }
}

/// A text, and its line before and after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) before: &'a str,
    pub(super) text: &'a str,
    pub(super) after: &'a str,
}

/// Whether a pattern itself names the characters directly before and after its group. They are then
/// not part of the number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) before: bool,
    /// A sign before the group, which may be optional.
    pub(super) sign: bool,
    pub(super) after: bool,
}

/// The longer number of which a text is a part, if what stands beside the text makes it another
/// number. A unit (`3.5ms`) does not.
pub(super) fn cut_off(place: Place, named: Named) -> Option<Cut> {
    let text = place.text;
    let short = number::parse(text).filter(|short| !short.is_nan())?;
    let is_other = |longer: &String| number::parse(longer).is_some_and(|value| value != short);
    let mut heads = match named.before {
        true => Vec::new(),
        false => heads(place.before, named.sign),
    };
    heads.push("");
    let mut tails = match named.after {
        true => Vec::new(),
        false => tails(place),
    };
    tails.push("");
    for head in &heads {
        let longer = |tail: &&str| format!("{head}{text}{tail}");
        if let Some(longer) = tails.iter().map(longer).find(is_other) {
            return Some(Cut {
                longer,
                begins_inside: !head.is_empty(),
            });
        }
    }
    None
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ".,_+-".contains(letter)
}

/// Beginnings of a number that may stand directly before a text.
fn heads(before: &str, names_sign: bool) -> Vec<&str> {
    let (outside, all) = before.split_at(before.trim_end_matches(is_of_number).len());
    let is_digit = |letter: char| letter.is_ascii_digit() || letter == '.';
    let (_, digits) = all.split_at(all.trim_end_matches(is_digit).len());
    let without_word = all.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    // A dash in a name, or between numbers, is no sign.
    let begins_number =
        outside.is_empty() || outside.ends_with([' ', '\t', '=', ':', '(', '[', '\'', '"']);
    let is_head = |head: &&str| match *head {
        "" => false,
        "+" | "-" => *head == all && begins_number && !names_sign,
        "." => *head == all && begins_number,
        _ => true,
    };
    let heads = [all, digits, without_word].into_iter();
    heads.filter(is_head).collect()
}

/// Ends of a number that may stand directly behind a text, with and without a unit.
fn tails<'a>(place: Place<'a>) -> Vec<&'a str> {
    let after = place.after;
    let end = after.find(|letter| !is_of_number(letter));
    let all = &after[..end.unwrap_or(after.len())];
    let all = all.trim_end_matches(['.', ',', '_', '+', '-']);
    let without_unit = all.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let is_tail = |tail: &&str| !tail.is_empty() && may_belong(place, tail);
    let tails = [all, without_unit].into_iter();
    tails.filter(is_tail).collect()
}

/// Whether what follows a text may belong to its number. These do not: further decimals, which change
/// it by less than its last digit, the fraction of a clock's seconds (`12:34:56,789`), more entries of
/// a list (`100,200,300`), and further numbers in a name (`ckpt_100_5`).
fn may_belong(place: Place, tail: &str) -> bool {
    let Place { before, text, .. } = place;
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = text.split_once('.').map_or("", |(_, decimals)| decimals);
    if !decimals.is_empty() && is_digits(decimals) {
        return !is_digits(tail);
    }
    let groups = |separator: char| tail[1..].split(separator);
    let is_three = |group: &str| group.bytes().take_while(u8::is_ascii_digit).count() == 3;
    match tail.chars().next() {
        Some('_') if is_digits(text) => text.len() <= 3 && groups('_').all(is_three),
        Some(',') if is_digits(text) => {
            let is_list = text.len() == 3 && groups(',').count() > 1;
            !is_list && !ends_in_clock(before)
        }
        _ => true,
    }
}

fn ends_in_clock(before: &str) -> bool {
    let hours = before.strip_suffix(':');
    hours.is_some_and(|hours| hours.ends_with(|letter: char| letter.is_ascii_digit()))
}
