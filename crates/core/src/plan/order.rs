//! The order in which the trials of all points run.

use crate::{kinds::random::SplitMix64, spec::Order};

/// Returns every (point, repeat) once, both counted from 0. `interleaved` alternates forward and
/// backward passes over the points, so that no point is always before another: a drift affects all
/// of them alike. `seed` decides `shuffled`, which shuffles each round of repeats separately.
pub(super) fn order_trials(points: u64, repeats: u64, order: Order, seed: u64) -> Vec<(u64, u64)> {
    if order == Order::Listed {
        return (0..points)
            .flat_map(|point| (0..repeats).map(move |repeat| (point, repeat)))
            .collect();
    }
    let mut random = SplitMix64::new(seed);
    let mut trials = Vec::new();
    for repeat in 0..repeats {
        let mut round: Vec<u64> = (0..points).collect();
        match order {
            Order::Shuffled => random.shuffle(&mut round),
            Order::Interleaved if repeat % 2 == 1 => round.reverse(),
            Order::Interleaved | Order::Listed => {}
        }
        trials.extend(round.into_iter().map(|point| (point, repeat)));
    }
    trials
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_goes_round_by_round_and_listed_point_by_point() {
        assert_eq!(
            order_trials(2, 3, Order::Interleaved, 1),
            [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
        );
        assert_eq!(
            order_trials(2, 2, Order::Listed, 1),
            [(0, 0), (0, 1), (1, 0), (1, 1)]
        );
    }

    #[test]
    fn shuffled_keeps_rounds_whole_and_repeats_with_the_seed() {
        let shuffled = order_trials(20, 2, Order::Shuffled, 1);
        assert_eq!(shuffled, order_trials(20, 2, Order::Shuffled, 1));
        assert_ne!(shuffled, order_trials(20, 2, Order::Shuffled, 2));
        for (repeat, round) in shuffled.chunks(20).enumerate() {
            let mut points: Vec<u64> = round.iter().map(|(point, _)| *point).collect();
            assert_ne!(points, (0..20).collect::<Vec<_>>());
            points.sort_unstable();
            assert_eq!(points, (0..20).collect::<Vec<_>>());
            assert!(round.iter().all(|(_, each)| *each == repeat as u64));
        }
    }
}
