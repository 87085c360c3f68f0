//! The training loop: steps, and the moments at which losses are read, evaluations run and
//! checkpoints are written.
//!
//! In: a trainee, its feed, and a measurement that hears of each step. Out: an [`Ending`]. Waits for
//! the device: at both ends of the window, at both ends of an evaluation or a checkpoint, and where
//! losses are read.

mod checkpoints;
mod evaluation;

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
};

use kiln_core::record::{Message, SAMPLE_TEXTS};

use super::{
    checkpoint::Keeper,
    early_stop::EarlyStopping,
    feed::Feed,
    ledger::Divergence,
    measurement::{EndedStep, Measurement},
    messages::Messenger,
    responses::Responses,
    sample::{TextSampler, Written},
    schedule::{Plateau, learning_rate},
    step_clock::StepClock,
    timing::{DataCost, Work},
    trainable::Trainable,
};
use crate::{TrialError, engine::CopyMarks};

/// The ways in which a training ends without an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    Completed,
    /// Completed before its last step, for this reason.
    StoppedEarly(String),
    Diverged(String),
    Interrupted,
}

/// A training in progress.
pub(crate) struct Training<'a, 'b, T: Trainable, W: Write> {
    pub(crate) measurement: Measurement<'a, 'b, W>,
    pub(crate) trainee: T,
    pub(crate) feed: Feed,
    /// Responses that the model generates at evaluations; `None` if not requested.
    pub(crate) responses: Option<Responses>,
    pub(crate) plateau: Plateau,
    pub(crate) early_stop: EarlyStopping,
    /// `None` where the trial keeps no checkpoints.
    pub(crate) keeper: Option<Keeper>,
}

impl<T: Trainable, W: Write> Training<'_, '_, T, W> {
    /// Trains to the end. The tables are written and synced, whatever the ending; not so after an
    /// error.
    pub(crate) fn train(&mut self) -> Result<Ending, TrialError> {
        let mut ending = self.make_steps()?;
        self.measurement.close_window(&mut self.trainee)?;
        if let Some(divergence) = self.settle()? {
            ending = diverged(divergence);
        }
        if !matches!(ending, Ending::Diverged(_)) {
            self.trainee.check()?;
        }
        let (step, now) = (self.measurement.figures.steps, self.measurement.clock.now());
        self.measurement.send_progress(now)?;
        if ending == Ending::Completed && self.has_validation() {
            ending = self.evaluate(step)?.unwrap_or(Ending::Completed);
        }
        self.measurement.tables.sync()?;
        if self.keeps_the_end(&ending) {
            self.checkpoint(step)?;
        }
        Ok(ending)
    }

    /// Lets the trained model write its texts, after all that is measured. Waits.
    ///
    /// Errors: those of [`TextSampler::write`]; a signal stops it too.
    pub(crate) fn sample(&mut self, sampler: &TextSampler) -> Result<(), TrialError> {
        let Self {
            trainee,
            measurement:
                Measurement {
                    messages,
                    is_interrupted,
                    file,
                    clock,
                    ..
                },
            ..
        } = self;
        let total_tokens = sampler.tokens();
        let on_progress = |Written { sample, token }| {
            report_progress(
                is_interrupted,
                messages,
                &Message::Sampling {
                    sample,
                    token,
                    total_tokens,
                },
                clock.now(),
            )
        };
        sampler.write(
            &file.folder.join(SAMPLE_TEXTS),
            |tokens, memory| trainee.predict(tokens, memory),
            on_progress,
        )
    }

    fn make_steps(&mut self) -> Result<Ending, TrialError> {
        let total_steps = self.measurement.plan.total_steps;
        if let Some(ending) = self.evaluate_what_is_owed()? {
            return Ok(ending);
        }
        if let Some(reason) = self.had_stopped_early() {
            return Ok(Ending::StoppedEarly(reason));
        }
        for step in self.measurement.figures.steps + 1..=total_steps {
            if self.measurement.is_interrupted() {
                return Ok(Ending::Interrupted);
            }
            self.measurement.begin_step(step, &mut self.trainee)?;
            self.make_step(step)?;
            if step == total_steps {
                break; // Losses and validation of the last step come after the window's end.
            }
            if self.measurement.is_logged(step)
                && let Some(divergence) = self.settle()?
            {
                return Ok(diverged(divergence));
            }
            if self.evaluation_is_due(step)
                && let Some(ending) = self.evaluate(step)?
            {
                return Ok(ending);
            }
            if self
                .keeper
                .as_ref()
                .is_some_and(|keeper| keeper.is_due(step, self.loss_at(step)))
                && let Some(ending) = self.checkpoint(step)?
            {
                return Ok(ending);
            }
        }
        Ok(Ending::Completed)
    }

