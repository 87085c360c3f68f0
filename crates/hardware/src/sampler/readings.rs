//! Turns readings into a trial's series: processes are joined, error counters start at 0, a long
//! series is thinned.

use std::mem;

use crate::ProcessList;

use super::tick::Tick;
use crate::gpu_reader::GpuTick;

/// Memory errors since the first look of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EccCounts {
    corrected: ErrorCount,
    uncorrected: ErrorCount,
}

/// One of the driver's volatile counters: its last value, and its increases so far.
#[derive(Clone, Copy, Debug, Default)]
struct ErrorCount {
    last: Option<u64>,
    errors: u64,
}

impl EccCounts {
    /// Turns the driver's counters into errors since the first reading.
    pub(super) fn count(&mut self, gpu: &mut GpuTick) {
        gpu.ecc_corrected_errors = self.corrected.errors(gpu.ecc_corrected_errors);
        gpu.ecc_uncorrected_errors = self.uncorrected.errors(gpu.ecc_uncorrected_errors);
    }
}

impl ErrorCount {
    /// A counter that went backwards was reset, and has counted from 0 since then.
    fn errors(&mut self, now: Option<u64>) -> Option<u64> {
        let now = now?;
        let before = self.last.replace(now).unwrap_or(now);
        let more = now.checked_sub(before).unwrap_or(now);
        self.errors = self.errors.saturating_add(more);
        Some(self.errors)
    }
}

/// Device memory of these processes in a list, together.
pub(super) fn memory_of(list: &ProcessList, pids: &[u32]) -> Option<u64> {
    match list {
        ProcessList::Known(all) => all
            .iter()
            .filter(|process| pids.contains(&process.pid))
            .filter_map(|process| process.used_memory_bytes)
            .reduce(|one, other| one + other),
        ProcessList::Unknown(_) => None,
    }
}

/// All processes seen. Where a list is unknown, what was seen in another one was there all the same; that
/// nothing was seen is not known then.
pub fn joined(before: Option<ProcessList>, seen: ProcessList) -> ProcessList {
    match (before, seen) {
        (Some(ProcessList::Known(mut all)), ProcessList::Known(more)) => {
            for process in more {
                match all.iter_mut().find(|known| known.pid == process.pid) {
                    Some(known) => {
                        known.used_memory_bytes =
                            known.used_memory_bytes.max(process.used_memory_bytes)
                    }
                    None => all.push(process),
                }
            }
            ProcessList::Known(all)
        }
        (Some(ProcessList::Known(all)), ProcessList::Unknown(_)) if !all.is_empty() => {
            ProcessList::Known(all)
        }
        (Some(ProcessList::Unknown(_)), ProcessList::Known(all)) if !all.is_empty() => {
            ProcessList::Known(all)
        }
        (Some(unknown @ ProcessList::Unknown(_)), _) => unknown,
        (_, seen) => seen,
    }
}

