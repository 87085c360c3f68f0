//! The measurement of a loop of steps: the window, the times of the steps, their rows, memory, and
//! the messages about them. Training and matrix products both run under it.
//!
//! In: the ends of steps, and the losses read. Out: `steps.csv`, `epochs.csv`, messages, and the
//! figures that the result is made of, which stay readable after an error. Waits for the device: at
//! both ends of the window, and at both ends of what is cut out of it.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
};

use kiln_core::{plan::TrialFile, record::Message};
use serde::{Deserialize, Serialize};

use super::{
    clock::seconds_between,
    feed::StepPlan,
    gradient::MeasuredGradient,
    ledger::{Divergence, Ledger, OpenStep},
    memory_watch::MemoryWatch,
    messages::Messenger,
    objective::Scores,
    step_clock::StepClock,
    tables::Tables,
    timing::{DataCost, Timing},
};
use crate::TrialError;

/// Most steps whose losses, times and gradient norms wait on the device to be read. One wait in so
/// many steps costs nothing that could be measured.
const MOST_UNREAD: u64 = 4096;

/// Work queued on one device or several, and their memory.
pub(crate) trait DeviceWork {
    /// Waits until the devices have done all they were given.
    fn wait(&mut self) -> Result<(), TrialError>;

    /// `None` where the allocator keeps no figures.
    fn allocator_peaks(&self) -> Option<AllocatorPeaks>;

    /// Bytes of the device that tensors hold now; `None` if the allocator keeps no figures.
    fn allocated_bytes(&self) -> Option<u64>;

    fn reset_allocator_peaks(&mut self);
}

/// Memory figures of the device's allocator since they were last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorPeaks {
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) retries: u64,
}

impl AllocatorPeaks {
    /// Combines the figures of two devices over the same time: the higher value of each figure.
    pub(crate) fn highest(self, other: Self) -> Self {
        Self {
            allocated_bytes: self.allocated_bytes.max(other.allocated_bytes),
            reserved_bytes: self.reserved_bytes.max(other.reserved_bytes),
            retries: self.retries.max(other.retries),
        }
    }

    /// Combines the figures of two consecutive times of a device: the higher peaks, the sum of retries.
    pub(super) fn followed_by(self, next: Self) -> Self {
        Self {
            retries: self.retries.saturating_add(next.retries),
            ..self.highest(next)
        }
    }
}

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LowestLoss {
    pub(crate) valid_loss: f64,
    /// Optimizer updates made before it.
    pub(crate) step: u64,
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
    pub(crate) steps_to_target: Option<u64>,
    pub(crate) lowest: Option<LowestLoss>,
    pub(crate) allocator: Option<AllocatorPeaks>,
    /// As of the last losses read.
    pub(crate) skipped_steps: Option<u64>,
}

impl TrainingFigures {
    /// Peaks of the time in which memory ran out, of which some may be known already.
    pub(crate) fn raise_allocator(&mut self, found: Option<AllocatorPeaks>) {
        let Some(found) = found else { return };
        self.allocator = Some(self.allocator.map_or(found, |known| known.highest(found)));
    }

    /// Adds the next of the window's stretches between evaluations.
    fn add_allocator(&mut self, found: Option<AllocatorPeaks>) {
        let Some(found) = found else { return };
        self.allocator = Some(
            self.allocator
                .map_or(found, |known| known.followed_by(found)),
        );
    }
}

/// The measurement of one attempt's steps.
pub(crate) struct Measurement<'a, 'b, W: Write> {
    pub(crate) file: &'a TrialFile,
    pub(crate) plan: StepPlan,
    pub(crate) timing: Timing,
    pub(crate) clock: Box<dyn StepClock>,
    pub(crate) ledger: Ledger,
    pub(crate) tables: Tables,
    pub(crate) messages: &'a mut Messenger<'b, W>,
    pub(crate) is_interrupted: &'a AtomicBool,
    pub(crate) figures: TrainingFigures,
    pub(crate) memory: MemoryWatch,
}

/// The data of a step that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndedStep {
    pub(crate) step: u64,
    /// `None` where nothing is learned.
    pub(crate) learning_rate: Option<f64>,
    pub(crate) cost: DataCost,
    /// Whether its loss completes a row of `epochs.csv`.
    pub(crate) ends_row: bool,
}

impl<'a, 'b, W: Write> Measurement<'a, 'b, W> {
    /// Begins now.
    pub(crate) fn new(
        file: &'a TrialFile,
        plan: StepPlan,
        mut clock: Box<dyn StepClock>,
        tables: Tables,
        messages: &'a mut Messenger<'b, W>,
        is_interrupted: &'a AtomicBool,
    ) -> Self {
        let now = clock.now();
        messages.restart(now);
        clock.restart(now);
        Self {
            file,
            plan,
            timing: Timing::new(&file.measure, now),
            clock,
            ledger: Ledger::new(file.measure.log_every, file.run_anchor_nanoseconds, plan),
            tables,
            messages,
            is_interrupted,
            figures: TrainingFigures::default(),
            memory: MemoryWatch::new(file.train.memory.watch),
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::SeqCst)
    }

    /// Whether the losses are read after `step`; those of the last step are read after the window's
    /// end.
    pub(crate) fn is_logged(&self, step: u64) -> bool {
        is_read_after(step, self.file.measure.log_every)
    }

