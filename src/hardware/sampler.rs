//! Readings on a timer: one thread that looks at the host, at each running trial's process and at its device.
//!
//! In come [`Watch`]es (a trial, its process, its device) and marks (the measured window begins or ends: read now); out come a
//! trial's [`TrialReadings`] and rows for `samples.csv`. No call here waits for the driver: the thread reads without holding
//! the lock, and a driver call that hangs is left behind when the program ends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    Nvml, ProcessList,
    gpu_reader::{GpuReader, NvmlReader},
    host, process,
};

/// Longest wait for the thread at the end of the program.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A reading that takes longer than this is a driver that does not answer.
const HANG_SECONDS: f64 = 5.0;

/// Shorter intervals would cost more than they tell.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The key of [`TrialReadings::absent`] for a reason why all of the device's fields are missing.
pub const EVERYTHING: &str = "everything";

/// Foreign processes are looked for on each mark and every so many ticks.
const TICKS_PER_PROCESS_LIST: u64 = 10;

/// A trial keeps at most this many ticks in memory (some 9 h at 500 ms, 20 MiB); past it every second old one is dropped.
const MOST_TICKS: usize = 1 << 16;

/// What to watch while a trial runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    pub trial: String,
    pub attempt: u64,
    /// The child's process.
    pub pid: u32,
    /// `None` for a trial on the CPU.
    pub device_uuid: Option<String>,
}

/// One look at one trial, its device and the host. What could not be read is `None`; [`TrialReadings::absent`] says why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// CLOCK_MONOTONIC when the reading began.
    pub monotonic_nanoseconds: u64,
    /// How long it took.
    pub reading_seconds: f64,
    pub gpu: Option<GpuTick>,
    pub child: Option<ChildTick>,
    pub host: HostTick,
}

/// The device. Utilization is of the driver's last sample period (1/6 to 1 s), as a fraction of 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuTick {
    pub utilization: Option<f64>,
    pub memory_utilization: Option<f64>,
    /// By all processes, driver's reserve excluded.
    pub memory_used_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub sm_clock_megahertz: Option<u64>,
    pub memory_clock_megahertz: Option<u64>,
    /// NVML's bits; see [`throttle_names`].
    pub throttle_bits: Option<u64>,
    /// Counted since the driver was loaded.
    pub energy_joules: Option<f64>,
    /// 0 is the fastest.
    pub performance_state: Option<u32>,
}

/// The trial's process.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildTick {
    pub resident_bytes: u64,
    /// The most it ever held.
    pub peak_resident_bytes: u64,
    /// Cores kept busy since the tick before; `None` at the first.
    pub cpu_cores: Option<f64>,
}

/// The host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTick {
    /// Share of all cores' time since the tick before, as a fraction of 1.
    pub cpu_fraction: Option<f64>,
    pub memory_available_bytes: Option<u64>,
    pub load_1_minute: Option<f64>,
}

/// A tick with whom it belongs to: a row of `samples.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledTick {
    pub trial: String,
    pub attempt: u64,
    pub device_uuid: Option<String>,
    /// Seconds since the run's start mark.
    pub run_seconds: f64,
    pub tick: Tick,
}

/// Everything read while a trial was watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReadings {
    /// In order of time.
    pub ticks: Vec<Tick>,
    /// Foreign processes seen on the device at any look; `None` on the CPU.
    pub foreign: Option<ProcessList>,
    /// Field of [`GpuTick`], or [`EVERYTHING`], to the reason why it could not be read.
    pub absent: BTreeMap<&'static str, String>,
}

/// Names of throttle (clock event) reasons: those that hold the clocks below what the work could use first, then the others.
const THROTTLE: [(u64, &str); 9] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
    (0x01, "idle"),
    (0x02, "applications_clocks_setting"),
    (0x100, "display_clock_setting"),
];

/// The bits that count as throttled: neither idleness nor clocks that someone chose.
pub const THROTTLED: u64 = 0x04 | 0x08 | 0x10 | 0x20 | 0x40 | 0x80;

