//! Converts rows to log returns, split by date and normalized with the training returns only.

use std::collections::HashSet;

use jiff::civil::DateTime;

use super::rows::Rows;
use crate::split::train_count;

/// A deviation below this is rounding error and counts as 0: logarithms of 64-bit numbers are not
/// more precise.
const SMALLEST_DEVIATION: f64 = 1e-12;

/// The log returns of one symbol.
pub(super) struct Returns {
    /// [returns, columns], in time order.
    pub(super) values: Vec<f64>,
    /// Number of returns for training.
    pub(super) train: usize,
}

/// Mean and deviation of a column of training returns, over all symbols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moments {
    pub(super) mean: f64,
    /// Deviation of the whole population; 1 if the returns do not vary.
    pub(super) deviation: f64,
}

impl Moments {
    pub(super) fn normalize(self, value: f64) -> f32 {
        ((value - self.mean) / self.deviation) as f32
    }
}

/// Returns the first date for validation: the last `valid_fraction` of the distinct dates of all
/// symbols. The number of training dates is rounded down. `None` if all dates are for training.
pub(super) fn first_valid_date(symbols: &[Rows], valid_fraction: f64) -> Option<DateTime> {
    let distinct: HashSet<DateTime> = symbols
        .iter()
        .flat_map(|rows| &rows.dates)
        .copied()
        .collect();
    let mut dates: Vec<DateTime> = distinct.into_iter().collect();
    dates.sort_unstable();
    dates.get(train_count(dates.len(), valid_fraction)).copied()
}

/// Returns which columns are above 0 in every row of every symbol.
pub(super) fn positive_columns(symbols: &[Rows], columns: usize) -> Vec<bool> {
    let mut positive = vec![true; columns];
    for row in symbols
        .iter()
        .flat_map(|rows| rows.values.chunks_exact(columns))
    {
        for (positive, value) in positive.iter_mut().zip(row) {
            *positive &= *value > 0.0;
        }
    }
    positive
}

/// Returns the log returns between adjacent rows: ln(x / y) for columns that are always positive,
/// else ln((x + 1) / (y + 1)). A return has the date of its later row.
pub(super) fn of_rows(rows: Rows, positive: &[bool], first_valid: Option<DateTime>) -> Returns {
    let columns = positive.len();
    let mut values = rows.values;
    for row in values.chunks_exact_mut(columns) {
        for (value, positive) in row.iter_mut().zip(positive) {
            // The difference of logarithms is finite even if the quotient of two numbers is not.
            *value = if *positive {
                value.ln()
            } else {
                (*value + 1.0).ln()
            };
        }
    }
    for at in columns..values.len() {
        values[at - columns] = values[at] - values[at - columns];
    }
    values.truncate(values.len().saturating_sub(columns));
    let train_rows = first_valid.map_or(rows.dates.len(), |first| {
        rows.dates.partition_point(|date| *date < first)
    });
    Returns {
        values,
        train: train_rows.saturating_sub(1),
    }
}

/// The mean and deviation of each column over the training returns of all symbols.
pub(super) fn training_moments(symbols: &[Returns], columns: usize) -> Vec<Moments> {
    let rows = || {
        symbols
            .iter()
            .flat_map(|symbol| symbol.values.chunks_exact(columns).take(symbol.train))
    };
    let count = rows().count().max(1) as f64;
    let mut means = vec![0.0; columns];
    for row in rows() {
        means
            .iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += value);
    }
    means.iter_mut().for_each(|sum| *sum /= count);
    let mut squares = vec![0.0; columns];
    for row in rows() {
        for ((sum, value), mean) in squares.iter_mut().zip(row).zip(&means) {
            *sum += (value - mean).powi(2);
        }
    }
    let deviation = |square: f64| {
        Some((square / count).sqrt())
            .filter(|deviation| *deviation >= SMALLEST_DEVIATION)
            .unwrap_or(1.0)
    };
    means
        .into_iter()
        .zip(squares)
        .map(|(mean, square)| Moments {
            mean,
            deviation: deviation(square),
        })
        .collect()
}
