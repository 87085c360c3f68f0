//! The loop with a model and a source of known cost.

use std::{
    cell::Cell,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use kiln_core::{
    kinds::data::{Sampling, Tokenizer},
    plan::{Outcome, TrialFile, TrialId},
    record::{Checkpoints, EpochRow, StepRow, TrialResult, checkpoint::MODEL_FILE},
};
use kiln_data::tokenizer::Vocabulary;

use super::*;
use crate::{
    data::{
        BatchLoader, BatchSchedule, Draw, EvaluationSchedule, HostBatch, LoaderOptions, Source,
        ValidationWindows,
    },
    model::TextMemory,
    train::{
        TrainingSetting,
        feed::{StepPlan, Validation},
        generation::Writing,
        learner::TRAINING_FILE,
        measurement::{AllocatorPeaks, DeviceWork},
        objective::Scores,
        optimizer::Counters,
        outcome::{conclude, empty_result},
        step_clock::{StepSeconds, WallClock},
        tables::Tables,
        train_with,
        trainable::Copying,
    },
};

const SEQ_LEN: u64 = 4;

thread_local! {
    /// Time of the manual clock in this thread. The loop has one and each worker of the loader has
    /// one: a planted cost takes time in the thread that pays it, and in no other thread.
    static SHOWN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Start of every manual clock.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

fn shown() -> Instant {
    *BEGINNING + SHOWN.get()
}

/// Times steps as [`WallClock`] does, on the manual clock.
struct ManualClock(WallClock);

impl StepClock for ManualClock {
    fn now(&self) -> u64 {
        SHOWN.get().as_nanos() as u64
    }
    fn restart(&mut self, now: u64) {
        self.0.restart(now);
    }
    fn begin_copy(&mut self, now: u64) {
        self.0.begin_copy(now);
    }
    fn end_copy(&mut self, now: u64) {
        self.0.end_copy(now);
    }
    fn end_step(&mut self, now: u64) {
        self.0.end_step(now);
    }
    fn take(&mut self) -> Vec<StepSeconds> {
        self.0.take()
    }
    fn failure(&self) -> Option<&str> {
        self.0.failure()
    }
}

/// Lets planted time pass: on the manual clock, or asleep, and then it remembers how long each
/// sleep really was.
#[derive(Default)]
struct Planted {
    is_asleep: bool,
    slept: Mutex<Vec<Duration>>,
}

impl Planted {
    fn asleep() -> Arc<Self> {
        Arc::new(Self {
            is_asleep: true,
            ..Self::default()
        })
    }

    fn pass(&self, milliseconds: u64) {
        let planted = Duration::from_millis(milliseconds);
        if planted.is_zero() {
            return;
        }
        if self.is_asleep {
            let began = Instant::now();
            thread::sleep(planted);
            self.slept.lock().unwrap().push(began.elapsed());
        } else {
            SHOWN.set(SHOWN.get() + planted);
        }
    }

    /// The seconds of each sleep, in order.
    fn slept(&self) -> Vec<f64> {
        self.slept
            .lock()
            .unwrap()
            .iter()
            .map(Duration::as_secs_f64)
            .collect()
    }
}

/// Makes a batch at a planted cost.
struct CostlySource {
    loading: Arc<Planted>,
    milliseconds: u64,
}

impl Source for CostlySource {
    fn sample_count(&self) -> u64 {
        40
    }
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), SEQ_LEN as usize);
    }
    fn write(&self, _: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        if row == 0 {
            self.loading.pass(self.milliseconds);
        }
        batch.text_mut().unwrap().fill_row(row, &[1, 2, 3, 4, 5]);
        Ok(())
    }
}

/// A model whose costs and losses are known, and which notes what it was asked for.
struct Fake {
    /// Planted cost of its batches.
    loading: Arc<Planted>,
    /// Planted cost of its own work.
    computing: Arc<Planted>,
    load_milliseconds: u64,
    step_milliseconds: u64,
    evaluation_milliseconds: u64,
    losses: fn(u64) -> f64,
    /// By the steps made so far.
    valid_loss: fn(u64) -> f64,
    steps: u64,
    /// Bytes that it allocates at each step and never gives back.
    leak: u64,
    /// Retries of its allocator since the last reset: 1 per step, 10 per batch of an evaluation. `None`:
    /// it keeps no figures.
    retries: Option<u64>,
    open: Vec<f64>,
    fails_at: Option<u64>,
    /// Tokens that it gives outputs for, before it panics.
    tokens_left: u64,
    /// In the evaluation after so many steps a signal comes.
    interrupted_after: Option<u64>,
    is_interrupted: Arc<AtomicBool>,
}

