//! Readings on a timer: one thread reads the host, each running trial's process and its device.
//!
//! Input: [`Watch`]es (a trial, its process, its device) and marks (the measured window begins or
//! ends: read now). Output: a trial's [`TrialReadings`] and rows for `samples.csv`. If a driver
//! hangs, only the device's readings are missing: the ticks of the host and of the processes
//! continue.

mod looker;
mod readings;
mod throttle;
mod tick;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use kiln_units::clock;

use super::{
    Nvml,
    gpu_reader::{EVERYTHING, desk::GpuWatchdog},
};
pub use looker::HostSeries;
use looker::Looker;
use readings::EccCounts;
pub use readings::joined;
pub use throttle::{THROTTLED, throttle_names};
pub use tick::{ChildTick, HostTick, SampledTick, Tick, TrialReadings, Watch};

/// Longest wait for the look at the end of a window: many times what one takes, and little for the other
/// trials of a launch, whose marks wait meanwhile.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Shortest time between a look and one at the end of a cut, in nanoseconds: a look takes some 5 ms.
const LEAST_BETWEEN: u64 = 20_000_000;

/// Longest wait for the thread at the end of the program.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Shorter intervals would cost more than they tell.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// Timeout of a tick for a device, unless `KILN_NVML_PATIENCE` sets another: half a tick, but a
/// call that takes less than the first is not a hang, and one that takes longer than the second
/// makes the other rows late.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// The sampling thread. Dropping it stops the thread.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<SamplerShared>,
}

#[derive(Debug, Default)]
struct SamplerShared {
    state: Mutex<SamplerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SamplerState {
    watched: Vec<Watched>,
    rows: Vec<SampledTick>,
    must_stop: bool,
    has_stopped: bool,
    /// The reason why there is no thread.
    failure: Option<String>,
}

#[derive(Debug)]
struct Watched {
    watch: Watch,
    readings: TrialReadings,
    /// To be read now, not at the next tick; with the processes on its device where `is_asked`.
    is_due: bool,
    is_asked: bool,
    /// When its window began or ended, on CLOCK_MONOTONIC in nanoseconds, until a look after that is kept.
    marked: Option<u64>,
    looks: u64,
    cpu_before: Option<CpuTimes>,
    /// When the memory of several processes may be read again.
    next_pages: Option<Instant>,
    ecc_counts: EccCounts,
}

/// CPU time used up to a tick.
#[derive(Clone, Copy, Debug)]
struct CpuTimes {
    monotonic_nanoseconds: u64,
    /// By the trial's process and all that it started.
    trial_seconds: f64,
    /// By kiln and all else that it started.
    beside_seconds: f64,
}

impl SamplerShared {
    fn lock(&self) -> MutexGuard<'_, SamplerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    /// Starts the thread. `run_anchor_nanoseconds` is the run's start mark on CLOCK_MONOTONIC; it
    /// may be negative. Where the system refuses a thread nothing is read, and every trial's
    /// readings say so.
    pub fn start(nvml: Option<Arc<Nvml>>, interval: Duration, run_anchor_nanoseconds: i64) -> Self {
        let [least, most] = PATIENCE;
        Self::with_desk(
            nvml.map(|nvml| GpuWatchdog::new(&nvml, (interval / 2).clamp(least, most))),
            interval,
            run_anchor_nanoseconds,
        )
    }

    /// The same with a desk of the caller's, who chooses its patience.
    pub fn with_desk(
        gpu: Option<GpuWatchdog>,
        interval: Duration,
        run_anchor_nanoseconds: i64,
    ) -> Self {
        let shared = Arc::new(SamplerShared::default());
        let looker = Looker::new(
            Arc::clone(&shared),
            gpu,
            interval.max(SHORTEST_INTERVAL),
            run_anchor_nanoseconds,
        );
        if let Err(error) = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || looker.run())
        {
            let mut state = shared.lock();
            state.has_stopped = true;
            state.failure = Some(format!(
                "cannot start the thread that reads the GPU: {error}"
            ));
        }
        Self { shared }
    }

