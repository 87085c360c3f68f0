//! The order in which the trials of all points run, in rounds of repeats and blocks.

use crate::{kinds::random::SplitMix64, spec::Order};

/// The place of a trial: its point and its repeat, both counted from 0.
pub(super) type Place = (u64, u64);

/// Returns the blocks in the order in which they run: every (point, repeat) is in one of them, once.
///
/// `groups` are the points that run together; a block has the points of one group with one repeat.
/// Each round of repeats goes through all groups. `interleaved` alternates forward and backward
/// passes over the points, so that no point is always before another: a drift affects all of them
/// alike. `rotated` does the same with the groups, and begins each block of a group with another of
/// its points. `seed` decides `shuffled`, which shuffles each round separately.
pub(super) fn order_blocks(
    groups: &[Vec<u64>],
    repeats: u64,
    order: Order,
    seed: u64,
) -> Vec<Vec<Place>> {
    let block = |points: Vec<u64>, repeat: u64| -> Vec<Place> {
        points.into_iter().map(|point| (point, repeat)).collect()
    };
    if order == Order::Listed {
        return groups
            .iter()
            .flat_map(|points| (0..repeats).map(move |repeat| block(points.clone(), repeat)))
            .collect();
    }
    let mut random = SplitMix64::new(seed);
    let mut blocks = Vec::new();
    for repeat in 0..repeats {
        let mut round: Vec<usize> = (0..groups.len()).collect();
        match order {
            Order::Shuffled if round.len() > 1 => random.shuffle(&mut round),
            Order::Interleaved | Order::Rotated if repeat % 2 == 1 => round.reverse(),
            _ => {}
        }
        for group in round {
            let mut points = groups[group].clone();
            match order {
                Order::Shuffled => random.shuffle(&mut points),
                Order::Interleaved if repeat % 2 == 1 => points.reverse(),
                Order::Rotated => rotate(&mut points, repeat as usize, group),
                _ => {}
            }
            blocks.push(block(points, repeat));
        }
    }
    blocks
}

/// Begins with the point whose turn it is. In every second cycle the others follow backwards, so
/// that no point always follows the same other one.
fn rotate(points: &mut [u64], repeat: usize, group: usize) {
    let count = points.len().max(1);
    points.rotate_left((repeat + group) % count);
    if (repeat / count) % 2 == 1 {
        points[1..].reverse();
    }
}

/// All repeats of a point before the next point, as `listed` runs points without blocks of their
/// own.
pub(super) fn point_by_point(points: u64, repeats: u64) -> Vec<Place> {
    (0..points)
        .flat_map(|point| (0..repeats).map(move |repeat| (point, repeat)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(groups: &[Vec<u64>], repeats: u64, order: Order) -> Vec<Place> {
        order_blocks(groups, repeats, order, 1).concat()
    }

    #[test]
    fn interleaved_goes_round_by_round_and_listed_point_by_point() {
        assert_eq!(
            flat(&[vec![0, 1]], 3, Order::Interleaved),
            [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
        );
        assert_eq!(point_by_point(2, 2), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn shuffled_keeps_rounds_whole_and_repeats_with_the_seed() {
        let whole = [(0..20).collect::<Vec<u64>>()];
        let shuffled = order_blocks(&whole, 2, Order::Shuffled, 1);
        assert_eq!(shuffled, order_blocks(&whole, 2, Order::Shuffled, 1));
        assert_ne!(shuffled, order_blocks(&whole, 2, Order::Shuffled, 2));
        for (repeat, round) in shuffled.iter().enumerate() {
            let mut points: Vec<u64> = round.iter().map(|(point, _)| *point).collect();
            assert_ne!(points, (0..20).collect::<Vec<_>>());
            points.sort_unstable();
            assert_eq!(points, (0..20).collect::<Vec<_>>());
            assert!(round.iter().all(|(_, each)| *each == repeat as u64));
        }
    }

    #[test]
    fn every_order_has_each_trial_once_and_blocks_of_one_group_and_repeat() {
        let groups = [vec![0, 3], vec![1, 4, 5], vec![2]];
        for order in [
            Order::Interleaved,
            Order::Rotated,
            Order::Listed,
            Order::Shuffled,
        ] {
            let blocks = order_blocks(&groups, 4, order, 7);
            assert_eq!(blocks.len(), 12, "{order:?}");
            for block in &blocks {
                let mut points: Vec<u64> = block.iter().map(|(point, _)| *point).collect();
                points.sort_unstable();
                assert!(groups.contains(&points), "{order:?} {block:?}");
                assert!(block.iter().all(|(_, repeat)| *repeat == block[0].1));
            }
            let mut places = blocks.concat();
            places.sort_unstable();
            assert_eq!(places, point_by_point(6, 4), "{order:?}");
        }
    }

    #[test]
    fn rotated_begins_with_each_point_equally_often() {
        for size in 1..=5_u64 {
            let groups: Vec<Vec<u64>> = (0..3)
                .map(|group| (group * size..(group + 1) * size).collect())
                .collect();
            for repeats in 1..=11 {
                let blocks = order_blocks(&groups, repeats, Order::Rotated, 1);
                for group in &groups {
                    let firsts: Vec<usize> = group
                        .iter()
                        .map(|point| blocks.iter().filter(|block| block[0].0 == *point).count())
                        .collect();
                    let (least, most) = (firsts.iter().min(), firsts.iter().max());
                    assert!(most.unwrap() - least.unwrap() <= 1, "{size} {firsts:?}");
                }
            }
        }
        // Of three, each follows each of the others equally often within two cycles.
        let blocks = order_blocks(&[vec![0, 1, 2]], 6, Order::Rotated, 1);
        let follows = |one: u64, other: u64| {
            let pairs = blocks.iter().flat_map(|block| block.windows(2));
            pairs
                .filter(|pair| (pair[0].0, pair[1].0) == (one, other))
                .count()
        };
        for (one, other) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            assert_eq!(follows(one, other), 2, "{one} {other}: {blocks:?}");
        }
    }
}
