//! Steps whose losses are still on the device, and their results once they are read: rows, means,
//! divergence.

use std::collections::VecDeque;

use kiln_core::{
    record::{EpochRow, LayerRow, StepRow, epochs::EPOCHS, layers::LAYERS, steps::STEPS},
    statistics::{MOST_MEASURED, NoiseScale, NoiseSums},
};
use serde::{Deserialize, Serialize};

use super::{
    feed::StepPlan, gradient::MeasuredGradient, objective::Scores, step_clock::StepSeconds,
    tables::Tables,
};
use crate::TrialError;

/// One step made; its loss is not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenStep {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    /// CLOCK_MONOTONIC when the host had queued all of it; where the host computes, its end.
    pub(crate) queued: u64,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) is_warmup: bool,
    pub(crate) wait_seconds: f64,
    /// Whether it ends an epoch that no evaluation follows, so that its loss completes a row of
    /// `epochs.csv`.
    pub(crate) ends_row: bool,
}

/// A step whose loss is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Divergence {
    pub(crate) step: u64,
    pub(crate) loss: f64,
}

/// Columns that one evaluation adds to its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) scores: Scores,
    pub(crate) seconds: f64,
}

/// Position of a row of `epochs.csv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochPlace {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    /// CLOCK_MONOTONIC.
    pub(crate) at: u64,
}

/// The books of one training.
pub(crate) struct Ledger {
    open: Vec<OpenStep>,
    /// Losses of the newest `log_every` steps.
    recent: VecDeque<f64>,
    log_every: usize,
    /// Sum and number of losses since the last row of `epochs.csv`.
    row_sum: f64,
    row_steps: u64,
    noise: NoiseBook,
    run_anchor_nanoseconds: i64,
    samples_per_step: u64,
    /// Whether the loss is of tokens, so that it has a perplexity.
    is_text: bool,
}

/// The newest measured gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct NoiseBook {
    steps: VecDeque<NoiseSums>,
    losses: VecDeque<f64>,
    last_step: u64,
}

/// The gradient noise of the newest measured steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredNoise {
    /// `None` with too few steps, or if nothing can be told.
    pub(crate) scale: Option<NoiseScale>,
    pub(crate) last_step: u64,
    /// Number of steps.
    pub(crate) steps: usize,
    /// Their mean training loss.
    pub(crate) loss: f64,
}

impl NoiseBook {
    fn add(&mut self, step: u64, sums: NoiseSums, loss: f64) {
        self.steps.push_back(sums);
        self.losses.push_back(loss);
        self.last_step = step;
        // An estimate is made of the newest half.
        if self.steps.len() > 2 * MOST_MEASURED {
            self.steps.pop_front();
            self.losses.pop_front();
        }
    }

    /// The steps that an estimate is made of.
    fn window(&self) -> impl ExactSizeIterator<Item = &NoiseSums> {
        let before = self.steps.len() - NoiseScale::window(self.steps.len());
        self.steps.iter().skip(before)
    }
}

/// Saved state of a ledger: losses that were read and are not in a row of `epochs.csv` yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LedgerState {
    recent: VecDeque<f64>,
    row_sum: f64,
    row_steps: u64,
    #[serde(default)]
    noise: NoiseBook,
}

impl Ledger {
    pub(crate) fn new(log_every: u64, run_anchor_nanoseconds: i64, plan: StepPlan) -> Self {
        Self {
            open: Vec::new(),
            recent: VecDeque::new(),
            log_every: log_every.max(1) as usize,
            row_sum: 0.0,
            row_steps: 0,
            noise: NoiseBook::default(),
            run_anchor_nanoseconds,
            samples_per_step: plan.samples_per_step,
            is_text: plan.tokens_per_sample > 0.0,
        }
    }

    /// State of the settled steps.
    pub(crate) fn state(&self) -> LedgerState {
        LedgerState {
            recent: self.recent.clone(),
            row_sum: self.row_sum,
            row_steps: self.row_steps,
            noise: self.noise.clone(),
        }
    }

    pub(crate) fn restore(&mut self, state: &LedgerState) {
        self.recent.clone_from(&state.recent);
        (self.row_sum, self.row_steps) = (state.row_sum, state.row_steps);
        self.noise.clone_from(&state.noise);
    }

    /// The gradient noise; `None` if no step was measured.
    pub(crate) fn noise(&self) -> Option<MeasuredNoise> {
        let steps: Vec<NoiseSums> = self.noise.window().copied().collect();
        let losses = self.noise.losses.iter().rev().take(steps.len());
        (!steps.is_empty()).then(|| MeasuredNoise {
            scale: NoiseScale::over(&steps),
            last_step: self.noise.last_step,
            steps: steps.len(),
            loss: losses.sum::<f64>() / steps.len() as f64,
        })
    }

