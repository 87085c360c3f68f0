//! The Pareto front of a run. In: the points that may be the best, best first. Out: those that no
//! other beats in both the metric and speed. A lead in speed that may be noise does not count.

use super::{RankedPoint, Ranking};
use crate::report::{
    points::Point,
    rates::{Rates, each_with_each},
};

/// The points of a front.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// Whether each rival is on the front.
    pub(super) is_on: Vec<bool>,
    /// A sentence on points that are faster by their means and not on it; `None` if there are
    /// none.
    pub(super) doubt: Option<String>,
}

impl Ranking<'_> {
    /// A point is on the front beside one with a better value only if its lead in speed is larger
    /// than noise.
    pub(super) fn front(&self) -> Front {
        let mut is_on = self.front_of_means();
        let places: Vec<usize> = (0..is_on.len()).filter(|place| is_on[*place]).collect();
        if places.len() < 2 {
            return Front { is_on, doubt: None };
        }
        let rivals = self.rivals();
        let points: Vec<Point<'_>> = rivals.iter().map(|of| of.point.clone()).collect();
        let rates = Rates::of(&points, self.rate);
        let statements = each_with_each(points.len());
        let is_ahead = |place: usize, other: usize| {
            let gain = rates.gain(other, place, statements);
            gain.is_some_and(|gain| gain.is_ahead())
        };
        let mut kept: Vec<usize> = Vec::new();
        for place in places.iter().copied() {
            let mut better = kept
                .iter()
                .filter(|other| rivals[**other].value != rivals[place].value);
            is_on[place] = better.all(|other| is_ahead(place, *other));
            if is_on[place] {
                kept.push(place);
            }
        }
        let doubt = (kept.len() < places.len()).then(|| match rates.unknown() {
            Some(unknown) => format!("cannot tell the Pareto front: {}", unknown.in_words()),
            None => "no other point is faster by more than noise".to_owned(),
        });
        Front { is_on, doubt }
    }

    /// Whether each rival is on the front of the means: no other is at least as good in the metric
    /// and in speed, and better in one of them. The points stand best first, so of those with one
    /// value the fastest are on it if all better ones are slower. A point without a speed counts
    /// as 0.
    fn front_of_means(&self) -> Vec<bool> {
        let speed = |ranked: &RankedPoint<'_>| {
            let speed = ranked.point.statistic(self.rate);
            speed.map_or(0.0, |speed| speed.mean)
        };
        let rivals = self.rivals();
        let mut front = Vec::with_capacity(rivals.len());
        let mut fastest_of_better = f64::NEG_INFINITY;
        for alike in rivals.chunk_by(|one, other| one.value == other.value) {
            let fastest = alike.iter().map(speed).fold(f64::NEG_INFINITY, f64::max);
            let is_ahead = fastest > fastest_of_better;
            front.extend(
                alike
                    .iter()
                    .map(|ranked| is_ahead && speed(ranked) == fastest),
            );
            fastest_of_better = fastest_of_better.max(fastest);
        }
        front
    }
}
