//! How often a search is right and what it costs: `best-throughput-batch` over 24 sizes and
//! `workers` from 0 to 16, each 2,000 times on curves of five shapes at three levels of noise, with
//! `repeats` of 2 and of 3 (the default).
//!
//! A search is right if its choice, or what it says it cannot tell apart (with what it says was not
//! run), holds a value within 3 % of the best. Its cost is its share of the trials of the whole
//! grid: every value, `repeats` times. The first trial of each search is slowed by up to 70 %, as
//! by a cold page cache. `cargo bench -p kiln --bench searches` prints CSV and keeps it as
//! `target/searches.csv`; it fails where more searches of a cell are wrong than [`REPEATS`] allows,
//! or one takes more than a quarter of the grid. `KILN_SEARCHES` sets another number of searches.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{fmt::Write, fs, path::PathBuf, thread};

use kiln_core::{
    kinds::random::SplitMix64,
    plan::{
        Outcome,
        search::{Ask, Probe, Recommendation, SearchContext, SearchTrial, Warning, strategy},
    },
    spec::{MostWorkers, Search},
};

const SEARCHES: usize = 2000;
const NOISES: [f64; 3] = [0.005, 0.02, 0.05];
/// `repeats`, and the share of searches that may be wrong. At a true rate of 5 % more than 6.5 % of
/// 2,000 are wrong in one of a thousand cells. With two repeats 12 trials are not enough to see
/// waves between 24 sizes: 7 % of those searches miss the best by more than 3 %.
const REPEATS: [(u64, f64); 2] = [(2, 0.10), (3, 0.065)];
/// A value is as good as the best within this share.
const GOOD: f64 = 0.03;
const MOST_COST: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Batch,
    Workers,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Rises towards a limit.
    Saturating,
    /// A bell over the logarithm.
    Peak,
    /// Rises in proportion, then stays.
    Plateau,
    /// Saturating, with waves of 2 to 4 % (of workers 1 to 3 %), 3 to 8 values long.
    Bumpy,
    /// Saturating, and slower by 15 to 50 % from some value on.
    Cliff,
}

const SHAPES: [Shape; 5] = [
    Shape::Saturating,
    Shape::Peak,
    Shape::Plateau,
    Shape::Bumpy,
    Shape::Cliff,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Batch => "best-throughput-batch",
            Self::Workers => "workers",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Batch => "train.batch_size",
            Self::Workers => "data.num_workers",
        }
    }

    fn values(self) -> Vec<u64> {
        match self {
            Self::Batch => (1..=24).map(|place| 8 * place).collect(),
            Self::Workers => (0..=16).collect(),
        }
    }

    fn search(self, repeats: u64) -> Search {
        match self {
            Self::Batch => Search::BestThroughputBatch {
                from: 8,
                to: 192,
                multiple_of: 8,
                at_most: 1.0,
                keep_effective: false,
                repeats,
            },
            Self::Workers => Search::Workers {
                to: MostWorkers::Count(16),
                wait: 0.02,
                repeats,
            },
        }
    }
}

/// A machine: its speed for each value, and the share of the time that data is waited for.
struct Machine {
    kind: Kind,
    values: Vec<u64>,
    speeds: Vec<f64>,
    waits: Vec<f64>,
    noise: f64,
}

fn between(random: &mut SplitMix64, low: f64, high: f64) -> f64 {
    low + (high - low) * random.fraction()
}

/// Evenly over the logarithm.
fn of_scale(random: &mut SplitMix64, low: f64, high: f64) -> f64 {
    between(random, low.ln(), high.ln()).exp()
}

/// A number from a standard normal distribution.
fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * (1.0 - random.fraction()).ln()).sqrt()
        * (std::f64::consts::TAU * random.fraction()).cos()
}

