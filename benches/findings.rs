//! How often the diagnosis finds faults in noise: 2,000 runs without any difference between their
//! points for each rule that compares points, shape of the run, kind of noise and order of its
//! trials; and how often it finds a point that is 10 % faster.
//!
//! Each run is a table of real rows, given to `diagnose` (and to `summary`, which ranks points).
//! Noise is made up after what machines do, as in `benches/verdicts.rs`. Orders are those that kiln
//! makes: in turns with blocks, forwards and backwards; in turns without blocks and always
//! forwards, as tables up to `trials/5` have it; and point by point (`order: listed`).
//! `cargo bench -p kiln --bench findings` prints CSV and keeps it as `target/findings.csv`; it
//! fails where a rule fires in more than 5 % of runs (and 2,000 runs could show that).

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{fmt::Write, fs, path::PathBuf};

use kiln::report::{diagnose, diagnosis::RuleFinding, summary::is_order_certain};
use kiln_core::{
    kinds::random::SplitMix64,
    plan::TrialId,
    record::{TableRow, TrialRow, TrialTable, tables::TRIALS},
};
use serde_json::json;

const RUNS: usize = 2000;
/// Of 2,000 runs at a true rate of 5 % more than this have a finding in one of a thousand cells.
const MOST_FALSE: f64 = 0.065;
/// Runs in which one point really is faster, and by how much.
const POWER_RUNS: usize = 400;
const FASTER: f64 = 0.10;

/// Points and repeats.
type Shape = (usize, usize);

const SHAPES: [Shape; 8] = [
    (2, 5),
    (3, 5),
    (6, 1),
    (6, 3),
    (9, 2),
    (4, 5),
    (12, 3),
    (6, 10),
];
const FEW_SHAPES: [Shape; 3] = [(6, 3), (9, 2), (4, 5)];

/// What noise does from run to run; spreads are standard deviations of logarithms.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Independent(f64),
    /// Each run by 0.5 as the one before.
    Correlated(f64),
    /// 10 % from the first run to the last, in a direction drawn for each run of kiln.
    Linear(f64),
    /// 1 % each run in a direction of its own, kept.
    Walk(f64),
    TwoModes(f64),
    /// Student's t with three degrees of freedom.
    HeavyTails(f64),
    /// One run in seven is slower by ten spreads.
    RareSlow(f64),
    /// The first point spreads five times as much as the others.
    OneNoisy(f64),
    /// From a trial drawn for each run of kiln on, a second launch goes on, 5 % faster or slower.
    Session(f64),
}

const NOISES: [Noise; 13] = [
    Noise::Independent(0.01),
    Noise::Independent(0.02),
    Noise::Independent(0.05),
    Noise::Correlated(0.03),
    Noise::Correlated(0.05),
    Noise::Linear(0.01),
    Noise::Linear(0.03),
    Noise::Walk(0.01),
    Noise::TwoModes(0.03),
    Noise::HeavyTails(0.05),
    Noise::RareSlow(0.01),
    Noise::OneNoisy(0.01),
    Noise::Session(0.01),
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
            Self::OneNoisy(spread) => ("one-noisy-point", spread),
            Self::Session(spread) => ("session-5-percent", spread),
        }
    }

    /// Adds to trials in their order.
    fn add_to(self, trials: &mut [Trial], random: &mut SplitMix64) {
        let count = trials.len();
        let sign = if random.fraction() < 0.5 { -1.0 } else { 1.0 };
        let second_launch = 1 + random.below(count as u64 - 1) as usize;
        let mut state = normal(random);
        for (place, trial) in trials.iter_mut().enumerate() {
            trial.log += match self {
                Self::Independent(spread) => spread * normal(random),
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
                    spread * normal(random)
                        - if random.fraction() < 1.0 / 7.0 {
                            10.0 * spread
                        } else {
                            0.0
                        }
                }
                Self::OneNoisy(spread) => {
                    spread * normal(random) * if trial.point == 0 { 5.0 } else { 1.0 }
                }
                Self::Session(spread) => {
                    let is_second = place >= second_launch;
                    trial.launch = if is_second { 2 } else { 1 };
                    spread * normal(random) + if is_second { sign * 0.05 } else { 0.0 }
                }
            };
        }
    }
}

/// A number from a standard normal distribution.
fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * (1.0 - random.fraction()).ln()).sqrt()
        * (std::f64::consts::TAU * random.fraction()).cos()
}

