//! Compares all points of one run with each other: they share one spread, so that few repeats of
//! each say more than those of two points alone.

use std::collections::BTreeMap;

use super::{
    ALPHA, Estimate, Nature, Sides, TimedRun,
    contrast::{Contrast, without_rounding},
    design::{Design, lay},
    matrix::dot,
};

/// The repeats of the points of a run: each logarithm is a point effect, a block effect and noise
/// with the same spread everywhere.
#[derive(Clone, Debug)]
pub struct Field {
    runs: Vec<Vec<TimedRun>>,
    /// Mean of each point with the block effects removed; empty for a point without runs.
    effects: Vec<Option<f64>>,
    /// Fraction of each point's runs in each block.
    shares: Vec<Vec<f64>>,
    /// Inverse of the information on the blocks after the points are removed; empty if blocks are
    /// not removed.
    of_blocks: Vec<Vec<f64>>,
    variance: f64,
    /// The same, from each point's own repeats.
    own_variances: Vec<f64>,
    freedom: f64,
}

/// With more blocks their effects are not removed.
const MOST_BLOCKS: usize = 100;

impl Field {
    /// The runs of each point; `None` if nothing is repeated, so that the spread is unknown.
    pub fn of(runs: &[Vec<TimedRun>]) -> Option<Self> {
        let mut places: BTreeMap<u64, usize> = runs
            .iter()
            .flatten()
            .filter_map(|run| Some((run.block?, 0)))
            .collect();
        places
            .values_mut()
            .enumerate()
            .for_each(|(place, value)| *value = place);
        let has_blocks =
            places.len() <= MOST_BLOCKS && runs.iter().flatten().all(|run| run.block.is_some());
        let none = BTreeMap::new();
        Self::fitted(runs, if has_blocks { &places } else { &none })
            .or_else(|| Self::fitted(runs, &none))
    }

    /// Least squares with one effect for each point and each block.
    fn fitted(runs: &[Vec<TimedRun>], places: &BTreeMap<u64, usize>) -> Option<Self> {
        let means: Vec<f64> = runs
            .iter()
            .map(|point| point.iter().map(|run| run.value.ln()).sum::<f64>() / count(point))
            .collect();
        let shares = block_shares(runs, places);
        let (known, totals) = block_equations(runs, places, &shares, &means);
        let of_blocks = inverse(known)?;
        let blocks: Vec<f64> = of_blocks.iter().map(|row| dot(row, &totals)).collect();
        let effects: Vec<f64> = means
            .iter()
            .zip(&shares)
            .map(|(mean, shares)| mean - dot(shares, &blocks))
            .collect();
        let residual = |effect: f64, run: &TimedRun| {
            run.value.ln() - effect - place(run, places).map_or(0.0, |block| blocks[block])
        };
        let of_point = |(point, effect): (&Vec<TimedRun>, &f64)| {
            let squares: f64 = point.iter().map(|run| residual(*effect, run).powi(2)).sum();
            without_rounding(squares, count(point))
        };
        let squares: Vec<f64> = runs.iter().zip(&effects).map(of_point).collect();
        let all: usize = runs.iter().map(Vec::len).sum();
        let points = runs.iter().filter(|point| !point.is_empty()).count();
        let freedom = all as f64 - points as f64 - (blocks.len() as f64 - 1.0).max(0.0);
        let effects = runs
            .iter()
            .zip(effects)
            .map(|(point, effect)| (!point.is_empty()).then_some(effect))
            .collect();
        // Each point has its share of the degrees of freedom by its number of runs.
        let own = |(squares, point): (&f64, &Vec<TimedRun>)| {
            squares * all as f64 / (freedom * count(point))
        };
        (freedom >= 1.0).then(|| Self {
            runs: runs.to_vec(),
            effects,
            shares,
            of_blocks,
            variance: squares.iter().sum::<f64>() / freedom,
            own_variances: squares.iter().zip(runs).map(own).collect(),
            freedom,
        })
    }

    /// Whether block effects are removed: points are then compared within blocks, and drift between
    /// blocks does not affect the difference.
    pub fn has_blocks(&self) -> bool {
        !self.of_blocks.is_empty()
    }

