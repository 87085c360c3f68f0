//! How often verdicts are wrong: thousands of comparisons for each kind of noise, order of runs,
//! number of runs and slowdown.
//!
//! Noise is made up after what machines do: independent, correlated, drifting, wandering, with two
//! modes, with heavy tails, with rare slow runs, with a jump between sessions; and cut out of sixty
//! real runs in a row, in the order in which they were made, on a quiet machine, a busy one and a
//! rented one that drifts (`results/verdict-quiet`, `-busy`, `-spread`:
//! `experiments/verdict-spread.yaml`; another folder of results: `KILN_VERDICT_RESULTS`). Beside
//! the verdicts stands the best of three plain tests that stays within 5 % on the same noise:
//! paired t, Welch's t, and a line through time. `cargo bench -p kiln --bench verdicts` prints CSV
//! and keeps it as `target/verdicts.csv`; it fails where more than 5 % of verdicts are false, and
//! where sides of five runs or more that did not run one after the other find 10 points less than
//! that test.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{fmt::Write, fs, path::PathBuf};

use kiln::report::compare::{ComparedMetric, Verdict, verdict_of};
use kiln_core::{kinds::random::SplitMix64, record::TrialTable, statistics::TimedRun};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// So many for each slowdown; of none ten times as many, so that the share of false verdicts is
/// known to 0.15 points.
const COMPARISONS: usize = 2000;
const WITHOUT: usize = 20_000;
const RUNS: [[usize; 2]; 5] = [[3, 3], [5, 5], [10, 10], [15, 15], [3, 20]];
const SLOWDOWNS: [f64; 4] = [0.0, 0.05, 0.10, 0.20];
/// Share of false verdicts, and how many points of power less than the best test there may be with
/// this many runs on each side.
const MOST_FALSE: f64 = 0.05;
const MOST_LESS: f64 = 0.10;
const RUNS_FOR_POWER: usize = 5;
const RUNS_OF_LAUNCH: usize = 3;

/// What noise does from run to run; spreads are standard deviations of logarithms.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Independent(f64),
    /// Each run by 0.5 as the one before.
    Correlated(f64),
    /// 10 % from the first run to the last, in a direction drawn for each comparison.
    Linear(f64),
    /// 1 % each run in a direction of its own, kept.
    Walk(f64),
    TwoModes(f64),
    /// Student's t with three degrees of freedom.
    HeavyTails(f64),
    /// One run in seven is slower by five spreads.
    RareSlow(f64),
    /// Sides that ran one after the other meet machines that differ by so much, and each launch one
    /// of its own.
    Session(f64, f64),
    Measured(Place),
}

/// Where sixty runs in a row were made.
#[derive(Clone, Copy, Debug)]
enum Place {
    Quiet,
    Busy,
    Rented,
}

const PLACES: [&str; 3] = ["verdict-quiet", "verdict-busy", "verdict-spread"];

const NOISES: [Noise; 16] = [
    Noise::Independent(0.01),
    Noise::Independent(0.03),
    Noise::Independent(0.05),
    Noise::Correlated(0.03),
    Noise::Correlated(0.05),
    Noise::Linear(0.01),
    Noise::Linear(0.03),
    Noise::Walk(0.01),
    Noise::TwoModes(0.03),
    Noise::HeavyTails(0.05),
    Noise::RareSlow(0.02),
    Noise::Session(0.01, 0.02),
    Noise::Session(0.01, 0.05),
    Noise::Measured(Place::Quiet),
    Noise::Measured(Place::Busy),
    Noise::Measured(Place::Rented),
];

impl Noise {
    fn name(self) -> (&'static str, f64) {
        match self {
            Self::Independent(spread) => ("independent", spread),
            Self::Correlated(spread) => ("correlated-0.5", spread),
            Self::Linear(spread) => ("linear-10-percent", spread),
            Self::Walk(spread) => ("walk-1-percent", spread),
            Self::TwoModes(spread) => ("two-modes", spread),
            Self::HeavyTails(spread) => ("heavy-tails", spread),
            Self::RareSlow(spread) => ("rare-slow-runs", spread),
            Self::Session(spread, jump) if jump < 0.03 => ("session-2-percent", spread),
            Self::Session(spread, _) => ("session-5-percent", spread),
            Self::Measured(Place::Quiet) => ("measured-quiet", f64::NAN),
            Self::Measured(Place::Busy) => ("measured-busy", f64::NAN),
            Self::Measured(Place::Rented) => ("measured-rented", f64::NAN),
        }
    }

