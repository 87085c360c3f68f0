//! Sentences on the runs that were disturbed, of a side as a whole or of a point.

use std::collections::HashSet;

use kiln_core::{
    record::{disturbance::Disturbance, note::BusyHost},
    units::counted,
};

use super::{Compared, Comparisons, DisturbedRun};

/// The sides whose runs were all disturbed by one kind of cause.
#[derive(Debug)]
pub(super) struct AllDisturbed {
    pub(super) sentences: Vec<String>,
    /// Whether a sentence tells it of base, and of new: no point needs one then.
    pub(super) told: [bool; 2],
}

/// One sentence per side, or one for both where the cause is the same.
pub(super) fn all_disturbed(pairs: &[Compared], is_clean: bool) -> AllDisturbed {
    let of_side = |side: usize| -> Option<(usize, String)> {
        let is_all = |pair: &Compared| match is_clean {
            true => pair.completed[side] == 0,
            false => pair.completed[side] == pair.disturbed[side].len(),
        };
        // Pairs may have their base in common.
        let runs = pairs.iter().flat_map(|pair| &pair.disturbed[side]);
        let count = runs.map(|run| &run.trial).collect::<HashSet<_>>().len();
        let cause = common_cause(pairs.iter().flat_map(|pair| &pair.disturbed[side]))?;
        (count > 1 && pairs.iter().all(is_all)).then_some((count, cause))
    };
    let what = what_of_disturbed(is_clean);
    let sides = [of_side(0), of_side(1)];
    let of_both = common_cause(pairs.iter().flat_map(|pair| &pair.disturbed).flatten());
    let sentences = match (&sides, of_both) {
        ([Some((base, _)), Some((new, _))], Some(cause)) if base == new => {
            vec![format!("{what}: all {base} runs of each side ({cause})")]
        }
        ([Some((base, _)), Some((new, _))], Some(cause)) => vec![format!(
            "{what}: all {base} runs of base and all {new} of new ({cause})"
        )],
        _ => {
            let named = sides.iter().zip(["base", "new"]);
            let sentence = |(side, name): (&Option<(usize, String)>, &str)| {
                let (count, cause) = side.as_ref()?;
                Some(format!("{what}: all {count} runs of {name} ({cause})"))
            };
            named.filter_map(sentence).collect()
        }
    };
    AllDisturbed {
        sentences,
        told: sides.map(|side| side.is_some()),
    }
}

fn what_of_disturbed(is_clean: bool) -> &'static str {
    match is_clean {
        true => "excluded as disturbed",
        false => "disturbed",
    }
}

/// Says that a side has no run left without the disturbed ones; `None` if each has some.
pub(super) fn all_excluded(found: &Comparisons) -> Option<&'static str> {
    let is_out = |side: usize| {
        let is_empty = |pair: &Compared| pair.completed[side] == 0;
        let has_disturbed = |pair: &Compared| !pair.disturbed[side].is_empty();
        found.pairs.iter().all(is_empty) && found.pairs.iter().any(has_disturbed)
    };
    match [is_out(0), is_out(1)] {
        _ if !found.is_clean => None,
        [true, true] => Some("all runs were excluded as disturbed"),
        [true, false] => Some("all runs of base were excluded as disturbed"),
        [false, true] => Some("all runs of new were excluded as disturbed"),
        [false, false] => None,
    }
}

/// The kind of cause that all these runs have in common, in words; `None` if there are several.
fn common_cause<'r>(runs: impl Iterator<Item = &'r DisturbedRun>) -> Option<String> {
    let only = |run: &'r DisturbedRun| match &run.by[..] {
        [only] => Some(only),
        _ => None,
    };
    let causes: Vec<&Disturbance> = runs.map(only).collect::<Option<_>>()?;
    let busy = causes.iter().map(|cause| match cause {
        Disturbance::BusyHost(busy) => Some(*busy),
        Disturbance::Other(_) => None,
    });
    let busy: Option<Vec<BusyHost>> = busy.collect();
    if let Some(words) = busy.and_then(|busy| BusyHost::range(&busy)) {
        return Some(words);
    }
    let first = causes.first()?.to_string();
    let is_one = causes.iter().all(|cause| cause.to_string() == first);
    is_one.then_some(first)
}

/// Runs of a point that were disturbed: how many of each side, and by what; without the sides that
/// are told already.
pub(super) fn disturbed(pair: &Compared, is_clean: bool, told: [bool; 2]) -> Option<String> {
    let untold = |side: usize| {
        let runs: &[DisturbedRun] = &pair.disturbed[side];
        if told[side] { &runs[..0] } else { runs }
    };
    let sides = [("base", untold(0)), ("new", untold(1))];
    let cause = common_cause(sides.iter().flat_map(|(_, runs)| *runs));
    let of_side = |(side, runs): (&str, &[DisturbedRun])| {
        let first = runs.first()?;
        let count = format!("{} of {side}", counted(runs.len(), "run"));
        if cause.is_some() {
            return Some(count);
        }
        let more = if runs.len() > 1 {
            format!(" and {} more", runs.len() - 1)
        } else {
            String::new()
        };
        Some(format!("{count} ({first}{more})"))
    };
    let sides: Vec<String> = sides.into_iter().filter_map(of_side).collect();
    let runs = match &cause {
        Some(cause) => format!("{} ({cause})", sides.join(" and ")),
        None => sides.join("; "),
    };
    let what = match !is_clean && pair.has_enough_clean_runs() {
        true => "disturbed (`--clean` judges without these runs)",
        false => what_of_disturbed(is_clean),
    };
    (!sides.is_empty()).then(|| format!("{what}: {}: {runs}", pair.name))
}
