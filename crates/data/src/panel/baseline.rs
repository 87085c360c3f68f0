//! Baselines without a model: the quality of the simplest forecasts on a panel's validation
//! samples. A model below them has learned nothing.

use super::{LoadedPanel, SymbolSeries};

/// Three forecasts without a model, over all validation samples of a window length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baselines {
    /// Mean absolute error of "the price persists", a return of 0; as a log return of the price.
    pub persistence_mean_absolute_error: f64,
    /// Hit rate of "the direction persists": the next return is above 0 exactly if the previous one
    /// is.
    pub persistence_hit_rate: f64,
    /// Fraction of samples in the class that is more common among the training returns of all
    /// symbols; on a tie, the class above 0.
    pub majority_hit_rate: f64,
}

/// Returns the baselines over the samples that a model with this `seq_len` validates on; `None` if
/// there are none.
pub fn baselines(panel: &LoadedPanel, seq_len: u64) -> Option<Baselines> {
    with_majority(panel, seq_len, majority_rises(panel))
}

/// The same for a panel without training returns; `majority_rises` is whether at least half of the
/// model's training returns are above 0.
pub fn with_majority(panel: &LoadedPanel, seq_len: u64, majority_rises: bool) -> Option<Baselines> {
    let seq_len = usize::try_from(seq_len).unwrap_or(usize::MAX).max(1);
    let (mut samples, mut error, mut persisted, mut majority) = (0_u64, 0.0, 0_u64, 0_u64);
    for series in &panel.symbols {
        for (last, next) in validation_pairs(series, seq_len) {
            samples += 1;
            error += f64::from(next).abs();
            persisted += u64::from((last > 0.0) == (next > 0.0));
            majority += u64::from(majority_rises == (next > 0.0));
        }
    }
    let share = |count: u64| count as f64 / samples as f64;
    (samples > 0).then(|| Baselines {
        persistence_mean_absolute_error: error / samples as f64,
        persistence_hit_rate: share(persisted),
        majority_hit_rate: share(majority),
    })
}

fn majority_rises(panel: &LoadedPanel) -> bool {
    let training = || {
        panel
            .symbols
            .iter()
            .flat_map(|series| &series.returns[..series.train])
    };
    2 * training().filter(|value| **value > 0.0).count() >= training().count()
}

/// The last return of each validation window, and the target.
fn validation_pairs(series: &SymbolSeries, seq_len: usize) -> impl Iterator<Item = (f32, f32)> {
    let first = series.train.max(seq_len).min(series.returns.len());
    let last_seen = first.saturating_sub(1);
    series.returns[last_seen..]
        .iter()
        .copied()
        .zip(series.returns[first..].iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_core::kinds::data::{Counts, DataFacts, PanelShape};

    fn panel(symbols: &[(usize, &[f32])]) -> LoadedPanel {
        let series = |(train, returns): &(usize, &[f32])| SymbolSeries {
            symbol: "x".to_owned(),
            features: returns.to_vec(),
            returns: returns.to_vec(),
            train: *train,
        };
        LoadedPanel {
            shape: PanelShape {
                features: 1,
                symbols: symbols.len() as u64,
            },
            symbols: symbols.iter().map(series).collect(),
            target_mean: 0.0,
            target_deviation: 1.0,
            null_rows: 0,
            skipped_rows: 0,
            skipped: Vec::new(),
            symbols_after_limit: 0,
            chained: None,
            facts: DataFacts {
                counts: Counts::Panel {
                    features: 1,
                    symbols: Vec::new(),
                },
                sha256: String::new(),
            },
        }
    }

    #[test]
    fn each_forecast_is_scored_on_every_validation_sample() {
        let symbols: [(usize, &[f32]); 3] = [
            (3, &[1.0, -1.0, -1.0, -0.5, 0.25, 0.25]),
            (2, &[-1.0, 1.0, 0.0]),
            (1, &[2.0]),
        ];
        let found = baselines(&panel(&symbols), 2).unwrap();
        // Targets: -0.5 after -1, 0.25 after -0.5, 0.25 after 0.25; 0 after 1. Of six training
        // returns three rise.
        assert_eq!(
            found,
            Baselines {
                persistence_mean_absolute_error: 0.25,
                persistence_hit_rate: 0.5,
                majority_hit_rate: 0.5
            }
        );
    }

    #[test]
    fn the_majority_is_that_of_the_training_returns() {
        let symbols: [(usize, &[f32]); 1] = [(3, &[-1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0])];
        assert_eq!(
            baselines(&panel(&symbols), 1).unwrap().majority_hit_rate,
            0.25
        );
    }

    #[test]
    fn the_samples_are_those_that_are_validated_on() {
        let returns: Vec<f32> = (0..9).map(|at| at as f32).collect();
        for train in 0..=9 {
            for seq_len in 0..12 {
                let series = &panel(&[(train, &returns)]).symbols[0];
                let counts = kiln_core::kinds::data::SymbolReturns {
                    train: train as u64,
                    all: 9,
                };
                let pairs: Vec<(f32, f32)> = validation_pairs(series, seq_len.max(1)).collect();
                assert_eq!(
                    pairs.len() as u64,
                    counts.valid_samples(seq_len.max(1) as u64)
                );
                assert!(pairs.iter().all(|(last, next)| last + 1.0 == *next));
                assert_eq!(
                    baselines(&panel(&[(train, &returns)]), seq_len as u64).is_some(),
                    !pairs.is_empty()
                );
            }
        }
        assert_eq!(baselines(&panel(&[]), 1), None);
    }
}