    /// So many runs in a row: the logarithm of each, and whether it was disturbed.
    fn draw(
        self,
        count: usize,
        measured: &[Vec<(f64, bool)>; 3],
        comparison: usize,
        random: &mut SplitMix64,
    ) -> Vec<(f64, bool)> {
        let sign = if random.fraction() < 0.5 { -1.0 } else { 1.0 };
        let mut state = normal(random);
        let mut each = |place: usize| match self {
            Self::Independent(spread) | Self::Session(spread, _) => spread * normal(random),
            Self::Correlated(spread) => {
                state = if place == 0 {
                    state
                } else {
                    0.5 * state + 0.75_f64.sqrt() * normal(random)
                };
                spread * state
            }
            Self::Linear(spread) => {
                spread * normal(random) + sign * 0.10 * place as f64 / (count - 1) as f64
            }
            Self::Walk(spread) => {
                state += 0.01 * normal(random);
                state + spread * normal(random)
            }
            Self::TwoModes(spread) => {
                0.3 * spread * normal(random)
                    + if random.fraction() < 0.5 {
                        2.0 * spread
                    } else {
                        0.0
                    }
            }
            Self::HeavyTails(spread) => {
                let chi: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
                spread * normal(random) / chi.sqrt()
            }
            Self::RareSlow(spread) => {
                0.5 * spread * normal(random)
                    - if random.fraction() < 1.0 / 7.0 {
                        5.0 * spread
                    } else {
                        0.0
                    }
            }
            Self::Measured(_) => 0.0,
        };
        if let Self::Measured(place) = self {
            let measured = &measured[place as usize];
            // As they were made, each stretch as often as every other.
            let first = comparison % (measured.len() - count + 1);
            return measured[first..first + count].to_vec();
        }
        (0..count).map(|place| (each(place), false)).collect()
    }

    fn jump(self) -> f64 {
        if let Self::Session(_, jump) = self {
            jump
        } else {
            0.0
        }
    }
}

/// How the runs of both sides lie in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A B, B A, A B, …
    InTurns,
    /// A B, A B, …
    Alternating,
    Shuffled,
    /// A A A, B B B, A A A, …: each three a launch.
    Launches,
    OneAfterTheOther,
}

const ORDERS: [Order; 5] = [
    Order::InTurns,
    Order::Alternating,
    Order::Shuffled,
    Order::Launches,
    Order::OneAfterTheOther,
];

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::InTurns => "in-turns",
            Self::Alternating => "alternating",
            Self::Shuffled => "shuffled",
            Self::Launches => "launches-of-three",
            Self::OneAfterTheOther => "one-after-the-other",
        }
    }

    /// Of each run whether it is of the new side.
    fn lay(self, [base, new]: [usize; 2], random: &mut SplitMix64) -> Vec<bool> {
        match self {
            Self::InTurns => (0..2 * base)
                .map(|place| [false, true, true, false][place % 4])
                .collect(),
            Self::Alternating => (0..2 * base).map(|place| place % 2 == 1).collect(),
            Self::Launches => {
                let sides = (0..base.div_ceil(RUNS_OF_LAUNCH)).flat_map(|launch| {
                    let runs = RUNS_OF_LAUNCH.min(base - launch * RUNS_OF_LAUNCH);
                    [false, true].map(|side| vec![side; runs]).concat()
                });
                sides.collect()
            }
            Self::OneAfterTheOther => (0..base + new).map(|place| place >= base).collect(),
            Self::Shuffled => {
                let mut sides: Vec<bool> = (0..base + new).map(|place| place >= base).collect();
                random.shuffle(&mut sides);
                sides
            }
        }
    }
}

fn main() {
    let results = std::env::var_os("KILN_VERDICT_RESULTS").map(PathBuf::from);
    let results =
        results.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results")));
    let measured = PLACES.map(|name| rates(&results.join(name).join("latest/trials.csv")));
    let mut text = String::from(
        "noise,spread,order,base_runs,new_runs,slowdown,comparisons,slower,faster,same,ambiguous,\
         cannot_tell,best_test,best_slower\n",
    );
    let mut faults = Vec::new();
    for noise in NOISES {
        for order in ORDERS {
            for runs in RUNS {
                let is_possible = match order {
                    Order::InTurns | Order::Alternating => runs[0] == runs[1],
                    // One launch of each side is one after the other.
                    Order::Launches => runs[0] == runs[1] && runs[0] > RUNS_OF_LAUNCH,
                    Order::Shuffled | Order::OneAfterTheOther => true,
                };
                let most = if let Noise::Measured(place) = noise {
                    measured[place as usize].len()
                } else {
                    usize::MAX
                };
                if is_possible && runs[0] + runs[1] <= most {
                    cell(&mut text, &mut faults, (noise, order, runs), &measured);
                }
            }
        }
    }
    print!("{text}");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("verdicts.csv"), text).unwrap();
    assert!(
        faults.is_empty(),
        "too many false verdicts, or too few slowdowns found:\n{}",
        faults.join("\n")
    );
}