    /// Begins to watch a trial on one of its devices, with a first look at once.
    pub fn watch(&self, watch: Watch) {
        let mut state = self.shared.lock();
        state.watched.retain(|watched| {
            watched.watch.trial != watch.trial || watched.watch.device_uuid != watch.device_uuid
        });
        let readings = TrialReadings::default();
        state.watched.push(Watched {
            watch,
            readings,
            is_due: true,
            is_asked: true,
            marked: None,
            looks: 0,
            cpu_before: None,
            next_pages: None,
            ecc_counts: EccCounts::default(),
        });
        self.shared.changed.notify_all();
    }

    /// Looks at a trial now: its measured window begins or ends.
    pub fn mark(&self, trial: &str) {
        let mut state = self.shared.lock();
        for watched in state
            .watched
            .iter_mut()
            .filter(|watched| watched.watch.trial == trial)
        {
            (watched.is_due, watched.is_asked) = (true, true);
            watched.marked = Some(clock::monotonic_nanoseconds());
            self.shared.changed.notify_all();
        }
    }

    /// Looks at a trial now, unless it was looked at a moment ago: a cut in its window begins or ends.
    pub fn look(&self, trial: &str) {
        let now = clock::monotonic_nanoseconds();
        let is_due = |watched: &Watched| {
            let last = watched.readings.ticks.last();
            last.is_none_or(|tick| now.saturating_sub(tick.monotonic_nanoseconds) >= LEAST_BETWEEN)
        };
        let mut state = self.shared.lock();
        for watched in state
            .watched
            .iter_mut()
            .filter(|watched| watched.watch.trial == trial && is_due(watched))
        {
            watched.is_due = true;
            self.shared.changed.notify_all();
        }
    }

    /// NVML's error for a device of the trial that was given up since the trial started to be
    /// watched.
    pub fn lost(&self, trial: &str) -> Option<String> {
        self.shared
            .lock()
            .watched
            .iter()
            .filter(|watched| watched.watch.trial == trial)
            .find_map(|watched| watched.readings.lost.clone())
    }

    /// Stops watching a trial on one device and returns what was read; empty for a trial that is
    /// not watched.
    pub fn unwatch(&self, trial: &str) -> TrialReadings {
        self.unwatch_all(trial)
            .into_iter()
            .next()
            .unwrap_or_default()
    }

    /// The same of each device that it was watched on, in the order in which that began. Waits a moment
    /// for the look at the end of its window: a trial often ends right after that.
    pub fn unwatch_all(&self, trial: &str) -> Vec<TrialReadings> {
        let owes = |state: &mut SamplerState| {
            let mut of_trial = state.watched.iter().filter(|one| one.watch.trial == trial);
            !state.has_stopped && of_trial.any(|watched| watched.marked.is_some())
        };
        let state = self.shared.lock();
        let (mut state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, LAST_LOOK, owes)
            .unwrap_or_else(PoisonError::into_inner);
        let failure = state.failure.clone();
        let of_trial = state
            .watched
            .extract_if(.., |watched| watched.watch.trial == trial);
        let readings = of_trial.map(|watched| {
            let mut readings = watched.readings;
            // A driver that hangs may give its first answer too late.
            let is_unread = watched.watch.device_uuid.is_some()
                && readings.ticks.iter().all(|tick| tick.gpu.is_none());
            if is_unread && !readings.absent.contains_key(EVERYTHING) {
                let reason = "the driver had not answered when the trial ended";
                readings.absent.insert(EVERYTHING, reason.to_owned());
            }
            readings
                .absent
                .extend(failure.clone().map(|failure| (EVERYTHING, failure)));
            readings
        });
        readings.collect()
    }

    /// The ticks since the last call, of all trials. Call it every few minutes at least: they wait
    /// in memory.
    pub fn take_rows(&self) -> Vec<SampledTick> {
        std::mem::take(&mut self.shared.lock().rows)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.must_stop = true;
        self.shared.changed.notify_all();
        drop(
            self.shared
                .changed
                .wait_timeout_while(state, STOP_TIMEOUT, |state| !state.has_stopped),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        process::{Command, Stdio},
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc::{Receiver, Sender, channel},
        },
        time::Instant,
    };