    /// One optimizer update.
    fn make_step(&mut self, step: u64) -> Result<(), TrialError> {
        let (file, plan) = (self.measurement.file, self.measurement.plan);
        if plan.begins_epoch(step) {
            self.trainee.begin_epoch();
        }
        let noise = file.measure.gradient_noise;
        if let Some(wanted) = noise.filter(|noise| step.is_multiple_of(noise.every.max(1))) {
            let samples = file.train.batch_size;
            self.trainee.watch_gradient(step, samples, wanted);
        }
        let mut cost = DataCost::default();
        (0..file.batches_per_step())
            .try_for_each(|micro| self.make_micro_step(step, micro, &mut cost))?;
        let planned = learning_rate(
            &file.train.learning_rate_schedule,
            file.train.optimizer.learning_rate(),
            step,
            plan.total_steps,
        );
        let rate = planned * self.plateau.left();
        self.trainee.update(rate)?;
        self.measurement.end_step(EndedStep {
            step,
            learning_rate: Some(rate),
            cost,
            ends_row: plan.ends_epoch(step) && !self.evaluation_is_due(step),
        })
    }

    fn make_micro_step(
        &mut self,
        step: u64,
        micro: u64,
        cost: &mut DataCost,
    ) -> Result<(), TrialError> {
        let clock = &mut self.measurement.clock;
        if !self.feed.loader.has_next() {
            clock.begin_wait();
        }
        let batch = self.feed.loader.next_batch()?;
        let now = clock.now();
        cost.wait_seconds += clock.end_wait(batch.wait.as_secs_f64(), now);
        cost.load_seconds += batch.load.as_secs_f64();
        cost.work.add(&Work {
            tokens: batch.tokens(),
            pairs: batch.pair_counts(),
        });
        let Measurement { clock, plan, .. } = &mut self.measurement;
        let on_device = self
            .trainee
            .to_device(&batch, &mut TimedCopies(&mut **clock))?;
        // Training samples are whole: every target counts.
        let total_targets = batch
            .step_targets
            .unwrap_or(plan.samples_per_step * plan.targets_per_sample);
        drop(batch); // Its buffer goes back to the workers before the step is computed.
        self.trainee
            .micro_step(on_device, step, micro, total_targets)
    }

    /// Waits. Reads the losses and times of the steps since the last call and writes their rows.
    fn settle(&mut self) -> Result<Option<Divergence>, TrialError> {
        let losses = self.trainee.take_losses()?;
        self.measurement.figures.skipped_steps = self.trainee.skipped_steps();
        let exchanges = self.trainee.take_exchanges();
        let gradients = self.trainee.take_gradient_norms()?;
        self.measurement
            .settle(&self.trainee, &losses, &exchanges, &gradients)
    }

    /// Does work that is not training: its time is cut out of the window, and workers make nothing
    /// meanwhile. Waits before and after. Out: what it gave, when it ended, and its seconds.
    fn aside<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrialError>,
    ) -> Result<(R, u64, f64), TrialError> {
        let from = self.measurement.begin_cut(&mut self.trainee)?;
        self.feed.loader.pause();
        let given = work(self)?;
        let (to, seconds) = self.measurement.end_cut(&mut self.trainee, from)?;
        self.feed.loader.resume();
        Ok((given, to, seconds))
    }
}

/// Copies that a clock times.
struct TimedCopies<'a>(&'a mut dyn StepClock);

impl CopyMarks for TimedCopies<'_> {
    fn begin(&mut self) {
        let now = self.0.now();
        self.0.begin_copy(now);
    }

    fn end(&mut self) {
        let now = self.0.now();
        self.0.end_copy(now);
    }
}

/// A sign of life while the model writes. `now` is the loop's clock.
///
/// Errors: the trial is interrupted.
fn report_progress<W: Write>(
    is_interrupted: &AtomicBool,
    messages: &mut Messenger<'_, W>,
    message: &Message,
    now: u64,
) -> Result<(), TrialError> {
    if is_interrupted.load(Ordering::SeqCst) {
        return Err(TrialError::Interrupted);
    }
    messages.sign_of_life(message, now)
}

fn diverged(Divergence { step, loss }: Divergence) -> Ending {
    Ending::Diverged(format!(
        "the training loss of step {step} is {loss}; try a smaller `learning_rate` or a `clip_norm`"
    ))
}

#[cfg(test)]
mod tests;
