//! The thread's side of the sampler: sleeps until a tick or a mark, reads, stores the readings.

use std::{
    path::Path,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use kiln_units::clock;

use super::{
    ChildTick, CpuTimes, HostTick, SampledTick, SamplerShared, SamplerState, Tick, Watch, Watched,
    readings::{joined, memory_of, thin},
};
use crate::{
    disk,
    gpu_reader::{GpuReading, desk::GpuWatchdog},
    host, tree,
};

/// Foreign processes are looked for on each mark and every so many ticks.
const TICKS_PER_PROCESS_LIST: u64 = 10;

/// Memory of several processes is read again after this many times the time that it took: it costs
/// at most 0.5 % of a core.
const PAUSE_PER_PAGES_TIME: f64 = 200.0;

/// A trial keeps at most this many ticks in memory (some 9 h at 500 ms, 30 MiB); past it every
/// second old one is dropped.
const MOST_TICKS: usize = 1 << 16;

/// The thread's state.
pub(super) struct Looker {
    shared: Arc<SamplerShared>,
    gpu: Option<GpuWatchdog>,
    interval: Duration,
    run_anchor_nanoseconds: i64,
    host_series: HostSeries,
}

/// The host from tick to tick: keeps the counters of the tick before.
#[derive(Debug, Default)]
pub struct HostSeries {
    cpu_ticks: [Option<host::CpuTicks>; 2],
    disks: Option<(Instant, disk::BusyTimes)>,
}

impl HostSeries {
    /// The host since the tick before.
    pub fn tick(&mut self) -> HostTick {
        let ticks = host::cpu_ticks();
        let before = std::mem::replace(&mut self.cpu_ticks, ticks);
        let [cpu_fraction, allowed_cpu_fraction] =
            [0, 1].map(|of| host::busy_fraction(before[of], ticks[of]));
        let disks = disk::busy_times(Path::new("/")).map(|times| (Instant::now(), times));
        let disk_busy_fraction = self.disks.as_ref().zip(disks.as_ref()).and_then(
            |((before, busy_before), (now, busy))| {
                let seconds = (*now - *before).as_secs_f64();
                disk::busiest(busy_before, busy, seconds)
            },
        );
        if disk_busy_fraction.is_some() || self.disks.is_none() {
            self.disks = disks;
        }
        let memory_available_bytes = host::memory_available_bytes();
        HostTick {
            cpu_fraction,
            allowed_cpu_fraction,
            memory_available_bytes,
            load_1_minute: host::load().into_value(),
            disk_busy_fraction,
        }
    }
}

/// One trial to look at in this round.
struct LookTarget {
    watch: Watch,
    cpu_before: Option<CpuTimes>,
    wants_processes: bool,
    wants_pages: bool,
}

/// A look whose device was asked.
struct LookStart {
    began: Instant,
    monotonic_nanoseconds: u64,
    /// The reading of the device, if it has no answer to wait for.
    unasked: Option<GpuReading>,
}

/// Result of one reading.
struct LookResult {
    tick: Tick,
    cpu: Option<CpuTimes>,
    /// Time it took to read the memory of several processes.
    pages_seconds: Option<f64>,
    /// The trial's process and all that it started.
    family: Vec<u32>,
    /// Reading of the device; `None` for a trial on the CPU.
    gpu: Option<GpuReading>,
}

impl Looker {
    pub(super) fn new(
        shared: Arc<SamplerShared>,
        gpu: Option<GpuWatchdog>,
        interval: Duration,
        run_anchor_nanoseconds: i64,
    ) -> Self {
        Self {
            shared,
            gpu,
            interval,
            run_anchor_nanoseconds,
            host_series: HostSeries::default(),
        }
    }

    pub(super) fn run(mut self) {
        let mut next = Instant::now() + self.interval;
        while let Some(targets) = self.wait(&mut next) {
            let host = self.host_series.tick();
            // All devices are asked before one is waited for: those that hang cost one wait.
            let starts: Vec<LookStart> = targets.iter().map(|target| self.begin(target)).collect();
            for (target, start) in targets.iter().zip(starts) {
                let look = self.look(target, start, host.clone());
                self.keep(&target.watch, look);
            }
        }
        self.shared.lock().has_stopped = true;
        self.shared.changed.notify_all();
    }

    /// Sleeps until the next tick or request; `None` to stop. Missed ticks are not repeated.
    fn wait(&self, next: &mut Instant) -> Option<Vec<LookTarget>> {
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
                return Some(targets);
            }
            let idle = state.watched.is_empty();
            state = if idle {
                self.shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner)
            } else {
                self.shared
                    .changed
                    .wait_timeout(state, next.saturating_duration_since(now))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            };
        }
    }

    /// Asks about the target's device.
    fn begin(&mut self, target: &LookTarget) -> LookStart {
        let (began, monotonic_nanoseconds) = (Instant::now(), clock::monotonic_nanoseconds());
        let device = target.watch.device_uuid.as_deref();
        let unasked = device
            .zip(self.gpu.as_mut())
            .and_then(|(uuid, desk)| desk.ask(uuid, target.wants_processes));
        LookStart {
            began,
            monotonic_nanoseconds,
            unasked,
        }
    }

    fn look(&mut self, target: &LookTarget, start: LookStart, host: HostTick) -> LookResult {
        let LookStart {
            began,
            monotonic_nanoseconds,
            unasked,
        } = start;
        let device = target.watch.device_uuid.as_deref();
        let mut gpu = device
            .zip(self.gpu.as_mut())
            .map(|(uuid, desk)| unasked.unwrap_or_else(|| desk.answer(uuid)));
        let gpu_absence = gpu
            .as_ref()
            .and_then(|look| look.reason().map(str::to_owned));
        let list = || tree::members(target.watch.pid, target.watch.without_root);
        let family = list();
        let used = tree::read(&family, target.wants_pages, list);
        let cpu = used.map(|_| CpuTimes::of(clock::monotonic_nanoseconds(), &family));
        let cores = target
            .cpu_before
            .zip(cpu)
            .and_then(|(before, now)| now.cores_since(before));
        let child = used.map(|used| ChildTick {
            resident_bytes: used.resident_bytes,
            peak_resident_bytes: used.peak_resident_bytes,
            cpu_cores: cores.map(|(of_trial, _)| of_trial),
            disk_read_bytes: used.disk_read_bytes,
            is_stopped: used.is_stopped,
        });
        let own_cpu_cores = cores.map(|(_, own)| own);
        let tick = gpu.as_mut().and_then(|look| look.tick.take());
        let mut tick = Tick {
            monotonic_nanoseconds,
            gpu: tick,
            gpu_absence,
            child,
            own_cpu_cores,
            host,
            ..Tick::default()
        };
        if let (Some(gpu), Some(list)) = (
            &mut tick.gpu,
            gpu.as_ref().and_then(|look| look.processes.as_ref()),
        ) {
            gpu.process_memory_bytes = memory_of(list, &family);
        }
        tick.reading_seconds = began.elapsed().as_secs_f64();
        LookResult {
            tick,
            cpu,
            pages_seconds: used.and_then(|used| used.pages_seconds),
            family,
            gpu,
        }
    }

    fn keep(&self, watch: &Watch, mut look: LookResult) {
        let mut state = self.shared.lock();
        let Some(watched) = state
            .watched
            .iter_mut()
            .find(|watched| watched.watch == *watch)
        else {
            return;
        };
        let is_owed = watched
            .marked
            .is_some_and(|marked| marked <= look.tick.monotonic_nanoseconds);
        // Nobody has noticed the end yet; what happens on the device now is not of this trial. A trial
        // often ends during the look at the end of its window, which counts.
        let has_ended = look.tick.child.is_none() && watched.cpu_before.is_some() && !is_owed;
        if is_owed {
            watched.marked = None;
            self.shared.changed.notify_all();
        }
        let is_told = look
            .tick
            .child
            .as_ref()
            .is_some_and(|child| child.cpu_cores.is_some());
        if is_told || watched.cpu_before.is_none() {
            // Else the look was too near the one before: the next one counts from there.
            watched.cpu_before = look.cpu.or(watched.cpu_before);
        }
        if let Some(seconds) = look.pages_seconds {
            let pause = Duration::from_secs_f64(seconds * PAUSE_PER_PAGES_TIME);
            watched.next_pages = Some(Instant::now() + pause);
        }
        if let Some(gpu) = &mut look.tick.gpu {
            if has_ended {
                (gpu.ecc_corrected_errors, gpu.ecc_uncorrected_errors) = (None, None);
            } else {
                watched.ecc_counts.count(gpu);
            }
        }
        if let Some(mut gpu) = look.gpu {
            gpu.processes = gpu.processes.filter(|_| !has_ended);
            keep_look(watched, gpu, &look.family);
        }
        watched.readings.ticks.push(look.tick.clone());
        if watched.readings.ticks.len() > MOST_TICKS {
            thin(&mut watched.readings.ticks);
        }
        let run_seconds = (look.tick.monotonic_nanoseconds as i64)
            .saturating_sub(self.run_anchor_nanoseconds) as f64
            / 1e9;
        let (trial, device_uuid) = (watch.trial.clone(), watch.device_uuid.clone());
        state.rows.push(SampledTick {
            trial,
            attempt: watch.attempt,
            device_uuid,
            run_seconds,
            tick: look.tick,
        });
    }
}

