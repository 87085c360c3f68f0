//! Pairs runs of two sides by their blocks: one after the other, on one device, in one launch.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{TrialRow, TrialTable},
    statistics::FEWEST_RUNS,
    units::{counted, listed, without_controls},
};
use serde::Serialize;

use super::{
    Unlike, comparable,
    matching::{MatchedPair, RunKeys},
    pair::completed,
    words::difference,
};

/// The blocks of a pair of points.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PairedBlocks {
    /// Blocks with a run of each side under one condition.
    pub pairs: usize,
    /// Blocks in which base ran before the other side.
    pub base_first: usize,
    /// Whether they are enough for a verdict; then no other runs count.
    pub are_enough: bool,
    /// The devices of these blocks; a processor is one of its host.
    #[serde(skip)]
    pub devices: BTreeSet<String>,
    /// Completed runs that are in no such block, with the reason.
    pub unpaired: Vec<String>,
    /// The fields that differ, of each block whose two runs ran on one device in one launch and are not
    /// comparable.
    #[serde(skip)]
    pub unlike: Vec<Vec<Unlike>>,
    /// The launches in which the completed runs of each side ran, where they share none.
    #[serde(skip)]
    pub launches: Option<[BTreeSet<u64>; 2]>,
}

/// Why the runs of a block are not a pair.
enum Obstacle {
    /// They did not run side by side.
    Apart(String),
    /// They are not comparable.
    Unlike(Vec<Unlike>),
}

impl Obstacle {
    fn in_words(&self) -> String {
        match self {
            Self::Apart(why) => why.clone(),
            Self::Unlike(fields) => {
                let fields: Vec<String> = fields.iter().map(difference).collect();
                listed(&fields, " and ")
            }
        }
    }
}

impl PairedBlocks {
    /// Whether enough blocks hold both sides, though not all of these are comparable.
    pub(super) fn has_enough_blocks(&self) -> bool {
        self.pairs + self.unlike.len() >= FEWEST_RUNS
    }

    /// Whether one side was first so often that an effect of being first may look like a
    /// difference.
    pub fn is_lopsided(&self) -> bool {
        self.are_enough && (self.base_first == 0 || self.base_first == self.pairs)
    }
}

/// The command that compares the values of the axis of `sweep.together`, as a line. `None`: too few
/// blocks hold different values of it. `run` is the run's name on a command line.
pub fn how_to_compare(table: &TrialTable, axis: &str, run: &str) -> Option<String> {
    let place = table.axes.iter().position(|own| own == axis)?;
    // The runs of a block in two launches are not a pair.
    let mut blocks: BTreeMap<(u64, u64), BTreeSet<&str>> = BTreeMap::new();
    for row in table.last_attempts() {
        if let (Outcome::Completed, Some(block)) = (&row.fixed.outcome, row.fixed.block) {
            let value = row.axes.get(place).map_or("", String::as_str);
            let key = (row.fixed.launch, block);
            blocks.entry(key).or_default().insert(value);
        }
    }
    let of_several = blocks.values().filter(|values| values.len() > 1).count();
    (of_several >= FEWEST_RUNS).then(|| {
        format!(
            "block by block: `kiln compare {} --between {}`\n",
            without_controls(run),
            without_controls(axis)
        )
    })
}

/// Number of a row's block. Tables before `trials/6` lack it; there the runs of one seed are a
/// block.
pub(super) fn block_of(row: &TrialRow) -> u64 {
    row.block.unwrap_or(row.seed)
}