impl Machine {
    fn drawn(kind: Kind, shape: Shape, noise: f64, random: &mut SplitMix64) -> Self {
        let values = kind.values();
        // Without a worker training loads the data itself, half as well.
        let numbers: Vec<f64> = values
            .iter()
            .map(|value| *value as f64 + if kind == Kind::Workers { 0.5 } else { 0.0 })
            .collect();
        let (half, peak, waves) = match kind {
            Kind::Batch => ((8.0, 128.0), (12.0, 168.0), (0.02, 0.04)),
            Kind::Workers => ((0.5, 8.0), (1.0, 12.0), (0.01, 0.03)),
        };
        let half = of_scale(random, half.0, half.1);
        let peak = of_scale(random, peak.0, peak.1);
        let width = between(random, 0.6, 1.5);
        let (height, length, phase) = (
            between(random, waves.0, waves.1),
            between(random, 3.0, 8.0),
            random.fraction(),
        );
        let from = 2 + random.below(values.len() as u64 - 2) as usize;
        let left = between(random, 0.5, 0.85);
        let speed = |(place, number): (usize, &f64)| {
            let saturating = number / (number + half);
            let wave = (std::f64::consts::TAU * (place as f64 / length + phase)).sin();
            match shape {
                Shape::Saturating => saturating,
                Shape::Peak => (-(number / peak).ln().powi(2) / (2.0 * width * width)).exp(),
                Shape::Plateau => (number / peak).min(1.0),
                Shape::Bumpy => saturating * (1.0 + height * wave),
                Shape::Cliff => saturating * if place >= from { left } else { 1.0 },
            }
        };
        let speeds: Vec<f64> = numbers.iter().enumerate().map(speed).collect();
        let best = speeds.iter().copied().fold(0.0, f64::max);
        let fastest = speeds.iter().position(|speed| *speed == best).unwrap();
        // Beyond the best number the workers take time from training; or, of a cliff, the disk no
        // longer keeps up with them.
        let still_waits = matches!(shape, Shape::Cliff) && random.below(2) == 0;
        let wait = |(place, speed): (usize, &f64)| {
            if place <= fastest || still_waits {
                1.0 - speed / best
            } else {
                0.0
            }
        };
        let waits = speeds.iter().enumerate().map(wait).collect();
        Self {
            kind,
            values,
            speeds,
            waits,
            noise,
        }
    }

    fn place(&self, value: u64) -> usize {
        self.values.binary_search(&value).unwrap()
    }

    fn run(&self, choice: &SearchTrial, is_first: bool, random: &mut SplitMix64) -> Probe {
        let place = self.place(choice.values[0].1.as_u64().unwrap());
        let cold = if is_first {
            between(random, 0.3, 1.0)
        } else {
            1.0
        };
        let wait = self.waits[place] * (1.0 + 0.05 * normal(random)) + 0.005 * normal(random).abs();
        let wait = 1.0 - (1.0 - wait.clamp(0.0, 0.99)) * cold;
        Probe {
            samples_per_second: Some(
                1e4 * self.speeds[place] * cold * (self.noise * normal(random)).exp(),
            ),
            data_wait_fraction: (self.kind == Kind::Workers).then_some(wait),
            memory_held_bytes: Some(1),
            memory_limit_bytes: Some(1000),
            seconds: Some(1.0),
            ..Probe::that_showed_nothing(choice.clone(), Outcome::Completed)
        }
    }

    fn search(&self, repeats: u64, random: &mut SplitMix64) -> Recommendation {
        let given = SearchContext {
            keys: Default::default(),
            batch_size: 8,
            grad_accumulation: 1,
            num_workers: 0,
            devices_per_trial: 1,
            learning_rate: None,
            steps: None,
            cores: 16,
            gpus: 1,
            is_until_target: false,
        };
        let strategy = strategy(&self.kind.search(repeats), &given);
        let mut probes = Vec::new();
        loop {
            match strategy.ask(&probes) {
                Ask::Done(end) => return *end,
                Ask::Run(choices) => {
                    for choice in choices {
                        probes.push(self.run(&choice, probes.is_empty(), random));
                    }
                }
            }
        }
    }

    /// The values that the end of a search names, the smallest first: its choice, or those that
    /// cannot be told apart with what lies between neighbours of them; and what it says was not
    /// run.
    fn named(&self, end: &Recommendation) -> Vec<u64> {
        let number = |values: &Vec<(String, serde_json::Value)>| {
            values
                .iter()
                .find(|(key, _)| key == self.kind.key())
                .unwrap()
                .1
                .as_u64()
                .unwrap()
        };
        let mut run: Vec<u64> = end
            .evidence
            .iter()
            .map(|probe| number(&probe.choice.values))
            .collect();
        run.sort_unstable();
        run.dedup();
        let chosen = end
            .alike
            .iter()
            .chain(&end.chosen)
            .map(number)
            .collect::<Vec<_>>();
        let alike = run
            .windows(2)
            .filter(|pair| pair.iter().all(|value| chosen.contains(value)))
            .map(|pair| (pair[0], pair[1]));
        let warned = end.warnings.iter().flat_map(|warning| match warning {
            Warning::NotRunBetween { gaps } => gaps.clone(),
            _ => Vec::new(),
        });
        let gaps: Vec<(u64, u64)> = alike.chain(warned).collect();
        let is_named = |value: &u64| {
            chosen.contains(value)
                || gaps
                    .iter()
                    .any(|(low, high)| (low + 1..*high).contains(value))
        };
        self.values.iter().copied().filter(is_named).collect()
    }
}