/// The reasons in `bits` by name; a bit without a name prints as hexadecimal.
pub fn throttle_names(bits: u64) -> Vec<String> {
    let known = THROTTLE.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_owned());
    let unknown = (0..64).map(|place| 1_u64 << place).filter(|bit| bits & bit != 0 && THROTTLE.iter().all(|(known, _)| known != bit));
    known.chain(unknown.map(|bit| format!("{bit:#x}"))).collect()
}

/// The sampling thread. Dropping it stops the thread.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<Watched>,
    rows: Vec<SampledTick>,
    must_stop: bool,
    has_stopped: bool,
    /// Why there is no thread.
    failure: Option<String>,
    /// When the reading now going on began.
    reading_since: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    watch: Watch,
    readings: TrialReadings,
    /// To be read now, not at the next tick.
    is_asked: bool,
    looks: u64,
    /// When and how much CPU time the process had used at the tick before.
    cpu_before: Option<(u64, f64)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    /// Starts the thread. `run_anchor_nanoseconds` is the run's start mark on CLOCK_MONOTONIC; it may be negative. Where the
    /// system refuses a thread nothing is read, and every trial's readings say so.
    pub fn start(nvml: Option<Arc<Nvml>>, interval: Duration, run_anchor_nanoseconds: i64) -> Self {
        Self::start_with(nvml.map(NvmlReader::new), interval, run_anchor_nanoseconds)
    }

    fn start_with<R: GpuReader + 'static>(gpu: Option<R>, interval: Duration, run_anchor_nanoseconds: i64) -> Self {
        let shared = Arc::new(Shared::default());
        let interval = interval.max(SHORTEST_INTERVAL);
        let looker = Looker { shared: Arc::clone(&shared), gpu, interval, run_anchor_nanoseconds, host_ticks_before: None };
        if let Err(error) = thread::Builder::new().name("sampler".to_owned()).spawn(move || looker.run()) {
            let mut state = shared.lock();
            state.has_stopped = true;
            state.failure = Some(format!("no thread to read with: {error}"));
        }
        Self { shared }
    }

    /// Begins to watch a trial, with a first look at once.
    pub fn watch(&self, watch: Watch) {
        let mut state = self.shared.lock();
        state.watched.retain(|watched| watched.watch.trial != watch.trial);
        state.watched.push(Watched { watch, readings: TrialReadings::default(), is_asked: true, looks: 0, cpu_before: None });
        self.shared.changed.notify_all();
    }

    /// Looks at a trial now: its measured window begins or ends.
    pub fn mark(&self, trial: &str) {
        let mut state = self.shared.lock();
        if let Some(watched) = state.watched.iter_mut().find(|watched| watched.watch.trial == trial) {
            watched.is_asked = true;
            self.shared.changed.notify_all();
        }
    }

    /// Stops watching and returns what was read; empty for a trial that is not watched.
    pub fn unwatch(&self, trial: &str) -> TrialReadings {
        let mut state = self.shared.lock();
        let hung = state.reading_since.is_some_and(|since| since.elapsed().as_secs_f64() > HANG_SECONDS);
        let failure = state.failure.clone();
        let Some(place) = state.watched.iter().position(|watched| watched.watch.trial == trial) else { return TrialReadings::default() };
        let mut readings = state.watched.swap_remove(place).readings;
        if let Some(failure) = failure {
            readings.absent.insert(EVERYTHING, failure);
        }
        if hung {
            readings.absent.insert(EVERYTHING, format!("the driver did not answer for more than {HANG_SECONDS} s"));
        }
        readings
    }

    /// The ticks since the last call, of all trials. Call it every few minutes at least: they wait in memory.
    pub fn take_rows(&self) -> Vec<SampledTick> {
        std::mem::take(&mut self.shared.lock().rows)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.must_stop = true;
        self.shared.changed.notify_all();
        // A thread that hangs in the driver ends with the program.
        drop(self.shared.changed.wait_timeout_while(state, STOP_TIMEOUT, |state| !state.has_stopped));
    }
}

/// The thread's side.
struct Looker<R> {
    shared: Arc<Shared>,
    gpu: Option<R>,
    interval: Duration,
    run_anchor_nanoseconds: i64,
    host_ticks_before: Option<(u64, u64)>,
}

