//! Turns the end of a training, good or bad, into the result file, an outcome with a reason and an
//! exit status.

use std::{io::Write, path::Path};

use kiln_core::{
    plan::{Outcome, TrialFile},
    record::{
        TrialResult,
        message::exit_status,
        note::{ReplayedSteps, StoppedEarly, UnwrittenCheckpoint},
        run_file::write_json,
    },
    statistics::FEWEST_MEASURED,
    units::{Bytes, counted},
};

use super::{
    checkpoint::Keeper, feed::cores, interrupt::interrupting_signal, ledger::MeasuredNoise,
    measurement::Measurement, tables::cannot_write, timing::Figures, trainable::Copying,
    training::Ending,
};
#[cfg(feature = "libtorch")]
use crate::engine;
use crate::{TrialError, error::is_full};

/// A trial that came to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialEnded {
    pub result: TrialResult,
    pub exit_status: i32,
}

/// A result that contains only the request so far.
pub(crate) fn empty_result(file: &TrialFile) -> TrialResult {
    let mut result = TrialResult::empty(file.trial.clone(), file.attempt);
    result.figures.cpu_threads = Some(file.train.cpu_threads.resolve(cores()));
    result
}

/// State of a finished measurement, for its result.
pub(crate) struct Measured<'a, 'b, 'c, W: Write> {
    pub(crate) measurement: &'a Measurement<'b, 'c, W>,
    pub(crate) copying: Copying,
    /// Note on the way steps were run, if the file asks for more than operator by operator.
    pub(crate) step_note: Option<String>,
    pub(crate) keeper: Option<&'a Keeper>,
}

impl<W: Write> Measured<'_, '_, '_, W> {
    /// Puts the figures into the result; each empty cell that a reader would ask about gets its
    /// reason.
    pub(crate) fn fill(&self, result: &mut TrialResult) {
        let Measurement {
            timing,
            ledger,
            figures: measured,
            ..
        } = self.measurement;
        result.figures.steps = Some(measured.steps);
        result.figures.left_out_steps = Some(timing.left_out_steps());
        result.figures.train_loss = ledger.train_loss();
        result.figures.skipped_steps = measured.skipped_steps;
        fill_gradient_noise(self.measurement.file, ledger.noise(), result);
        if let Some(scores) = measured.scores {
            result.figures.valid_loss = Some(scores.loss);
            result.figures.valid_top1 = scores.top1;
            result.figures.valid_top5 = scores.top5;
            result.figures.valid_mean_absolute_error = scores.mean_absolute_error;
            result.figures.valid_hit_rate = scores.hit_rate;
            result.figures.valid_bleu4 = scores.bleu4;
            result.figures.valid_chrf = scores.chrf;
        }
        result.figures.evaluation_seconds = measured.evaluation_seconds;
        result.figures.checkpoint_seconds = measured.checkpoint_seconds;
        result.figures.resumed_at_step = measured.resumed_at;
        if let Some(keeper) = self.keeper {
            result.figures.checkpoint_bytes = keeper.bytes;
            keeper
                .failure
                .iter()
                .for_each(|failure| note(result, UnwrittenCheckpoint::COLUMN, failure.clone()));
        }
        result.figures.seconds_to_target = measured.seconds_to_target;
        result.figures.steps_to_target = measured.steps_to_target;
        result.figures.lowest_valid_loss = measured.lowest.map(|lowest| lowest.valid_loss);
        result.figures.lowest_valid_step = measured.lowest.map(|lowest| lowest.step);
        if let Some(peaks) = measured.allocator {
            result.figures.peak_allocated_bytes = Some(peaks.allocated_bytes);
            result.figures.peak_reserved_bytes = Some(peaks.reserved_bytes);
            result.figures.allocator_retries = Some(peaks.retries);
        }
        result.figures.copied_from = self.copying.from.map(str::to_owned);
        if let Some(kernels) = attention_kernels(self.copying.from.is_some()) {
            note(result, "sdpa_backend", kernels);
        }
        #[cfg(feature = "libtorch")]
        if let Some(fault) = engine::cuda_kernels::fault() {
            note(result, "cuda_kernels", format!("libtorch's alone: {fault}"));
        }
        self.step_note
            .iter()
            .for_each(|text| note(result, ReplayedSteps::COLUMN, text.clone()));
        if let Some(reason) = &self.copying.note {
            note(result, "pin_memory", reason.clone());
        }
        match timing.figures() {
            Some(figures) => self.fill_window(result, &figures),
            None => note(result, "window_seconds", timing.why_no_window()),
        }
    }

    fn fill_window(&self, result: &mut TrialResult, figures: &Figures) {
        let samples = figures.steps * self.measurement.plan.samples_per_step;
        result.figures.window_seconds = Some(figures.seconds);
        result.window_started_nanoseconds = Some(figures.started_nanoseconds);
        result.window_ended_nanoseconds = Some(figures.ended_nanoseconds);
        result.window_cuts_nanoseconds = self.measurement.timing.cuts().to_vec();
        result.figures.window_samples = Some(samples);
        result.figures.samples_per_second = Some(samples as f64 / figures.seconds);
        if self.measurement.plan.tokens_per_sample > 0.0 {
            result.figures.window_tokens = Some(figures.work.tokens);
            result.figures.tokens_per_second = Some(figures.work.tokens as f64 / figures.seconds);
        }
        result.window_pairs = Some(figures.work.pairs).filter(|pairs| pairs.rows > 0);
        if self.measurement.plan.steps_per_epoch.is_some() {
            result.figures.data_wait_fraction = Some(figures.data_wait_fraction);
            result.figures.load_seconds = Some(figures.load_seconds);
            result.figures.transfer_fraction = figures.transfer_fraction;
            if figures.transfer_fraction.is_none() {
                note(result, "transfer_fraction", self.why_not_timed());
            }
        }
        result.figures.communication_fraction = figures.communication_fraction;
        let memory = &self.measurement.memory;
        result.figures.resident_slope_bytes_per_step = memory.resident().slope();
        result.figures.allocated_slope_bytes_per_step = memory.allocated().slope();
        for (column, series) in [
            ("resident_slope_bytes_per_step", memory.resident()),
            ("allocated_slope_bytes_per_step", memory.allocated()),
        ] {
            series
                .clear_growth()
                .into_iter()
                .for_each(|growth| note(result, column, growth.to_string()));
        }
        result.figures.epoch_seconds = self
            .measurement
            .plan
            .steps_per_epoch
            .map(|steps| steps as f64 * figures.seconds / figures.steps as f64);
        result.figures.median_step_seconds = figures.median_step_seconds;
        if figures.median_step_seconds.is_none() {
            note(result, "median_step_seconds", self.why_not_timed());
        }
    }

    fn why_not_timed(&self) -> String {
        let reason = self
            .measurement
            .clock
            .failure()
            .unwrap_or("the training ended before the times of its last steps were read");
        format!("not every step was timed on this device ({reason}); see samples_per_second")
    }
}

