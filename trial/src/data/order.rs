//! Which sample comes when: a pure function of (seed, epoch), alike on every machine and for any number of workers.
//!
//! Random numbers are those of [`kiln::catalog::random`], whose whole state is a counter, so any draw can be made on its own. A
//! shuffle is Fisher-Yates from the end.

use kiln::catalog::random::{GAMMA, mix, scaled};

/// The random stream of one epoch under one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    start: u64,
}

impl Stream {
    pub(super) fn new(seed: u64, epoch: u64) -> Self {
        Self { start: mix(mix(seed.wrapping_add(GAMMA)) ^ epoch.wrapping_mul(GAMMA)) }
    }

    /// Draw number `counter`: any 64 bits.
    pub(super) fn draw(self, counter: u64) -> u64 {
        mix(self.start.wrapping_add(counter.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// Draw number `counter` as a number below `bound` (high half of the product; its bias is below `bound` / 2^64).
    pub(super) fn below(self, counter: u64, bound: u64) -> u64 {
        scaled(self.draw(counter), bound)
    }

    /// 0 … `count` − 1 in this stream's order, each once.
    pub(super) fn permutation(self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last as u64, last as u64 + 1) as usize);
        }
        order
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
    fn every_place_is_equally_likely_for_the_first_sample() {
        let mut counts = [0_u32; 4];
        for epoch in 0..4000 {
            let order = Stream::new(1, epoch).permutation(4);
            counts[order.iter().position(|sample| *sample == 0).unwrap()] += 1;
        }
        // 1000 expected, standard deviation 27: 5 deviations.
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 137), "{counts:?}");
    }

    #[test]
    fn bounded_draws_stay_below_their_bound() {
        let stream = Stream::new(1, 1);
        assert!((0..1000).all(|counter| stream.below(counter, 3) < 3));
        assert_eq!(stream.below(5, 1), 0);
    }
}
