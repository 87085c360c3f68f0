//! SplitMix64: a small stream of numbers that is the same on every machine, for made-up text, shuffled plans, the order of
//! samples and initial weights. Not for secrets.
//!
//! Its state is a counter, so any number of a stream can also be had on its own, by [`mix`]. Results that are kept rest on these
//! very numbers: they never change.

/// What the counter goes up by: 2⁶⁴ by the golden ratio. Source: as [`SplitMix64`].
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that a state of the counter gives. Source: as [`SplitMix64`].
pub fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Brings any 64 bits below `bound`, which is at least 1 (0 gives 0). The multiply-shift bias is under `bound` / 2⁶⁴.
pub fn scaled(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// Makes any 64 bits a number in [0, 1), of their first 53.
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The stream of a seed.
/// Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"; constants of its reference code.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream that begins after `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number in [0, 1), of 53 bits.
    pub fn fraction(&mut self) -> f64 {
        fraction(self.next_u64())
    }

    /// A number below `bound`, as [`scaled`].
    pub fn below(&mut self, bound: u64) -> u64 {
        scaled(self.next_u64(), bound)
    }

    /// Fisher–Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_number_of_the_stream_can_be_had_on_its_own() {
        let mut random = SplitMix64::new(0);
        // First outputs for seed 0 in the reference implementation (Vigna, splitmix64.c).
        assert_eq!((random.next_u64(), random.next_u64()), (0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4));
        assert_eq!(mix(GAMMA.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!((scaled(u64::MAX, 10), scaled(1 << 63, 10), scaled(7, 0)), (9, 5, 0));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        SplitMix64::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
