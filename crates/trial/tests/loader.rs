//! Guarantees of the loader: order and content do not depend on workers, memory is bounded, errors
//! arrive typed, slow samples are made in parallel.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc, Condvar, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use kiln_core::kinds::data::Sampling;
use kiln_trial::data::{
    BatchLoader, BatchSchedule, Draw, HostBatch, LoadError, LoaderOptions, Source, TextWindows,
};

const SEQ_LEN: usize = 4;
/// Longest wait for what must happen; only a fault uses it up.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// Time of the manual clock in this thread: the trainer has one, and each worker has one that
    /// its own samples advance.
    static SHOWN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn shown() -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGINNING + SHOWN.get()
}

/// Waits until something holds.
fn wait_until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "it never came");
        thread::yield_now();
    }
}

fn text() -> Arc<TextWindows> {
    Arc::new(TextWindows {
        tokens: Arc::new((0..203).collect()),
        seq_len: SEQ_LEN,
        stride: 4,
    })
}

/// 50 samples: 8 steps of 2 batches of 3 an epoch, 2 samples left over.
fn schedule(total_steps: u64, sampling: Sampling) -> BatchSchedule {
    BatchSchedule {
        source_samples: 50,
        epoch_samples: 50,
        batch_size: 3,
        grad_accumulation: 2,
        total_steps,
        sampling,
        seed: 9,
        sort_keys: None,
    }
}

fn options(num_workers: usize, prefetch: usize) -> LoaderOptions {
    LoaderOptions {
        num_workers,
        prefetch,
        persistent_workers: true,
        synthetic: false,
    }
}

