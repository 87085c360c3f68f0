//! Training: one trial file becomes steps, rows, messages and a result.
//!
//! In: a [`TrialFile`]. Out: `steps.csv`, `epochs.csv`, `trial.json` and, if asked for, `layers.csv`,
//! `sample.txt` and `responses.jsonl` in its folder, messages on the writer given, and how it
//! ended. Devices, clocks of the parent and time limits are left to others.

mod batch;
mod checkpoint;
mod class_names;
mod clock;
mod decoder;
mod early_stop;
pub(crate) mod feed;
pub(crate) mod generation;
mod gradient;
mod interrupt;
mod learner;
mod ledger;
mod measurement;
mod memory_watch;
mod messages;
pub(crate) mod objective;
mod optimizer;
mod outcome;
mod prepare;
pub(crate) mod pretrained;
mod products;
mod replicas;
pub(crate) mod responses;
pub(crate) mod sample;
mod schedule;
mod step;
mod step_clock;
mod tables;
pub(crate) mod tensor_file;
mod text_scores;
mod timing;
pub(crate) mod trainable;
mod training;
mod trial_device;
pub(crate) mod validation;

use std::{io::Write, sync::atomic::AtomicBool};

pub use crate::data::HostBatch;
pub use batch::DeviceBatch;
pub use gradient::{LayerGroup, MeasuredGradient};
pub(crate) use interrupt::watch_signals;
use kiln_core::{
    kinds::{InputShape, Matmul, Model, ModelKind},
    plan::TrialFile,
    record::{Message, TrialResult, message::PROTOCOL},
};
pub use learner::Learner;
pub use optimizer::NamedValues;
pub use outcome::TrialEnded;

use self::{
    checkpoint::{Keeper, ResumePoint},
    clock::monotonic_nanoseconds,
    early_stop::EarlyStopping,
    feed::{Feed, StepPlan},
    measurement::{DeviceWork, Measurement},
    messages::Messenger,
    outcome::{Measured, conclude, empty_result, write_result},
    prepare::{Prepared, Start, build_replicas, prepare},
    products::Products,
    replicas::Parallel,
    responses::Responses,
    sample::TextSampler,
    schedule::Plateau,
    step_clock::StepClock,
    tables::Tables,
    trainable::{Copying, Trainable},
    training::{Ending, Training},
    trial_device::step_clock,
};
use crate::{
    TrialError,
    engine::{self, EngineDevice, guard_result},
    model::Registry,
};

/// Number of hex digits of a file's SHA-256 that a note shows.
const SUM_DIGITS: usize = 12;
const NO_DEVICES: &str = "`devices_per_trial` is 0 in a trial file; it must be at least 1";
const NO_FLOPS: &str = "the model does not report them (`OwnModel::flops_per_sample`), so mfu is \
                        empty";

/// Runs one trial to its end. Never fails: what went wrong is the outcome, its reason and the exit
/// status.
///
/// `registry` has the users' own models that the file may name.
/// `is_interrupted` becoming true stops it after the current step.
pub fn run(
    file: &TrialFile,
    registry: &Registry,
    out: &mut impl Write,
    is_interrupted: &AtomicBool,
) -> TrialEnded {
    let mut result = empty_result(file);
    let mut messages = Messenger::new(out, monotonic_nanoseconds());
    let ended = guard_result(|| {
        messages.send(&hello())?;
        let tables = Tables::create(&file.folder)?;
        let run = TrialRun {
            file,
            tables,
            messages: &mut messages,
            is_interrupted,
            result: &mut result,
        };
        match &file.model {
            Model::Matmul(shape) => run.multiply(shape),
            _ => run.train(registry),
        }
    });
    let mut exit_status = conclude(file, &mut result, ended);
    if let Err(error) = write_result(&file.folder, &result) {
        exit_status = conclude(file, &mut result, Err(error));
    }
    // The parent is gone, so the error cannot be reported.
    let _ = messages.send(&Message::Finished {
        outcome: result.outcome,
        reason: result.reason.clone(),
    });
    TrialEnded {
        result,
        exit_status,
    }
}

/// The inputs and outputs of a trial, trained or not. `result` is filled as facts become known, so
/// that an error leaves what was known before it.
struct TrialRun<'a, 'b, W: Write> {
    file: &'a TrialFile,
    tables: Tables,
    messages: &'a mut Messenger<'b, W>,
    is_interrupted: &'a AtomicBool,
    result: &'a mut TrialResult,
}

