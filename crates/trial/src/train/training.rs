//! The training loop: steps, and the moments at which losses are read, the window opens and closes,
//! and evaluations run.
//!
//! In: a trainee, its feed, tables and a messenger. Out: an [`Ending`], and the figures that the
//! result is made of, which stay readable after an error. Waits for the device: at both ends of the
//! window, at both ends of an evaluation or a checkpoint, and where losses are read.

mod checkpoints;
mod evaluation;

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
};

use kiln_core::{plan::TrialFile, record::Message};

use super::{
    checkpoint::Keeper,
    clock::seconds_between,
    early_stop::EarlyStopping,
    feed::{Feed, StepPlan},
    ledger::{Divergence, Ledger, OpenStep},
    memory_watch::MemoryWatch,
    messages::Messenger,
    objective::Scores,
    responses::Responses,
    sample::{TextSampler, Written},
    schedule::{Plateau, learning_rate},
    step_clock::StepClock,
    tables::Tables,
    timing::{DataCost, Timing, Work},
    trainable::{AllocatorPeaks, Trainable},
};
use crate::TrialError;

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
    pub(crate) file: &'a TrialFile,
    pub(crate) plan: StepPlan,
    pub(crate) trainee: T,
    /// `None` for a model that only makes matrix products.
    pub(crate) feed: Option<Feed>,
    /// Responses that the model generates at evaluations; `None` if not requested.
    pub(crate) responses: Option<Responses>,
    pub(crate) timing: Timing,
    pub(crate) clock: Box<dyn StepClock>,
    pub(crate) ledger: Ledger,
    pub(crate) tables: Tables,
    pub(crate) messages: &'a mut Messenger<'b, W>,
    pub(crate) is_interrupted: &'a AtomicBool,
    pub(crate) measured: TrainingFigures,
    pub(crate) plateau: Plateau,
    pub(crate) early_stop: EarlyStopping,
    pub(crate) memory: MemoryWatch,
    /// `None` where the trial keeps no checkpoints.
    pub(crate) keeper: Option<Keeper>,
}

/// The loop's measurements outside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainingFigures {
    /// Steps made, those before `resumed_at` included.
    pub(crate) steps: u64,
    /// The step of the checkpoint that this attempt resumes from.
    pub(crate) resumed_at: Option<u64>,
    /// Duration of earlier attempts.
    pub(crate) seconds_before: f64,
    pub(crate) evaluation_seconds: Option<f64>,
    pub(crate) checkpoint_seconds: Option<f64>,
    /// Scores of the last evaluation, and the step before it.
    pub(crate) scores: Option<Scores>,
    pub(crate) evaluated_at: Option<u64>,
    pub(crate) seconds_to_target: Option<f64>,
    pub(crate) allocator: Option<AllocatorPeaks>,
    /// As of the last losses read.
    pub(crate) skipped_steps: Option<u64>,
}

impl TrainingFigures {
    /// The peaks of the window are the highest of its stretches between evaluations.
    pub(crate) fn raise_allocator(&mut self, found: Option<AllocatorPeaks>) {
        let Some(found) = found else { return };
        self.allocator = Some(self.allocator.map_or(found, |known| known.highest(found)));
    }
}

