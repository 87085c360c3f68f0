//! A watch for memory that grows while a model trains (`docs/measurement.md` 7).
//!
//! In: readings at steps of the measured window. Out: the slope over them, and a note if memory
//! clearly grew. The slope is the median of those between any two readings (Theil 1950, Sen 1968):
//! a pool that grows once, or one more batch in the loader's queue, does not move it; a leak does,
//! also one that only shows each time the allocator asks for another page.

use std::fs;

use kiln_core::{record::note::MemoryGrowth, units::Bytes};

/// With fewer readings, a slope is meaningless.
const FEWEST: usize = 5;

/// From one quarter of the window to the next a leak adds a third of all it adds; what grows like a
/// logarithm ends with a sixth.
const FAIR_SHARE: f64 = 0.18;

/// At most so many readings are kept: half of them go when it is reached, and from then on every
/// second one is taken.
const MOST: usize = 512;

/// Readings so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryWatch {
    is_on: bool,
    resident: MemorySeries,
    allocated: MemorySeries,
}

impl MemoryWatch {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            ..Self::default()
        }
    }

    /// Reads the memory of this process, and of the device (from `allocated`), after a step of the
    /// window.
    pub(crate) fn read(&mut self, step: u64, allocated: impl FnOnce() -> Option<u64>) {
        if self.is_on {
            self.resident.add(step, own_memory());
            self.allocated.add(step, allocated());
        }
    }

    /// Host memory that this process holds for itself.
    pub(crate) fn resident(&self) -> &MemorySeries {
        &self.resident
    }

    /// Device memory held by tensors.
    pub(crate) fn allocated(&self) -> &MemorySeries {
        &self.allocated
    }
}

/// Bytes of the resident set that are this process's own: pages of files, which the system may
/// drop, do not count. `None` where there is no procfs.
fn own_memory() -> Option<u64> {
    own_pages(&fs::read_to_string("/proc/self/statm").ok()?)
        .map(|pages| pages * rustix::param::page_size() as u64)
}

/// From `size resident shared …`, in pages.
fn own_pages(statm: &str) -> Option<u64> {
    let mut fields = statm
        .split_ascii_whitespace()
        .skip(1)
        .map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    resident.checked_sub(shared)
}

/// Readings of one number, in bytes, each after a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemorySeries {
    readings: Vec<(u64, f64)>,
    /// One in so many readings is kept.
    stride: usize,
    seen: usize,
}

impl Default for MemorySeries {
    fn default() -> Self {
        Self {
            readings: Vec::new(),
            stride: 1,
            seen: 0,
        }
    }
}

