//! How often `kiln compare` is wrong: 2,000 comparisons for each number of runs, of runs that are the same, and of runs of which one side is slower.
//!
//! The runs are those of `results/verdict-spread` (`experiments/verdict-spread.yaml`; another table: `KILN_VERDICT_TABLE`), drawn without putting
//! back; and made-up ones with a known spread. `cargo bench -p kiln --bench verdicts` prints CSV and keeps it as `target/verdicts.csv`.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{fmt::Write, fs, path::PathBuf};

use kiln::{
    catalog::random::SplitMix64,
    plan::Outcome,
    record::TrialTable,
    report::compare::{Metric, Verdict, verdict_of},
};

const COMPARISONS: usize = 2000;
const RUNS: [usize; 3] = [3, 5, 10];
const SLOWDOWNS: [f64; 5] = [0.0, 0.03, 0.05, 0.10, 0.20];
const SPREADS: [f64; 4] = [0.01, 0.02, 0.03, 0.05];

fn main() {
    let table = std::env::var_os("KILN_VERDICT_TABLE").map(PathBuf::from);
    let table = table.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results/verdict-spread/latest/trials.csv")));
    let measured = rates(&table);
    let mut text = String::from("runs_from,spread,n,slowdown,comparisons,slower,faster,same,ambiguous\n");
    let spread = deviation(&measured);
    for runs in RUNS {
        for slowdown in SLOWDOWNS {
            let mut random = SplitMix64::new(1);
            let mut pool = measured.clone();
            let mut draw = || {
                random.shuffle(&mut pool);
                (pool[..runs].to_vec(), pool[runs..2 * runs].to_vec())
            };
            line(&mut text, &format!("{} measured", measured.len()), spread, runs, slowdown, &mut draw);
        }
    }
    for spread in SPREADS {
        for runs in RUNS {
            for slowdown in SLOWDOWNS {
                let mut random = SplitMix64::new(2);
                let mut side = || (0..runs).map(|_| (spread * normal(&mut random)).exp()).collect::<Vec<f64>>();
                line(&mut text, "made-up", spread, runs, slowdown, &mut || (side(), side()));
            }
        }
    }
    print!("{text}");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("verdicts.csv"), text).unwrap();
}

fn rates(path: &std::path::Path) -> Vec<f64> {
    let rows = TrialTable::read(path).unwrap_or_else(|error| panic!("{error}; `kiln run experiments/verdict-spread.yaml` makes it")).rows;
    let completed = rows.iter().filter(|row| row.fixed.outcome == Outcome::Completed);
    completed.filter_map(|row| row.fixed.tokens_per_second.or(row.fixed.samples_per_second)).collect()
}

/// Of the logarithms: the spread as a share.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
    (values.iter().map(|value| (value.ln() - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// A number from a standard normal distribution.
fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * (1.0 - random.fraction()).ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
}

fn line(text: &mut String, from: &str, spread: f64, runs: usize, slowdown: f64, draw: &mut dyn FnMut() -> (Vec<f64>, Vec<f64>)) {
    let mut counts = [0_usize; 4];
    for _ in 0..COMPARISONS {
        let (base, new) = draw();
        let slower: Vec<f64> = new.iter().map(|rate| rate * (1.0 - slowdown)).collect();
        let place = match verdict_of(Metric::Throughput, &base, &slower) {
            Verdict::Worse => 0,
            Verdict::Better => 1,
            Verdict::Same => 2,
            _ => 3,
        };
        counts[place] += 1;
    }
    let shares = counts.map(|count| format!("{:.4}", count as f64 / COMPARISONS as f64)).join(",");
    let _ = writeln!(text, "{from},{spread:.4},{runs},{slowdown},{COMPARISONS},{shares}");
}