fn all_batches(mut loader: BatchLoader) -> Vec<HostBatch> {
    let mut batches = Vec::new();
    loop {
        match loader.next_batch() {
            Ok(batch) => batches.push((*batch).clone()),
            Err(LoadError::Ended { .. }) => return batches,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn batches_are_the_same_for_any_number_of_workers_prefetch_and_persistence() {
    for sampling in [Sampling::Shuffled, Sampling::Random] {
        let expected = all_batches(BatchLoader::new(
            text(),
            schedule(20, sampling),
            options(0, 2),
        ));
        assert_eq!(expected.len(), 40);
        for (num_workers, prefetch, persistent_workers) in [
            (1, 1, true),
            (1, 2, false),
            (4, 1, false),
            (4, 3, true),
            (7, 2, true),
        ] {
            let options = LoaderOptions {
                num_workers,
                prefetch,
                persistent_workers,
                synthetic: false,
            };
            assert_eq!(
                all_batches(BatchLoader::new(text(), schedule(20, sampling), options)),
                expected,
                "{sampling:?} {options:?}"
            );
        }
    }
}

#[test]
fn an_epoch_visits_each_sample_once_but_for_what_fills_no_step_and_no_two_epochs_are_alike() {
    let batches = all_batches(BatchLoader::new(
        text(),
        schedule(16, Sampling::Shuffled),
        options(2, 2),
    ));
    let first_tokens = |batches: &[HostBatch]| -> Vec<i64> {
        batches
            .iter()
            .flat_map(|batch| {
                batch
                    .text()
                    .unwrap()
                    .inputs
                    .chunks(SEQ_LEN)
                    .map(|row| row[0])
            })
            .collect()
    };
    let (first, second) = (first_tokens(&batches[..16]), first_tokens(&batches[16..]));
    for epoch in [&first, &second] {
        assert_eq!(epoch.len(), 48);
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 48);
        assert!(epoch.iter().all(|token| token % 4 == 0));
    }
    assert_ne!(first, second);
}

/// Counts batches begun by the first row of each, and those finished by the last. A sample takes
/// its time on the manual clock, or asleep.
struct Slow {
    sample_time: Duration,
    is_asleep: bool,
    begun: AtomicUsize,
    finished: AtomicUsize,
    returned: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(sample_milliseconds: u64) -> Arc<Self> {
        Arc::new(Self::with(sample_milliseconds, false))
    }

    fn with(sample_milliseconds: u64, is_asleep: bool) -> Self {
        let zero = || AtomicUsize::new(0);
        let sample_time = Duration::from_millis(sample_milliseconds);
        Self {
            sample_time,
            is_asleep,
            begun: zero(),
            finished: zero(),
            returned: zero(),
            most: zero(),
        }
    }

    /// Batches begun and not returned.
    fn held(&self) -> usize {
        self.begun.load(Ordering::SeqCst) - self.returned.load(Ordering::SeqCst)
    }
}

impl Source for Slow {
    fn sample_count(&self) -> u64 {
        50
    }
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), SEQ_LEN);
    }
    fn write(&self, _: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        if row == 0 {
            let held = self.begun.fetch_add(1, Ordering::SeqCst) + 1
                - self.returned.load(Ordering::SeqCst);
            self.most.fetch_max(held, Ordering::SeqCst);
        }
        if self.is_asleep {
            thread::sleep(self.sample_time);
        } else {
            SHOWN.set(SHOWN.get() + self.sample_time);
        }
        if row + 1 == batch.rows {
            self.finished.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

#[test]
fn a_synthetic_loader_makes_the_first_batch_once_and_costs_nothing_after_it() {
    let source = Slow::new(20);
    let options = LoaderOptions {
        synthetic: true,
        ..options(4, 2)
    };
    let mut loader =
        BatchLoader::new(source.clone(), schedule(20, Sampling::Shuffled), options).timed_by(shown);
    let first = loader.next_batch().unwrap();
    let (wait, batch) = (first.wait, (*first).clone());
    drop(first);
    assert_eq!(wait, Duration::from_millis(60), "3 samples of 20 ms");
    for _ in 1..40 {
        let again = loader.next_batch().unwrap();
        assert_eq!(
            (*again == batch, again.load, again.wait),
            (true, Duration::ZERO, Duration::ZERO)
        );
    }
    assert!(matches!(loader.next_batch(), Err(LoadError::Ended { .. })));
    assert_eq!(
        (
            loader.peak_batches(),
            loader.threads_started(),
            source.begun.load(Ordering::SeqCst)
        ),
        (1, 0, 1)
    );
}

#[test]
fn host_memory_holds_workers_times_prefetch_batches_and_never_more() {
    for (num_workers, prefetch, bound) in [(0, 5, 1), (1, 1, 1), (2, 1, 2), (3, 2, 6), (4, 4, 16)] {
        let source = Slow::new(0);
        let mut loader = BatchLoader::new(
            Arc::clone(&source) as Arc<dyn Source>,
            schedule(20, Sampling::Shuffled),
            options(num_workers, prefetch),
        );
        for batch in 0..40 {
            let held = loader.next_batch().unwrap();
            // The workers run as far ahead as they may; towards the end fewer batches are left.
            wait_until(|| source.held() >= bound.min(40 - batch));
            source.returned.fetch_add(1, Ordering::SeqCst);
            drop(held);
        }
        let (seen, counted) = (source.most.load(Ordering::SeqCst), loader.peak_batches());
        assert_eq!(
            (seen, counted),
            (bound, bound),
            "{num_workers} × {prefetch}"
        );
    }
}

/// A source whose batches are begun four at a time: each waits until three others have begun.
struct FourAtOnce {
    begun: Mutex<usize>,
    changed: Condvar,
}

impl Source for FourAtOnce {
    fn sample_count(&self) -> u64 {
        50
    }
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), SEQ_LEN);
    }
    fn write(&self, _: Draw, row: usize, _: &mut HostBatch) -> Result<(), String> {
        if row > 0 {
            return Ok(());
        }
        let mut begun = self.begun.lock().unwrap();
        *begun += 1;
        self.changed.notify_all();
        let wanted = begun.next_multiple_of(4);
        let (begun, _) = self
            .changed
            .wait_timeout_while(begun, PATIENCE, |begun| *begun < wanted)
            .unwrap();
        if *begun < wanted {
            Err(format!("alone with batch {begun}"))
        } else {
            Ok(())
        }
    }
}

#[test]
fn four_workers_make_four_batches_at_the_same_time() {
    let source = FourAtOnce {
        begun: Mutex::new(0),
        changed: Condvar::new(),
    };
    let mut loader = BatchLoader::new(
        Arc::new(source),
        schedule(12, Sampling::Shuffled),
        options(4, 2),
    );
    for _ in 0..24 {
        drop(loader.next_batch().unwrap());
    }
}