    /// Opens the window before `step` once the warm-up is over. Waits if it does, and where the device
    /// is too far behind.
    pub(crate) fn begin_step(
        &mut self,
        step: u64,
        device: &mut impl DeviceWork,
    ) -> Result<(), TrialError> {
        self.clock.limit_queue();
        if !self.timing.warmup_is_over() {
            return Ok(());
        }
        device.wait()?;
        device.reset_allocator_peaks();
        let now = self.clock.now();
        self.clock.restart(now);
        self.timing.open_window(now);
        self.watch_memory(device);
        self.messages.send(&Message::WindowStarted {
            step,
            monotonic_nanoseconds: now,
        })
    }

    pub(crate) fn end_step(&mut self, ended: EndedStep) -> Result<(), TrialError> {
        let EndedStep {
            step,
            learning_rate,
            cost,
            ends_row,
        } = ended;
        let now = self.clock.now();
        self.clock.end_step(now);
        let is_warmup = self.timing.end_step(now, cost);
        self.figures.steps = step;
        self.ledger.open(OpenStep {
            epoch: self.plan.epoch(step),
            step,
            queued: now,
            learning_rate,
            is_warmup,
            wait_seconds: cost.wait_seconds,
            ends_row,
        });
        let samples = self.plan.samples_per_step;
        if self.messages.count_step(samples, cost.wait_seconds, now) {
            self.send_progress(now)?;
        }
        Ok(())
    }

    pub(crate) fn send_progress(&mut self, now: u64) -> Result<(), TrialError> {
        let (step, loss) = (self.figures.steps, self.ledger.newest_loss());
        self.messages
            .progress(step, self.plan.total_steps, loss, now)
    }

    /// To be called after a wait. Reads the times of the steps since the last call and writes their
    /// rows. `losses` has one entry for each, or none where nothing is learned.
    pub(crate) fn settle(
        &mut self,
        device: &impl DeviceWork,
        losses: &[f64],
        exchanges: &[Option<f64>],
        gradients: &[MeasuredGradient],
    ) -> Result<Option<Divergence>, TrialError> {
        self.watch_memory(device);
        let times = self.clock.take();
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
        self.ledger
            .settle(losses, &times, gradients, &mut self.tables)
    }

    /// Waits. A window that never opened stays closed.
    pub(crate) fn close_window(&mut self, device: &mut impl DeviceWork) -> Result<(), TrialError> {
        device.wait()?;
        self.end_stretch(device);
        self.watch_memory(device);
        self.timing.close_window(self.clock.now());
        match self.timing.figures() {
            Some(figures) => {
                let message = Message::WindowEnded {
                    step: self.figures.steps,
                    monotonic_nanoseconds: figures.ended_nanoseconds,
                };
                self.messages.send(&message)
            }
            None => Ok(()),
        }
    }

    /// Work that is not a step begins. Waits. Out: the moment.
    pub(crate) fn begin_cut(&mut self, device: &mut impl DeviceWork) -> Result<u64, TrialError> {
        device.wait()?;
        self.end_stretch(device);
        let now = self.clock.now();
        if self.timing.is_open() {
            self.messages.begin_cut(self.figures.steps, now)?;
        }
        Ok(now)
    }

    /// That work, begun at `from`, has ended: its time is cut out of the window. Waits. Out: the
    /// moment, and the work's seconds.
    pub(crate) fn end_cut(
        &mut self,
        device: &mut impl DeviceWork,
        from: u64,
    ) -> Result<(u64, f64), TrialError> {
        device.wait()?;
        device.reset_allocator_peaks();
        if self.timing.is_open() {
            let now = self.clock.now();
            self.messages.end_cut(self.figures.steps, now)?;
        }
        let to = self.clock.now();
        self.clock.restart(to);
        self.timing.cut(from, to);
        self.messages.exclude(from, to);
        Ok((to, seconds_between(from, to)))
    }

    /// Since the training started, earlier attempts included as far as this one resumes them.
    pub(crate) fn seconds_trained(&self, now: u64) -> f64 {
        self.figures.seconds_before + self.timing.seconds_since_start(now)
    }

    /// A stretch of the window ends; does nothing outside the window.
    fn end_stretch(&mut self, device: &impl DeviceWork) {
        if self.timing.is_open() {
            self.figures.add_allocator(device.allocator_peaks());
        }
    }

    /// To be called after a wait; does nothing outside the window.
    fn watch_memory(&mut self, device: &impl DeviceWork) {
        if self.timing.is_open() {
            self.memory
                .read(self.figures.steps, || device.allocated_bytes());
        }
    }
}

/// Whether losses are read after this step: every `log_every` steps, and before too many wait.
fn is_read_after(step: u64, log_every: u64) -> bool {
    (step % log_every.max(1)).is_multiple_of(MOST_UNREAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_every_so_many_steps_and_before_too_many_wait() {
        let read = |log_every: u64, steps: u64| {
            let steps = 1..=steps;
            let read = steps.filter(|step| is_read_after(*step, log_every));
            read.collect::<Vec<u64>>()
        };
        assert_eq!(read(3, 10), [3, 6, 9]);
        assert_eq!(read(0, 2), [1, 2]);
        assert_eq!(read(3000, 6000), [3000, 6000]);
        assert_eq!(read(10_000, 15_000), [4096, 8192, 10_000, 14_096]);
        assert_eq!(read(1_000_000, 8_192), [4096, 8192]);
    }
}
