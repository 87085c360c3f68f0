//! Panels as samples: windows of a symbol's features, and the return after them.

use std::sync::Arc;

use kiln_core::kinds::data::{PanelTarget, SymbolReturns};
use kiln_data::panel::LoadedPanel;

use super::{Draw, HostBatch, OTHER_KIND, Source, TargetScale};

/// The training or the validation samples of a panel: symbol after symbol, each in time order.
#[derive(Clone, Debug)]
pub struct PanelWindows {
    panel: Arc<LoadedPanel>,
    seq_len: usize,
    scale: TargetScale,
    /// Per symbol: samples before it, and the return that is the target of its first one.
    starts: Vec<(u64, usize)>,
    count: u64,
}

impl PanelWindows {
    /// Training samples and validation samples.
    pub fn both(panel: &Arc<LoadedPanel>, seq_len: usize, target: PanelTarget) -> [Self; 2] {
        let returns = |symbol: usize| {
            let series = &panel.symbols[symbol];
            SymbolReturns {
                train: series.train as u64,
                all: series.returns.len() as u64,
            }
        };
        let train = |symbol| (returns(symbol).train_samples(seq_len as u64), seq_len);
        let valid = |symbol| {
            (
                returns(symbol).valid_samples(seq_len as u64),
                panel.symbols[symbol].train.max(seq_len),
            )
        };
        [
            Self::of(panel, seq_len, target, train),
            Self::of(panel, seq_len, target, valid),
        ]
    }

    fn of(
        panel: &Arc<LoadedPanel>,
        seq_len: usize,
        target: PanelTarget,
        samples: impl Fn(usize) -> (u64, usize),
    ) -> Self {
        let mut count = 0;
        let mut starts = Vec::new();
        for symbol in 0..panel.symbols.len() {
            let (samples, first) = samples(symbol);
            starts.push((count, first));
            count += samples;
        }
        let scale = match target {
            PanelTarget::Return => TargetScale::Returns {
                mean: panel.target_mean,
                deviation: panel.target_deviation,
            },
            PanelTarget::Direction => TargetScale::Directions,
        };
        Self {
            panel: Arc::clone(panel),
            seq_len,
            scale,
            starts,
            count,
        }
    }

    /// The symbol of a sample, and the return that is its target.
    fn place(&self, sample: u64) -> Option<(usize, usize)> {
        if sample >= self.count {
            return None;
        }
        // The last symbol that begins at or before it: one without samples begins where the next
        // one does.
        let symbol = self
            .starts
            .partition_point(|(before, _)| *before <= sample)
            .checked_sub(1)?;
        let (before, first) = self.starts[symbol];
        Some((symbol, first + (sample - before) as usize))
    }
}

impl Source for PanelWindows {
    fn sample_count(&self) -> u64 {
        self.count
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_panel(draws.len(), self.seq_len, self.panel.shape, self.scale);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let samples = batch.panel_mut().ok_or(OTHER_KIND)?;
        let (symbol, target) = self
            .place(draw.sample)
            .ok_or("it lies past the end of the panel")?;
        let (series, width) = (
            &self.panel.symbols[symbol],
            self.panel.shape.features as usize,
        );
        let window = &series.features[(target - self.seq_len) * width..target * width];
        samples.features[row * window.len()..][..window.len()].copy_from_slice(window);
        samples.symbols[row] = symbol as i64;
        let found = f64::from(series.returns[target]);
        samples.targets[row] = match self.scale {
            TargetScale::Returns { mean, deviation } => ((found - mean) / deviation) as f32,
            TargetScale::Directions => f32::from(u8::from(found > 0.0)),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::kinds::data::{Counts, DataFacts, PanelShape};
    use kiln_data::panel::SymbolSeries;

    use super::*;

    /// Symbol `s` has features 100 s + t and returns s + t / 100 at time t; one is too short for
    /// any sample.
    fn panel() -> Arc<LoadedPanel> {
        let series = |number: usize, count: usize, train: usize| SymbolSeries {
            symbol: number.to_string(),
            features: (0..count)
                .map(|time| (100 * number + time) as f32)
                .collect(),
            returns: (0..count)
                .map(|time| number as f32 + time as f32 / 100.0)
                .collect(),
            train,
        };
        let symbols = vec![
            series(0, 6, 4),
            series(1, 2, 1),
            series(2, 5, 1),
            series(3, 8, 8),
        ];
        let counts = symbols
            .iter()
            .map(|series| SymbolReturns {
                train: series.train as u64,
                all: series.returns.len() as u64,
            })
            .collect();
        Arc::new(LoadedPanel {
            shape: PanelShape {
                features: 1,
                symbols: 4,
            },
            target_mean: 1.0,
            target_deviation: 2.0,
            null_rows: 0,
            skipped_rows: 0,
            skipped: Vec::new(),
            symbols_after_limit: 0,
            chained: None,
            facts: DataFacts {
                counts: Counts::Panel {
                    features: 1,
                    symbols: counts,
                },
                sha256: String::new(),
            },
            symbols,
        })
    }

    /// Symbol, window and raw target of each sample.
    fn samples(windows: &PanelWindows) -> Vec<(i64, Vec<f32>, f32)> {
        let mut batch = HostBatch::default();
        let one = |sample| {
            let draw = Draw { epoch: 0, sample };
            windows.lay_out(&[draw], &mut batch);
            windows.write(draw, 0, &mut batch).unwrap();
            let panel = batch.panel_mut().unwrap();
            (
                panel.symbols[0],
                panel.features.clone(),
                panel.targets[0] * 2.0 + 1.0,
            )
        };
        (0..windows.sample_count()).map(one).collect()
    }

    #[test]
    fn windows_end_before_their_target_and_validation_targets_are_never_trained_on() {
        let [train, valid] = PanelWindows::both(&panel(), 2, PanelTarget::Return);
        let row = |symbol: i64, target: usize| {
            let base = symbol as f32 * 100.0 + target as f32;
            (
                symbol,
                vec![base - 2.0, base - 1.0],
                symbol as f32 + target as f32 / 100.0,
            )
        };
        let close = |found: Vec<(i64, Vec<f32>, f32)>, expected: Vec<(i64, Vec<f32>, f32)>| {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!((found.0, &found.1), (expected.0, &expected.1));
                assert!(
                    (found.2 - expected.2).abs() < 1e-5,
                    "{found:?} {expected:?}"
                );
            }
        };
        close(
            samples(&train),
            vec![
                row(0, 2),
                row(0, 3),
                row(3, 2),
                row(3, 3),
                row(3, 4),
                row(3, 5),
                row(3, 6),
                row(3, 7),
            ],
        );
        close(
            samples(&valid),
            vec![row(0, 4), row(0, 5), row(2, 2), row(2, 3), row(2, 4)],
        );
        assert!(
            valid
                .write(
                    Draw {
                        epoch: 0,
                        sample: 5
                    },
                    0,
                    &mut HostBatch::default()
                )
                .is_err()
        );
    }

    #[test]
    fn a_direction_is_1_above_0() {
        let mut falling = panel().as_ref().clone();
        falling.symbols[0].returns[2] = -0.5;
        falling.symbols[0].returns[3] = 0.0;
        let [train, _] = PanelWindows::both(&Arc::new(falling), 2, PanelTarget::Direction);
        let directions: Vec<f32> = samples(&train)
            .iter()
            .map(|(_, _, target)| (target - 1.0) / 2.0)
            .collect();
        assert_eq!(directions, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }
}
