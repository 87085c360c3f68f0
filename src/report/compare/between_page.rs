//! The parts of a page that compares the values of one axis: its sides and its blocks.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    statistics::{Design, FEWEST_RUNS, SESSION_JUMP},
    units::{Fraction, counted, listed},
};

use super::{
    Between, Compared, Comparisons, PairedBlocks, Unlike, order::drifts, words::difference,
};

/// Most reasons that a page names for one point.
const MOST_REASONS: usize = 3;

/// `base: run.engine libtorch     new: run.engine flex     10 pairs of runs on 1 device, paired by
/// block`.
pub(super) fn sides(between: &Between, found: &Comparisons) -> String {
    let Between {
        axis, base, sides, ..
    } = between;
    let paired = || found.pairs.iter().filter_map(enough);
    let pairs: usize = paired().map(|blocks| blocks.pairs).sum();
    let devices: BTreeSet<&String> = paired().flat_map(|blocks| &blocks.devices).collect();
    let by_block = match pairs {
        0 => "not paired".to_owned(),
        _ => format!(
            "{} of runs on {}, paired by block{}",
            counted(pairs, "pair"),
            counted(devices.len(), "device"),
            not_paired(found)
        ),
    };
    format!(
        "base: {axis} {base}     new: {axis} {}     {by_block}",
        sides.join(", ")
    )
}

/// How many points are not compared by block, after the number of pairs of the others.
fn not_paired(found: &Comparisons) -> String {
    let all = found.pairs.len();
    let unpaired = found.pairs.iter().filter(|pair| enough(pair).is_none());
    match unpaired.count() {
        0 => String::new(),
        count => format!("; {count} of {} not paired", counted(all, "point")),
    }
}

fn enough(pair: &Compared) -> Option<&PairedBlocks> {
    pair.blocks.as_ref().filter(|blocks| blocks.are_enough)
}

/// Sentences on how the runs lie in time, where they are not in blocks or the blocks do not balance
/// who is first, and on drift.
pub(super) fn sentences(found: &Comparisons, between: &Between) -> Vec<String> {
    let axis = &between.axis;
    let all = found.pairs.len();
    let part = |count: usize| match count == all {
        true => String::new(),
        false => format!("of {} of {all}, ", counted(count, "point")),
    };
    let mut said = Vec::new();
    let unpaired = found.pairs.iter();
    let unpaired = unpaired.filter(|pair| enough(pair).is_none() && pair.timed().is_some());
    let (unlike, apart): (Vec<&Compared>, Vec<&Compared>) = unpaired.partition(|pair| {
        let blocks = pair.blocks.as_ref();
        blocks.is_some_and(PairedBlocks::has_enough_blocks)
    });
    let (of_launches, apart): (Vec<&Compared>, Vec<&Compared>) =
        apart.into_iter().partition(|pair| launches(pair).is_some());
    if !of_launches.is_empty() {
        said.push(format!(
            "order: {}the two sides ran in different launches ({}), so runs are compared by their \
             order in time{}, and machines change between launches; a new run (`kiln run FILE \
             --fresh`) with `sweep.together: [{axis}]` runs them in turns",
            part(of_launches.len()),
            of_each_value(&of_launches, between),
            limit(&of_launches)
        ));
    }
    if !apart.is_empty() {
        said.push(format!(
            "order: {}fewer than {FEWEST_RUNS} blocks have both sides on one device in one \
             launch, so runs are compared by their order in time{}; `sweep.together: [{axis}]` \
             runs the sides in blocks",
            part(apart.len()),
            limit(&apart)
        ));
    }
    if !unlike.is_empty() {
        let (differences, fields) = conditions(&unlike);
        said.push(format!(
            "order: {}fewer than {FEWEST_RUNS} blocks have both sides under one condition \
             ({differences}), so runs are compared by their order in time{}; `--across {fields}` \
             pairs them anyway",
            part(unlike.len()),
            limit(&unlike)
        ));
    }
    let lopsided = found.pairs.iter().filter_map(enough);
    let lopsided: Vec<&PairedBlocks> = lopsided.filter(|blocks| blocks.is_lopsided()).collect();
    if !lopsided.is_empty() {
        said.push(format!(
            "order: {}one side is first in every block: an effect of being first would look like \
             a difference; `sweep.order: rotated` changes who is first",
            part(lopsided.len())
        ));
    }
    said.extend(drifts(found));
    said
}

/// The launches of both sides of a point, where they share none.
fn launches(pair: &Compared) -> Option<&[BTreeSet<u64>; 2]> {
    pair.blocks.as_ref()?.launches.as_ref()
}

/// `train.cpu_threads 1 in launch 1; 4 in launches 2 and 3`.
fn of_each_value(pairs: &[&Compared], between: &Between) -> String {
    let mut of_base: BTreeSet<u64> = BTreeSet::new();
    let mut of_sides: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for pair in pairs {
        let (Some([base, new]), Some(side)) = (launches(pair), pair.side.as_deref()) else {
            continue;
        };
        of_base.extend(base);
        of_sides.entry(side).or_default().extend(new);
    }
    let of_base = format!("{} {}", between.axis, in_launches(&between.base, &of_base));
    let in_order = between.sides.iter();
    let of_sides =
        in_order.filter_map(|side| Some(in_launches(side, of_sides.get(side.as_str())?)));
    let all: Vec<String> = std::iter::once(of_base).chain(of_sides).collect();
    all.join("; ")
}

/// `4 in launches 2 and 3`.
fn in_launches(value: &str, launches: &BTreeSet<u64>) -> String {
    let numbers: Vec<String> = launches.iter().map(u64::to_string).collect();
    let noun = match numbers.len() {
        1 => "launch",
        _ => "launches",
    };
    format!("{value} in {noun} {}", listed(&numbers, " and "))
}

/// The limit of what is reported for points that are not compared by block.
fn limit(pairs: &[&Compared]) -> String {
    let is_apart = |pair: &&Compared| {
        let design = pair.timed().and_then(|one| one.design);
        design.is_some_and(Design::is_apart)
    };
    match pairs.iter().any(is_apart) {
        false => String::new(),
        true => format!(
            "; only changes beyond {} are reported where the sides ran apart",
            Fraction(SESSION_JUMP)
        ),
    }
}

/// The differences between the runs of blocks, each once, and the names of these columns.
fn conditions(pairs: &[&Compared]) -> (String, String) {
    let blocks = pairs.iter().filter_map(|pair| pair.blocks.as_ref());
    let unlike: Vec<&Unlike> = blocks.flat_map(|blocks| &blocks.unlike).flatten().collect();
    let differences: BTreeSet<String> = unlike.iter().map(|one| difference(one)).collect();
    let fields: BTreeSet<&str> = unlike.iter().map(|one| one.field.name()).collect();
    let differences: Vec<String> = differences.into_iter().take(MOST_REASONS).collect();
    let fields: Vec<&str> = fields.into_iter().collect();
    (listed(&differences, ", "), fields.join(","))
}

/// The runs of a point that are in no block, or in one that cannot be compared.
pub(super) fn unpaired(pair: &Compared) -> Option<String> {
    let blocks = pair.blocks.as_ref()?;
    let named = blocks.unpaired.len().min(MOST_REASONS);
    let more = blocks.unpaired.len() - named;
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let effect = match blocks.are_enough {
        true => "not paired, and in no number",
        false => "not paired",
    };
    (!blocks.unpaired.is_empty()).then(|| {
        format!(
            "{effect}: {}: {}{more}",
            pair.name,
            listed(&blocks.unpaired[..named], "; ")
        )
    })
}