impl DeviceWork for Fake {
    fn wait(&mut self) -> Result<(), TrialError> {
        Ok(())
    }
    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        Some(AllocatorPeaks {
            allocated_bytes: 1 << 30,
            reserved_bytes: 1 << 31,
            retries: self.retries?,
        })
    }
    fn allocated_bytes(&self) -> Option<u64> {
        Some((1 << 30) + self.steps * self.leak)
    }
    fn reset_allocator_peaks(&mut self) {
        self.retries = self.retries.map(|_| 0);
    }
}

impl Trainable for Fake {
    type Batch = ();

    fn to_device(&mut self, _: &HostBatch, marks: &mut dyn CopyMarks) -> Result<(), TrialError> {
        marks.begin();
        marks.end();
        Ok(())
    }
    fn micro_step(
        &mut self,
        (): (),
        step: u64,
        _: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        assert_eq!(total_targets, 4 * SEQ_LEN);
        if self.fails_at == Some(step) {
            return Err(TrialError::OutOfMemory {
                text: "you tried to allocate 9 bytes".to_string(),
            });
        }
        Ok(())
    }
    fn update(&mut self, _: f64) -> Result<(), TrialError> {
        self.computing.pass(self.step_milliseconds);
        self.steps += 1;
        self.retries = self.retries.map(|retries| retries + 1);
        self.open.push((self.losses)(self.steps));
        Ok(())
    }
    fn respond(
        &mut self,
        _: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        on_progress(1)?;
        Ok(vec![vec![self.steps as u32]; prompts.len()])
    }
    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        Ok(std::mem::take(&mut self.open))
    }
    fn evaluate(&mut self, (): ()) -> Result<(), TrialError> {
        self.computing.pass(self.evaluation_milliseconds);
        self.retries = self.retries.map(|retries| retries + 10);
        if self.interrupted_after == Some(self.steps) {
            self.is_interrupted.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
    fn finish_evaluation(&mut self) -> Result<Scores, TrialError> {
        Ok(Scores {
            loss: (self.valid_loss)(self.steps),
            ..Scores::default()
        })
    }
    fn predict(&mut self, _: &[u32], _: &mut TextMemory) -> Result<Vec<f64>, TrialError> {
        assert!(self.tokens_left > 0, "CUDA out of memory");
        self.tokens_left -= 1;
        self.computing.pass(1);
        Ok(vec![0.0; 256])
    }
    fn copying(&self) -> Copying {
        Copying::default()
    }
    fn save(&self, folder: &std::path::Path) -> Result<Counters, TrialError> {
        for name in [MODEL_FILE, TRAINING_FILE] {
            std::fs::write(folder.join(name), self.steps.to_string())
                .map_err(TrialError::NotSaved)?;
        }
        Ok(Counters {
            updates: self.steps,
            ..Counters::default()
        })
    }
}

fn fake() -> Fake {
    Fake {
        loading: Arc::default(),
        computing: Arc::default(),
        load_milliseconds: 0,
        step_milliseconds: 0,
        evaluation_milliseconds: 0,
        losses: |step| 10.0 - step as f64 / 10.0,
        valid_loss: |_| 3.0,
        steps: 0,
        leak: 0,
        retries: None,
        open: Vec::new(),
        fails_at: None,
        tokens_left: u64::MAX,
        interrupted_after: None,
        is_interrupted: Arc::default(),
    }
}

fn file(folder: &std::path::Path, keys: &str) -> TrialFile {
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{kind: mlp, seq_len: 8}}, data: \
         {{kind: generated}}, train: {{batch_size: 2, grad_accumulation: 2, cpu_threads: 1, \
         {keys}}}, measure: {{warmup_steps: 2, warmup_seconds: 0, log_every: 3}}, engine: \
         libtorch, device: cpu, folder: {}, checkpoint_folder: {}, run_anchor_nanoseconds: 0}}",
        folder.display(),
        folder.join("checkpoint").display()
    );
    serde_yaml::from_str(&text).unwrap()
}

struct Trained {
    ending: Result<Ending, TrialError>,
    result: TrialResult,
    messages: Vec<Message>,
    steps: Vec<StepRow>,
    epochs: Vec<EpochRow>,
    sample: Option<String>,
}

/// Four samples a step, five steps an epoch.
fn schedule(total_steps: u64) -> BatchSchedule {
    let sampling = Sampling::Shuffled;
    BatchSchedule {
        source_samples: 20,
        epoch_samples: 20,
        batch_size: 2,
        grad_accumulation: 2,
        total_steps,
        sampling,
        seed: 1,
        sort_keys: None,
    }
}

