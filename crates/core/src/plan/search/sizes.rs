//! The batch sizes that a search may try, smallest first, and whether one fits into memory.

use super::{Probe, SearchContext, Warning, noise::effective, warning::RangeEnd};
use crate::plan::Outcome;

/// This many sizes in a row that fail for reasons other than memory end the rise.
pub(super) const MOST_BROKEN: usize = 2;

/// Batch sizes by index, from 0. Never empty if the file was checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BatchSizes {
    /// `first`, `first + step`, …
    Multiples {
        first: u64,
        step: u64,
        count: usize,
    },
    Listed(Vec<u64>),
}

impl BatchSizes {
    /// Returns the multiples of a number in a range.
    pub(super) fn multiples(from: u64, to: u64, multiple_of: u64) -> Self {
        let step = multiple_of.max(1);
        let first = from.max(1).div_ceil(step).saturating_mul(step);
        let count = if first > to {
            0
        } else {
            (to - first) / step + 1
        };
        Self::Multiples {
            first,
            step,
            count: count as usize,
        }
    }

    /// Returns those of the multiples that divide `whole`.
    pub(super) fn divisors(whole: u64, from: u64, to: u64, multiple_of: u64) -> Self {
        let step = multiple_of.max(1);
        let small = (1..)
            .take_while(|divisor| divisor * divisor <= whole)
            .filter(|divisor| whole.is_multiple_of(*divisor));
        let mut all: Vec<u64> = small
            .flat_map(|divisor| [divisor, whole / divisor])
            .collect();
        all.retain(|size| (from..=to).contains(size) && size.is_multiple_of(step));
        all.sort_unstable();
        all.dedup();
        Self::Listed(all)
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::Multiples { count, .. } => *count,
            Self::Listed(all) => all.len(),
        }
    }

    /// The size at an index; past the end, the last size.
    pub(super) fn at(&self, place: usize) -> u64 {
        let place = place.min(self.count().saturating_sub(1));
        match self {
            Self::Multiples { first, step, .. } => first + step * place as u64,
            Self::Listed(all) => all.get(place).copied().unwrap_or_default(),
        }
    }

    pub(super) fn place_of(&self, size: u64) -> Option<usize> {
        match self {
            Self::Multiples { first, step, count } => {
                let place = size
                    .checked_sub(*first)
                    .filter(|over| over.is_multiple_of(*step))?
                    / step;
                (place < *count as u64).then_some(place as usize)
            }
            Self::Listed(all) => all.binary_search(&size).ok(),
        }
    }

    /// Index of the largest size that does not exceed the argument; the first index if all are
    /// larger.
    pub(super) fn up_to(&self, size: f64) -> usize {
        match self {
            Self::Multiples { first, step, count } => {
                let place = ((size - *first as f64) / *step as f64).floor().max(0.0);
                (place as usize).min(count.saturating_sub(1))
            }
            Self::Listed(all) => all
                .partition_point(|known| *known as f64 <= size)
                .saturating_sub(1),
        }
    }

    /// The next index of a rise by this factor; `None` at the end.
    pub(super) fn risen(&self, place: usize, factor: f64) -> Option<usize> {
        (place + 1 < self.count())
            .then(|| self.up_to(self.at(place) as f64 * factor).max(place + 1))
    }

    /// Warns if an index is at an end of the range, beyond which sizes were not allowed.
    pub(super) fn at_end(&self, place: usize, key: &str) -> Option<Warning> {
        let size = self.at(place);
        let end = match place {
            _ if place + 1 >= self.count() => RangeEnd::Highest,
            0 if size > 1 => RangeEnd::Lowest,
            _ => return None,
        };
        Some(Warning::EndOfRange {
            key: key.to_owned(),
            value: size.to_string(),
            end,
        })
    }
}

/// Whether a batch size is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Fits,
    /// It ran out of memory, used more than its share, or is larger than the data.
    TooLarge,
    /// It failed for another reason: neither a usable size nor a limit.
    Broken,
}

/// Whether a trial's batch size is usable with at most this fraction of the memory. If all memory
/// is allowed, completion is enough: the memory of a process on the CPU includes pages of program
/// files, which no limit counts.
pub(super) fn fit(probe: &Probe, at_most: f64) -> Fit {
    match probe.outcome {
        Outcome::Oom | Outcome::Skipped => Fit::TooLarge,
        Outcome::Completed
            if at_most < 1.0 && probe.memory_share().is_some_and(|share| share > at_most) =>
        {
            Fit::TooLarge
        }
        Outcome::Completed => Fit::Fits,
        _ => Fit::Broken,
    }
}

/// Returns why a size was too large, in words.
pub(super) fn too_large_because(probe: &Probe) -> &'static str {
    match probe.outcome {
        Outcome::Oom => "ran out of memory",
        Outcome::Skipped => {
            "could not be planned (it may be larger than the data: `kiln plan` says why)"
        }
        Outcome::Completed => "held more than its share",
        _ => "did not complete",
    }
}

/// Warns if the effective batch size differs from that of the file.
pub(super) fn effective_batch(
    given: &SearchContext,
    batch_size: u64,
    grad_accumulation: u64,
) -> Option<Warning> {
    let (was, is) = (
        effective(given, given.batch_size, given.grad_accumulation),
        effective(given, batch_size, grad_accumulation),
    );
    let learning_rate = given.learning_rate.filter(|_| was != is)?;
    Some(Warning::EffectiveBatch {
        was,
        is,
        learning_rate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(sizes: &BatchSizes) -> Vec<u64> {
        (0..sizes.count()).map(|place| sizes.at(place)).collect()
    }

    #[test]
    fn multiples_lie_within_the_range_and_know_their_places() {
        let sizes = BatchSizes::multiples(3, 41, 8);
        assert_eq!(listed(&sizes), [8, 16, 24, 32, 40]);
        assert_eq!(
            listed(&sizes)
                .iter()
                .map(|size| sizes.place_of(*size))
                .collect::<Vec<_>>(),
            (0..5).map(Some).collect::<Vec<_>>()
        );
        assert_eq!([0, 7, 9, 48].map(|size| sizes.place_of(size)), [None; 4]);
        assert_eq!(
            [1.0, 8.0, 23.9, 24.0, 1e9].map(|size| sizes.up_to(size)),
            [0, 0, 1, 2, 4]
        );
        assert_eq!(listed(&BatchSizes::multiples(5, 7, 8)), [0_u64; 0]);
        assert_eq!(listed(&BatchSizes::multiples(7, 7, 1)), [7]);
    }

    #[test]
    fn divisors_keep_the_whole() {
        let sizes = BatchSizes::divisors(48, 2, 24, 2);
        assert_eq!(listed(&sizes), [2, 4, 6, 8, 12, 16, 24]);
        assert_eq!(listed(&BatchSizes::divisors(7, 1, 100, 1)), [1, 7]);
        assert_eq!(
            (sizes.place_of(6), sizes.place_of(10), sizes.up_to(11.0)),
            (Some(2), None, 3)
        );
    }

    #[test]
    fn a_rise_ends_at_the_last_size_and_never_stands_still() {
        for sizes in [
            BatchSizes::multiples(1, 100, 1),
            BatchSizes::multiples(1, 1000, 7),
            BatchSizes::divisors(97 * 3, 1, 1000, 1),
        ] {
            let places: Vec<usize> =
                std::iter::successors(Some(0), |place| sizes.risen(*place, 2.0)).collect();
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(places.last(), Some(&(sizes.count() - 1)));
            assert!(places.len() <= 12);
        }
    }
}
