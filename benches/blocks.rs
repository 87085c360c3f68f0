//! How often verdicts between the values of an axis are wrong, and how often their intervals hold
//! the truth: runs in blocks, as `sweep.together` orders them.
//!
//! Noise is white, drifts by 20 % from the first run to the last, is correlated with the run before
//! (0.5), or is cut out of sixty real runs in a row (`results/verdict-quiet`, `-spread`): every
//! stretch equally often, in both phases of the order. A page has one point or four, whose intervals
//! are adjusted together; then a page counts as false where any of its verdicts is. `covered` is the
//! share of intervals that hold the truth, `all_covered` that of pages whose intervals all do.
//! `cargo bench --workspace --bench blocks` prints CSV and keeps it as `target/blocks.csv`; it fails
//! where more than 5 % of pages of the order `rotated` are false, or more than 5 % of their intervals
//! miss the truth (both by more than chance).

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{fmt::Write, fs, path::PathBuf};

use kiln_core::{
    kinds::random::SplitMix64,
    record::TrialTable,
    statistics::{Estimate, Nature, Question, Sides, TimedRun, WORTH, estimates},
};

/// Without a difference, for the order `rotated`; else [`FEWER`].
const COMPARISONS: usize = 20_000;
const FEWER: usize = 2000;
const BLOCKS: [usize; 6] = [3, 4, 5, 6, 8, 10];
const POINTS: [usize; 2] = [1, 4];
const SLOWDOWNS: [f64; 3] = [0.0, 0.05, 0.10];
/// Largest share of false pages, and of intervals that miss the truth.
const MOST_WRONG: f64 = 0.05;

#[derive(Clone, Copy, Debug)]
enum Noise {
    White(f64),
    /// With a drift of 20 % over all runs.
    Drift(f64),
    /// Each run by 0.5 as the one before.
    Correlated(f64),
    Measured(usize),
}

const PLACES: [&str; 3] = ["quiet", "busy", "spread"];
const NOISES: [Noise; 8] = [
    Noise::White(0.01),
    Noise::White(0.03),
    Noise::Drift(0.01),
    Noise::Drift(0.03),
    Noise::Correlated(0.03),
    Noise::Correlated(0.05),
    Noise::Measured(0),
    Noise::Measured(2),
];

/// Which side is first in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The other in each block.
    Rotated,
    /// Base in all of them.
    BaseFirst,
}

fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * (1.0 - random.fraction()).ln()).sqrt()
        * (std::f64::consts::TAU * random.fraction()).cos()
}

impl Noise {
    fn name(self) -> String {
        match self {
            Self::White(spread) => format!("white,{spread}"),
            Self::Drift(spread) => format!("drift-20-percent,{spread}"),
            Self::Correlated(spread) => format!("correlated-0.5,{spread}"),
            Self::Measured(place) => format!("measured-{},", PLACES[place]),
        }
    }

    /// The logarithms of so many runs in a row, and whether base is second in the first block.
    fn draw(
        self,
        count: usize,
        comparison: usize,
        measured: &[Vec<f64>],
        random: &mut SplitMix64,
    ) -> (Vec<f64>, bool) {
        if let Self::Measured(place) = self {
            let runs = &measured[place];
            let stretches = runs.len() - count + 1;
            let first = comparison % stretches;
            let is_second = comparison / stretches % 2 == 1;
            return (runs[first..first + count].to_vec(), is_second);
        }
        let is_second = random.fraction() < 0.5;
        let sign = if random.fraction() < 0.5 { -1.0 } else { 1.0 };
        let mut state = normal(random);
        let each = |place: usize| match self {
            Self::White(spread) => spread * normal(random),
            Self::Drift(spread) => {
                let drift = sign * 1.2_f64.ln() * place as f64 / (count - 1) as f64;
                spread * normal(random) + drift
            }
            Self::Correlated(spread) => {
                if place > 0 {
                    state = 0.5 * state + 0.75_f64.sqrt() * normal(random);
                }
                spread * state
            }
            Self::Measured(_) => 0.0,
        };
        ((0..count).map(each).collect(), is_second)
    }

    /// How many comparisons do not overlap.
    fn independent(self, runs: usize, comparisons: usize, measured: &[Vec<f64>]) -> f64 {
        match self {
            Self::Measured(place) => measured[place].len() as f64 / runs as f64,
            _ => comparisons as f64,
        }
    }
}

/// The sides of one point, whose blocks alternate with those of other points.
fn question(
    logs: &[f64],
    (point, points): (usize, usize),
    (order, is_second): (Order, bool),
    slowdown: f64,
) -> Question {
    let (mut base, mut new) = (Vec::new(), Vec::new());
    for (place, log) in logs.iter().enumerate() {
        let (block, second) = (place / 2, place % 2 == 1);
        if block % points != point {
            continue;
        }
        let repeat = block / points;
        let is_turned = order == Order::Rotated && ((repeat + point) % 2 == 1) != is_second;
        let is_new = second != is_turned;
        let log = log + if is_new { (1.0 - slowdown).ln() } else { 0.0 };
        let run = TimedRun {
            seconds: Some(place as f64),
            block: Some(block as u64 + 1),
            ..TimedRun::of(100.0 * log.exp())
        };
        if is_new { &mut new } else { &mut base }.push(run);
    }
    Question {
        sides: Sides {
            base,
            new,
            nature: Nature::Drifting,
        },
        worth: WORTH,
        weight: 1.0,
    }
}