/// A trial of a simulated run.
#[derive(Clone, Copy, Debug)]
struct Trial {
    point: usize,
    repeat: usize,
    launch: u64,
    /// Trials at once.
    crowd: u64,
    /// Logarithm of its rate.
    log: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Through the points forwards and backwards in turns, with blocks.
    Interleaved,
    /// Always forwards, and the rows do not tell their blocks.
    Forwards,
    /// One point after the other.
    Listed,
}

const ORDERS: [Order; 3] = [Order::Interleaved, Order::Forwards, Order::Listed];

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::Forwards => "forwards",
            Self::Listed => "listed",
        }
    }

    fn trials(self, (points, repeats): Shape) -> Vec<Trial> {
        let trial = |point, repeat| Trial {
            point,
            repeat,
            launch: 1,
            crowd: 1,
            log: 0.0,
        };
        if self == Self::Listed {
            return (0..points)
                .flat_map(|point| (0..repeats).map(move |repeat| trial(point, repeat)))
                .collect();
        }
        let is_backwards = |repeat: usize| self == Self::Interleaved && repeat % 2 == 1;
        let place = |repeat, point| {
            if is_backwards(repeat) {
                points - 1 - point
            } else {
                point
            }
        };
        (0..repeats)
            .flat_map(|repeat| (0..points).map(move |point| trial(place(repeat, point), repeat)))
            .collect()
    }
}

/// What compares points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    TooManyWorkers,
    /// The better number of workers that `data-bound` names.
    BetterWorkers,
    BatchTooSmall,
    SharedDevice,
    /// The best point stands first without a word of chance.
    OrderOfBest,
}

const CLAIMS: [Claim; 5] = [
    Claim::TooManyWorkers,
    Claim::BetterWorkers,
    Claim::BatchTooSmall,
    Claim::SharedDevice,
    Claim::OrderOfBest,
];

impl Claim {
    fn name(self) -> &'static str {
        match self {
            Self::TooManyWorkers => "too-many-workers",
            Self::BetterWorkers => "data-bound: better workers",
            Self::BatchTooSmall => "batch-too-small",
            Self::SharedDevice => "shared-device",
            Self::OrderOfBest => "order of the best two",
        }
    }

    fn shapes(self) -> &'static [Shape] {
        if self == Self::TooManyWorkers {
            &SHAPES
        } else {
            &FEW_SHAPES
        }
    }

    fn axis(self) -> &'static str {
        if self == Self::BatchTooSmall {
            "train.batch_size"
        } else {
            "data.num_workers"
        }
    }

    /// The point that really is faster.
    fn faster_point(self, points: usize) -> usize {
        if self == Self::BatchTooSmall {
            points / 2
        } else {
            points / 2 - 1
        }
    }

    /// Makes the row of a point one that has nothing else to be found.
    fn plant(self, row: &mut TrialRow, point: usize, points: usize) {
        row.num_workers = Some(if self == Self::BatchTooSmall {
            4
        } else {
            point as u64 + 1
        });
        if self == Self::BetterWorkers {
            let is_fed = point == self.faster_point(points) || point.is_multiple_of(2);
            row.data_wait_fraction = Some(if is_fed { 0.0 } else { 0.3 });
        }
        if self == Self::BatchTooSmall {
            row.batch_size = 8 * (point as u64 + 1);
            // The largest has nothing to be compared with.
            row.mean_sm_active = Some(if point + 1 < points { 0.3 } else { 0.9 });
        }
    }

    fn is_made(self, table: &TrialTable) -> bool {
        let of = |rule: &str, holds: fn(&RuleFinding) -> bool| {
            diagnose(table)
                .iter()
                .any(|finding| finding.rule == rule && holds(finding))
        };
        match self {
            Self::TooManyWorkers | Self::SharedDevice => of(self.name(), |_| true),
            Self::BetterWorkers => of("data-bound", |finding| {
                finding.says.contains("more samples/s")
            }),
            // By its own row alone a point may have the finding too, without a claim on the others.
            Self::BatchTooSmall => of(self.name(), |finding| {
                finding.says.contains("more samples/s")
            }),
            Self::OrderOfBest => is_order_certain(table),
        }
    }
}