impl<W: Write> TrialRun<'_, '_, W> {
    /// Records what is known once the device is open and the model is built, and tells the parent.
    fn announce(
        &mut self,
        device: &EngineDevice,
        parameters: u64,
        total_steps: u64,
    ) -> Result<(), TrialError> {
        let result = &mut *self.result;
        result.figures.parameters = Some(parameters);
        result.device_name = Some(device.name());
        result.figures.cpu_threads = Some(device.cpu_threads());
        result.libraries = engine::libraries();
        result.library_files = engine::library_files();
        result.flags = engine::flags();
        self.messages.send(&Message::Ready {
            parameters: Some(parameters),
            total_steps: Some(total_steps),
            device_name: device.name(),
            libraries: result.libraries.clone(),
        })
    }

    /// Everything between the first message and the last of a trial that only makes matrix
    /// products.
    fn multiply(mut self, shape: &Matmul) -> Result<Ending, TrialError> {
        let plan = products::plan(self.file)?;
        let mut products = Products::build(self.file, shape)?;
        let Some(device) = products.device() else {
            return Err(TrialError::Bad(NO_DEVICES.to_owned()));
        };
        self.announce(device, 0, plan.total_steps)?;
        self.result.figures.flops_per_sample = shape.flops_per_sample(None);
        let clock = step_clock(device, monotonic_nanoseconds());
        let Self {
            file,
            tables,
            messages,
            is_interrupted,
            result,
        } = self;
        let mut measurement = Measurement::new(file, plan, clock, tables, messages, is_interrupted);
        let ended = guard_result(|| products.run(&mut measurement));
        if matches!(ended, Err(TrialError::OutOfMemory { .. })) {
            // The allocator's figures lie on the host; reading them touches no device.
            let peaks = products.allocator_peaks();
            measurement.figures.raise_allocator(peaks);
        }
        Measured {
            measurement: &measurement,
            copying: Copying::default(),
            step_note: None,
            keeper: None,
        }
        .fill(result);
        if ended.is_err() {
            // The first error is the one to report; what was written until then is kept if it can
            // be.
            let _ = measurement.tables.sync();
            // A device that failed is not to be touched again, not even to free its memory.
            std::mem::forget(products);
            std::mem::forget(measurement.clock);
        }
        result.figures.window_flops = window_flops(file, None, result);
        ended
    }

    /// Everything between the first message and the last of a training.
    fn train(mut self, registry: &Registry) -> Result<Ending, TrialError> {
        let file = self.file;
        let Prepared {
            plan,
            mut feed,
            sampler,
            responses,
            input,
            token_sum,
            notice,
        } = prepare(file, self.result)?;
        let mut keeper = Keeper::new(file);
        let start = Start::find(file, keeper.as_mut(), plan.total_steps)?;
        let refused_note = start.note();
        let Start {
            checkpoint,
            refused,
        } = start;
        let (start, saved) = checkpoint.unzip();
        let (mut replicas, of_weights) =
            build_replicas(file, (input, token_sum), registry, saved.as_ref())?;
        drop(saved); // It is as large as the model and its moments.
        let Some(learner) = replicas.first() else {
            return Err(TrialError::Bad(NO_DEVICES.to_owned()));
        };
        self.announce(learner.device(), learner.parameters(), plan.total_steps)?;
        self.note_model(learner, input);
        if let Some(note) = refused_note {
            self.result.notes.insert("resumed_at_step".to_owned(), note);
        }
        notice
            .into_iter()
            .chain(refused)
            .chain(of_weights)
            .try_for_each(|text| self.messages.send(&Message::Notice { text }))?;
        if let Some(start) = &start {
            feed.loader.start_at(start.step * file.batches_per_step());
            self.messages.send(&Message::Resumed { step: start.step })?;
        }
        let setting = TrainingSetting {
            plan,
            feed,
            sampler,
            responses,
            tables: self.tables,
            messages: self.messages,
            is_interrupted: self.is_interrupted,
            clock: step_clock(learner.device(), monotonic_nanoseconds()),
            keeper,
            start,
        };
        let result = self.result;
        let ended = match replicas.pop() {
            Some(learner) if replicas.is_empty() => train_with(file, setting, learner, result),
            last => train_with(
                file,
                setting,
                Parallel::new(replicas.into_iter().chain(last).collect())?,
                result,
            ),
        };
        result.figures.window_flops = window_flops(file, Some(input), result);
        ended
    }

