//! The order of samples: a pure function of (seed, epoch), the same on every machine and for any
//! number of workers.
//!
//! Random numbers are those of [`kiln_core::kinds::random`], whose whole state is a counter, so any
//! draw can be made on its own. A shuffle is Fisher-Yates from the end.

use kiln_core::kinds::random::{GAMMA, mix, scaled};

/// Number of steps whose samples are sorted together: enough for steps of similar lengths, few
/// enough that the steps differ from epoch to epoch.
const STEPS_SORTED_TOGETHER: u64 = 32;

/// The random stream of one epoch under one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    start: u64,
}

impl Stream {
    pub(super) fn new(seed: u64, epoch: u64) -> Self {
        Self {
            start: mix(mix(seed.wrapping_add(GAMMA)) ^ epoch.wrapping_mul(GAMMA)),
        }
    }

    /// Draw number `counter`: any 64 bits.
    pub(super) fn draw(self, counter: u64) -> u64 {
        mix(self
            .start
            .wrapping_add(counter.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// Draw number `counter` as a number below `bound` (high half of the product; its bias is below
    /// `bound` / 2^64).
    pub(super) fn below(self, counter: u64, bound: u64) -> u64 {
        scaled(self.draw(counter), bound)
    }

    /// 0 … `count` − 1 in this stream's order, each once.
    pub(super) fn permutation(self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        self.shuffle(&mut order, 0);
        order
    }

    /// Puts the values into this stream's order, with its draws from `first` on.
    fn shuffle<T>(self, values: &mut [T], first: u64) {
        for last in (1..values.len()).rev() {
            values.swap(
                last,
                self.below(first + last as u64, last as u64 + 1) as usize,
            );
        }
    }

    /// As many of 0 … `keys.len()` − 1 as fill whole steps of `step` samples, each at most once;
    /// those of a step have keys close to one another, and ascend by them.
    ///
    /// All are shuffled, each [`STEPS_SORTED_TOGETHER`] steps' worth of them is sorted, and the
    /// steps that these are cut into are shuffled.
    pub(super) fn permutation_by(self, keys: &[u64], step: u64) -> Vec<u64> {
        let (count, step) = (keys.len() as u64, step.max(1));
        let mut samples = self.permutation(count);
        samples.truncate((count - count % step) as usize);
        let together = step.saturating_mul(STEPS_SORTED_TOGETHER);
        // Stable, so that equal keys stay shuffled.
        samples
            .chunks_mut(together as usize)
            .for_each(|samples| samples.sort_by_key(|sample| keys[*sample as usize]));
        let mut steps: Vec<&[u64]> = samples.chunks(step as usize).collect();
        self.shuffle(&mut steps, count);
        steps.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_splitmix64() {
        // First outputs for seed 0 in the reference implementation (Vigna, splitmix64.c).
        let stream = Stream { start: 0 };
        assert_eq!(stream.draw(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(stream.draw(1), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_permutation_holds_each_sample_once_and_depends_on_seed_and_epoch_alone() {
        let order = Stream::new(7, 3).permutation(1000);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u64>>());
        assert_eq!(order, Stream::new(7, 3).permutation(1000));
        assert_ne!(order, Stream::new(7, 4).permutation(1000));
        assert_ne!(order, Stream::new(8, 3).permutation(1000));
    }

    #[test]
    fn samples_with_keys_come_in_steps_of_like_keys_and_each_once() {
        // 1003 samples fill 250 steps of 4; 32 steps are 128 samples.
        let keys: Vec<u64> = (0..1003).map(|sample| mix(sample) % 100).collect();
        let order = Stream::new(7, 3).permutation_by(&keys, 4);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!((order.len(), sorted.len()), (1000, 1000));
        let of_step = |step: &[u64]| {
            step.iter()
                .map(|sample| keys[*sample as usize])
                .collect::<Vec<u64>>()
        };
        assert!(order.chunks(4).all(|step| of_step(step).is_sorted()));
        let spread: u64 = order
            .chunks(4)
            .map(|step| of_step(step)[3] - of_step(step)[0])
            .sum();
        // Four of 100 keys at random are 60 apart; of 128 sorted samples they are 3 steps of 0.8
        // apart.
        assert!(spread < 250 * 5, "{spread}");
        let firsts: Vec<u64> = order.chunks(4).map(|step| of_step(step)[0]).collect();
        assert!(
            !firsts[..32].is_sorted() && !firsts.is_sorted(),
            "steps do not come by length"
        );
        assert_eq!(order, Stream::new(7, 3).permutation_by(&keys, 4));
        let steps = |order: &[u64]| {
            order
                .chunks(4)
                .map(<[u64]>::to_vec)
                .collect::<std::collections::BTreeSet<_>>()
        };
        let next = Stream::new(7, 4).permutation_by(&keys, 4);
        assert!(
            steps(&order).intersection(&steps(&next)).count() < 5,
            "another epoch has other steps"
        );
        assert!(Stream::new(7, 3).permutation_by(&keys[..3], 4).is_empty());
    }

    #[test]
    fn every_place_is_equally_likely_for_the_first_sample() {
        let mut counts = [0_u32; 4];
        for epoch in 0..4000 {
            let order = Stream::new(1, epoch).permutation(4);
            counts[order.iter().position(|sample| *sample == 0).unwrap()] += 1;
        }
        // 1000 expected, standard deviation 27: 5 deviations.
        assert!(
            counts.iter().all(|count| count.abs_diff(1000) < 137),
            "{counts:?}"
        );
    }

    #[test]
    fn bounded_draws_stay_below_their_bound() {
        let stream = Stream::new(1, 1);
        assert!((0..1000).all(|counter| stream.below(counter, 3) < 3));
        assert_eq!(stream.below(5, 1), 0);
    }
}