fn main() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results"));
    let measured =
        PLACES.map(|name| rates(&folder.join(format!("verdict-{name}/latest/trials.csv"))));
    let mut text = String::from(
        "noise,spread,order,blocks,points,slowdown,comparisons,slower,faster,covered,all_covered,slower_apart\n",
    );
    let mut faults = Vec::new();
    for noise in NOISES {
        for order in [Order::Rotated, Order::BaseFirst] {
            for blocks in BLOCKS {
                for points in POINTS {
                    for slowdown in SLOWDOWNS {
                        let runs = 2 * blocks * points;
                        let has_room =
                            !matches!(noise, Noise::Measured(at) if measured[at].len() < runs + 10);
                        if has_room {
                            let design = (order, blocks, points);
                            cell(&mut text, &mut faults, noise, design, slowdown, &measured);
                        }
                    }
                }
            }
        }
    }
    print!("{text}");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("blocks.csv"), text).unwrap();
    assert!(faults.is_empty(), "too often wrong:\n{}", faults.join("\n"));
}

/// Logarithms of the rates of a run, in the order in which they were measured.
fn rates(path: &std::path::Path) -> Vec<f64> {
    let rows = TrialTable::read(path).unwrap().rows;
    let rates = rows.iter().filter_map(|row| row.fixed.tokens_per_second);
    rates.map(f64::ln).collect()
}

fn cell(
    text: &mut String,
    faults: &mut Vec<String>,
    noise: Noise,
    (order, blocks, points): (Order, usize, usize),
    slowdown: f64,
    measured: &[Vec<f64>],
) {
    let mut random = SplitMix64::new(1);
    let truth = 1.0 - slowdown;
    let runs = 2 * blocks * points;
    let comparisons = if order == Order::Rotated && slowdown == 0.0 {
        COMPARISONS
    } else {
        FEWER
    };
    let [
        mut slower,
        mut faster,
        mut covered,
        mut all_covered,
        mut apart,
    ] = [0_usize; 5];
    let is_slower = |one: &Estimate| one.is_lower(WORTH);
    let holds =
        |one: &&Estimate| one.low <= truth * (1.0 + 1e-9) && one.high >= truth * (1.0 - 1e-9);
    for comparison in 0..comparisons {
        let (logs, is_second) = noise.draw(runs, comparison, measured, &mut random);
        let questions: Vec<Question> = (0..points)
            .map(|point| question(&logs, (point, points), (order, is_second), slowdown))
            .collect();
        let found = estimates(&questions);
        slower += usize::from(found.iter().any(is_slower));
        faster += usize::from(found.iter().any(|one| one.is_higher(WORTH)));
        let held = found.iter().filter(holds).count();
        covered += held;
        all_covered += usize::from(held == points);
        apart += usize::from(
            estimates(&one_after_the_other(&logs, slowdown))
                .iter()
                .any(is_slower),
        );
    }
    let share = |count: usize| count as f64 / comparisons as f64;
    let covered = share(covered) / points as f64;
    let name = match order {
        Order::Rotated => "rotated",
        Order::BaseFirst => "base-first",
    };
    let line = format!(
        "{},{name},{blocks},{points},{slowdown},{comparisons},{:.4},{:.4},{covered:.4},{:.4},{:.4}",
        noise.name(),
        share(slower),
        share(faster),
        share(all_covered),
        share(apart)
    );
    let independent = noise.independent(runs, comparisons, measured);
    let most = MOST_WRONG + 2.0 * (MOST_WRONG * (1.0 - MOST_WRONG) / independent).sqrt();
    let is_false = slowdown == 0.0 && share(slower + faster) > most;
    if order == Order::Rotated && (is_false || 1.0 - covered > most) {
        faults.push(line.clone());
    }
    let _ = writeln!(text, "{line}");
}

/// The same runs, all of base before all of the other side.
fn one_after_the_other(logs: &[f64], slowdown: f64) -> Vec<Question> {
    let half = logs.len() / 2;
    let run = |place: usize| TimedRun {
        seconds: Some(place as f64),
        ..TimedRun::of(
            (logs[place]
                + if place < half {
                    0.0
                } else {
                    (1.0 - slowdown).ln()
                })
            .exp(),
        )
    };
    vec![Question {
        sides: Sides {
            base: (0..half).map(run).collect(),
            new: (half..logs.len()).map(run).collect(),
            nature: Nature::Drifting,
        },
        worth: WORTH,
        weight: 1.0,
    }]
}