    pub(crate) fn open(&mut self, step: OpenStep) {
        self.open.push(step);
    }

    /// The newest loss read.
    pub(crate) fn newest_loss(&self) -> Option<f64> {
        self.recent.back().copied()
    }

    /// Mean loss of the newest `log_every` steps; `None` if none was read or one of them is NaN or
    /// infinite.
    pub(crate) fn train_loss(&self) -> Option<f64> {
        let mean = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        mean.is_finite().then_some(mean)
    }

    /// The open steps, in their order, that belong to the window.
    pub(crate) fn open_in_window(&self) -> impl Iterator<Item = bool> + '_ {
        self.open.iter().map(|step| !step.is_warmup)
    }

    /// Writes the rows of all open steps. `times` has one entry per open step; so has `losses`, or
    /// none at all for a model without a loss. The first loss that is NaN or infinite is reported;
    /// its cell is empty.
    pub(crate) fn settle(
        &mut self,
        losses: &[f64],
        times: &[StepSeconds],
        gradients: &[MeasuredGradient],
        tables: &mut Tables,
    ) -> Result<Option<Divergence>, TrialError> {
        let open = std::mem::take(&mut self.open);
        if times.len() != open.len() || (!losses.is_empty() && losses.len() != open.len()) {
            let (losses, times, open) = (losses.len(), times.len(), open.len());
            return Err(TrialError::Failed(format!(
                "{losses} losses and {times} times were read for {open} steps; this is a bug in \
                 kiln-trial; please report it"
            )));
        }
        let mut divergence = None;
        for (index, (step, time)) in open.iter().zip(times).enumerate() {
            let loss = losses.get(index).copied();
            let ended = time.ended.unwrap_or(step.queued);
            let mut row = self.step_row((step, ended), *time, loss);
            if let Some(measured) = gradients.iter().find(|one| one.step == step.step) {
                self.add_gradient(&mut row, measured);
                layer_rows(&row, measured).try_for_each(|row| tables.add_layer(&row))?;
            }
            tables.add_step(&row)?;
            let Some(loss) = loss else { continue };
            self.count(loss);
            if !loss.is_finite() && divergence.is_none() {
                divergence = Some(Divergence {
                    step: step.step,
                    loss,
                });
            }
            if step.ends_row {
                self.add_epoch(
                    EpochPlace {
                        epoch: step.epoch,
                        step: step.step,
                        at: ended,
                    },
                    None,
                    tables,
                )?;
            }
        }
        tables.flush()?;
        Ok(divergence)
    }

    /// Writes a row of `epochs.csv` and starts the next one's mean.
    pub(crate) fn add_epoch(
        &mut self,
        place: EpochPlace,
        evaluation: Option<Evaluation>,
        tables: &mut Tables,
    ) -> Result<(), TrialError> {
        let mean = self.row_sum / self.row_steps as f64;
        let scores = evaluation.map(|evaluation| evaluation.scores);
        let valid_loss = scores.map(|scores| scores.loss);
        (self.row_sum, self.row_steps) = (0.0, 0);
        tables.add_epoch(&EpochRow {
            kiln_table: EPOCHS.version.to_string(),
            run_seconds: self.run_seconds(place.at),
            epoch: place.epoch,
            step: place.step,
            train_loss: mean.is_finite().then_some(mean),
            valid_loss,
            valid_perplexity: valid_loss
                .filter(|_| self.is_text)
                .map(f64::exp)
                .filter(|perplexity| perplexity.is_finite()),
            valid_top1: scores.and_then(|scores| scores.top1),
            valid_top5: scores.and_then(|scores| scores.top5),
            valid_mean_absolute_error: scores.and_then(|scores| scores.mean_absolute_error),
            valid_hit_rate: scores.and_then(|scores| scores.hit_rate),
            valid_bleu4: scores.and_then(|scores| scores.bleu4),
            valid_chrf: scores.and_then(|scores| scores.chrf),
            evaluation_seconds: evaluation.map(|evaluation| evaluation.seconds),
            samples: place.step * self.samples_per_step,
        })
    }

    fn count(&mut self, loss: f64) {
        self.row_sum += loss;
        self.row_steps += 1;
        self.recent.push_back(loss);
        // A training that continues another may log more often than that.
        while self.recent.len() > self.log_every {
            self.recent.pop_front();
        }
    }

    fn step_row(
        &self,
        (step, ended): (&OpenStep, u64),
        time: StepSeconds,
        loss: Option<f64>,
    ) -> StepRow {
        StepRow {
            kiln_table: STEPS.version.to_string(),
            run_seconds: self.run_seconds(ended),
            epoch: step.epoch,
            step: step.step,
            loss: loss.filter(|loss| loss.is_finite()),
            learning_rate: step.learning_rate,
            step_seconds: time.step,
            data_wait_seconds: step.wait_seconds,
            is_warmup: step.is_warmup,
            ..StepRow::default()
        }
    }

    /// Counts a measured gradient, and writes it into the row of its step. One that overflowed
    /// counts for nothing.
    fn add_gradient(&mut self, row: &mut StepRow, measured: &MeasuredGradient) {
        let norms = measured.norms;
        row.gradient_norm_squared = finite(norms.whole);
        row.micro_gradient_norm_squared = finite(norms.micro / norms.weights);
        let (Some(sums), Some(loss)) = (norms.estimates(), row.loss) else {
            return;
        };
        self.noise.add(measured.step, sums, loss);
        row.gradient_signal = Some(sums.signal);
        row.gradient_noise = Some(sums.noise);
        row.gradient_noise_scale = NoiseSums::mean(self.noise.window()).and_then(NoiseSums::scale);
    }

    /// Seconds after the run's start mark.
    fn run_seconds(&self, at: u64) -> f64 {
        (i128::from(at) - i128::from(self.run_anchor_nanoseconds)) as f64 / 1e9
    }
}

