//! The loader: threads make batches in advance, the trainer takes them in order.
//!
//! In: a [`Source`] and a schedule. Out: batches 0, 1, 2, …, each with the time the trainer was
//! blocked for it (data wait) and the time its maker was busy (load time). The content of a batch
//! depends on its number alone, so the number of workers changes no sample, no order and no result.
//!
//! At most `num_workers × prefetch` batches are in host memory, those being made and the one in the
//! trainer's hands included: there are that many buffers, a worker takes its batch number together
//! with a buffer, and a dropped batch gives its buffer back. The lowest number outstanding
//! therefore always has a buffer, and a deadlock is not possible.
//!
//! A synthetic loader makes batch 0 once, in the trainer's thread, and returns it for every number.
//! This shows the cost of a step without a loader.

use std::{
    collections::BTreeMap,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    BatchSchedule, Draw, EvaluationSchedule, HostBatch, LONGEST_STEPS, LoadError, Source,
    schedule::{Schedule, TrainingOrder},
};
use crate::error::panic_text;

/// Settings of the loader's workers. They do not change the content of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Number of threads; 0 makes each batch on demand in the trainer's own thread.
    pub num_workers: usize,
    /// Batches per worker in host memory.
    pub prefetch: usize,
    /// Whether threads live across epochs and run ahead into the next one.
    pub persistent_workers: bool,
    /// Whether every batch is the first one.
    pub synthetic: bool,
}

/// Makes the batches of one training. Dropping it ends and joins its threads.
pub struct BatchLoader {
    shared: Arc<LoaderShared>,
    options: LoaderOptions,
    threads: Vec<JoinHandle<()>>,
    threads_started: u64,
    next_number: u64,
    /// The one batch of a synthetic loader, once it is made.
    only: Option<Arc<HostBatch>>,
}

/// One batch in the trainer's hands. Dropping it gives its buffer back.
pub struct LoadedBatch {
    /// Time the trainer was blocked for it.
    pub wait: Duration,
    /// Time a worker was busy making it.
    pub load: Duration,
    batch: Arc<HostBatch>,
    shared: Arc<LoaderShared>,
}

struct LoaderShared {
    source: Arc<dyn Source>,
    schedule: Box<dyn Schedule>,
    /// Clock that measures waits and load times.
    now: fn() -> Instant,
    state: Mutex<LoaderState>,
    /// A buffer came back, the limit rose, or the loader closed: workers look again.
    changed: Condvar,
    /// A batch is ready: the trainer looks again.
    delivered: Condvar,
    is_closed: AtomicBool,
    in_memory: AtomicUsize,
    peak: AtomicUsize,
}

struct LoaderState {
    free: Vec<HostBatch>,
    /// Number of the next batch that no worker has taken.
    next: u64,
    /// Workers end when `next` gets here.
    limit: u64,
    /// Workers begin no batch meanwhile.
    is_paused: bool,
    ready: BTreeMap<u64, Result<Made, LoadError>>,
}

struct Made {
    batch: HostBatch,
    load: Duration,
}

impl BatchLoader {
    /// The batches of a training. Starts no thread yet; the first [`BatchLoader::next_batch`] does.
    pub fn new(source: Arc<dyn Source>, schedule: BatchSchedule, options: LoaderOptions) -> Self {
        Self::with(source, Box::new(TrainingOrder::new(schedule)), options)
    }

    /// The batches of one evaluation.
    pub fn evaluating(
        source: Arc<dyn Source>,
        schedule: EvaluationSchedule,
        options: LoaderOptions,
    ) -> Self {
        Self::with(source, Box::new(schedule), options)
    }

    fn with(source: Arc<dyn Source>, schedule: Box<dyn Schedule>, options: LoaderOptions) -> Self {
        let buffers = (options.num_workers * options.prefetch).max(1);
        let state = LoaderState {
            free: vec![HostBatch::default(); buffers],
            next: 0,
            limit: 0,
            is_paused: false,
            ready: BTreeMap::new(),
        };
        let shared = LoaderShared {
            source,
            schedule,
            now: Instant::now,
            state: Mutex::new(state),
            changed: Condvar::new(),
            delivered: Condvar::new(),
            is_closed: AtomicBool::new(false),
            in_memory: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        };
        Self {
            shared: Arc::new(shared),
            options,
            threads: Vec::new(),
            threads_started: 0,
            next_number: 0,
            only: None,
        }
    }

