//! Stretches of a trial in which a device held itself back.

use std::{collections::BTreeMap, mem};

use kiln_core::record::SampleRow;

use super::MOST_MARKS;
use crate::readings::samples::is_throttled;

/// Stretches after which those that a page shows as one are joined.
const MOST_KEPT: usize = 4 * MOST_MARKS;

/// The readings of an attempt at which a device held itself back, told one reading after another.
#[derive(Debug, Default)]
pub(super) struct Throttling {
    /// Times of the first and the last reading.
    pub(super) reach: Option<(f64, f64)>,
    /// Whether it was read at all.
    pub(super) is_read: bool,
    /// The newest reading of each device: its time, and whether the device was throttled.
    newest: BTreeMap<String, (f64, bool)>,
    stretches: Vec<(f64, f64)>,
}

impl Throttling {
    pub(super) fn push(&mut self, sample: &SampleRow) {
        let at = sample.run_seconds;
        let (first, last) = self.reach.unwrap_or((at, at));
        self.reach = Some((first.min(at), last.max(at)));
        let found = is_throttled(sample);
        self.is_read |= found.is_some();
        let reading = (at, found == Some(true));
        match self.newest.get_mut(&sample.device) {
            Some(newest) => {
                let (from, is_held) = mem::replace(newest, reading);
                if is_held {
                    self.hold(from, at);
                }
            }
            None => {
                self.newest.insert(sample.device.clone(), reading);
            }
        }
    }

    fn hold(&mut self, from: f64, to: f64) {
        self.stretches.push((from, to));
        if self.stretches.len() >= MOST_KEPT {
            // Stretches that are near now are near at the end, too.
            self.stretches = joined(mem::take(&mut self.stretches), self.near());
        }
    }

    /// Time between two marks of a line.
    fn near(&self) -> f64 {
        self.reach
            .map_or(0.0, |(first, last)| (last - first) / MOST_MARKS as f64)
    }

    /// From each such reading to the next of the same device. Stretches that a page shows as one are
    /// one.
    pub(super) fn stretches(&self) -> Vec<(f64, f64)> {
        let held = self.newest.values().filter(|(_, is_held)| *is_held);
        let last = held.map(|(at, _)| (*at, *at));
        let all = self.stretches.iter().copied().chain(last).collect();
        joined(all, self.near())
    }

    /// Number of stretches that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.stretches.len()
    }
}

/// Joins stretches that overlap, or lie so near to each other.
fn joined(mut held: Vec<(f64, f64)>, near: f64) -> Vec<(f64, f64)> {
    held.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut stretches: Vec<(f64, f64)> = Vec::new();
    for (from, to) in held {
        match stretches.last_mut() {
            Some(last) if from - last.1 <= near => last.1 = last.1.max(to),
            _ => stretches.push((from, to)),
        }
    }
    stretches
}
