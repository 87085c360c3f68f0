//! The order of the runs of two sides in time, and the conclusions it allows.

use std::collections::HashMap;

use serde::Serialize;

use super::{FEWEST_RUNS, MUCH_DISTURBED, Nature, SESSION_JUMP, Sides, TimedRun, median};

/// The order in which the runs of both sides were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// Alternating: this many pairs of adjacent runs, one of each side.
    Paired { pairs: usize },
    /// As [`Design::Paired`], of launches that ran one side each: each counts as one run, by the mean of
    /// its runs.
    PairedLaunches { pairs: usize },
    /// Mixed in time, without pairs.
    Mixed,
    /// One side after the other: a change of the machine cannot be separated from a difference of
    /// the sides.
    Apart,
    /// The time of the runs is unknown; treated as [`Design::Apart`].
    OrderUnknown,
    /// One side after the other, or in unknown order, on a machine that other processes disturbed:
    /// no conclusion is possible.
    ApartDisturbed,
    /// Both sides at the same time on one machine: each was measured while the other used
    /// resources; no conclusion is possible.
    AtOnce,
    /// The number does not depend on when it was measured.
    Independent,
}

impl Design {
    /// Whether the sides may have run in two states of the machine.
    pub fn is_apart(self) -> bool {
        matches!(
            self,
            Self::Apart | Self::OrderUnknown | Self::ApartDisturbed | Self::AtOnce
        )
    }

    /// Maximum difference between the machine states of both sides, as a logarithm; for sides that
    /// ran apart.
    pub(super) fn margin(self) -> f64 {
        match self {
            Self::Apart | Self::OrderUnknown => SESSION_JUMP.ln_1p(),
            Self::ApartDisturbed | Self::AtOnce => f64::INFINITY,
            Self::Paired { .. } | Self::PairedLaunches { .. } | Self::Mixed | Self::Independent => {
                0.0
            }
        }
    }
}

/// A run in the order of all runs of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Natural logarithm of its value.
    pub(super) log: f64,
    pub(super) is_new: bool,
    /// The drift variable: time in s, or the position in the order.
    pub(super) position: f64,
}

/// The runs of both sides in order, and the pairs among them as (base, new) logarithms.
pub(super) struct Laid {
    pub(super) design: Design,
    pub(super) runs: Vec<Placed>,
    pub(super) pairs: Vec<(f64, f64)>,
    /// Whether one side is first in every block, so that a drift within blocks is in all pairs
    /// alike.
    pub(super) is_lopsided: bool,
}

/// Squared correlation of side and position, relative to that of one side after the other, above
/// which the sides count as apart.
const APART: f64 = 0.65;
/// With fewer changes between the sides the order is not mixed.
const FEWEST_TURNS: usize = 3;
/// A pause between two runs is at least so long, in s and in times of what usually lies between two runs of a
/// side: between sides of short trials there is the start of a program.
const PAUSE_SECONDS: f64 = 60.0;
const PAUSE: f64 = 10.0;
/// Fraction of the runs that must be in pairs for a paired order.
const PAIRED: f64 = 0.8;

/// Sorts the runs by time and classifies the order.
pub(super) fn lay(sides: &Sides) -> Laid {
    let of = |is_new| move |run: &TimedRun| (*run, is_new);
    let mut all: Vec<(TimedRun, bool)> = sides
        .base
        .iter()
        .map(of(false))
        .chain(sides.new.iter().map(of(true)))
        .collect();
    let is_timed = all
        .iter()
        .all(|(run, _)| run.seconds.is_some_and(f64::is_finite));
    if is_timed {
        all.sort_by(|one, other| {
            one.0
                .seconds
                .unwrap_or_default()
                .total_cmp(&other.0.seconds.unwrap_or_default())
        });
    }
    let launches = launches_as_runs(&all);
    let (design, pairs) = design(sides, &all, &launches, is_timed);
    if let Design::PairedLaunches { .. } = design {
        all = launches;
    }
    // Between sessions time says nothing about a drift; the order does.
    let has_times = is_timed && !design.is_apart();
    let position =
        |place: usize, run: &TimedRun| run.seconds.filter(|_| has_times).unwrap_or(place as f64);
    let placed = |(place, (run, is_new)): (usize, &(TimedRun, bool))| Placed {
        log: run.value.ln(),
        is_new: *is_new,
        position: position(place, run),
    };
    Laid {
        design,
        runs: all.iter().enumerate().map(placed).collect(),
        is_lopsided: matches!(design, Design::Paired { .. }) && is_lopsided(sides),
        pairs,
    }
}