/// Trains 5 steps an epoch with the fake.
fn train(keys: &str, trainee: Fake, total_steps: u64) -> Trained {
    train_with_workers(keys, trainee, total_steps, 0)
}

fn train_with_workers(keys: &str, trainee: Fake, total_steps: u64, num_workers: usize) -> Trained {
    let loader = loader(&trainee, total_steps, num_workers);
    train_by(keys, trainee, loader, Box::new(WallClock::new(0)))
}

/// The same on the manual clock, where nothing takes time but what is planted.
fn train_on_the_manual_clock(
    keys: &str,
    trainee: Fake,
    total_steps: u64,
    num_workers: usize,
) -> Trained {
    let loader = loader(&trainee, total_steps, num_workers).timed_by(shown);
    train_by(
        keys,
        trainee,
        loader,
        Box::new(ManualClock(WallClock::new(0))),
    )
}

fn loader(trainee: &Fake, total_steps: u64, num_workers: usize) -> BatchLoader {
    let source = Arc::new(CostlySource {
        loading: Arc::clone(&trainee.loading),
        milliseconds: trainee.load_milliseconds,
    });
    BatchLoader::new(
        source,
        schedule(total_steps),
        LoaderOptions {
            num_workers,
            prefetch: 2,
            persistent_workers: true,
            synthetic: false,
        },
    )
}

/// Ten tokens, in three windows.
fn validation() -> Validation {
    let source = Arc::new(ValidationWindows {
        tokens: Arc::new(vec![1; 10]),
        seq_len: SEQ_LEN as usize,
    });
    let schedule = EvaluationSchedule {
        samples: source.sample_count(),
        batch_size: 2,
        is_contiguous: false,
    };
    let options = LoaderOptions {
        num_workers: 0,
        prefetch: 1,
        persistent_workers: true,
        synthetic: false,
    };
    Validation {
        source,
        schedule,
        options,
    }
}

fn train_by(keys: &str, trainee: Fake, loader: BatchLoader, clock: Box<dyn StepClock>) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    attempt(folder.path(), keys, trainee, loader, clock)
}

/// One attempt in a folder; it resumes from the newest checkpoint.
fn attempt(
    folder: &std::path::Path,
    keys: &str,
    mut trainee: Fake,
    mut loader: BatchLoader,
    clock: Box<dyn StepClock>,
) -> Trained {
    let file = file(folder, keys);
    let mut keeper = Keeper::new(&file);
    let total_steps = file.train.steps.unwrap();
    let start = keeper.as_mut().and_then(|keeper| {
        let (found, _) = keeper.start(total_steps, |_| Ok(())).unwrap();
        found.map(|(start, ())| start)
    });
    if let Some(start) = &start {
        trainee.steps = start.step;
        loader.start_at(start.step * file.batches_per_step());
    }
    let mut out = Vec::new();
    let mut messages = Messenger::new(&mut out, 0);
    let setting = TrainingSetting {
        responses: None,
        plan: StepPlan {
            total_steps,
            steps_per_epoch: Some(5),
            samples_per_step: 4,
            tokens_per_sample: SEQ_LEN as f64,
            targets_per_sample: SEQ_LEN,
        },
        feed: Feed {
            loader,
            validation: Some(validation()),
        },
        sampler: TextSampler::new(&file, Some(Vocabulary::build(Tokenizer::Byte, "", ""))).unwrap(),
        tables: Tables::create(folder).unwrap(),
        messages: &mut messages,
        is_interrupted: &Arc::clone(&trainee.is_interrupted),
        clock,
        keeper,
        start,
    };
    let mut result = empty_result(&file);
    let ending = train_with(&file, setting, trainee, &mut result);
    let rows = |name: &str| csv::Reader::from_path(folder.join(name)).unwrap();
    Trained {
        ending,
        result,
        messages: String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        steps: rows("steps.csv")
            .deserialize()
            .map(Result::unwrap)
            .collect(),
        epochs: rows("epochs.csv")
            .deserialize()
            .map(Result::unwrap)
            .collect(),
        sample: std::fs::read_to_string(folder.join("sample.txt")).ok(),
    }
}

/// But for the rounding of f64.
fn assert_near(found: Option<f64>, expected: f64) {
    let found = found.unwrap();
    assert!(
        (found / expected - 1.0).abs() < 1e-9,
        "{found}, expected {expected}"
    );
}