/// The kernels of libtorch that computed attention on the GPU: it chooses by shapes and device, and
/// they differ in speed. `None` on the CPU, and where there was no attention.
fn attention_kernels(is_gpu: bool) -> Option<String> {
    #[cfg(feature = "libtorch")]
    if is_gpu || engine::libtorch::cuda_branches_forced() {
        return Some(engine::libtorch::attention_kernels().join(", "))
            .filter(|kernels| !kernels.is_empty());
    }
    let _ = is_gpu;
    None
}

fn note(result: &mut TrialResult, column: &str, reason: String) {
    result.notes.insert(column.to_string(), reason);
}

/// Sets the outcome, its reason and the notes about empty cells; returns the exit status
/// (`kiln_core::record::message::exit_status`).
pub(crate) fn conclude(
    file: &TrialFile,
    result: &mut TrialResult,
    ended: Result<Ending, TrialError>,
) -> i32 {
    let status = ended
        .as_ref()
        .map_or_else(TrialError::exit_status, |ending| match ending {
            Ending::Interrupted => exit_status::INTERRUPTED,
            Ending::Completed | Ending::StoppedEarly(_) | Ending::Diverged(_) => {
                exit_status::RESULT
            }
        });
    let (outcome, reason) = match ended {
        Ok(Ending::Completed) => (Outcome::Completed, None),
        Ok(Ending::StoppedEarly(reason)) => {
            let text = StoppedEarly::text(result.steps(), &reason);
            note(result, StoppedEarly::COLUMN, text.clone());
            (Outcome::Completed, Some(text))
        }
        Ok(Ending::Diverged(reason)) => (Outcome::Diverged, Some(reason)),
        Ok(Ending::Interrupted) | Err(TrialError::Interrupted) => {
            let reason = format!(
                "{} stopped the trial; its last step was {}",
                interrupting_signal().unwrap_or("a signal"),
                result.steps()
            );
            (Outcome::Interrupted, Some(reason))
        }
        Err(TrialError::OutOfMemory { text }) => {
            (Outcome::Oom, Some(out_of_memory(file, result, &text)))
        }
        Err(
            TrialError::NoDevice(reason) | TrialError::Bad(reason) | TrialError::Failed(reason),
        ) => (Outcome::Failed, Some(reason)),
        Err(TrialError::DiskFull(reason)) => (Outcome::Interrupted, Some(reason)),
        Err(TrialError::NotSaved(error)) => {
            let outcome = match is_full(&error) {
                true => Outcome::Interrupted,
                false => Outcome::Failed,
            };
            let reason = format!("a checkpoint could not be written: {error}");
            (outcome, Some(reason))
        }
    };
    result.outcome = outcome;
    result.reason = reason;
    explain_empty_losses(file, result);
    status
}