/// Classifies the order of all runs, and returns the pairs among them if they are paired. `launches`
/// are the runs by [`launches_as_runs`].
fn design(
    sides: &Sides,
    all: &[(TimedRun, bool)],
    launches: &[(TimedRun, bool)],
    is_timed: bool,
) -> (Design, Vec<(f64, f64)>) {
    let by_key = pairs_by_key(sides);
    let (design, pairs) = match sides.nature {
        Nature::Settled if by_key.len() == sides.base.len() && by_key.len() == sides.new.len() => (
            Design::Paired {
                pairs: by_key.len(),
            },
            by_key,
        ),
        Nature::Settled => (Design::Independent, Vec::new()),
        Nature::Drifting if are_many(sides, |run| run.is_at_once) => (Design::AtOnce, Vec::new()),
        Nature::Drifting if by_key.len() >= FEWEST_RUNS => (
            Design::Paired {
                pairs: by_key.len(),
            },
            by_key,
        ),
        Nature::Drifting if !is_timed => (Design::OrderUnknown, Vec::new()),
        Nature::Drifting if are_sessions(all) => (Design::Apart, Vec::new()),
        Nature::Drifting if launches.len() < all.len() => {
            let neighbours = neighbours(launches);
            match neighbours.len() {
                pairs if pairs >= FEWEST_RUNS => (Design::PairedLaunches { pairs }, neighbours),
                _ => (Design::Apart, Vec::new()),
            }
        }
        Nature::Drifting => {
            let neighbours = neighbours(all);
            match neighbours.len() {
                many if many >= FEWEST_RUNS && 2.0 * many as f64 >= PAIRED * all.len() as f64 => {
                    (Design::Paired { pairs: many }, neighbours)
                }
                _ if separation(all) >= APART || !is_mixed(all) => (Design::Apart, Vec::new()),
                _ => (Design::Mixed, Vec::new()),
            }
        }
    };
    let is_disturbed =
        design.is_apart() && design != Design::AtOnce && are_many(sides, |run| run.is_disturbed);
    let design = if is_disturbed {
        Design::ApartDisturbed
    } else {
        design
    };
    (design, pairs)
}

/// True if `is_so` holds for a share of at least `MUCH_DISTURBED` of the runs of one side.
fn are_many(sides: &Sides, is_so: fn(&TimedRun) -> bool) -> bool {
    [&sides.base, &sides.new].into_iter().any(|runs| {
        let found = runs.iter().filter(|run| is_so(run)).count();
        found > 0 && found as f64 >= MUCH_DISTURBED * runs.len() as f64
    })
}

/// Pairs runs of both sides by key; a key that occurs twice on a side gives no pair.
fn pairs_by_key(sides: &Sides) -> Vec<(f64, f64)> {
    let the_one = |runs: &[TimedRun], key: u64| {
        let mut found = runs.iter().filter(|run| run.block == Some(key));
        found
            .next()
            .filter(|_| found.next().is_none())
            .map(|run| run.value.ln())
    };
    let mut keys: Vec<u64> = sides.base.iter().filter_map(|run| run.block).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter_map(|key| Some((the_one(&sides.base, key)?, the_one(&sides.new, key)?)))
        .collect()
}

/// Whether one side ran first in every block.
fn is_lopsided(sides: &Sides) -> bool {
    let of_base = |run: &TimedRun| {
        let other = sides.new.iter().find(|other| other.block == run.block)?;
        Some(run.seconds? < other.seconds?)
    };
    let in_blocks = sides.base.iter().filter(|run| run.block.is_some());
    let firsts: Vec<bool> = in_blocks.filter_map(of_base).collect();
    let of_base = firsts.iter().filter(|is_first| **is_first).count();
    !firsts.is_empty() && (of_base == 0 || of_base == firsts.len())
}

/// Pairs of neighbors of two sides, starting at the first run; runs at the same time are not a
/// pair.
fn neighbours(all: &[(TimedRun, bool)]) -> Vec<(f64, f64)> {
    let mut pairs = Vec::new();
    let mut place = 0;
    while let (Some((one, one_is_new)), Some((other, other_is_new))) =
        (all.get(place), all.get(place + 1))
    {
        if one_is_new == other_is_new || one.is_at_once || other.is_at_once {
            place += 1;
            continue;
        }
        let (base, new) = if *one_is_new {
            (other, one)
        } else {
            (one, other)
        };
        pairs.push((base.value.ln(), new.value.ln()));
        place += 2;
    }
    pairs
}