#[test]
fn data_wait_is_load_time_without_workers_and_none_for_a_batch_made_ahead() {
    let mut here = BatchLoader::new(
        Slow::new(10),
        schedule(2, Sampling::Shuffled),
        options(0, 2),
    )
    .timed_by(shown);
    let batch = here.next_batch().unwrap();
    assert_eq!(
        (batch.wait, batch.load),
        (Duration::from_millis(30), Duration::from_millis(30))
    );
    let source = Slow::new(50);
    let mut ahead = BatchLoader::new(
        source.clone(),
        schedule(2, Sampling::Shuffled),
        options(1, 2),
    )
    .timed_by(shown);
    drop(ahead.next_batch().unwrap());
    wait_until(|| source.finished.load(Ordering::SeqCst) >= 2);
    // The worker's time passes on its own clock.
    let batch = ahead.next_batch().unwrap();
    assert_eq!(
        (batch.wait, batch.load),
        (Duration::ZERO, Duration::from_millis(150))
    );
}

/// On the wall clock: the worker begins its first batch when the trainer asks for it.
#[test]
fn a_batch_that_is_asked_for_before_it_is_begun_is_waited_for_whole() {
    let source = Arc::new(Slow::with(5, true));
    let batch = BatchLoader::new(source, schedule(2, Sampling::Shuffled), options(1, 2))
        .next_batch()
        .unwrap();
    assert!(
        batch.load >= Duration::from_millis(15) && batch.wait >= batch.load,
        "{:?} for a load of {:?}",
        batch.wait,
        batch.load
    );
}

/// Breaks on sample 9, and remembers which threads worked.
struct Breaking {
    panics: bool,
    threads: Mutex<BTreeSet<String>>,
}

impl Breaking {
    fn new(panics: bool) -> Arc<Self> {
        Arc::new(Self {
            panics,
            threads: Mutex::new(BTreeSet::new()),
        })
    }
}

impl Source for Breaking {
    fn sample_count(&self) -> u64 {
        50
    }
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), SEQ_LEN);
    }
    fn write(&self, draw: Draw, _: usize, _: &mut HostBatch) -> Result<(), String> {
        let id: ThreadId = thread::current().id();
        self.threads.lock().unwrap().insert(format!("{id:?}"));
        match (draw.sample, self.panics) {
            (9, true) => panic!("sample nine is cursed"),
            (9, false) => Err("the disk went away".to_string()),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_workers_panic_or_error_reaches_the_trainer_as_a_typed_error_at_its_batch() {
    // Sample 9 of the text starts with token 36.
    let good = all_batches(BatchLoader::new(
        text(),
        schedule(16, Sampling::Shuffled),
        options(0, 1),
    ));
    let expected = good
        .iter()
        .position(|batch| {
            batch
                .text()
                .unwrap()
                .inputs
                .chunks(SEQ_LEN)
                .any(|row| row[0] == 36)
        })
        .unwrap() as u64;
    for num_workers in [0, 1, 4] {
        for panics in [true, false] {
            let mut loader = BatchLoader::new(
                Breaking::new(panics),
                schedule(16, Sampling::Shuffled),
                options(num_workers, 2),
            );
            for _ in 0..expected {
                drop(loader.next_batch().unwrap());
            }
            match loader.next_batch().err().unwrap() {
                LoadError::Panicked { batch, reason } => {
                    assert!(panics && batch == expected && reason == "sample nine is cursed")
                }
                LoadError::Sample {
                    sample: 9,
                    batch,
                    reason,
                    ..
                } => assert!(!panics && batch == expected && reason == "the disk went away"),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn workers_live_across_epochs_only_where_they_are_persistent() {
    let threads = |persistent_workers: bool| {
        let source = Breaking::new(false);
        // One step an epoch; sample 9 is never drawn.
        let schedule = BatchSchedule {
            epoch_samples: 6,
            ..schedule(3, Sampling::Shuffled)
        };
        let options = LoaderOptions {
            num_workers: 1,
            prefetch: 2,
            persistent_workers,
            synthetic: false,
        };
        let mut loader =
            BatchLoader::new(Arc::clone(&source) as Arc<dyn Source>, schedule, options);
        for _ in 0..6 {
            drop(loader.next_batch().unwrap());
        }
        source.threads.lock().unwrap().len()
    };
    assert_eq!((threads(true), threads(false)), (1, 3));
}

#[test]
fn dropping_a_loader_joins_its_threads_in_the_middle_of_slow_batches() {
    let source = Arc::new(Slow::with(1, true));
    let mut loader = BatchLoader::new(
        Arc::clone(&source) as Arc<dyn Source>,
        schedule(20, Sampling::Shuffled),
        options(3, 2),
    );
    drop(loader.next_batch().unwrap());
    drop(loader);
    assert_eq!(Arc::strong_count(&source), 1, "no thread holds the source");
}