/// The rows of a measured step's layer groups; `row` is that of the step. They have no estimates where it
/// has none: its loss is no number, or a gradient overflowed.
fn layer_rows(row: &StepRow, measured: &MeasuredGradient) -> impl Iterator<Item = LayerRow> {
    let groups = measured.layer_groups.iter().zip(&measured.of_groups);
    groups.map(|(group, norms)| {
        let sums = row.gradient_signal.and(norms.estimates());
        LayerRow {
            kiln_table: LAYERS.version.to_string(),
            step: row.step,
            layer_group: group.name.clone(),
            parameters: group.parameters,
            gradient_norm_squared: finite(norms.whole),
            micro_gradient_norm_squared: finite(norms.micro / norms.weights),
            gradient_signal: sums.map(|sums| sums.signal),
            gradient_noise: sums.map(|sums| sums.noise),
        }
    })
}

fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kiln_core::statistics::GradientNorms;

    use super::*;
    use crate::train::gradient::LayerGroup;

    fn step(step: u64, ends_row: bool) -> OpenStep {
        OpenStep {
            epoch: 1,
            step,
            queued: step * 1_000_000_000,
            learning_rate: Some(0.5),
            is_warmup: step < 3,
            wait_seconds: 0.25,
            ends_row,
        }
    }

    const PLAN: StepPlan = StepPlan {
        total_steps: 4,
        steps_per_epoch: None,
        samples_per_step: 8,
        tokens_per_sample: 16.0,
        targets_per_sample: 16,
    };
    const TIME: StepSeconds = StepSeconds {
        step: Some(0.5),
        copy: None,
        ended: None,
    };

    fn read<R: serde::de::DeserializeOwned>(folder: &std::path::Path, name: &str) -> Vec<R> {
        csv::Reader::from_path(folder.join(name))
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn each_step_gets_its_own_loss_and_an_epochs_row_their_mean() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::create(folder.path()).unwrap();
        let mut ledger = Ledger::new(2, -2_000_000_000, PLAN);
        (1..=4).for_each(|number| ledger.open(step(number, number == 3)));
        assert_eq!(
            ledger
                .settle(&[4.0, 3.0, 2.0, 1.0], &[TIME; 4], &[], &mut tables)
                .unwrap(),
            None
        );
        assert_eq!(
            (ledger.train_loss(), ledger.newest_loss()),
            (Some(1.5), Some(1.0))
        );
        let steps: Vec<StepRow> = read(folder.path(), "steps.csv");
        assert_eq!(
            steps
                .iter()
                .map(|row| row.loss.unwrap())
                .collect::<Vec<f64>>(),
            [4.0, 3.0, 2.0, 1.0]
        );
        assert_eq!(
            (steps[0].run_seconds, steps[1].is_warmup, steps[2].is_warmup),
            (3.0, true, false)
        );
        ledger
            .add_epoch(
                EpochPlace {
                    epoch: 2,
                    step: 4,
                    at: 5_000_000_000,
                },
                Some(Evaluation {
                    scores: Scores {
                        loss: 2.0,
                        ..Scores::default()
                    },
                    seconds: 1.0,
                }),
                &mut tables,
            )
            .unwrap();
        tables.sync().unwrap();
        let epochs: Vec<EpochRow> = read(folder.path(), "epochs.csv");
        assert_eq!(
            (
                epochs[0].step,
                epochs[0].train_loss,
                epochs[0].samples,
                epochs[0].valid_loss
            ),
            (3, Some(3.0), 24, None)
        );
        assert_eq!(
            (
                epochs[1].train_loss,
                epochs[1].valid_perplexity,
                epochs[1].run_seconds
            ),
            (Some(1.0), Some(2f64.exp()), 7.0)
        );
    }

    /// The norms of a step with two equal micro-batches of two samples each.
    fn norms(micro: f64, whole: f64) -> GradientNorms {
        GradientNorms {
            micro,
            whole,
            weights: 0.5,
            samples: 2.0,
        }
    }

    #[test]
    fn layer_groups_have_rows_of_their_own_and_count_where_their_step_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::create(folder.path()).unwrap();
        let mut ledger = Ledger::new(10, 0, PLAN);
        (1..=3).for_each(|number| ledger.open(step(number, false)));
        let layer_groups: Arc<[LayerGroup]> = ["a", "b"]
            .map(|name| LayerGroup {
                name: name.to_owned(),
                parameters: 3,
            })
            .into();
        let measured = |step: u64, of_groups: [GradientNorms; 2]| MeasuredGradient {
            step,
            norms: norms(
                of_groups[0].micro + of_groups[1].micro,
                of_groups[0].whole + of_groups[1].whole,
            ),
            of_groups: of_groups.to_vec(),
            layer_groups: Arc::clone(&layer_groups),
        };
        let both = [norms(2.0, 3.0), norms(1.0, 1.0)];
        let gradients = [
            measured(1, both),
            measured(2, both),
            measured(3, [norms(2.0, 3.0), norms(f64::INFINITY, f64::INFINITY)]),
        ];
        ledger
            .settle(&[4.0, f64::NAN, 2.0], &[TIME; 3], &gradients, &mut tables)
            .unwrap();
        let rows: Vec<LayerRow> = read(folder.path(), "layers.csv");
        let cells: Vec<(u64, &str, Option<f64>, Option<f64>)> = rows
            .iter()
            .map(|row| {
                let group = row.layer_group.as_str();
                (
                    row.step,
                    group,
                    row.gradient_norm_squared,
                    row.gradient_signal,
                )
            })
            .collect();
        assert_eq!(
            cells,
            [
                (1, "a", Some(3.0), Some(2.0)),
                (1, "b", Some(1.0), Some(0.0)),
                (2, "a", Some(3.0), None),
                (2, "b", Some(1.0), None),
                (3, "a", Some(3.0), None),
                (3, "b", None, None),
            ]
        );
        // 2 × (2 / 0.5 - 2).
        assert_eq!(rows[0].gradient_noise, Some(4.0));
        let steps: Vec<StepRow> = read(folder.path(), "steps.csv");
        let signals: Vec<Option<f64>> = steps.iter().map(|row| row.gradient_signal).collect();
        assert_eq!(signals, [Some(2.0), None, None]);
    }

    #[test]
    fn a_loss_that_is_no_number_is_found_at_its_step_and_leaves_an_empty_cell() {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::create(folder.path()).unwrap();
        let mut ledger = Ledger::new(10, 0, PLAN);
        (1..=3).for_each(|number| ledger.open(step(number, false)));
        let divergence = ledger
            .settle(
                &[1.0, f64::INFINITY, f64::NAN],
                &[TIME, StepSeconds::default(), TIME],
                &[],
                &mut tables,
            )
            .unwrap();
        assert_eq!(
            divergence,
            Some(Divergence {
                step: 2,
                loss: f64::INFINITY
            })
        );
        assert_eq!(ledger.train_loss(), None);
        let steps: Vec<StepRow> = read(folder.path(), "steps.csv");
        assert_eq!(
            (steps[0].loss, steps[1].loss, steps[2].loss),
            (Some(1.0), None, None)
        );
        assert_eq!(
            (steps[0].step_seconds, steps[1].step_seconds),
            (Some(0.5), None)
        );
        assert!(
            ledger.settle(&[], &[TIME], &[], &mut tables).is_err(),
            "a time without a step"
        );
    }
}
