//! The speeds of the values of a race, compared with each other.

use std::collections::BTreeMap;

use super::RaceEntry;
use crate::statistics::{Estimate, Field, TimedRun};

/// The values that can be chosen, compared with each other.
pub(in crate::plan::search) struct Standings {
    pub(in crate::plan::search) places: Vec<usize>,
    /// Logarithms of their speeds, with an arbitrary origin.
    logs: Vec<f64>,
    /// `None` if nothing is repeated yet.
    pub(super) field: Option<Field>,
}

impl Standings {
    pub(super) fn of(entries: &BTreeMap<usize, RaceEntry<'_>>) -> Self {
        let of_entry = |entry: &RaceEntry<'_>| {
            entry
                .counted()
                .iter()
                .map(|(run, _)| *run)
                .collect::<Vec<TimedRun>>()
        };
        let usable = entries.iter().filter(|(_, entry)| entry.may_be_chosen());
        let (places, runs): (Vec<usize>, Vec<Vec<TimedRun>>) = usable
            .map(|(place, entry)| (*place, of_entry(entry)))
            .unzip();
        let field = Field::of(&runs);
        let log = |place: usize| match &field {
            Some(field) => field
                .compare(0, place, 1)
                .map_or(f64::NEG_INFINITY, |estimate| estimate.ratio.ln()),
            None => {
                runs[place].iter().map(|run| run.value.ln()).sum::<f64>() / runs[place].len() as f64
            }
        };
        Self {
            logs: (0..places.len()).map(log).collect(),
            places,
            field,
        }
    }

    pub(in crate::plan::search) fn log(&self, place: usize) -> Option<f64> {
        self.places
            .binary_search(&place)
            .ok()
            .map(|index| self.logs[index])
    }

    /// The fastest value; of equal ones the smaller.
    pub(in crate::plan::search) fn fastest(&self) -> Option<usize> {
        let all = self.places.iter().zip(&self.logs);
        all.reduce(|best, next| if *next.1 > *best.1 { next } else { best })
            .map(|(place, _)| *place)
    }

    pub(super) fn highest(&self) -> f64 {
        self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The speed of a value as a ratio to another's; `None` if nothing is repeated yet.
    pub(in crate::plan::search) fn compare(&self, base: usize, new: usize) -> Option<Estimate> {
        let index = |place: usize| self.places.binary_search(&place).ok();
        self.field.as_ref()?.compare(index(base)?, index(new)?, 1)
    }

    /// Standard deviation from run to run, as a fraction.
    pub(in crate::plan::search) fn spread(&self) -> Option<f64> {
        self.field.as_ref().map(Field::spread)
    }

    /// The values that are not significantly slower than the fastest, smallest first.
    pub(super) fn contenders(&self) -> Vec<usize> {
        let Some(fastest) = self.fastest().filter(|_| self.field.is_some()) else {
            return self.places.clone();
        };
        let may_be = |place: &usize| {
            *place == fastest
                || self
                    .compare(fastest, *place)
                    .is_some_and(|estimate| !estimate.is_below())
        };
        self.places.iter().copied().filter(may_be).collect()
    }

    /// The values by speed, fastest first.
    pub(super) fn ranked(&self, mut places: Vec<usize>) -> Vec<usize> {
        places.sort_by(|one, other| {
            self.log(*other)
                .unwrap_or(f64::NEG_INFINITY)
                .total_cmp(&self.log(*one).unwrap_or(f64::NEG_INFINITY))
        });
        places
    }
}
