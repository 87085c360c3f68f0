//! What the loader promises: order and content do not depend on workers, memory is bounded, errors arrive typed, slow samples
//! are made side by side.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use kiln::catalog::data::Sampling;
use kiln_trial::data::{BatchSchedule, Draw, HostBatch, LoadError, Loader, LoaderOptions, Source, TextWindows};

const SEQ_LEN: usize = 4;

fn text() -> Arc<TextWindows> {
    Arc::new(TextWindows { tokens: Arc::new((0..203).collect()), seq_len: SEQ_LEN, stride: 4 })
}

/// 50 samples: 8 steps of 2 batches of 3 an epoch, 2 samples left over.
fn schedule(total_steps: u64, sampling: Sampling) -> BatchSchedule {
    BatchSchedule { source_samples: 50, epoch_samples: 50, batch_size: 3, grad_accumulation: 2, total_steps, sampling, seed: 9, sort_keys: None }
}

fn options(num_workers: usize, prefetch: usize) -> LoaderOptions {
    LoaderOptions { num_workers, prefetch, persistent_workers: true, synthetic: false }
}

fn all_batches(mut loader: Loader) -> Vec<HostBatch> {
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
        let expected = all_batches(Loader::new(text(), schedule(20, sampling), options(0, 2)));
        assert_eq!(expected.len(), 40);
        for (num_workers, prefetch, persistent_workers) in [(1, 1, true), (1, 2, false), (4, 1, false), (4, 3, true), (7, 2, true)] {
            let options = LoaderOptions { num_workers, prefetch, persistent_workers, synthetic: false };
            assert_eq!(all_batches(Loader::new(text(), schedule(20, sampling), options)), expected, "{sampling:?} {options:?}");
        }
    }
}

#[test]
fn an_epoch_visits_each_sample_once_but_for_what_fills_no_step_and_no_two_epochs_are_alike() {
    let batches = all_batches(Loader::new(text(), schedule(16, Sampling::Shuffled), options(2, 2)));
    let first_tokens = |batches: &[HostBatch]| -> Vec<i64> {
        batches.iter().flat_map(|batch| batch.text().unwrap().inputs.chunks(SEQ_LEN).map(|row| row[0])).collect()
    };
    let (first, second) = (first_tokens(&batches[..16]), first_tokens(&batches[16..]));
    for epoch in [&first, &second] {
        assert_eq!(epoch.len(), 48);
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 48);
        assert!(epoch.iter().all(|token| token % 4 == 0));
    }
    assert_ne!(first, second);
}

#[test]
fn a_synthetic_loader_makes_the_first_batch_once_and_costs_nothing_after_it() {
    let source = Slow::new(20);
    let options = LoaderOptions { synthetic: true, ..options(4, 2) };
    let mut loader = Loader::new(source.clone(), schedule(20, Sampling::Shuffled), options);
    let first = loader.next_batch().unwrap();
    let (wait, batch) = (first.wait, (*first).clone());
    drop(first);
    assert!(wait >= Duration::from_millis(60), "3 samples of 20 ms: {wait:?}");
    for _ in 1..40 {
        let again = loader.next_batch().unwrap();
        assert_eq!((*again == batch, again.load), (true, Duration::ZERO));
        assert!(again.wait < Duration::from_millis(20), "{:?}", again.wait);
    }
    assert!(matches!(loader.next_batch(), Err(LoadError::Ended { .. })));
    assert_eq!((loader.peak_batches(), loader.threads_started(), source.begun.load(Ordering::SeqCst)), (1, 0, 1));
}

/// Takes a known time per sample, and counts batches begun by the first row of each.
struct Slow {
    sample_time: Duration,
    begun: AtomicUsize,
    returned: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(sample_milliseconds: u64) -> Arc<Self> {
        let zero = || AtomicUsize::new(0);
        Arc::new(Self { sample_time: Duration::from_millis(sample_milliseconds), begun: zero(), returned: zero(), most: zero() })
    }
}

impl Source for Slow {
    fn sample_count(&self) -> u64 {
        50
    }
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), SEQ_LEN);
    }
    fn write(&self, _: Draw, row: usize, _: &mut HostBatch) -> Result<(), String> {
        if row == 0 {
            let held = self.begun.fetch_add(1, Ordering::SeqCst) + 1 - self.returned.load(Ordering::SeqCst);
            self.most.fetch_max(held, Ordering::SeqCst);
        }
        if !self.sample_time.is_zero() {
            thread::sleep(self.sample_time);
        }
        Ok(())
    }
}