    /// Compares two points by index, as one of several simultaneous comparisons (Bonferroni). Two
    /// points with a larger spread than the others use their own spread: otherwise one noisy point
    /// among quiet ones would differ from them by chance.
    pub fn compare(&self, base: usize, new: usize, comparisons: usize) -> Option<Estimate> {
        let difference = self.effects.get(new).copied().flatten()?
            - self.effects.get(base).copied().flatten()?;
        let lean: Vec<f64> = self.shares[new]
            .iter()
            .zip(&self.shares[base])
            .map(|(new, base)| new - base)
            .collect();
        let by_blocks: f64 = self
            .of_blocks
            .iter()
            .zip(&lean)
            .map(|(row, lean_here)| lean_here * dot(row, &lean))
            .sum();
        let runs = |point: usize| self.runs[point].len() as f64;
        let [of_base, of_new] = [base, new].map(|point| 1.0 / runs(point));
        let own = self.own_variances[base] * of_base + self.own_variances[new] * of_new;
        let variance =
            (self.variance * (of_base + of_new)).max(own) + self.variance * by_blocks.max(0.0);
        let sides = Sides {
            base: self.runs[base].clone(),
            new: self.runs[new].clone(),
            nature: Nature::Drifting,
        };
        let design = lay(&sides).design;
        let margin = match design {
            _ if self.has_blocks() => 0.0,
            // The spread here is that of single runs, not of launches.
            Design::PairedLaunches { .. } => Design::Apart.margin(),
            _ => design.margin(),
        };
        let contrast = Contrast::new(difference, variance.sqrt(), self.freedom);
        Some(contrast.estimate(ALPHA / comparisons.max(1) as f64, margin, 0.0, design))
    }

    /// Standard deviation from run to run, as a fraction.
    pub fn spread(&self) -> f64 {
        self.variance.sqrt().exp_m1()
    }
}

/// Index of the block of a run.
fn place(run: &TimedRun, places: &BTreeMap<u64, usize>) -> Option<usize> {
    places.get(&run.block?).copied()
}

/// Number of runs of a point, as a divisor.
fn count(point: &[TimedRun]) -> f64 {
    point.len().max(1) as f64
}

/// Fraction of each point's runs in each block.
fn block_shares(runs: &[Vec<TimedRun>], places: &BTreeMap<u64, usize>) -> Vec<Vec<f64>> {
    let mut shares = vec![vec![0.0; places.len()]; runs.len()];
    for (point, shares) in runs.iter().zip(&mut shares) {
        point
            .iter()
            .filter_map(|run| place(run, places))
            .for_each(|block| shares[block] += 1.0 / count(point));
    }
    shares
}

/// The normal equations of the block effects after the points are removed: the matrix and the right
/// side.
fn block_equations(
    runs: &[Vec<TimedRun>],
    places: &BTreeMap<u64, usize>,
    shares: &[Vec<f64>],
    means: &[f64],
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let blocks = places.len();
    // 1 everywhere: block effects are determined except for a common constant.
    let mut known = vec![vec![1.0; blocks]; blocks];
    let mut totals = vec![0.0; blocks];
    for ((point, shares), mean) in runs.iter().zip(shares).zip(means) {
        for block in 0..blocks {
            known[block][block] += shares[block] * count(point);
            totals[block] -= shares[block] * count(point) * mean;
            for other in 0..blocks {
                known[block][other] -= shares[block] * shares[other] * count(point);
            }
        }
        for run in point {
            if let Some(block) = place(run, places) {
                totals[block] += run.value.ln();
            }
        }
    }
    (known, totals)
}

/// Inverts a matrix by Gauss–Jordan elimination with pivots; `None` for a singular matrix.
fn inverse(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let size = matrix.len();
    let scale = matrix
        .iter()
        .flatten()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    let mut inverse: Vec<Vec<f64>> = (0..size)
        .map(|row| {
            (0..size)
                .map(|column| f64::from(u8::from(row == column)))
                .collect()
        })
        .collect();
    for column in 0..size {
        let pivot = (column..size).max_by(|one, other| {
            matrix[*one][column]
                .abs()
                .total_cmp(&matrix[*other][column].abs())
        })?;
        if matrix[pivot][column].abs() <= 1e-9 * scale {
            return None;
        }
        matrix.swap(column, pivot);
        inverse.swap(column, pivot);
        let by = matrix[column][column];
        matrix[column]
            .iter_mut()
            .chain(&mut inverse[column])
            .for_each(|value| *value /= by);
        let (own, own_inverse) = (matrix[column].clone(), inverse[column].clone());
        for row in (0..size).filter(|row| *row != column) {
            let factor = matrix[row][column];
            matrix[row]
                .iter_mut()
                .zip(&own)
                .for_each(|(value, own)| *value -= factor * own);
            inverse[row]
                .iter_mut()
                .zip(&own_inverse)
                .for_each(|(value, own)| *value -= factor * own);
        }
    }
    Some(inverse)
}