/// One trial to look at in this round.
struct Target {
    watch: Watch,
    cpu_before: Option<(u64, f64)>,
    wants_processes: bool,
}

/// What one look found.
struct Look {
    tick: Tick,
    cpu: Option<(u64, f64)>,
    foreign: Option<ProcessList>,
    absent: BTreeMap<&'static str, String>,
}

impl<R: GpuReader> Looker<R> {
    fn run(mut self) {
        let mut next = Instant::now() + self.interval;
        while let Some(targets) = self.wait(&mut next) {
            let host = self.host();
            for target in targets {
                let look = self.look(&target, host.clone());
                self.keep(&target.watch, look);
            }
            self.shared.lock().reading_since = None;
        }
        self.shared.lock().has_stopped = true;
        self.shared.changed.notify_all();
    }

    /// Sleeps until the next tick or until someone asks; `None` to stop. A late tick is not made up for.
    fn wait(&self, next: &mut Instant) -> Option<Vec<Target>> {
        let mut state = self.shared.lock();
        loop {
            if state.must_stop {
                return None;
            }
            let now = Instant::now();
            let is_tick = now >= *next;
            if is_tick {
                while *next <= now {
                    *next += self.interval;
                }
            }
            let targets = take_targets(&mut state, is_tick);
            if !targets.is_empty() {
                state.reading_since = Some(now);
                return Some(targets);
            }
            let idle = state.watched.is_empty();
            state = if idle {
                self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.shared.changed.wait_timeout(state, next.saturating_duration_since(now)).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn host(&mut self) -> HostTick {
        let ticks = host::cpu_ticks();
        let cpu_fraction = match (self.host_ticks_before, ticks) {
            (Some((busy_before, total_before)), Some((busy, total))) if total > total_before => {
                Some(busy.saturating_sub(busy_before) as f64 / (total - total_before) as f64)
            }
            _ => None,
        };
        self.host_ticks_before = ticks;
        HostTick { cpu_fraction, memory_available_bytes: host::memory_available_bytes(), load_1_minute: host::load().into_value() }
    }

    fn look(&mut self, target: &Target, host: HostTick) -> Look {
        let began = Instant::now();
        let monotonic_nanoseconds = host::monotonic_nanoseconds();
        let device = target.watch.device_uuid.as_deref();
        let (mut gpu, mut foreign, mut absent) = (None, None, BTreeMap::new());
        if let (Some(uuid), Some(reader)) = (device, self.gpu.as_mut()) {
            gpu = Some(reader.read(uuid, &mut absent));
            foreign = target.wants_processes.then(|| reader.processes(uuid).foreign_to(&[target.watch.pid]));
        }
        let used = process::read(target.watch.pid);
        let cpu = used.map(|used| (monotonic_nanoseconds, used.cpu_seconds));
        let child = used.map(|used| ChildTick {
            resident_bytes: used.resident_bytes,
            peak_resident_bytes: used.peak_resident_bytes,
            cpu_cores: target.cpu_before.and_then(|before| cores_between(before, (monotonic_nanoseconds, used.cpu_seconds))),
        });
        let tick = Tick { monotonic_nanoseconds, reading_seconds: began.elapsed().as_secs_f64(), gpu, child, host };
        Look { tick, cpu, foreign, absent }
    }

    fn keep(&self, watch: &Watch, look: Look) {
        let mut state = self.shared.lock();
        let Some(watched) = state.watched.iter_mut().find(|watched| watched.watch == *watch) else { return };
        watched.cpu_before = look.cpu.or(watched.cpu_before);
        watched.readings.absent = look.absent;
        if let Some(seen) = look.foreign {
            watched.readings.foreign = Some(joined(watched.readings.foreign.take(), seen));
        }
        watched.readings.ticks.push(look.tick.clone());
        if watched.readings.ticks.len() > MOST_TICKS {
            thin(&mut watched.readings.ticks);
        }
        let run_seconds = (look.tick.monotonic_nanoseconds as i64).saturating_sub(self.run_anchor_nanoseconds) as f64 / 1e9;
        let (trial, device_uuid) = (watch.trial.clone(), watch.device_uuid.clone());
        state.rows.push(SampledTick { trial, attempt: watch.attempt, device_uuid, run_seconds, tick: look.tick });
    }
}

fn take_targets(state: &mut State, is_tick: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for watched in state.watched.iter_mut().filter(|watched| is_tick || watched.is_asked) {
        let wants_processes = watched.is_asked || watched.looks % TICKS_PER_PROCESS_LIST == 0;
        watched.is_asked = false;
        watched.looks += 1;
        targets.push(Target { watch: watched.watch.clone(), cpu_before: watched.cpu_before, wants_processes });
    }
    targets
}

fn cores_between(before: (u64, f64), now: (u64, f64)) -> Option<f64> {
    let seconds = now.0.checked_sub(before.0)? as f64 / 1e9;
    // The kernel counts in 10 ms; over a shorter time the quotient says nothing.
    (seconds >= 0.1).then(|| ((now.1 - before.1) / seconds).max(0.0))
}

/// All processes seen; once unknown, only what was seen is known, so it stays unknown.
fn joined(before: Option<ProcessList>, seen: ProcessList) -> ProcessList {
    match (before, seen) {
        (Some(ProcessList::Known(mut all)), ProcessList::Known(more)) => {
            for process in more {
                match all.iter_mut().find(|known| known.pid == process.pid) {
                    Some(known) => known.used_memory_bytes = known.used_memory_bytes.max(process.used_memory_bytes),
                    None => all.push(process),
                }
            }
            ProcessList::Known(all)
        }
        (Some(unknown @ ProcessList::Unknown(_)), _) => unknown,
        (_, seen) => seen,
    }
}

/// Drops every second tick, so that a trial of days keeps its whole length. Means weigh ticks by time and stay right; what is
/// asked for its highest value is handed on to the tick after.
fn thin(ticks: &mut Vec<Tick>) {
    let mut dropped: Option<GpuTick> = None;
    let mut place = 0;
    ticks.retain_mut(|tick| {
        place += 1;
        if place % 2 == 0 {
            dropped = tick.gpu.take();
            return false;
        }
        if let (Some(gpu), Some(before)) = (&mut tick.gpu, dropped.take()) {
            gpu.memory_used_bytes = gpu.memory_used_bytes.max(before.memory_used_bytes);
            gpu.temperature_celsius = [gpu.temperature_celsius, before.temperature_celsius].into_iter().flatten().reduce(f64::max);
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::GpuProcess;

    struct Fixed;

    impl GpuReader for Fixed {
        fn read(&mut self, _uuid: &str, absent: &mut BTreeMap<&'static str, String>) -> GpuTick {
            absent.insert("energy_joules", "not supported by this device".to_owned());
            GpuTick { utilization: Some(0.5), ..GpuTick::default() }
        }

        fn processes(&mut self, _uuid: &str) -> ProcessList {
            ProcessList::Known(vec![GpuProcess { pid: 1, user: None, used_memory_bytes: Some(7) }])
        }
    }

    /// A driver call that never returns (until the test's end lets it go).
    struct Hanging(std::sync::mpsc::Receiver<()>);

    impl GpuReader for Hanging {
        fn read(&mut self, _uuid: &str, _absent: &mut BTreeMap<&'static str, String>) -> GpuTick {
            let _ = self.0.recv();
            GpuTick::default()
        }

        fn processes(&mut self, _uuid: &str) -> ProcessList {
            ProcessList::Unknown(String::new())
        }
    }

    fn watch(trial: &str, device: Option<&str>) -> Watch {
        Watch { trial: trial.to_owned(), attempt: 1, pid: std::process::id(), device_uuid: device.map(str::to_owned) }
    }

    /// Waits (at most 10 s) until so many rows were taken.
    fn rows(sampler: &Sampler, count: usize) -> Vec<SampledTick> {
        let began = Instant::now();
        let mut rows = Vec::new();
        while rows.len() < count && began.elapsed() < Duration::from_secs(10) {
            rows.extend(sampler.take_rows());
            thread::yield_now();
        }
        rows
    }

    #[test]
    fn a_watch_and_each_mark_are_looked_at_without_waiting_for_a_tick() {
        let anchor = host::monotonic_nanoseconds() as i64 - 5_000_000_000;
        let sampler = Sampler::start_with(Some(Fixed), Duration::from_secs(3600), anchor);
        sampler.watch(watch("a", Some("GPU-1")));
        assert_eq!(rows(&sampler, 1).len(), 1);
        sampler.mark("a");
        let row = rows(&sampler, 1).remove(0);
        assert!(row.run_seconds >= 5.0 && row.run_seconds < 60.0, "{}", row.run_seconds);
        let readings = sampler.unwatch("a");
        assert_eq!(readings.ticks.len(), 2);
        assert_eq!(readings.ticks[1], row.tick);
        assert_eq!(readings.ticks[0].gpu.as_ref().unwrap().utilization, Some(0.5));
        assert_eq!(readings.absent["energy_joules"], "not supported by this device");
        assert!(matches!(readings.foreign, Some(ProcessList::Known(list)) if list.len() == 1));
    }

    #[test]
    fn a_trial_on_the_cpu_has_its_process_and_the_host() {
        let sampler = Sampler::start(None, Duration::from_millis(1), 0);
        sampler.watch(watch("a", None));
        rows(&sampler, 3);
        let readings = sampler.unwatch("a");
        let last = readings.ticks.last().unwrap();
        assert!(last.child.as_ref().is_some_and(|child| child.peak_resident_bytes > 0));
        assert!(last.gpu.is_none() && last.host.memory_available_bytes.is_some());
        assert!(readings.ticks.windows(2).all(|pair| pair[0].monotonic_nanoseconds < pair[1].monotonic_nanoseconds));
        assert_eq!(sampler.unwatch("a"), TrialReadings::default());
    }

    #[test]
    fn a_hanging_driver_hangs_neither_the_caller_nor_the_end() {
        let (release, hang) = std::sync::mpsc::channel();
        let sampler = Sampler::start_with(Some(Hanging(hang)), Duration::from_millis(1), 0);
        sampler.watch(watch("a", Some("GPU-1")));
        let began = Instant::now();
        while sampler.shared.lock().reading_since.is_none() && began.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        sampler.mark("a");
        assert!(sampler.unwatch("a").ticks.is_empty());
        // As if it had hung for long.
        sampler.watch(watch("b", Some("GPU-1")));
        sampler.shared.lock().reading_since = Instant::now().checked_sub(Duration::from_secs(60));
        assert_eq!(sampler.unwatch("b").absent[EVERYTHING], "the driver did not answer for more than 5 s");
        drop(sampler);
        assert!(began.elapsed() < Duration::from_secs(20));
        drop(release);
    }

    #[test]
    fn throttle_bits_have_names_and_unknown_ones_their_number() {
        assert_eq!(throttle_names(0x4 | 1 << 20), ["sw_power_cap", "0x100000"]);
        assert_eq!(throttle_names(1), ["idle"]);
        assert!(throttle_names(0).is_empty());
    }

    #[test]
    fn thinning_keeps_the_length_of_a_trial() {
        let mut ticks: Vec<Tick> = (0..9).map(|time| Tick { monotonic_nanoseconds: time, ..Tick::default() }).collect();
        thin(&mut ticks);
        assert_eq!(ticks.iter().map(|tick| tick.monotonic_nanoseconds).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    }

    #[test]
    fn processes_seen_at_different_looks_are_joined() {
        let process = |pid, bytes| GpuProcess { pid, user: None, used_memory_bytes: Some(bytes) };
        let first = joined(None, ProcessList::Known(vec![process(1, 5)]));
        let both = joined(Some(first), ProcessList::Known(vec![process(1, 9), process(2, 3)]));
        assert_eq!(both, ProcessList::Known(vec![process(1, 9), process(2, 3)]));
        let unknown = joined(Some(both), ProcessList::Unknown("hidden".into()));
        assert_eq!(joined(Some(unknown.clone()), ProcessList::Known(vec![])), unknown);
    }
}