/// Drops every second tick, so that a trial of days keeps its whole length. Means weigh ticks by
/// time and stay right; what is asked for its highest or lowest value is handed on to the tick after.
pub(super) fn thin(ticks: &mut Vec<Tick>) {
    let mut dropped: Option<Tick> = None;
    let mut place = 0;
    ticks.retain_mut(|tick| {
        place += 1;
        if place % 2 == 0 {
            dropped = Some(mem::take(tick));
            return false;
        }
        let Some(before) = dropped.take() else {
            return true;
        };
        let (host, child) = (&mut tick.host, &mut tick.child);
        host.memory_available_bytes = [
            host.memory_available_bytes,
            before.host.memory_available_bytes,
        ]
        .into_iter()
        .flatten()
        .min();
        match (child, before.child) {
            (Some(child), Some(before)) => {
                child.peak_resident_bytes =
                    child.peak_resident_bytes.max(before.peak_resident_bytes);
                child.disk_read_bytes = child.disk_read_bytes.max(before.disk_read_bytes);
            }
            (child, before) => *child = child.take().or(before),
        }
        if let (Some(gpu), Some(before)) = (&mut tick.gpu, before.gpu) {
            gpu.memory_used_bytes = gpu.memory_used_bytes.max(before.memory_used_bytes);
            gpu.process_memory_bytes = gpu.process_memory_bytes.max(before.process_memory_bytes);
            gpu.temperature_celsius = [gpu.temperature_celsius, before.temperature_celsius]
                .into_iter()
                .flatten()
                .reduce(f64::max);
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuProcess;

    #[test]
    fn thinning_keeps_the_length_of_a_trial() {
        let mut ticks: Vec<Tick> = (0..9)
            .map(|time| Tick {
                monotonic_nanoseconds: time,
                ..Tick::default()
            })
            .collect();
        thin(&mut ticks);
        assert_eq!(
            ticks
                .iter()
                .map(|tick| tick.monotonic_nanoseconds)
                .collect::<Vec<_>>(),
            [0, 2, 4, 6, 8]
        );
    }

    #[test]
    fn thinning_keeps_extremes() {
        let tick = |time: u64, peak: u64, available: u64| Tick {
            monotonic_nanoseconds: time,
            gpu: (time != 2).then(GpuTick::default),
            child: Some(crate::sampler::ChildTick {
                peak_resident_bytes: peak,
                disk_read_bytes: Some(peak),
                ..Default::default()
            }),
            host: crate::sampler::HostTick {
                memory_available_bytes: Some(available),
                ..Default::default()
            },
            ..Tick::default()
        };
        let mut ticks = vec![
            tick(0, 1, 90),
            tick(1, 8, 10),
            tick(2, 2, 80),
            tick(3, 3, 70),
            tick(4, 4, 60),
        ];
        thin(&mut ticks);
        let kept: Vec<(u64, Option<u64>)> = ticks
            .iter()
            .map(|tick| {
                let child = tick.child.as_ref().unwrap();
                assert_eq!(child.disk_read_bytes, Some(child.peak_resident_bytes));
                (child.peak_resident_bytes, tick.host.memory_available_bytes)
            })
            .collect();
        assert_eq!(kept, [(1, Some(90)), (8, Some(10)), (4, Some(60))]);
    }

    #[test]
    fn processes_seen_at_different_looks_are_joined() {
        let process = |pid, bytes| GpuProcess {
            pid,
            user: None,
            used_memory_bytes: Some(bytes),
        };
        let first = joined(None, ProcessList::Known(vec![process(1, 5)]));
        let both = joined(
            Some(first),
            ProcessList::Known(vec![process(1, 9), process(2, 3)]),
        );
        assert_eq!(both, ProcessList::Known(vec![process(1, 9), process(2, 3)]));
        assert_eq!(
            (
                memory_of(&both, &[2]),
                memory_of(&both, &[1, 2, 3]),
                memory_of(&both, &[3])
            ),
            (Some(3), Some(12), None)
        );
        let hidden = || ProcessList::Unknown("hidden".into());
        assert_eq!(joined(Some(both.clone()), hidden()), both, "it was there");
        assert_eq!(joined(Some(hidden()), both.clone()), both);
        assert_eq!(joined(Some(hidden()), ProcessList::Known(vec![])), hidden());
        assert_eq!(joined(Some(ProcessList::Known(vec![])), hidden()), hidden());
    }

    #[test]
    fn errors_count_from_the_first_look_and_on_from_a_reset() {
        let mut counts = EccCounts::default();
        let mut at = |corrected, uncorrected| {
            let mut gpu = GpuTick {
                ecc_corrected_errors: corrected,
                ecc_uncorrected_errors: uncorrected,
                ..GpuTick::default()
            };
            counts.count(&mut gpu);
            (gpu.ecc_corrected_errors, gpu.ecc_uncorrected_errors)
        };
        assert_eq!(
            [
                at(None, Some(7)),
                at(Some(7), Some(7)),
                at(Some(9), Some(0)),
                at(None, None),
                at(Some(0), Some(3)),
                at(Some(1), Some(3)),
            ],
            [
                (None, Some(0)),
                (Some(0), Some(0)),
                (Some(2), Some(0)),
                (None, None),
                (Some(2), Some(3)),
                (Some(3), Some(3)),
            ]
        );
    }
}