#[test]
fn planted_costs_show_exactly_in_samples_per_second_and_data_wait() {
    // Two batches of 20 ms and an update of 25 ms a step; after each epoch an evaluation of two
    // batches of 20 ms.
    let trainee = Fake {
        load_milliseconds: 20,
        step_milliseconds: 25,
        evaluation_milliseconds: 20,
        ..fake()
    };
    let trained = train_on_the_manual_clock("steps: 20, evaluate: {every: epoch}", trainee, 20, 0);
    assert_eq!(trained.ending.unwrap(), Ending::Completed);
    let result = trained.result;
    // The window begins with step 3; of four evaluations three lie in it and are cut out.
    assert_eq!(result.figures.left_out_steps, Some(2));
    assert_near(result.figures.window_seconds, 18.0 * 0.065);
    assert_eq!(
        result
            .window_cuts_nanoseconds
            .iter()
            .map(|(from, to)| to - from)
            .collect::<Vec<_>>(),
        [40_000_000; 3]
    );
    assert_near(result.figures.evaluation_seconds, 4.0 * 0.04);
    assert_near(result.figures.samples_per_second, 4.0 / 0.065);
    assert_near(
        result.figures.tokens_per_second,
        4.0 / 0.065 * SEQ_LEN as f64,
    );
    assert_near(result.figures.median_step_seconds, 0.065);
    assert_near(result.figures.epoch_seconds, 5.0 * 0.065);
    assert_near(result.figures.data_wait_fraction, 0.04 / 0.065);
    assert_near(result.figures.load_seconds, 18.0 * 0.04);
    for row in &trained.steps {
        assert_near(row.step_seconds, 0.065);
        assert_near(Some(row.data_wait_seconds), 0.04);
    }
}

#[test]
fn what_a_worker_does_meanwhile_is_load_time_and_not_data_wait() {
    // The worker needs 60 ms a step, which pass on its own clock alone.
    let trainee = Fake {
        load_milliseconds: 30,
        step_milliseconds: 40,
        ..fake()
    };
    let result = train_on_the_manual_clock("steps: 20", trainee, 20, 1).result;
    assert_near(result.figures.window_seconds, 18.0 * 0.04);
    assert_near(result.figures.samples_per_second, 4.0 / 0.04);
    assert_near(result.figures.load_seconds, 18.0 * 0.06);
    assert_eq!(result.figures.data_wait_fraction, Some(0.0));
}

/// A wait for another thread can only be had on the wall clock, so these are bounds that hold
/// however slow the machine is.
#[test]
fn with_a_worker_what_the_step_does_not_hide_is_data_wait() {
    /// Tolerance of sums of f64, in seconds.
    const ROUNDING: f64 = 1e-9;
    // Two batches of 10 ms a step, made during the update of 30 ms.
    let (loading, computing) = (Planted::asleep(), Planted::asleep());
    let planted = Fake {
        loading: Arc::clone(&loading),
        computing: Arc::clone(&computing),
        ..fake()
    };
    let trainee = Fake {
        load_milliseconds: 10,
        step_milliseconds: 30,
        ..planted
    };
    let began = Instant::now();
    let trained = train_with_workers("steps: 6", trainee, 6, 1);
    let all = began.elapsed().as_secs_f64();
    let (loads, updates) = (loading.slept(), computing.slept());
    assert_eq!(
        (loads.len(), updates.len(), trained.steps.len()),
        (12, 6, 6)
    );
    // The worker begins its first batch when the trainer asks for it.
    let first = trained.steps[0].data_wait_seconds;
    assert!(
        first + ROUNDING >= loads[0],
        "{first} s of waiting for a batch of {} s",
        loads[0]
    );
    for (row, update) in trained.steps.iter().zip(&updates) {
        let (wait, step) = (row.data_wait_seconds, row.step_seconds.unwrap());
        assert!(
            wait + update <= step + ROUNDING,
            "step {}: the trainer waits or updates: {wait} s, {update} s of {step} s",
            row.step
        );
    }
    // The window begins with step 3, whose first batch is the fifth. One worker makes one batch
    // after the other.
    let load = trained.result.figures.load_seconds.unwrap();
    assert!(
        load + ROUNDING >= loads[4..].iter().sum::<f64>() && load <= all,
        "{load} s for sleeps of {loads:?} s in {all} s"
    );
}