/// What the searches of a cell came to.
#[derive(Default)]
struct Cell {
    chosen_good: usize,
    right: usize,
    cannot_tell: usize,
    cannot_tell_right: usize,
    /// Numbers of values that the open searches ran, and that they named: those they could not tell
    /// apart, and the values between them.
    run: Vec<usize>,
    named: Vec<usize>,
    costs: Vec<f64>,
}

impl Cell {
    fn of(kind: Kind, shape: Shape, noise: f64, repeats: u64, searches: usize) -> Self {
        let mut random = SplitMix64::new(1);
        let mut cell = Self::default();
        for _ in 0..searches {
            let machine = Machine::drawn(kind, shape, noise, &mut random);
            let end = machine.search(repeats, &mut random);
            cell.add(&machine, &end, repeats);
        }
        cell
    }

    fn add(&mut self, machine: &Machine, end: &Recommendation, repeats: u64) {
        let best = machine.speeds.iter().copied().fold(0.0, f64::max);
        let is_good = |value: &u64| machine.speeds[machine.place(*value)] >= best * (1.0 - GOOD);
        let named = machine.named(end);
        let is_right = named.iter().any(is_good);
        let chosen = end.chosen.as_ref().unwrap()[0].1.as_u64().unwrap();
        self.chosen_good += usize::from(is_good(&chosen));
        self.right += usize::from(is_right);
        if named.len() > 1 {
            self.cannot_tell += 1;
            self.cannot_tell_right += usize::from(is_right);
            self.run.push(end.alike.len().max(1));
            self.named.push(named.len());
        }
        self.costs
            .push(end.cost.trials as f64 / (machine.values.len() as u64 * repeats) as f64);
    }
}

fn median(values: &mut [usize]) -> usize {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn line(
    kind: Kind,
    (shape, noise): (Shape, f64),
    (repeats, most_wrong): (u64, f64),
    searches: usize,
) -> (String, Option<String>) {
    let mut cell = Cell::of(kind, shape, noise, repeats, searches);
    let share = |count: usize, of: usize| {
        if of == 0 {
            String::new()
        } else {
            format!("{:.3}", count as f64 / of as f64)
        }
    };
    cell.costs.sort_unstable_by(f64::total_cmp);
    let (middle, most) = (cell.costs[searches / 2], cell.costs[searches - 1]);
    let name = format!(
        "{},{},{noise},{repeats}",
        kind.name(),
        format!("{shape:?}").to_lowercase()
    );
    let [right, good, cannot_tell] =
        [cell.right, cell.chosen_good, cell.cannot_tell].map(|count| share(count, searches));
    let text = format!(
        "{name},{searches},{right},{good},{cannot_tell},{},{},{},{},{middle:.3},{most:.3}\n",
        share(cell.cannot_tell_right, cell.cannot_tell),
        median(&mut cell.run),
        median(&mut cell.named),
        cell.named.last().copied().unwrap_or_default()
    );
    let is_wrong = cell.right as f64 / (searches as f64) < 1.0 - most_wrong;
    (
        text,
        (is_wrong || most > MOST_COST)
            .then(|| format!("{name}: right {right}, at most {most:.3} of the grid")),
    )
}

fn main() {
    let searches = std::env::var("KILN_SEARCHES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEARCHES);
    let mut text = String::from(
        "search,curve,noise,repeats,searches,right,choice_within_3_percent,cannot_tell,\
         cannot_tell_right,median_run,median_named,most_named,median_cost,most_cost\n",
    );
    let mut faults = Vec::new();
    for kind in [Kind::Batch, Kind::Workers] {
        for (repeats, most_wrong) in REPEATS {
            let cells: Vec<(Shape, f64)> = SHAPES
                .iter()
                .flat_map(|shape| NOISES.map(|noise| (*shape, noise)))
                .collect();
            let lines: Vec<(String, Option<String>)> = thread::scope(|scope| {
                let cells = cells.chunks(cells.len().div_ceil(2));
                let work = cells.map(|cells| {
                    scope.spawn(move || {
                        cells
                            .iter()
                            .map(|cell| line(kind, *cell, (repeats, most_wrong), searches))
                            .collect::<Vec<_>>()
                    })
                });
                work.collect::<Vec<_>>()
                    .into_iter()
                    .flat_map(|work| work.join().unwrap())
                    .collect()
            });
            for (line, fault) in lines {
                text.write_str(&line).unwrap();
                faults.extend(fault);
            }
        }
    }
    print!("{text}");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("searches.csv"), text).unwrap();
    assert!(
        faults.is_empty(),
        "too many searches are wrong, or one takes more than a quarter of the grid:\n{}",
        faults.join("\n")
    );
}