fn out_of_memory(file: &TrialFile, result: &TrialResult, text: &str) -> String {
    let what = asked_for_on_cpu(text).map_or_else(
        || text.to_owned(),
        |bytes| format!("asked for {}", Bytes(bytes)),
    );
    if result.figures.parameters.is_none() {
        return format!(
            "ran out of memory while the model was built, before its first step ({what}); try a \
             smaller model"
        );
    }
    let steps = result.steps();
    let remedy = if file.model.trains() {
        "try a smaller `batch_size`"
    } else {
        "try a smaller `size`"
    };
    format!(
        "ran out of memory at step {} with `batch_size` {} ({what}); {remedy}",
        steps + 1,
        file.train.batch_size
    )
}

/// Number of bytes that libtorch's CPU allocator could not get.
fn asked_for_on_cpu(text: &str) -> Option<u64> {
    let (_, after) = text
        .split_once("DefaultCPUAllocator")?
        .1
        .split_once("tried to allocate ")?;
    after.split_once(" bytes")?.0.parse().ok()
}

fn explain_empty_losses(file: &TrialFile, result: &mut TrialResult) {
    if !file.model.trains() {
        note(
            result,
            "train_loss",
            format!(
                "model kind `{}` trains nothing and has no loss",
                file.model.kind()
            ),
        );
        return;
    }
    if result.outcome == Outcome::Diverged && result.figures.train_loss.is_none() {
        note(
            result,
            "train_loss",
            "a loss is NaN or infinite".to_string(),
        );
    }
    if result.outcome == Outcome::Completed && result.figures.valid_loss.is_none() {
        note(
            result,
            "valid_loss",
            "the data has no validation part".to_string(),
        );
    }
    if file.train.target.is_some() && result.figures.seconds_to_target.is_none() {
        note(
            result,
            "seconds_to_target",
            "the target was not reached".to_string(),
        );
    }
}

/// The gradient noise scale, or the reason why it is empty.
fn fill_gradient_noise(file: &TrialFile, noise: Option<MeasuredNoise>, result: &mut TrialResult) {
    let column = "gradient_noise_scale";
    let Some(every) = file.measure.gradient_noise.map(|noise| noise.every) else {
        return;
    };
    if file.batches_per_step() < 2 {
        let why = "a step has one micro-batch; set `train.grad_accumulation: 2` or more and divide \
                   `train.batch_size` by it";
        return note(result, column, why.to_owned());
    }
    let Some(noise) = noise else {
        let why = format!("no measured step gave one; one step in {every} is measured");
        return note(result, column, why);
    };
    result.figures.gradient_noise_step = Some(noise.last_step);
    result.figures.gradient_noise_loss = Some(noise.loss);
    match noise.scale {
        None if noise.steps < FEWEST_MEASURED => {
            let why = format!(
                "measured in {}, and an interval needs {FEWEST_MEASURED}; train longer, or lower \
                 `measure.gradient_noise.every`",
                counted(noise.steps, "step")
            );
            note(result, column, why);
        }
        None => note(
            result,
            column,
            "neither gradient nor noise can be told from 0".to_owned(),
        ),
        Some(scale) => {
            result.figures.gradient_noise_scale = scale.scale.filter(|_| scale.high.is_some());
            result.figures.gradient_noise_scale_low = Some(scale.low);
            result.figures.gradient_noise_scale_high = scale.high;
            if scale.high.is_none() {
                let why = "the gradient cannot be told from 0 in its noise, so there is no upper \
                           end; more measured steps, or more micro-batches in each, give one";
                note(result, column, why.to_owned());
            }
        }
    }
}

/// Writes `trial.json` atomically: a temporary file, synced, then renamed.
pub(crate) fn write_result(folder: &Path, result: &TrialResult) -> Result<(), TrialError> {
    let path = folder.join("trial.json");
    write_json(&path, result).map_err(|error| cannot_write(&path, error))
}