#[test]
fn every_step_has_its_row_and_each_evaluation_and_epoch_end_one() {
    let trained = train(
        "steps: 12, evaluate: {every: 4}, target: {valid_loss: 3.0}",
        fake(),
        12,
    );
    assert_eq!(trained.ending.unwrap(), Ending::Completed);
    let numbers: Vec<(u64, u64)> = trained
        .steps
        .iter()
        .map(|row| (row.epoch, row.step))
        .collect();
    assert_eq!(
        numbers,
        (1..=12)
            .map(|step| ((step - 1) / 5 + 1, step))
            .collect::<Vec<_>>()
    );
    assert!(
        trained
            .steps
            .iter()
            .all(|row| (row.loss.unwrap() - (10.0 - row.step as f64 / 10.0)).abs() < 1e-12)
    );
    let rows: Vec<(u64, bool)> = trained
        .epochs
        .iter()
        .map(|row| (row.step, row.valid_loss.is_some()))
        .collect();
    assert_eq!(
        rows,
        [(4, true), (5, false), (8, true), (10, false), (12, true)]
    );
    assert_eq!(
        trained
            .result
            .figures
            .train_loss
            .map(|loss| (loss * 1e9).round() / 1e9),
        Some(8.9)
    );
    assert_eq!(
        (trained.result.figures.valid_loss, trained.result.steps()),
        (Some(3.0), 12)
    );
    assert!(trained.result.figures.seconds_to_target.is_some());
    assert_eq!(trained.result.figures.steps_to_target, Some(4));
    let figures = &trained.result.figures;
    assert_eq!(
        (figures.lowest_valid_loss, figures.lowest_valid_step),
        (Some(3.0), Some(4))
    );
    let reached: Vec<&Message> = trained
        .messages
        .iter()
        .filter(|message| matches!(message, Message::TargetReached { .. }))
        .collect();
    assert!(
        matches!(reached[..], [Message::TargetReached { step: 4, .. }]),
        "told once"
    );
}

#[test]
fn a_loss_that_is_no_number_ends_the_training_at_the_next_reading_and_names_its_step() {
    let trained = train(
        "steps: 12",
        Fake {
            losses: |step| if step == 5 { f64::NAN } else { 1.0 },
            ..fake()
        },
        12,
    );
    let Ok(Ending::Diverged(reason)) = trained.ending else {
        panic!("{:?}", trained.ending)
    };
    assert!(
        reason.starts_with("the training loss of step 5 is NaN"),
        "{reason}"
    );
    assert_eq!((trained.steps.len(), trained.steps[4].loss), (6, None));
    assert_eq!(
        trained
            .epochs
            .iter()
            .filter(|row| row.valid_loss.is_some())
            .count(),
        0
    );
    let invalid = train(
        "steps: 3",
        Fake {
            valid_loss: |_| f64::INFINITY,
            ..fake()
        },
        3,
    );
    assert!(
        matches!(invalid.ending, Ok(Ending::Diverged(reason)) if reason.contains("validation loss after step 3 is inf"))
    );
}

#[test]
fn memory_that_grows_in_the_window_has_a_slope_and_a_note() {
    const MIB: u64 = 1 << 20;
    let slope_and_note = |keys: &str, leak: u64| {
        let result = train(&format!("steps: 40, {keys}"), Fake { leak, ..fake() }, 40).result;
        (
            result.figures.allocated_slope_bytes_per_step,
            result.notes.get("allocated_slope_bytes_per_step").cloned(),
        )
    };
    // The window begins after step 2, the last reading is after step 40.
    let note = "grew by 152.0 MiB to 1.2 GiB over 38 steps";
    assert_eq!(
        slope_and_note("", 4 * MIB),
        (Some(4.0 * MIB as f64), Some(note.to_owned()))
    );
    assert_eq!(slope_and_note("", 0), (Some(0.0), None));
    assert_eq!(
        slope_and_note("memory: {watch: false}", 4 * MIB),
        (None, None)
    );
    let resident = |keys: &str| {
        train(keys, fake(), 40)
            .result
            .figures
            .resident_slope_bytes_per_step
    };
    assert!(
        resident("steps: 40").is_some() && resident("steps: 40, memory: {watch: false}").is_none()
    );
}

#[test]
fn running_out_of_memory_keeps_the_rows_so_far_and_says_at_which_step() {
    let mut trained = train(
        "steps: 12",
        Fake {
            fails_at: Some(6),
            ..fake()
        },
        12,
    );
    assert_eq!(trained.steps.len(), 3, "rows up to the last reading");
    let folder = tempfile::tempdir().unwrap();
    trained.result.figures.parameters = Some(10);
    let status = conclude(
        &file(folder.path(), ""),
        &mut trained.result,
        trained.ending,
    );
    assert_eq!((status, trained.result.outcome), (4, Outcome::Oom));
    let reason = trained.result.reason.unwrap();
    assert_eq!(
        reason,
        "ran out of memory at step 6 with `batch_size` 2 (you tried to allocate 9 bytes); try a \
         smaller `batch_size`"
    );
}

