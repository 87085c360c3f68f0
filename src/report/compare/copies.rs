//! Runs that are copies of one another: a program that ignores its seed gives one number with every
//! seed. Their number says nothing of the noise.

/// Whether runs of several seeds all have the same number, to the bit; a run is its seed and its
/// number. Repeats of one seed are no copies in this sense: they should be equal.
pub(in crate::report) fn are_copies(runs: impl Iterator<Item = (u64, f64)>) -> bool {
    let mut runs = runs.peekable();
    let Some((seed, value)) = runs.peek().copied() else {
        return false;
    };
    let mut has_other_seed = false;
    let is_equal = |(other_seed, other): (u64, f64)| {
        has_other_seed |= other_seed != seed;
        other.to_bits() == value.to_bits()
    };
    runs.all(is_equal) && has_other_seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_several_seeds_are_copies() {
        let of = |runs: &[(u64, f64)]| are_copies(runs.iter().copied());
        assert!(of(&[(1, 2.0), (2, 2.0), (3, 2.0)]) && of(&[(1, 2.0), (2, 2.0)]));
        assert!(!of(&[(1, 2.0), (2, 2.0), (3, 2.0 + 1e-15)]));
        assert!(!of(&[(1, 2.0), (1, 2.0)]) && !of(&[(1, 2.0)]) && !of(&[]));
    }
}