    use super::*;
    use crate::{
        GpuProcess, ProcessList,
        gpu_reader::{GpuReader, GpuReading, GpuTick},
        process,
    };

    /// Its counter of corrected errors goes up by 1 at each look.
    struct Fixed(u64);

    impl GpuReader for Fixed {
        fn read(&mut self, _uuid: &str, wants_processes: bool) -> GpuReading {
            self.0 += 1;
            let own = GpuProcess {
                pid: std::process::id(),
                user: None,
                used_memory_bytes: Some(3),
            };
            let other = GpuProcess {
                pid: 1,
                user: None,
                used_memory_bytes: Some(7),
            };
            GpuReading {
                tick: Some(GpuTick {
                    utilization: Some(0.5),
                    ecc_corrected_errors: Some(100 + self.0),
                    ..GpuTick::default()
                }),
                absent: BTreeMap::from([(
                    "energy_joules",
                    "not supported by this device".to_owned(),
                )]),
                processes: wants_processes.then(|| ProcessList::Known(vec![own, other])),
                ..GpuReading::default()
            }
        }
    }

    /// A driver call that never returns (until the test's end lets it go).
    struct Hanging(Arc<Mutex<Receiver<()>>>);

    impl GpuReader for Hanging {
        fn read(&mut self, _uuid: &str, _wants_processes: bool) -> GpuReading {
            let _ = self.0.lock().unwrap().recv();
            GpuReading::default()
        }
    }

    struct Lost;

    impl GpuReader for Lost {
        fn read(&mut self, _uuid: &str, _wants_processes: bool) -> GpuReading {
            let words = "the GPU is lost";
            GpuReading {
                absent: BTreeMap::from([(EVERYTHING, words.to_owned())]),
                lost: Some(words.to_owned()),
                ..GpuReading::default()
            }
        }
    }

