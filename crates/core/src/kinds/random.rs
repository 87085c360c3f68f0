//! SplitMix64: a small random number generator with the same output on every machine, for generated
//! data, shuffled plans, the order of samples and initial weights. Not for secrets.
//!
//! Its state is a counter, so [`mix`] returns any number of a stream directly. Committed results
//! depend on these numbers: they never change.

/// Increment of the counter: 2⁶⁴ divided by the golden ratio. Source: as [`SplitMix64`].
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the output for a state of the counter. Source: as [`SplitMix64`].
pub fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Scales 64 bits to a number below `bound`, which is at least 1 (0 gives 0). The multiply-shift
/// bias is under `bound` / 2⁶⁴.
pub fn scaled(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// Converts the upper 53 of 64 bits to a number in [0, 1).
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The random stream of a seed. Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom
/// number generators"; constants of its reference code.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns the stream that starts after `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number in [0, 1) with 53 random bits.
    pub fn fraction(&mut self) -> f64 {
        fraction(self.next_u64())
    }

    /// Returns a number below `bound`; see [`scaled`].
    pub fn below(&mut self, bound: u64) -> u64 {
        scaled(self.next_u64(), bound)
    }

    /// Shuffles a list (Fisher–Yates).
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
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn a_number_of_the_stream_can_be_had_on_its_own() {
        let mut random = SplitMix64::new(0);
        // First outputs for seed 0 in the reference implementation (Vigna, splitmix64.c).
        assert_eq!(
            (random.next_u64(), random.next_u64()),
            (0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4)
        );
        assert_eq!(mix(GAMMA.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(
            (scaled(u64::MAX, 10), scaled(1 << 63, 10), scaled(7, 0)),
            (9, 5, 0)
        );
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