/// Logarithms of the rates, in the order in which they were measured, and whether the machine was
/// disturbed.
fn rates(path: &std::path::Path) -> Vec<(f64, bool)> {
    let rows = TrialTable::read(path)
        .unwrap_or_else(|error| {
            panic!("{error}; `kiln run experiments/verdict-spread.yaml` makes it")
        })
        .rows;
    let completed = rows.iter().filter(|row| row.fixed.is_completed());
    completed
        .filter_map(|row| {
            Some((
                row.fixed.tokens_per_second?.ln(),
                !row.fixed.disturbances().is_empty(),
            ))
        })
        .collect()
}

/// A number from a standard normal distribution.
fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * (1.0 - random.fraction()).ln()).sqrt()
        * (std::f64::consts::TAU * random.fraction()).cos()
}

/// From runs as (logarithm, whether new), the logarithm of new / base with the half width of its 95
/// % interval.
type Test = fn(&[(f64, bool)]) -> (f64, f64);

/// The plain tests.
const TESTS: [(&str, Test); 3] = [("paired-t", paired), ("welch-t", welch), ("line", line)];

fn cell(
    text: &mut String,
    faults: &mut Vec<String>,
    (noise, order, runs): (Noise, Order, [usize; 2]),
    measured: &[Vec<(f64, bool)>; 3],
) {
    let mut false_by_test = [0.0; TESTS.len()];
    for slowdown in SLOWDOWNS {
        let mut random = SplitMix64::new(1);
        let mut counts = [0_usize; 5];
        let mut slower_by_test = [0_usize; TESTS.len()];
        let mut any_by_test = [0_usize; TESTS.len()];
        let comparisons = if slowdown == 0.0 {
            WITHOUT
        } else {
            COMPARISONS
        };
        for comparison in 0..comparisons {
            let sides = order.lay(runs, &mut random);
            let drawn = noise.draw(sides.len(), measured, comparison, &mut random);
            let jump = if order == Order::OneAfterTheOther {
                noise.jump()
            } else {
                0.0
            };
            // In either direction, whatever the slowdown.
            let jump = if jump > 0.0 && random.fraction() < 0.5 {
                -jump
            } else {
                jump
            };
            let of_new = (1.0 - slowdown).ln() - jump;
            let launches = launches(order, &sides);
            let of_launch: Vec<f64> = match order {
                Order::Launches => launches
                    .iter()
                    .map(|_| noise.jump() * normal(&mut random))
                    .collect(),
                _ => vec![0.0; launches.len()],
            };
            let state = |place: usize| launches[place].map_or(0.0, |launch| of_launch[launch]);
            let log = |(place, ((log, _), is_new)): (usize, (&(f64, bool), &bool))| {
                (
                    log + state(place) + if *is_new { of_new } else { 0.0 },
                    *is_new,
                )
            };
            let runs: Vec<(f64, bool)> = drawn.iter().zip(&sides).enumerate().map(log).collect();
            let side = |wanted: bool| -> Vec<TimedRun> {
                let placed = runs
                    .iter()
                    .enumerate()
                    .filter(|(_, (_, is_new))| *is_new == wanted);
                let run = |(place, (log, _)): (usize, &(f64, bool))| TimedRun {
                    seconds: Some(place as f64),
                    is_disturbed: drawn[place].1,
                    launch: launches[place].map(|launch| launch as u64),
                    ..TimedRun::of(100.0 * log.exp())
                };
                placed.map(run).collect()
            };
            let place = match verdict_of(ComparedMetric::Throughput, &side(false), &side(true)) {
                Verdict::Worse => 0,
                Verdict::Better => 1,
                Verdict::Same => 2,
                Verdict::CannotTell => 4,
                _ => 3,
            };
            counts[place] += 1;
            for (test, (_, of)) in TESTS.iter().enumerate() {
                let (difference, half) = of(&runs);
                let is_told = difference.abs() > half && (difference.exp() - 1.0).abs() >= 0.03;
                any_by_test[test] += usize::from(is_told);
                slower_by_test[test] += usize::from(is_told && difference < 0.0);
            }
        }
        let share = |count: usize| count as f64 / comparisons as f64;
        if slowdown == 0.0 {
            false_by_test = any_by_test.map(share);
        }
        let allowed = (0..TESTS.len()).filter(|test| {
            false_by_test[*test] <= 0.055 && (runs[0] == runs[1] || TESTS[*test].0 != "paired-t")
        });
        let best = allowed.max_by(|one, other| slower_by_test[*one].cmp(&slower_by_test[*other]));
        let (name, spread) = noise.name();
        let spread = if spread.is_nan() {
            String::new()
        } else {
            spread.to_string()
        };
        let best_slower = best.map_or(0.0, |test| share(slower_by_test[test]));
        let best = best.map_or_else(
            || ",".to_owned(),
            |test| format!("{},{:.4}", TESTS[test].0, share(slower_by_test[test])),
        );
        let [slower, faster, same, ambiguous, cannot_tell] =
            counts.map(|count| format!("{:.4}", share(count)));
        let line = format!(
            "{name},{spread},{},{},{},{slowdown},{comparisons},{slower},{faster},{same},\
             {ambiguous},{cannot_tell},{best}",
            order.name(),
            runs[0],
            runs[1]
        );
        let is_false = slowdown == 0.0 && share(counts[0] + counts[1]) > MOST_FALSE;
        // Of sixty runs there are too few stretches for a share of slowdowns found.
        let is_weak = slowdown > 0.0
            && !matches!(noise, Noise::Measured(_))
            && !matches!(order, Order::OneAfterTheOther | Order::Launches)
            && runs[0].min(runs[1]) >= RUNS_FOR_POWER;
        // Of shuffles that put one side after the other nothing is told, by design.
        let in_reach = best_slower * (1.0 - share(counts[4]));
        if is_false || is_weak && in_reach - share(counts[0]) > MOST_LESS {
            faults.push(line.clone());
        }
        let _ = writeln!(text, "{line}");
    }
}