    /// A busy machine may take its time for what does not hang.
    fn desk<R: GpuReader + 'static>(
        make: impl Fn() -> R + Send + Sync + 'static,
    ) -> Option<GpuWatchdog> {
        Some(GpuWatchdog::with(Duration::from_secs(60), move || {
            Box::new(make())
        }))
    }

    fn watch(trial: &str, device: Option<&str>) -> Watch {
        Watch {
            trial: trial.to_owned(),
            attempt: 1,
            pid: std::process::id(),
            without_root: false,
            device_uuid: device.map(str::to_owned),
        }
    }

    /// Waits until so many rows were taken.
    fn rows(sampler: &Sampler, count: usize) -> Vec<SampledTick> {
        let began = Instant::now();
        let mut rows = Vec::new();
        while rows.len() < count {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{} of {count} rows",
                rows.len()
            );
            rows.extend(sampler.take_rows());
            thread::sleep(Duration::from_millis(1));
        }
        rows
    }

    #[test]
    fn a_watch_and_each_mark_are_looked_at_without_waiting_for_a_tick() {
        let anchor = clock::monotonic_nanoseconds() as i64 - 5_000_000_000;
        let sampler = Sampler::with_desk(desk(|| Fixed(0)), Duration::from_secs(3600), anchor);
        sampler.watch(watch("a", Some("GPU-1")));
        assert_eq!(rows(&sampler, 1).len(), 1);
        sampler.mark("a");
        let row = rows(&sampler, 1).remove(0);
        assert!(
            row.run_seconds >= 5.0 && row.run_seconds < 60.0,
            "{}",
            row.run_seconds
        );
        let readings = sampler.unwatch("a");
        assert!(!readings.is_silent);
        assert_eq!(readings.ticks.len(), 2);
        assert_eq!(readings.ticks[1], row.tick);
        let gpus: Vec<&GpuTick> = readings
            .ticks
            .iter()
            .map(|tick| tick.gpu.as_ref().unwrap())
            .collect();
        assert_eq!(
            (gpus[0].utilization, gpus[0].process_memory_bytes),
            (Some(0.5), Some(3))
        );
        assert_eq!(
            (gpus[0].ecc_corrected_errors, gpus[1].ecc_corrected_errors),
            (Some(0), Some(1))
        );
        assert_eq!(
            readings.absent["energy_joules"],
            "not supported by this device"
        );
        match readings.foreign.unwrap() {
            ProcessList::Known(list) => assert_eq!(
                list.iter().map(|process| process.pid).collect::<Vec<_>>(),
                [1]
            ),
            ProcessList::Unknown(_) => assert!(!process::pids_are_the_machines()),
        }
    }

    #[test]
    fn a_trial_on_the_cpu_has_its_process_and_the_host() {
        let sampler = Sampler::start(None, Duration::from_millis(1), 0);
        sampler.watch(watch("a", None));
        rows(&sampler, 3);
        let readings = sampler.unwatch("a");
        let last = readings.ticks.last().unwrap();
        assert!(
            last.child
                .as_ref()
                .is_some_and(|child| child.peak_resident_bytes > 0)
        );
        assert!(
            last.gpu.is_none()
                && last.gpu_absence.is_none()
                && last.host.memory_available_bytes.is_some()
        );
        assert!(
            readings
                .ticks
                .windows(2)
                .all(|pair| pair[0].monotonic_nanoseconds < pair[1].monotonic_nanoseconds)
        );
        assert_eq!(sampler.unwatch("a"), TrialReadings::default());
    }

    #[test]
    fn a_wrappers_child_is_no_stranger() {
        use crate::tree::tests::{busy_wrapper, end};
        let mut wrapper = busy_wrapper();
        let sampler = Sampler::start(None, Duration::from_millis(1), 0);
        sampler.watch(Watch {
            pid: wrapper.id(),
            without_root: false,
            ..watch("a", None)
        });
        let began = Instant::now();
        let (mut of_trial, mut own): (f64, f64) = (0.0, 0.0);
        while of_trial < 0.05 && began.elapsed() < Duration::from_secs(60) {
            for row in rows(&sampler, 1) {
                of_trial = of_trial.max(
                    row.tick
                        .child
                        .and_then(|child| child.cpu_cores)
                        .unwrap_or(0.0),
                );
                own = own.max(row.tick.own_cpu_cores.unwrap_or(0.0));
            }
        }
        drop(sampler);
        end(&mut wrapper);
        assert!(of_trial >= 0.05 && own >= of_trial, "{of_trial} {own}");
    }

    #[test]
    fn errors_after_the_end_of_a_trial_are_not_its_own() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let sampler = Sampler::with_desk(desk(|| Fixed(0)), Duration::from_millis(1), 0);
        sampler.watch(Watch {
            pid: child.id(),
            ..watch("a", Some("GPU-1"))
        });
        rows(&sampler, 2);
        child.kill().unwrap();
        let began = Instant::now();
        while rows(&sampler, 1).iter().all(|row| row.tick.child.is_some()) {
            assert!(began.elapsed() < Duration::from_secs(60), "it never ended");
        }
        let readings = sampler.unwatch("a");
        child.wait().unwrap();
        let is_counted = |tick: &Tick| tick.gpu.as_ref().unwrap().ecc_corrected_errors.is_some();
        let mut ticks = readings.ticks.iter();
        assert!(ticks.all(|tick| is_counted(tick) == tick.child.is_some()));
    }

    #[test]
    fn a_hanging_driver_hangs_neither_the_ticks_nor_the_end() {
        let (release, hang) = channel();
        let hang = Arc::new(Mutex::new(hang));
        let patience = Duration::from_millis(200);
        let desk = GpuWatchdog::with(patience, move || Box::new(Hanging(Arc::clone(&hang))));
        let sampler = Sampler::with_desk(Some(desk), Duration::from_millis(1), 0);
        sampler.watch(watch("a", Some("GPU-1")));
        let rows = rows(&sampler, 5);
        assert!(
            rows.iter()
                .all(|row| row.tick.gpu.is_none() && row.tick.child.is_some()),
            "{rows:?}"
        );
        assert!(rows.iter().all(|row| {
            row.tick
                .gpu_absence
                .as_ref()
                .is_some_and(|why| why.starts_with("the driver has not answered for "))
        }));
        let readings = sampler.unwatch("a");
        assert!(readings.silent_seconds >= patience.as_secs_f64() && readings.lost.is_none());
        assert!(readings.is_silent);
        // The call hangs until `release` is dropped: what waits for it would wait for ever.
        drop(sampler);
        drop(release);
    }

    #[test]
    fn a_trial_on_two_devices_is_read_on_both() {
        let sampler = Sampler::with_desk(desk(|| Fixed(0)), Duration::from_secs(3600), 0);
        let devices = ["GPU-1", "GPU-2"];
        devices
            .iter()
            .for_each(|uuid| sampler.watch(watch("a", Some(uuid))));
        sampler.watch(watch("b", Some("GPU-3")));
        let count = |rows: &[SampledTick], uuid: &str| {
            rows.iter()
                .filter(|row| row.device_uuid.as_deref() == Some(uuid))
                .count()
        };
        let first = rows(&sampler, 3);
        assert_eq!(
            ["GPU-1", "GPU-2", "GPU-3"].map(|uuid| count(&first, uuid)),
            [1, 1, 1]
        );
        sampler.mark("a");
        let marked = rows(&sampler, 2);
        assert_eq!(devices.map(|uuid| count(&marked, uuid)), [1, 1]);
        let found = sampler.unwatch_all("a");
        assert_eq!(
            found
                .iter()
                .map(|readings| readings.ticks.len())
                .collect::<Vec<_>>(),
            [2, 2]
        );
        assert!(found[0].ticks[0] == first[0].tick && found[1].ticks[0] == first[1].tick);
        assert!(sampler.unwatch_all("a").is_empty() && sampler.unwatch("b").ticks.len() == 1);
    }

    /// Once it is asked to, the first device answers only after the second one was asked.
    struct Waiting {
        must_wait: Arc<AtomicBool>,
        sender: Sender<()>,
        receiver: Arc<Mutex<Receiver<()>>>,
    }

    impl GpuReader for Waiting {
        fn read(&mut self, uuid: &str, _wants_processes: bool) -> GpuReading {
            match (uuid, self.must_wait.load(Ordering::Relaxed)) {
                ("GPU-1", true) => self.receiver.lock().unwrap().recv().unwrap(),
                ("GPU-2", true) => self.sender.send(()).unwrap(),
                _ => {}
            }
            GpuReading {
                tick: Some(GpuTick::default()),
                ..GpuReading::default()
            }
        }
    }

    #[test]
    fn the_devices_of_a_tick_are_read_at_the_same_time() {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let must_wait = Arc::new(AtomicBool::new(false));
        let for_desk = Arc::clone(&must_wait);
        let desk = desk(move || Waiting {
            must_wait: Arc::clone(&for_desk),
            sender: sender.clone(),
            receiver: Arc::clone(&receiver),
        });
        let sampler = Sampler::with_desk(desk, Duration::from_secs(3600), 0);
        for uuid in ["GPU-1", "GPU-2"] {
            sampler.watch(watch("a", Some(uuid)));
        }
        rows(&sampler, 2);
        must_wait.store(true, Ordering::Relaxed);
        sampler.mark("a");
        let marked = rows(&sampler, 2);
        assert!(
            marked.iter().all(|row| row.tick.gpu.is_some()),
            "{marked:?}"
        );
    }

    #[test]
    fn a_lost_device_is_told_while_the_trial_runs() {
        let sampler = Sampler::with_desk(desk(|| Lost), Duration::from_millis(1), 0);
        sampler.watch(watch("a", Some("GPU-1")));
        rows(&sampler, 1);
        assert_eq!(sampler.lost("a").as_deref(), Some("the GPU is lost"));
        assert_eq!(sampler.lost("b"), None);
        assert_eq!(sampler.unwatch("a").absent[EVERYTHING], "the GPU is lost");
    }
}