/// Pairs the completed runs by block; if there are enough pairs, only their rows stay. `is_asked`:
/// whether the sides may differ in this.
pub(super) fn pair(pair: &mut MatchedPair<'_>, is_asked: &dyn Fn(&Unlike) -> bool) -> PairedBlocks {
    let sides = [completed(&pair.base), completed(&pair.new)];
    let has_blocks = has_blocks(&sides);
    let mut blocks: BTreeMap<u64, [Vec<&TrialRow>; 2]> = BTreeMap::new();
    let mut found = PairedBlocks {
        launches: launches_apart(&sides),
        ..PairedBlocks::default()
    };
    for (side, rows) in sides.iter().enumerate() {
        for row in rows {
            match is_in_block(row) && has_blocks {
                true => blocks.entry(block_of(row)).or_default()[side].push(row),
                false => found
                    .unpaired
                    .push(format!("trial {}: no block", row.trial)),
            }
        }
    }
    let mut kept: [Vec<&TrialRow>; 2] = Default::default();
    for (number, [base, new]) in &blocks {
        match (&base[..], &new[..], why_not(base, new, is_asked)) {
            ([old], [other], None) => {
                found.pairs += 1;
                found.base_first += usize::from(
                    old.started_seconds() <= other.started_seconds()
                        && old.run_seconds <= other.run_seconds,
                );
                found.devices.insert(device_of_host(old));
                kept[0].push(old);
                kept[1].push(other);
            }
            (_, _, why) => {
                let obstacle = why.as_ref().map(Obstacle::in_words);
                found.unpaired.push(format!(
                    "block {number}: {}",
                    obstacle.unwrap_or_else(|| "only one side completed".to_owned())
                ));
                if let Some(Obstacle::Unlike(fields)) = why {
                    found.unlike.push(fields);
                }
            }
        }
    }
    found.are_enough = found.pairs >= FEWEST_RUNS;
    if found.are_enough {
        for (rows, kept) in [&mut pair.base, &mut pair.new].into_iter().zip(kept) {
            let kept: HashSet<&TrialId> = kept.into_iter().map(|row| &row.trial).collect();
            rows.retain(|row| !row.is_completed() || kept.contains(&row.trial));
        }
        pair.keys = RunKeys::Blocks;
    } else {
        let devices: BTreeSet<String> = sides
            .iter()
            .flatten()
            .map(|row| device_of_host(row))
            .collect();
        if devices.len() > 1 {
            pair.keys = RunKeys::Nothing;
        }
    }
    found
}

/// The launches of each side; `None` if a launch ran both, or a side has no run.
fn launches_apart(sides: &[Vec<&TrialRow>; 2]) -> Option<[BTreeSet<u64>; 2]> {
    let launches = [&sides[0], &sides[1]]
        .map(|rows| rows.iter().map(|row| row.launch).collect::<BTreeSet<u64>>());
    let [base, new] = &launches;
    let is_apart = !base.is_empty() && !new.is_empty() && base.is_disjoint(new);
    is_apart.then_some(launches)
}

/// The devices that a row ran on.
fn device(row: &TrialRow) -> String {
    let name = || row.device_name.clone().unwrap_or_default();
    row.device_uuid.clone().unwrap_or_else(name)
}

/// The devices that a row ran on; processors of one name in several hosts are several devices.
fn device_of_host(row: &TrialRow) -> String {
    match (&row.device_uuid, &row.host_id) {
        (None, Some(host)) => format!("{} of host {host}", device(row)),
        _ => device(row),
    }
}

/// An attempt after the first did not run in its block; its row has no number of one.
fn is_in_block(row: &TrialRow) -> bool {
    row.block.is_some() || (is_old(row) && row.attempt == 1)
}

/// Whether the row is older than the column `block`.
fn is_old(row: &TrialRow) -> bool {
    row.table_version().is_some_and(|version| version < 6)
}

/// In older tables runs of one seed are a block only where each block ended before the next began.
fn has_blocks(sides: &[Vec<&TrialRow>; 2]) -> bool {
    let rows = || sides.iter().flatten().filter(|row| row.block.is_none());
    let mut spans: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for row in rows() {
        let Some(start) = row.run_seconds.or(row.started_seconds()) else {
            return rows().all(|row| !is_old(row));
        };
        let span = spans.entry(row.seed).or_insert((start, start));
        *span = (span.0.min(start), span.1.max(start));
    }
    if rows().all(|row| !is_old(row)) {
        return true;
    }
    let mut spans: Vec<(f64, f64)> = spans.into_values().collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    spans.windows(2).all(|pair| pair[0].1 < pair[1].0)
}

/// Why the runs of a block are not a pair; `None` if they are.
fn why_not(
    base: &[&TrialRow],
    new: &[&TrialRow],
    is_asked: &dyn Fn(&Unlike) -> bool,
) -> Option<Obstacle> {
    let apart = |why: String| Some(Obstacle::Apart(why));
    let ([old], [other]) = (base, new) else {
        let of = |rows: &[&TrialRow]| counted(rows.len(), "run");
        return apart(format!("{} of base and {} of new", of(base), of(new)));
    };
    if old.launch != other.launch {
        return apart(format!(
            "begun in launch {}, ended in launch {}",
            old.launch.min(other.launch),
            old.launch.max(other.launch)
        ));
    }
    if device(old) != device(other) {
        return apart(format!("on {} and on {}", device(old), device(other)));
    }
    let mut fields = comparable::unlike(base, new);
    fields.retain(|unlike| !is_asked(unlike));
    (!fields.is_empty()).then_some(Obstacle::Unlike(fields))
}