fn main() {
    let mut text = String::from(
        "claim,points,repeats,noise,spread,order,runs,made,runs_10_percent_faster,found\n",
    );
    let mut faults = Vec::new();
    print!("{text}");
    for claim in CLAIMS {
        for shape in claim.shapes() {
            for noise in NOISES {
                for order in ORDERS {
                    let line = cell(claim, *shape, noise, order, &mut faults);
                    println!("{line}");
                    let _ = writeln!(text, "{line}");
                }
            }
        }
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("findings.csv"), text).unwrap();
    assert!(
        faults.is_empty(),
        "findings in more than 5 % of runs without a difference:\n{}",
        faults.join("\n")
    );
}

fn cell(
    claim: Claim,
    shape: Shape,
    noise: Noise,
    order: Order,
    faults: &mut Vec<String>,
) -> String {
    let mut random = SplitMix64::new(1);
    let rows: Vec<TrialRow> = (0..shape.0)
        .map(|point| row_of(claim, point, shape.0))
        .collect();
    let mut share = |runs: usize, faster: f64| {
        let made = (0..runs).filter(|_| {
            let table = run_of(claim, shape, &rows, (noise, order), faster, &mut random);
            claim.is_made(&table)
        });
        made.count() as f64 / runs as f64
    };
    let (made, found) = (share(RUNS, 0.0), share(POWER_RUNS, FASTER));
    let ((name, spread), (points, repeats)) = (noise.name(), shape);
    let line = format!(
        "{},{points},{repeats},{name},{spread},{},{RUNS},{made:.4},{POWER_RUNS},{found:.4}",
        claim.name(),
        order.name()
    );
    if made > MOST_FALSE {
        faults.push(line.clone());
    }
    line
}

fn run_of(
    claim: Claim,
    shape: Shape,
    rows: &[TrialRow],
    (noise, order): (Noise, Order),
    faster: f64,
    random: &mut SplitMix64,
) -> TrialTable {
    let mut trials = order.trials(shape);
    for trial in &mut trials {
        let is_crowded = claim == Claim::SharedDevice && random.fraction() < 0.5;
        trial.crowd = if is_crowded { 2 } else { 1 };
        let is_faster = if claim == Claim::SharedDevice {
            !is_crowded
        } else {
            trial.point == claim.faster_point(shape.0)
        };
        trial.log = if is_faster { faster.ln_1p() } else { 0.0 };
    }
    noise.add_to(&mut trials, random);
    let of = |(place, trial): (usize, &Trial)| TableRow {
        fixed: Box::new(TrialRow {
            trial: TrialId(format!("{place:010x}")),
            number: place as u64 + 1,
            launch: trial.launch,
            block: (order == Order::Interleaved).then_some(trial.repeat as u64 + 1),
            run_seconds: Some(100.0 * place as f64),
            concurrent_trials: trial.crowd,
            samples_per_second: Some(100.0 * trial.log.exp()),
            ..rows[trial.point].clone()
        }),
        axes: vec![trial.point.to_string()],
    };
    TrialTable {
        axes: vec![claim.axis().to_owned()],
        rows: trials.iter().enumerate().map(of).collect(),
        metrics: Vec::new(),
        others: Vec::new(),
        varied: Vec::new(),
        torn: None,
    }
}

/// A trial on a GPU with most of its columns empty.
fn row_of(claim: Claim, point: usize, points: usize) -> TrialRow {
    let mut fields = serde_json::to_value(TrialRow::default()).unwrap();
    let known = json!({
        "kiln_table": TRIALS.version, "trial": "0000000000",
        "attempt": 1, "launch": 1, "number": 1, "outcome": "completed", "trial_seconds": 100.0,
        "model_kind": "gpt", "data_kind": "generated", "engine": "libtorch", "precision": "f32",
        "device_name": "NVIDIA H200", "device_uuid": "GPU-1", "driver": "590.48.01",
        "batch_size": 8, "grad_accumulation": 1, "effective_batch_size": 8,
        "num_workers": 2, "seed": 1, "steps": 900,
        "window_seconds": 90.0, "left_out_steps": 10, "median_step_seconds": 0.09,
        "epoch_seconds": 600.0, "data_wait_fraction": 0.01,
        "mean_gpu_utilization": 0.9, "mean_sm_active": 0.8,
        "peak_nvml_used_bytes": 60_000_000_000_u64, "memory_limit_bytes": 150_000_000_000_u64,
        "foreign_processes": "none", "concurrent_trials": 1,
        "cpu_threads": 64, "devices_per_trial": 1,
    });
    let known = known.as_object().unwrap().clone();
    fields.as_object_mut().unwrap().extend(known);
    let mut row: TrialRow = serde_json::from_value(fields).unwrap();
    claim.plant(&mut row, point, points);
    row
}
