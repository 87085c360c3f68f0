//! The blocks of a sweep: trials that run one after another on one device, so that a drift of the
//! machine affects them alike.

use std::collections::HashMap;

use super::{
    Trial,
    order::{Place, order_blocks, point_by_point},
    problem::show,
};
use crate::spec::{Order, Sweep};

/// Returns the places of all trials in the order in which they run, each with the number of its
/// block, from 1. Without axes in `sweep.together` a block is a round of repeats.
pub(super) fn blocks(by_point: &[Vec<Trial>], sweep: &Sweep, seed: u64) -> Vec<(Place, u64)> {
    if sweep.together.is_empty() && sweep.order == Order::Listed {
        let places = point_by_point(by_point.len() as u64, sweep.repeats);
        return places
            .into_iter()
            .map(|place| (place, place.1 + 1))
            .collect();
    }
    let groups = groups(by_point, sweep);
    let blocks = order_blocks(&groups, sweep.repeats, sweep.order, seed);
    blocks
        .into_iter()
        .zip(1..)
        .flat_map(|(places, block)| places.into_iter().map(move |place| (place, block)))
        .collect()
}

/// The points that differ only in the axes of `sweep.together` and what is derived from them, in
/// the order of their first points.
fn groups(by_point: &[Vec<Trial>], sweep: &Sweep) -> Vec<Vec<u64>> {
    if sweep.together.is_empty() {
        return vec![(0..by_point.len() as u64).collect()];
    }
    let mut groups: Vec<Vec<u64>> = Vec::new();
    let mut known: HashMap<Vec<String>, usize> = HashMap::new();
    for (point, trials) in (0..).zip(by_point) {
        let axes = trials.first().map(|trial| trial.axes.as_slice());
        let others = axes.unwrap_or_default().iter();
        let others: Vec<String> = others
            .filter(|(key, _)| !sweep.together.contains(key) && !sweep.derive.contains_key(key))
            .map(|(_, value)| show(value))
            .collect();
        let group = *known.entry(others).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(points) => points.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups
}