    fn note_model(&mut self, learner: &Learner, input: InputShape) {
        let (file, result) = (self.file, &mut *self.result);
        if let Some(weights) = &file.train.initial_weights {
            let digits: String = weights.sha256.chars().take(SUM_DIGITS).collect();
            let without = match &weights.without[..] {
                [] => String::new(),
                parts => format!(", without {}", parts.join(" and ")),
            };
            result.notes.insert(
                "initial_weights".to_owned(),
                format!("SHA-256 {digits}…{without}"),
            );
        }
        result.figures.flops_per_sample = learner
            .own_flops_per_sample()
            .or(file.model.flops_per_sample(Some(input)));
        if result.figures.flops_per_sample.is_none() && file.model.kind() == "custom" {
            result
                .notes
                .insert("flops_per_sample".to_owned(), NO_FLOPS.to_owned());
        }
    }
}

/// Model FLOPs of the samples of the window: where samples are of different lengths by the lengths
/// of those.
fn window_flops(file: &TrialFile, input: Option<InputShape>, result: &TrialResult) -> Option<f64> {
    let by_lengths = result
        .window_pairs
        .as_ref()
        .and_then(|pairs| file.model.flops_of_rows(input, pairs));
    by_lengths.or_else(|| {
        Some(result.figures.flops_per_sample? as f64 * result.figures.window_samples? as f64)
    })
}

/// Everything a training needs besides its file and its trainee.
struct TrainingSetting<'a, 'b, W: Write> {
    plan: StepPlan,
    feed: Feed,
    sampler: Option<TextSampler>,
    responses: Option<Responses>,
    tables: Tables,
    messages: &'a mut Messenger<'b, W>,
    is_interrupted: &'a AtomicBool,
    clock: Box<dyn StepClock>,
    keeper: Option<Keeper>,
    /// The point at which an earlier attempt stopped.
    start: Option<ResumePoint>,
}

fn train_with<T: Trainable, W: Write>(
    file: &TrialFile,
    setting: TrainingSetting<'_, '_, W>,
    mut trainee: T,
    result: &mut TrialResult,
) -> Result<Ending, TrialError> {
    let TrainingSetting {
        plan,
        feed,
        sampler,
        responses,
        tables,
        messages,
        is_interrupted,
        clock,
        keeper,
        start,
    } = setting;
    // The device may still be making the first weights. One that failed is not to be touched again.
    if let Err(error) = trainee.wait() {
        std::mem::forget(trainee);
        std::mem::forget(clock);
        return Err(error);
    }
    let mut training = Training {
        measurement: Measurement::new(file, plan, clock, tables, messages, is_interrupted),
        trainee,
        feed,
        responses,
        plateau: Plateau::new(&file.train.learning_rate_schedule),
        early_stop: EarlyStopping::new(file.train.early_stop.as_ref()),
        keeper,
    };
    start
        .iter()
        .for_each(|start| training.resume(start.step, &start.state));
    let ended = guard_result(|| training.train());
    if matches!(ended, Err(TrialError::OutOfMemory { .. })) {
        // The allocator's figures lie on the host; reading them touches no device.
        let peaks = training.trainee.allocator_peaks();
        training.measurement.figures.raise_allocator(peaks);
    }
    let loader = &training.feed.loader;
    result.loader_threads = Some(loader.threads_started());
    result.peak_batches_in_memory = Some(loader.peak_batches() as u64);
    Measured {
        measurement: &training.measurement,
        copying: training.trainee.copying(),
        step_note: training.trainee.step_note(),
        keeper: training.keeper.as_ref(),
    }
    .fill(result);
    // The measurements are already recorded; an error while texts are written does not change them.
    let asked =
        sampler.filter(|_| matches!(ended, Ok(Ending::Completed | Ending::StoppedEarly(_))));
    let sampled = asked.map_or(Ok(()), |sampler| guard_result(|| training.sample(&sampler)));
    if let Err(error) = &sampled {
        result.notes.insert("sample".to_owned(), error.to_string());
    }
    if ended.is_err() || sampled.is_err() {
        // The first error is the one to report; what was written until then is kept if it can be.
        let _ = training.measurement.tables.sync();
        // A device that failed is not to be touched again, not even to free its memory.
        std::mem::forget(training.trainee);
        std::mem::forget(training.measurement.clock);
    }
    ended
}

fn hello() -> Message {
    Message::Hello {
        protocol: PROTOCOL,
        kiln_trial: env!("CARGO_PKG_VERSION").to_string(),
        pid: std::process::id(),
    }
}