#[test]
fn host_memory_never_holds_more_than_workers_times_prefetch_batches() {
    for (num_workers, prefetch, bound) in [(0, 5, 1), (1, 1, 1), (2, 1, 2), (3, 2, 6), (4, 4, 16)] {
        let source = Slow::new(0);
        let mut loader = Loader::new(Arc::clone(&source) as Arc<dyn Source>, schedule(20, Sampling::Shuffled), options(num_workers, prefetch));
        for batch in 0..40 {
            let held = loader.next_batch().unwrap();
            if batch % 8 == 0 {
                thread::sleep(Duration::from_millis(10)); // Lets the workers run as far ahead as they may.
            }
            source.returned.fetch_add(1, Ordering::SeqCst);
            drop(held);
        }
        let (seen, counted) = (source.most.load(Ordering::SeqCst), loader.peak_batches());
        assert!(seen <= bound && counted <= bound, "{num_workers} × {prefetch}: {seen} seen, {counted} counted");
        assert_eq!(counted, bound, "workers faster than the trainer fill what they may");
    }
}

#[test]
fn four_workers_make_slow_samples_at_3_5_times_the_rate_of_one() {
    let seconds = |num_workers: usize| {
        let mut loader = Loader::new(Slow::new(20), schedule(12, Sampling::Shuffled), options(num_workers, 2));
        let started = Instant::now();
        for _ in 0..24 {
            assert!(loader.next_batch().unwrap().load >= Duration::from_millis(60));
        }
        started.elapsed().as_secs_f64()
    };
    let (one, four) = (seconds(1), seconds(4));
    assert!(one / four >= 3.5, "1 worker {one:.3} s, 4 workers {four:.3} s");
}

#[test]
fn without_workers_data_wait_is_load_time_and_a_batch_made_ahead_is_no_wait() {
    let mut here = Loader::new(Slow::new(10), schedule(2, Sampling::Shuffled), options(0, 2));
    let batch = here.next_batch().unwrap();
    assert_eq!(batch.wait, batch.load);
    assert!(batch.load >= Duration::from_millis(30));
    let mut ahead = Loader::new(Slow::new(50), schedule(2, Sampling::Shuffled), options(1, 2));
    drop(ahead.next_batch().unwrap());
    thread::sleep(Duration::from_millis(400)); // 150 ms of work, done meanwhile.
    let batch = ahead.next_batch().unwrap();
    assert!(batch.load >= Duration::from_millis(150) && batch.wait < Duration::from_millis(75), "wait {:?}", batch.wait);
}

/// Breaks on sample 9, and remembers which threads worked.
struct Breaking {
    panics: bool,
    threads: Mutex<BTreeSet<String>>,
}

impl Breaking {
    fn new(panics: bool) -> Arc<Self> {
        Arc::new(Self { panics, threads: Mutex::new(BTreeSet::new()) })
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
    let good = all_batches(Loader::new(text(), schedule(16, Sampling::Shuffled), options(0, 1)));
    let expected = good.iter().position(|batch| batch.text().unwrap().inputs.chunks(SEQ_LEN).any(|row| row[0] == 36)).unwrap() as u64;
    for num_workers in [0, 1, 4] {
        for panics in [true, false] {
            let mut loader = Loader::new(Breaking::new(panics), schedule(16, Sampling::Shuffled), options(num_workers, 2));
            for _ in 0..expected {
                drop(loader.next_batch().unwrap());
            }
            match loader.next_batch().err().unwrap() {
                LoadError::Panicked { batch, reason } => assert!(panics && batch == expected && reason == "sample nine is cursed"),
                LoadError::Sample { sample: 9, batch, reason } => assert!(!panics && batch == expected && reason == "the disk went away"),
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
        let schedule = BatchSchedule { epoch_samples: 6, ..schedule(3, Sampling::Shuffled) };
        let options = LoaderOptions { num_workers: 1, prefetch: 2, persistent_workers, synthetic: false };
        let mut loader = Loader::new(Arc::clone(&source) as Arc<dyn Source>, schedule, options);
        for _ in 0..6 {
            drop(loader.next_batch().unwrap());
        }
        source.threads.lock().unwrap().len()
    };
    assert_eq!((threads(true), threads(false)), (1, 3));
}

#[test]
fn dropping_a_loader_joins_its_threads_in_the_middle_of_slow_batches() {
    let source = Slow::new(1);
    let mut loader = Loader::new(Arc::clone(&source) as Arc<dyn Source>, schedule(20, Sampling::Shuffled), options(3, 2));
    drop(loader.next_batch().unwrap());
    drop(loader);
    assert_eq!(Arc::strong_count(&source), 1, "no thread holds the source");
}