    /// Reads waits and load times from `now` instead of the system's clock, for tests. Before the
    /// first [`BatchLoader::next_batch`].
    pub fn timed_by(mut self, now: fn() -> Instant) -> Self {
        Arc::get_mut(&mut self.shared)
            .expect("no thread has started")
            .now = now;
        self
    }

    /// Goes on with this batch instead of the first. Before the first [`BatchLoader::next_batch`].
    pub fn start_at(&mut self, batch: u64) {
        self.next_number = batch;
        self.shared.lock().next = batch;
    }

    /// Whether [`BatchLoader::next_batch`] gives a batch without a wait.
    pub fn has_next(&self) -> bool {
        match self.options.synthetic {
            true => self.only.is_some(),
            false => self.shared.lock().ready.contains_key(&self.next_number),
        }
    }

    /// The next batch, in order; blocks until it is made.
    pub fn next_batch(&mut self) -> Result<LoadedBatch, LoadError> {
        let started = self.shared.now();
        let number = self.next_number;
        let total = self.shared.schedule.total_batches();
        if number >= total {
            return Err(LoadError::Ended {
                batch: number,
                total,
            });
        }
        if self.options.synthetic {
            return self.only_batch(started);
        }
        let made = if self.options.num_workers == 0 {
            self.shared.make_here(number)
        } else {
            self.take(number)
        }?;
        self.next_number += 1;
        let wait = self.shared.now() - started;
        let load = if self.options.num_workers == 0 {
            wait
        } else {
            made.load
        };
        Ok(LoadedBatch {
            wait,
            load,
            batch: Arc::new(made.batch),
            shared: Arc::clone(&self.shared),
        })
    }