#[test]
fn an_interrupted_training_stops_before_its_next_step_and_is_not_evaluated() {
    let interrupted = Fake {
        is_interrupted: Arc::new(AtomicBool::new(true)),
        ..fake()
    };
    let trained = train("steps: 12", interrupted, 12);
    assert_eq!(trained.ending.unwrap(), Ending::Interrupted);
    assert_eq!((trained.result.steps(), trained.epochs.len()), (0, 0));
}

#[test]
fn an_evaluation_that_a_signal_cut_short_is_made_up_for_and_the_best_checkpoint_stays() {
    let folder = tempfile::tempdir().unwrap();
    let keys = "steps: 12, evaluate: {every: epoch}, checkpoint: {every_steps: 1000, after: best}";
    let checkpoints = Checkpoints::new(
        folder.path().join("checkpoint"),
        TrialId("abcdef0123".to_owned()),
    );
    let attempt = |interrupted_after: Option<u64>| {
        let valid_loss = |step: u64| match step {
            5 => 1.0,
            10 => 3.0,
            _ => 0.5,
        };
        let trainee = Fake {
            interrupted_after,
            valid_loss,
            ..fake()
        };
        let loader = loader(&trainee, 12, 0);
        let trained = attempt(
            folder.path(),
            keys,
            trainee,
            loader,
            Box::new(WallClock::new(0)),
        );
        (
            trained.ending.unwrap(),
            trained
                .epochs
                .iter()
                .filter_map(|row| Some((row.step, row.valid_loss?)))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(attempt(Some(5)), (Ending::Interrupted, vec![]));
    assert_eq!(
        (checkpoints.steps(), checkpoints.lowest_loss()),
        (vec![5], None)
    );
    assert_eq!(
        attempt(Some(12)),
        (Ending::Interrupted, vec![(5, 1.0), (10, 3.0)])
    );
    assert_eq!(
        (checkpoints.steps(), checkpoints.lowest_loss()),
        (vec![5, 12], Some(1.0))
    );
    assert_eq!(attempt(None), (Ending::Completed, vec![(12, 0.5)]));
    // As the parent leaves them once the row is written.
    checkpoints.keep(0, true).unwrap();
    assert_eq!(
        (checkpoints.steps(), checkpoints.lowest_loss()),
        (vec![12], Some(0.5))
    );
}

#[test]
fn a_training_shorter_than_its_warm_up_has_no_rate_and_a_note() {
    let trained = train("steps: 2", fake(), 2);
    assert_eq!(
        (
            trained.result.figures.window_seconds,
            trained.result.figures.samples_per_second
        ),
        (None, None)
    );
    assert!(trained.result.notes["window_seconds"].starts_with("only 2 steps"));
    assert!(!trained.messages.iter().any(|message| matches!(
        message,
        Message::WindowStarted { .. } | Message::WindowEnded { .. }
    )));
}

/// A device's clock as a script: step n lasts n seconds, a quarter of it copies, until it fails.
/// Notes what it is told.
#[derive(Default)]
struct Scripted {
    told: Arc<Mutex<Vec<&'static str>>>,
    made: u64,
    open: Vec<StepSeconds>,
    fails_from: Option<u64>,
}

impl Scripted {
    fn tell(&self, word: &'static str) {
        self.told.lock().unwrap().push(word);
    }

    fn has_failed(&self) -> bool {
        self.fails_from.is_some_and(|from| self.made >= from)
    }
}

impl StepClock for Scripted {
    fn restart(&mut self, _: u64) {
        self.tell("restart");
    }
    fn begin_copy(&mut self, _: u64) {
        self.tell("copy");
    }
    fn end_copy(&mut self, _: u64) {
        self.tell("copied");
    }
    fn end_step(&mut self, _: u64) {
        self.tell("step");
        self.made += 1;
        let seconds = self.made as f64;
        let times = StepSeconds {
            step: Some(seconds),
            copy: Some(seconds / 4.0),
            ended: Some((100 + self.made) * 1_000_000_000),
        };
        self.open.push(if self.has_failed() {
            StepSeconds::default()
        } else {
            times
        });
    }
    fn take(&mut self) -> Vec<StepSeconds> {
        std::mem::take(&mut self.open)
    }
    fn failure(&self) -> Option<&str> {
        self.has_failed().then_some("the events ran out")
    }
}

/// Steps 3 to 8 are the window; the evaluations after steps 4 and 6 lie in it.
#[test]
fn a_window_with_evaluations_has_all_its_retries_and_its_cuts_are_told() {
    let trained = |milliseconds: u64| {
        train_on_the_manual_clock(
            "steps: 8, evaluate: {every: 2}",
            Fake {
                step_milliseconds: milliseconds,
                evaluation_milliseconds: milliseconds,
                retries: Some(0),
                ..fake()
            },
            8,
            0,
        )
    };
    let cuts = |trained: &Trained| -> Vec<(bool, u64, u64)> {
        let edge = |message: &Message| match *message {
            Message::CutStarted {
                step,
                monotonic_nanoseconds,
            } => Some((true, step, monotonic_nanoseconds)),
            Message::CutEnded {
                step,
                monotonic_nanoseconds,
            } => Some((false, step, monotonic_nanoseconds)),
            _ => None,
        };
        trained.messages.iter().filter_map(edge).collect()
    };
    let slow = trained(100);
    assert_eq!(slow.result.figures.allocator_retries, Some(6));
    let told = cuts(&slow);
    let places: Vec<(bool, u64)> = told
        .iter()
        .map(|(begins, step, _)| (*begins, *step))
        .collect();
    assert_eq!(places, [(true, 4), (false, 4), (true, 6), (false, 6)]);
    let moments: Vec<u64> = told.iter().map(|(.., moment)| *moment).collect();
    let cut: Vec<u64> = slow
        .result
        .window_cuts_nanoseconds
        .iter()
        .flat_map(|(from, to)| [*from, *to])
        .collect();
    assert_eq!(moments, cut);
    // Cuts that come more often than progress are told as often as that.
    let fast = trained(1);
    assert_eq!(fast.result.figures.allocator_retries, Some(6));
    assert_eq!(fast.result.window_cuts_nanoseconds.len(), 2);
    let told: Vec<(bool, u64)> = cuts(&fast)
        .iter()
        .map(|(begins, step, _)| (*begins, *step))
        .collect();
    assert_eq!(told, [(true, 4), (false, 4)]);
}

fn train_by_script(keys: &str, clock: Scripted) -> Trained {
    let trainee = fake();
    let loader = loader(&trainee, 8, 0);
    train_by(
        &format!("steps: 8, {keys}"),
        trainee,
        loader,
        Box::new(clock),
    )
}

#[test]
fn the_device_clocks_times_become_the_columns_of_the_steps_they_belong_to() {
    let clock = Scripted::default();
    let told = Arc::clone(&clock.told);
    let trained = train_by_script("evaluate: {every: 5}", clock);
    let shown: Vec<Option<f64>> = trained.steps.iter().map(|row| row.step_seconds).collect();
    assert_eq!(
        shown,
        (1..=8)
            .map(|step| Some(f64::from(step)))
            .collect::<Vec<_>>()
    );
    let ended: Vec<f64> = trained.steps.iter().map(|row| row.run_seconds).collect();
    assert_eq!(
        ended,
        (101..=108).map(f64::from).collect::<Vec<_>>(),
        "the device's ends, not when the host had queued the steps"
    );
    // Steps 3 to 8 are the window.
    let result = trained.result;
    assert_eq!(result.figures.median_step_seconds, Some(5.5));
    let copied = (3..=8).sum::<u32>();
    assert_eq!(
        result.figures.transfer_fraction.unwrap(),
        f64::from(copied) / 4.0 / result.figures.window_seconds.unwrap()
    );
    assert!(
        !result.notes.contains_key("median_step_seconds")
            && !result.notes.contains_key("transfer_fraction")
    );
    // From the start, from the window's opening before step 3, and from the ends of the evaluations
    // after steps 5 and 8.
    let told = told.lock().unwrap();
    let restarts: Vec<usize> = told
        .iter()
        .enumerate()
        .filter(|(_, word)| **word == "restart")
        .map(|(at, _)| told[..at].iter().filter(|word| **word == "step").count())
        .collect();
    assert_eq!(restarts, [0, 2, 5, 8]);
    let step = ["copy", "copied", "copy", "copied", "step"];
    assert_eq!(
        told.iter()
            .filter(|word| **word != "restart")
            .copied()
            .collect::<Vec<_>>(),
        step.repeat(8),
        "evaluation copies are no step's"
    );
}

#[test]
fn a_device_clock_that_fails_costs_the_times_and_nothing_else() {
    let trained = train_by_script(
        "",
        Scripted {
            fails_from: Some(6),
            ..Scripted::default()
        },
    );
    assert_eq!(trained.ending.unwrap(), Ending::Completed);
    let result = trained.result;
    assert!(
        result.figures.samples_per_second.is_some() && result.figures.data_wait_fraction.is_some()
    );
    assert_eq!(
        (
            result.figures.median_step_seconds,
            result.figures.transfer_fraction
        ),
        (None, None)
    );
    for column in ["median_step_seconds", "transfer_fraction"] {
        assert!(
            result.notes[column].contains("the events ran out"),
            "{:?}",
            result.notes
        );
    }
    assert_eq!(
        trained
            .steps
            .iter()
            .filter(|row| row.step_seconds.is_some())
            .count(),
        5
    );
}

#[test]
fn a_training_whose_validation_loss_stalls_ends_early_and_completes() {
    let keys = |patience: u64| {
        format!("steps: 8, evaluate: {{every: 1}}, early_stop: {{patience: {patience}}}")
    };
    // Lowest at step 3.
    let stalling = || Fake {
        valid_loss: |steps| (steps as f64 - 3.0).abs(),
        ..fake()
    };
    let trained = train(&keys(2), stalling(), 8);
    let Ok(Ending::StoppedEarly(reason)) = &trained.ending else {
        panic!("{:?}", trained.ending)
    };
    assert_eq!(
        reason,
        "the validation loss did not fall below 0.0000 in 2 evaluations in a row \
         (`train.early_stop`)"
    );
    assert_eq!(
        (
            trained.result.steps(),
            trained.epochs.len(),
            trained.result.figures.valid_loss
        ),
        (5, 5, Some(2.0)),
        "no evaluation is made twice"
    );
    assert_eq!(trained.steps.len(), 5);
    let mut result = trained.result;
    conclude(
        &file(std::path::Path::new("/nowhere"), &keys(2)),
        &mut result,
        trained.ending,
    );
    assert_eq!(result.outcome, Outcome::Completed);
    let told = "stopped early at step 5: the validation loss did not fall";
    assert!(result.notes["steps"].starts_with(told));
    assert!(result.reason.unwrap().starts_with(told));
    assert_eq!(
        train(&keys(6), stalling(), 8).ending.unwrap(),
        Ending::Completed
    );
}

#[test]
fn texts_come_after_all_that_is_measured_and_change_none_of_it() {
    let asked = "steps: 5, sample: {prompt: a, tokens: 300, samples: 2}";
    // 600 tokens of 1 ms each.
    let trained = train_on_the_manual_clock(
        asked,
        Fake {
            step_milliseconds: 2,
            evaluation_milliseconds: 20,
            ..fake()
        },
        5,
        0,
    );
    assert_eq!(trained.ending.unwrap(), Ending::Completed);
    assert!(
        trained.sample.unwrap().starts_with('a') && !trained.result.notes.contains_key("sample")
    );
    let place = |wanted: fn(&Message) -> bool| trained.messages.iter().position(wanted).unwrap();
    let sampling = place(|message| {
        matches!(
            message,
            Message::Sampling {
                total_tokens: 300,
                ..
            }
        )
    });
    let before = [
        place(|message| matches!(message, Message::WindowEnded { .. })),
        place(|message| matches!(message, Message::Evaluated { .. })),
    ];
    assert!(
        before.iter().all(|place| *place < sampling),
        "{:?}",
        trained.messages
    );
    // Steps 3 to 5, and the two batches of the evaluation.
    assert_near(trained.result.figures.window_seconds, 0.006);
    assert_near(trained.result.figures.evaluation_seconds, 0.04);
}

#[test]
fn a_fault_of_the_texts_is_a_note_and_takes_no_result_back() {
    let asked = "steps: 5, sample: {prompt: a, tokens: 4, samples: 3}";
    let trained = train(
        asked,
        Fake {
            tokens_left: 6,
            ..fake()
        },
        5,
    );
    assert_eq!(trained.ending.unwrap(), Ending::Completed);
    assert_eq!(
        (trained.result.steps(), trained.result.figures.valid_loss),
        (5, Some(3.0))
    );
    assert!(
        trained.result.notes["sample"].contains("CUDA out of memory"),
        "{:?}",
        trained.result.notes
    );
    let diverged = train(
        asked,
        Fake {
            losses: |_| f64::NAN,
            ..fake()
        },
        5,
    );
    assert!(matches!(diverged.ending.unwrap(), Ending::Diverged(_)) && diverged.sample.is_none());
}