impl MemorySeries {
    fn add(&mut self, step: u64, bytes: Option<u64>) {
        let Some(bytes) = bytes else { return };
        if self.seen.is_multiple_of(self.stride) {
            self.readings.push((step, bytes as f64));
        }
        self.seen += 1;
        if self.readings.len() == MOST {
            let mut index = 0;
            self.readings.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Bytes per step, to a tenth; `None` with too few readings.
    pub(crate) fn slope(&self) -> Option<f64> {
        let mut slopes = Vec::new();
        for (index, (step, bytes)) in self.readings.iter().enumerate() {
            let later = self.readings[index + 1..]
                .iter()
                .filter(|(other, _)| other > step);
            slopes.extend(later.map(|(other, then)| (then - bytes) / (other - step) as f64));
        }
        if self.readings.len() < FEWEST || slopes.is_empty() {
            return None;
        }
        let middle = slopes.len() / 2;
        let (_, slope, _) = slopes.select_nth_unstable_by(middle, f64::total_cmp);
        Some((*slope * 10.0).round() / 10.0)
    }

    /// Describes a steady growth of memory that is large enough to matter: the median of each
    /// quarter of the readings lies above the one before, and by a large part of the whole rise.
    /// With batches of many lengths, new peaks become rare; a leak continues.
    pub(crate) fn clear_growth(&self) -> Option<MemoryGrowth> {
        let ((first_step, first), (last_step, last)) =
            (self.readings.first()?, self.readings.last()?);
        if self.readings.len() < MemoryGrowth::FEWEST_READINGS {
            return None;
        }
        let quarter = self.readings.len() / 4;
        let medians: Vec<f64> = self
            .readings
            .chunks_exact(quarter)
            .take(4)
            .map(median)
            .collect();
        let rise = medians.last()? - medians.first()?;
        let is_steady = medians
            .windows(2)
            .all(|pair| pair[1] - pair[0] >= rise * FAIR_SHARE);
        let (growth, steps) = (last - first, last_step - first_step);
        let least = (MemoryGrowth::LEAST_BYTES.0 as f64).max(first * MemoryGrowth::LEAST_SHARE);
        let matters = rise > 0.0 && growth >= least;
        (is_steady && matters).then_some(MemoryGrowth {
            bytes: Bytes(growth as u64),
            last: Bytes(*last as u64),
            steps,
        })
    }
}

fn median(readings: &[(u64, f64)]) -> f64 {
    let mut bytes: Vec<f64> = readings.iter().map(|(_, bytes)| *bytes).collect();
    let middle = bytes.len() / 2;
    *bytes.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn series(readings: impl IntoIterator<Item = (u64, u64)>) -> MemorySeries {
        let mut series = MemorySeries::default();
        readings
            .into_iter()
            .for_each(|(step, bytes)| series.add(step, Some(bytes)));
        series
    }

    #[test]
    fn a_leak_has_its_slope_and_its_word() {
        let leaking =
            series((1..=30).map(|reading| (10 * reading, 500 * MIB + 10 * reading * 100_000)));
        assert_eq!(leaking.slope(), Some(100_000.0));
        assert_eq!(
            leaking.clear_growth().unwrap().to_string(),
            "grew by 27.7 MiB to 528.6 MiB over 290 steps"
        );
        // Told only each time the allocator asks for more.
        let stairs =
            series((1..=30).map(|reading| (10 * reading, 500 * MIB + reading / 5 * 16 * MIB)));
        let slope = stairs.slope().unwrap();
        assert!(
            (slope / (16.0 * MIB as f64 / 50.0) - 1.0).abs() < 0.1,
            "{slope}"
        );
        assert!(stairs.clear_growth().is_some());
    }

    #[test]
    fn what_is_no_leak_has_none() {
        let wobbling =
            series((1..=30).map(|reading| (10 * reading, 500 * MIB + reading % 3 * 40 * MIB)));
        assert_eq!(wobbling.clear_growth(), None);
        // A pool that grows once is growth, but none per step.
        let once = series(
            (1..=30).map(|reading| (10 * reading, if reading < 6 { 500 } else { 900 } * MIB)),
        );
        assert_eq!((once.slope(), once.clear_growth()), (Some(0.0), None));
        let shrinking = series((1..=30).map(|reading| (10 * reading, (500 - reading) * MIB)));
        assert_eq!(
            (shrinking.slope(), shrinking.clear_growth()),
            (Some(-104_857.6), None)
        );
        // The highest mark of batches that differ: ever rarer, ever smaller.
        let marks = series((1..=60_u64).map(|reading| {
            (
                10 * reading,
                500 * MIB + (300.0 * (reading as f64).ln()) as u64 * MIB,
            )
        }));
        assert!(marks.slope().unwrap() > 0.0);
        assert_eq!(marks.clear_growth(), None);
        // A percent of much, and little at all.
        let slow = series((1..=30).map(|reading| (10 * reading, 100_000 * MIB + reading * MIB)));
        assert_eq!(slow.clear_growth(), None);
        let small = series((1..=30).map(|reading| (10 * reading, MIB + reading * 1000)));
        assert_eq!((small.slope(), small.clear_growth()), (Some(100.0), None));
    }

    #[test]
    fn too_few_readings_or_steps_have_no_slope() {
        assert_eq!(series((1..=4).map(|step| (step, step * MIB))).slope(), None);
        assert_eq!(
            series((1..=9).map(|reading| (7, reading * MIB))).slope(),
            None
        );
        assert_eq!(MemorySeries::default().clear_growth(), None);
    }

    #[test]
    fn a_long_window_is_thinned_evenly_and_keeps_its_slope() {
        let long = series((1..=100_000).map(|step| (step, 1_000 * MIB + step * 50)));
        assert!(
            long.readings.len() < MOST && long.readings.len() >= MOST / 4,
            "{}",
            long.readings.len()
        );
        let gaps: Vec<u64> = long
            .readings
            .windows(2)
            .map(|pair| pair[1].0 - pair[0].0)
            .collect();
        assert!(gaps.iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
        assert_eq!(long.slope(), Some(50.0));
    }

    #[test]
    fn own_memory_leaves_pages_of_files_out_and_sees_what_is_held() {
        assert_eq!(own_pages("1000 300 120 5 0 77 0\n"), Some(180));
        assert_eq!(
            (own_pages("1000 300"), own_pages("1000 x 120")),
            (None, None)
        );
        let sees_what_is_held = || {
            let before = own_memory().unwrap();
            let held = vec![1_u8; 64 << 20];
            let after = own_memory().unwrap();
            assert!(held.iter().step_by(4096).all(|byte| *byte == 1));
            after >= before + (60 << 20)
        };
        // Other tests of this process free memory in between, now and then.
        assert!((0..100).any(|_| sees_what_is_held()));
    }

    #[test]
    fn a_watch_that_is_off_reads_nothing() {
        let mut off = MemoryWatch::new(false);
        (1..=9).for_each(|step| off.read(step, || panic!("nobody asks")));
        assert_eq!(
            (off.resident(), off.allocated()),
            (&MemorySeries::default(), &MemorySeries::default())
        );
        let mut on = MemoryWatch::new(true);
        (1..=9).for_each(|step| on.read(step, || Some(step * 3)));
        assert_eq!(
            (on.resident().readings.len(), on.allocated().slope()),
            (9, Some(3.0))
        );
    }
}