/// The runs in order, with one in place of each stretch of launches that ran one side only, by the mean
/// of its runs: the machine may have changed from one stretch to the next, and the runs of one have that
/// change in common. Unchanged where each launch has one run, and where the other side ran between the
/// runs of each.
fn launches_as_runs(all: &[(TimedRun, bool)]) -> Vec<(TimedRun, bool)> {
    let launch = |(run, is_new): &(TimedRun, bool)| run.launch.map(|launch| (launch, *is_new));
    let mut runs_of: HashMap<(u64, bool), usize> = HashMap::new();
    for launch in all.iter().filter_map(launch) {
        *runs_of.entry(launch).or_default() += 1;
    }
    let lies_together: Vec<bool> = all
        .chunk_by(|one, other| launch(one) == launch(other))
        .flat_map(|stretch| {
            let runs = launch(&stretch[0]).and_then(|launch| runs_of.get(&launch));
            vec![runs == Some(&stretch.len()); stretch.len()]
        })
        .collect();
    let has_several = |(run, lies_together): (&(TimedRun, bool), &bool)| {
        *lies_together && launch(run).is_some_and(|launch| runs_of[&launch] > 1)
    };
    if !all.iter().zip(&lies_together).any(has_several) {
        return all.to_vec();
    }
    let merged = |stretch: &[(TimedRun, bool)]| {
        let mean = |of: fn(&TimedRun) -> f64| {
            stretch.iter().map(|(run, _)| of(run)).sum::<f64>() / stretch.len() as f64
        };
        let run = TimedRun {
            value: mean(|run| run.value.ln()).exp(),
            seconds: Some(mean(|run| run.seconds.unwrap_or_default())),
            is_disturbed: stretch.iter().any(|(run, _)| run.is_disturbed),
            is_at_once: stretch.iter().any(|(run, _)| run.is_at_once),
            ..stretch[0].0
        };
        (run, stretch[0].1)
    };
    let marked: Vec<(&(TimedRun, bool), bool)> = all.iter().zip(lies_together).collect();
    marked
        .chunk_by(|one, other| one.1 && other.1 && one.0.1 == other.0.1)
        .map(|stretch| merged(&stretch.iter().map(|(run, _)| **run).collect::<Vec<_>>()))
        .collect()
}

/// Whether most changes of the side lie in long pauses: each side ran in sessions of its own, and a session
/// may have met another state of the machine than the one before.
fn are_sessions(all: &[(TimedRun, bool)]) -> bool {
    let gaps = all.windows(2).filter_map(|pair| {
        let gap = pair[1].0.seconds? - pair[0].0.seconds?;
        Some((pair[0].1 != pair[1].1, gap))
    });
    let (turns, within): (Vec<_>, Vec<_>) = gaps.partition(|(is_turn, _)| *is_turn);
    if within.is_empty() {
        return false;
    }
    let usual = median(within.iter().map(|(_, gap)| *gap));
    let is_pause = |gap: f64| gap >= PAUSE_SECONDS && gap >= PAUSE * usual;
    let pauses = turns.iter().filter(|(_, gap)| is_pause(*gap)).count();
    pauses > 0 && 2 * pauses >= turns.len()
}

/// Whether the sides alternate often enough. With a few long stretches per side, a state of the
/// machine can look like a difference of the sides: one run repeated the next day does not make the
/// order mixed.
fn is_mixed(all: &[(TimedRun, bool)]) -> bool {
    let turns = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    let of_new = all.iter().filter(|(_, is_new)| *is_new).count();
    let fewer = of_new.min(all.len() - of_new);
    turns >= FEWEST_TURNS.max(fewer.div_ceil(2))
}

/// Squared correlation of side and position, relative to its maximum for this many runs of each.
fn separation(all: &[(TimedRun, bool)]) -> f64 {
    let count = all.len() as f64;
    let mean_place = (count - 1.0) / 2.0;
    let share = all.iter().filter(|(_, is_new)| *is_new).count() as f64 / count;
    let side = |is_new: bool| f64::from(u8::from(is_new)) - share;
    let both: f64 = all
        .iter()
        .enumerate()
        .map(|(place, (_, is_new))| (place as f64 - mean_place) * side(*is_new))
        .sum();
    let places: f64 = (0..all.len())
        .map(|place| (place as f64 - mean_place).powi(2))
        .sum();
    let sides: f64 = all.iter().map(|(_, is_new)| side(*is_new).powi(2)).sum();
    let most = 3.0 * share * (1.0 - share) * count * count / (count * count - 1.0);
    if places > 0.0 && sides > 0.0 {
        both * both / (places * sides) / most
    } else {
        1.0
    }
}