impl<T: Trainable, W: Write> Training<'_, '_, T, W> {
    /// Trains to the end. The tables are written and synced, whatever the ending; not so after an
    /// error.
    pub(crate) fn train(&mut self) -> Result<Ending, TrialError> {
        let mut ending = self.make_steps()?;
        self.close_window()?;
        if let Some(divergence) = self.settle()? {
            ending = diverged(divergence);
        }
        if !matches!(ending, Ending::Diverged(_)) {
            self.trainee.check()?;
        }
        let (step, now) = (self.measured.steps, self.clock.now());
        self.messages
            .progress(step, self.plan.total_steps, self.ledger.newest_loss(), now)?;
        if ending == Ending::Completed && self.has_validation() {
            ending = self.evaluate(step)?.unwrap_or(Ending::Completed);
        }
        self.tables.sync()?;
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
            messages,
            is_interrupted,
            file,
            clock,
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
            &file.folder.join("sample.txt"),
            |tokens, memory| trainee.predict(tokens, memory),
            on_progress,
        )
    }

    fn make_steps(&mut self) -> Result<Ending, TrialError> {
        let total_steps = self.plan.total_steps;
        if let Some(ending) = self.evaluate_what_is_owed()? {
            return Ok(ending);
        }
        for step in self.measured.steps + 1..=total_steps {
            if self.is_interrupted() {
                return Ok(Ending::Interrupted);
            }
            if self.timing.warmup_is_over() {
                self.open_window(step)?;
            }
            self.make_step(step)?;
            if step == total_steps {
                break; // Losses and validation of the last step come after the window's end.
            }
            if step.is_multiple_of(self.file.measure.log_every.max(1))
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

    /// One optimizer update, or one round of matrix products.
    fn make_step(&mut self, step: u64) -> Result<(), TrialError> {
        let mut cost = DataCost::default();
        let rate = if self.feed.is_some() {
            if self.plan.begins_epoch(step) {
                self.trainee.begin_epoch();
            }
            (0..self.file.batches_per_step())
                .try_for_each(|micro| self.make_micro_step(step, micro, &mut cost))?;
            let train = &self.file.train;
            let planned = learning_rate(
                &train.learning_rate_schedule,
                train.optimizer.learning_rate(),
                step,
                self.plan.total_steps,
            );
            let rate = planned * self.plateau.left();
            self.trainee.update(rate)?;
            Some(rate)
        } else {
            self.trainee.product()?;
            None
        };
        self.end_step(step, rate, cost)
    }

    fn make_micro_step(
        &mut self,
        step: u64,
        micro: u64,
        cost: &mut DataCost,
    ) -> Result<(), TrialError> {
        let Some(feed) = &mut self.feed else {
            return Ok(());
        };
        let batch = feed
            .loader
            .next_batch()
            .map_err(|error| TrialError::Failed(error.to_string()))?;
        cost.wait_seconds += batch.wait.as_secs_f64();
        cost.load_seconds += batch.load.as_secs_f64();
        cost.work.add(&Work {
            tokens: batch.tokens(),
            pairs: batch.pair_counts(),
        });
        let now = self.clock.now();
        self.clock.begin_copy(now);
        let on_device = self.trainee.to_device(&batch)?;
        let now = self.clock.now();
        self.clock.end_copy(now);
        // Training samples are whole: every target counts.
        let total_targets = batch
            .step_targets
            .unwrap_or(self.plan.samples_per_step * self.plan.targets_per_sample);
        drop(batch); // Its buffer goes back to the workers before the step is computed.
        self.trainee
            .micro_step(on_device, step, micro, total_targets)
    }

    fn end_step(
        &mut self,
        step: u64,
        learning_rate: Option<f64>,
        cost: DataCost,
    ) -> Result<(), TrialError> {
        let now = self.clock.now();
        self.clock.end_step(now);
        let is_warmup = self.timing.end_step(now, cost);
        self.measured.steps = step;
        self.ledger.open(OpenStep {
            epoch: self.plan.epoch(step),
            step,
            ended: now,
            learning_rate,
            is_warmup,
            wait_seconds: cost.wait_seconds,
            ends_row: self.plan.ends_epoch(step) && !self.evaluation_is_due(step),
        });
        if self
            .messages
            .count_step(self.plan.samples_per_step, cost.wait_seconds, now)
        {
            self.messages
                .progress(step, self.plan.total_steps, self.ledger.newest_loss(), now)?;
        }
        Ok(())
    }

    /// To be called after a wait; does nothing outside the window.
    fn watch_memory(&mut self) {
        if self.timing.is_open() {
            self.memory
                .read(self.measured.steps, || self.trainee.allocated_bytes());
        }
    }

    /// Waits. Reads the losses and times of the steps since the last call and writes their rows.
    fn settle(&mut self) -> Result<Option<Divergence>, TrialError> {
        if self.feed.is_none() {
            self.trainee.wait()?; // No loss to read, but the host must not run far ahead of the device.
        }
        let losses = if self.feed.is_some() {
            self.trainee.take_losses()?
        } else {
            Vec::new()
        };
        self.measured.skipped_steps = self.trainee.skipped_steps();
        self.watch_memory();
        let (times, exchanges) = (self.clock.take(), self.trainee.take_exchanges());
        for (time, _) in times
            .iter()
            .zip(self.ledger.open_in_window())
            .filter(|(_, is_in_window)| *is_in_window)
        {
            self.timing.add_times(*time);
        }
        for (seconds, _) in exchanges
            .iter()
            .zip(self.ledger.open_in_window())
            .filter(|(_, is_in_window)| *is_in_window)
        {
            self.timing.add_exchange(*seconds);
        }
        self.ledger.settle(&losses, &times, &mut self.tables)
    }

    fn open_window(&mut self, step: u64) -> Result<(), TrialError> {
        self.trainee.wait()?;
        self.trainee.reset_allocator_peaks();
        let now = self.clock.now();
        self.clock.restart(now);
        self.timing.open_window(now);
        self.watch_memory();
        self.messages.send(&Message::WindowStarted {
            step,
            monotonic_nanoseconds: now,
        })
    }

    /// Waits. A window that never opened stays closed.
    fn close_window(&mut self) -> Result<(), TrialError> {
        self.trainee.wait()?;
        if self.timing.is_open() {
            self.measured
                .raise_allocator(self.trainee.allocator_peaks());
        }
        self.watch_memory();
        self.timing.close_window(self.clock.now());
        match self.timing.figures() {
            Some(figures) => {
                let message = Message::WindowEnded {
                    step: self.measured.steps,
                    monotonic_nanoseconds: figures.ended_nanoseconds,
                };
                self.messages.send(&message)
            }
            None => Ok(()),
        }
    }

    /// Since the training started, earlier attempts included as far as this one resumes them.
    fn seconds_trained(&self, now: u64) -> f64 {
        self.measured.seconds_before + self.timing.seconds_since_start(now)
    }

    /// Does work that is not training: its time is cut out of the window, and workers make nothing
    /// meanwhile. Waits before and after. Out: what it gave, when it ended, and its seconds.
    fn aside<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrialError>,
    ) -> Result<(R, u64, f64), TrialError> {
        self.trainee.wait()?;
        if self.timing.is_open() {
            self.measured
                .raise_allocator(self.trainee.allocator_peaks());
        }
        let from = self.clock.now();
        self.pause_loader(true);
        let given = work(self)?;
        self.trainee.wait()?;
        self.trainee.reset_allocator_peaks();
        let to = self.clock.now();
        self.pause_loader(false);
        self.clock.restart(to);
        self.timing.cut(from, to);
        self.messages.restart(to);
        Ok((given, to, seconds_between(from, to)))
    }

    fn pause_loader(&self, is_paused: bool) {
        match &self.feed {
            Some(feed) if is_paused => feed.loader.pause(),
            Some(feed) => feed.loader.resume(),
            None => {}
        }
    }

    fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::SeqCst)
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