fn keep_look(watched: &mut Watched, look: GpuReading, family: &[u32]) {
    let readings = &mut watched.readings;
    readings.absent = look.absent;
    readings.remarks.extend(look.remarks);
    readings.lost = readings.lost.take().or(look.lost);
    readings.is_silent = look.silent_seconds.is_some();
    readings.silent_seconds = readings
        .silent_seconds
        .max(look.silent_seconds.unwrap_or(0.0));
    if let Some(seen) = look.processes {
        readings.foreign = Some(joined(readings.foreign.take(), seen.foreign_to(family)));
    }
}

fn take_targets(state: &mut SamplerState, is_tick: bool) -> Vec<LookTarget> {
    let mut targets = Vec::new();
    for watched in state
        .watched
        .iter_mut()
        .filter(|watched| is_tick || watched.is_due)
    {
        let wants_processes = watched.is_asked || watched.looks % TICKS_PER_PROCESS_LIST == 0;
        (watched.is_due, watched.is_asked) = (false, false);
        watched.looks += 1;
        targets.push(LookTarget {
            watch: watched.watch.clone(),
            cpu_before: watched.cpu_before,
            wants_processes,
            wants_pages: watched.next_pages.is_none_or(|next| next <= Instant::now()),
        });
    }
    targets
}

impl CpuTimes {
    /// Reads a trial with these processes, now.
    fn of(monotonic_nanoseconds: u64, family: &[u32]) -> Self {
        let mut beside = tree::family(std::process::id());
        beside.retain(|pid| !family.contains(pid));
        Self {
            monotonic_nanoseconds,
            trial_seconds: tree::cpu_seconds_of(family),
            beside_seconds: tree::cpu_seconds_of(&beside),
        }
    }

    /// Cores that the trial, and that all of ours, kept busy since then.
    fn cores_since(self, before: Self) -> Option<(f64, f64)> {
        let seconds = self
            .monotonic_nanoseconds
            .checked_sub(before.monotonic_nanoseconds)? as f64
            / 1e9;
        // The time of a process whose parent ended first is lost with it.
        let cores = |now: f64, before: f64| ((now - before) / seconds).max(0.0);
        let of_trial = cores(self.trial_seconds, before.trial_seconds);
        // The kernel counts in 10 ms; over a shorter time the quotient says nothing.
        (seconds >= 0.1).then(|| {
            (
                of_trial,
                of_trial + cores(self.beside_seconds, before.beside_seconds),
            )
        })
    }
}