/// The launch of each run, where each stretch of a side is one.
fn launches(order: Order, sides: &[bool]) -> Vec<Option<usize>> {
    let mut launch = 0;
    let of = |place: usize| {
        launch += usize::from(place > 0 && sides[place] != sides[place - 1]);
        (order == Order::Launches).then_some(launch)
    };
    (0..sides.len()).map(of).collect()
}

fn half_width(error: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom)
        .unwrap()
        .inverse_cdf(0.975)
        * error
}

fn of_side(runs: &[(f64, bool)], wanted: bool) -> (f64, f64, f64) {
    let logs: Vec<f64> = runs
        .iter()
        .filter(|(_, is_new)| *is_new == wanted)
        .map(|(log, _)| *log)
        .collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    (
        count,
        mean,
        logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0) / count,
    )
}

fn welch(runs: &[(f64, bool)]) -> (f64, f64) {
    let [(n, base, of_base), (m, new, of_new)] = [false, true].map(|side| of_side(runs, side));
    let freedom =
        (of_base + of_new).powi(2) / (of_base.powi(2) / (n - 1.0) + of_new.powi(2) / (m - 1.0));
    (new - base, half_width((of_base + of_new).sqrt(), freedom))
}

/// The first run of base with the first of new, and so on; of unequal sides nothing is told.
fn paired(runs: &[(f64, bool)]) -> (f64, f64) {
    let side = |wanted: bool| {
        runs.iter()
            .filter(move |(_, is_new)| *is_new == wanted)
            .map(|(log, _)| *log)
    };
    if side(false).count() != side(true).count() {
        return (0.0, f64::INFINITY);
    }
    let differences: Vec<(f64, bool)> = side(false)
        .zip(side(true))
        .map(|(base, new)| (new - base, true))
        .collect();
    let (count, mean, of_mean) = of_side(&differences, true);
    (mean, half_width(of_mean.sqrt(), count - 1.0))
}

/// Least squares of the logarithm on 1, the side and the place, after both sides' means are taken
/// out of the place.
fn line(runs: &[(f64, bool)]) -> (f64, f64) {
    let placed: Vec<(f64, f64, bool)> = runs
        .iter()
        .enumerate()
        .map(|(place, (log, is_new))| (place as f64, *log, *is_new))
        .collect();
    let mean = |of: &dyn Fn(&(f64, f64, bool)) -> f64, wanted: bool| {
        let side: Vec<f64> = placed
            .iter()
            .filter(|run| run.2 == wanted)
            .map(of)
            .collect();
        (
            side.iter().sum::<f64>() / side.len() as f64,
            side.len() as f64,
        )
    };
    let places = [false, true].map(|side| mean(&|run| run.0, side));
    let logs = [false, true].map(|side| mean(&|run| run.1, side).0);
    let centred = placed.iter().map(|run| {
        (
            run.0 - places[usize::from(run.2)].0,
            run.1 - logs[usize::from(run.2)],
        )
    });
    let (across, both) = centred
        .clone()
        .fold((0.0, 0.0), |(across, both), (place, log)| {
            (across + place * place, both + place * log)
        });
    let slope = both / across;
    let rest: f64 = centred
        .map(|(place, log)| (log - slope * place).powi(2))
        .sum();
    let freedom = runs.len() as f64 - 3.0;
    let distance = places[1].0 - places[0].0;
    let variance =
        rest / freedom * (1.0 / places[0].1 + 1.0 / places[1].1 + distance * distance / across);
    (
        logs[1] - logs[0] - slope * distance,
        half_width(variance.sqrt(), freedom),
    )
}