    fn only_batch(&mut self, started: Instant) -> Result<LoadedBatch, LoadError> {
        let (batch, load) = match &self.only {
            Some(batch) => (Arc::clone(batch), Duration::ZERO),
            None => {
                let mut made = self.shared.make_here(0)?;
                // Every batch of a step is this one.
                made.batch.step_targets = made
                    .batch
                    .step_targets
                    .map(|_| made.batch.counted_targets() * self.shared.batches_per_step());
                (
                    Arc::clone(self.only.insert(Arc::new(made.batch))),
                    made.load,
                )
            }
        };
        self.next_number += 1;
        Ok(LoadedBatch {
            wait: self.shared.now() - started,
            load,
            batch,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Lets workers finish what they are making and begin no more: time that is cut out of the
    /// measured window must not fill the queue for the steps after it.
    pub fn pause(&self) {
        self.shared.lock().is_paused = true;
    }

    /// Lets workers go on after [`BatchLoader::pause`].
    pub fn resume(&self) {
        self.shared.lock().is_paused = false;
        self.shared.changed.notify_all();
    }

    /// Batches that it makes in all.
    pub fn total_batches(&self) -> u64 {
        self.shared.schedule.total_batches()
    }

    /// The most batches that were in host memory at once, those being made included.
    pub fn peak_batches(&self) -> usize {
        self.shared.peak.load(Ordering::SeqCst)
    }

    /// Threads started so far, ended ones included.
    pub fn threads_started(&self) -> u64 {
        self.threads_started
    }

    fn take(&mut self, number: u64) -> Result<Made, LoadError> {
        if number >= self.shared.lock().limit {
            self.start_workers()?;
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.ready.remove(&number) {
                return result;
            }
            state = self
                .shared
                .delivered
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts the threads of the whole training, or of the next epoch where they do not live across
    /// epochs.
    fn start_workers(&mut self) -> Result<(), LoadError> {
        self.join();
        let schedule = &self.shared.schedule;
        let mut limit = schedule.total_batches();
        if !self.options.persistent_workers {
            let per_epoch = schedule.batches_per_epoch().max(1);
            limit = limit.min((self.next_number / per_epoch + 1) * per_epoch);
        }
        self.shared.lock().limit = limit;
        for worker in 0..self.options.num_workers {
            let shared = Arc::clone(&self.shared);
            let builder = thread::Builder::new().name(format!("loader-{worker}"));
            let thread = builder
                .spawn(move || shared.work())
                .map_err(|source| LoadError::Thread { worker, source })?;
            self.threads.push(thread);
            self.threads_started += 1;
        }
        Ok(())
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A worker catches each of its panics and reports it as a failed batch.
            let _ = thread.join();
        }
    }
}

impl Drop for BatchLoader {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        // Locked and released, so that no worker is between its check of `is_closed` and its wait.
        drop(self.shared.lock());
        self.shared.changed.notify_all();
        self.join();
    }
}

impl Deref for LoadedBatch {
    type Target = HostBatch;

    fn deref(&self) -> &HostBatch {
        &self.batch
    }
}

impl Drop for LoadedBatch {
    fn drop(&mut self) {
        // A synthetic loader holds its batch too and keeps it.
        if let Some(batch) = Arc::into_inner(std::mem::take(&mut self.batch)) {
            self.shared.give_back(batch);
        }
    }
}

impl LoaderShared {
    fn lock(&self) -> MutexGuard<'_, LoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        (self.now)()
    }

    /// A worker's life: takes a number and a buffer, makes the batch, delivers it, until the limit
    /// or the end.
    fn work(&self) {
        while let Some((number, buffer)) = self.claim() {
            let result = self.make_caught(number, buffer);
            self.lock().ready.insert(number, result);
            self.delivered.notify_one();
        }
    }

    fn claim(&self) -> Option<(u64, HostBatch)> {
        let mut state = self.lock();
        loop {
            if self.is_closed.load(Ordering::SeqCst) || state.next >= state.limit {
                return None;
            }
            if !state.is_paused
                && let Some(buffer) = state.free.pop()
            {
                let number = state.next;
                state.next += 1;
                self.count_one_more();
                return Some((number, buffer));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn make_here(&self, number: u64) -> Result<Made, LoadError> {
        let buffer = self.lock().free.pop().unwrap_or_default();
        self.count_one_more();
        self.make_caught(number, buffer)
    }

    fn count_one_more(&self) {
        let now = self.in_memory.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
    }

    fn give_back(&self, buffer: HostBatch) {
        let mut state = self.lock();
        // Before a worker can take the buffer and count it again.
        self.in_memory.fetch_sub(1, Ordering::SeqCst);
        state.free.push(buffer);
        drop(state);
        self.changed.notify_one();
    }

    /// A panic in the source becomes this batch's error.
    fn make_caught(&self, number: u64, buffer: HostBatch) -> Result<Made, LoadError> {
        catch_unwind(AssertUnwindSafe(|| self.make(number, buffer))).unwrap_or_else(|payload| {
            Err(LoadError::Panicked {
                batch: number,
                reason: panic_text(payload.as_ref()),
            })
        })
    }

    fn batches_per_step(&self) -> u64 {
        self.schedule.step_of(0).count() as u64
    }

    /// Number of targets of the whole step, which may be several batches; `None` if all samples
    /// have the same number.
    fn step_targets(&self, number: u64, draws: &[Draw]) -> Option<u64> {
        let counted = |draws: &[Draw]| {
            draws
                .iter()
                .map(|draw| self.source.counted_targets(draw.sample))
                .sum::<Option<u64>>()
        };
        counted(draws.get(..1)?)?;
        self.schedule
            .step_of(number)
            .map(|batch| counted(&self.schedule.draws(batch)))
            .sum()
    }

    fn make(&self, number: u64, mut batch: HostBatch) -> Result<Made, LoadError> {
        let started = self.now();
        let draws = self.schedule.draws(number);
        match number < LONGEST_STEPS * self.batches_per_step() {
            true => self.source.lay_out_first(&draws, &mut batch),
            false => self.source.lay_out(&draws, &mut batch),
        }
        batch.step_targets = self.step_targets(number, &draws);
        for (row, draw) in draws.into_iter().enumerate() {
            if self.is_closed.load(Ordering::Relaxed) {
                break; // Nobody will take this batch.
            }
            self.source
                .write(draw, row, &mut batch)
                .map_err(|reason| LoadError::Sample {
                    sample: draw.sample,
                    batch: number,
                    reason,
                    training_advice: self.source.training_advice(draw.sample),
                })?;
        }
        Ok(Made {
            batch,
            load: self.now() - started,
        })
    }
}
