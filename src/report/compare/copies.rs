//! Runs that are copies of one another: a program that ignores its seed gives one number with every
//! seed. Their number says nothing of the noise.

/// Losses that differ by less than this part are equal: the order in which threads add numbers makes
/// such differences.
const LOSS_ROUNDING: f64 = 1e-6;

/// Whether runs of several seeds all have the same number, to the bit, or nearly for a loss; a run
/// is its seed and its number. Repeats of one seed are no copies in this sense: they should be equal.
pub(in crate::report) fn are_copies(runs: &[(u64, f64)], is_loss: bool) -> bool {
    let values = || runs.iter().map(|(_, value)| *value);
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(f64::NEG_INFINITY, f64::max);
    let rounding = if is_loss { LOSS_ROUNDING } else { 0.0 };
    let has_several_seeds = runs.iter().any(|(seed, _)| *seed != runs[0].0);
    has_several_seeds && values().all(f64::is_finite) && most - least <= rounding * most.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_several_seeds_are_copies() {
        let of = |runs: &[(u64, f64)]| are_copies(runs, false);
        assert!(of(&[(1, 2.0), (2, 2.0), (3, 2.0)]) && of(&[(1, 2.0), (2, 2.0)]));
        assert!(!of(&[(1, 2.0), (2, 2.0), (3, 2.0 + 1e-15)]));
        assert!(!of(&[(1, 2.0), (1, 2.0)]) && !of(&[(1, 2.0)]) && !of(&[]));
        assert!(!of(&[(1, 2.0), (2, f64::NAN)]));
    }

    #[test]
    fn losses_that_differ_by_rounding_are_copies() {
        let of = |loss: f64| are_copies(&[(1, 2.0), (2, loss)], true);
        assert!(of(2.0 + 1e-6) && of(2.0 - 1e-6));
        assert!(!of(2.0 + 1e-5) && !of(2.0 - 1e-5));
    }
}
