//! The Pareto front of a run. In: the points that may be the best, best first. Out: those that no
//! other beats in both the metric and speed. A lead in speed that may be noise does not count.

use super::{RankedPoint, Ranking};
use crate::report::rates::{Rates, each_with_each};

/// The points of a front.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// Whether each rival is on the front.
    pub(super) is_on: Vec<bool>,
    /// A sentence on points that are faster by their means and not on it; `None` if there are
    /// none.
    pub(super) doubt: Option<String>,
}

/// The doubt where the lead of a faster point could not be tested.
const ONCE: &str = "cannot tell the Pareto front: the best point or a faster one ran only once \
                    beside the others: its lead in speed may be noise";

impl Ranking<'_> {
    /// A point is on the front beside one with a better value only if its lead in speed is larger
    /// than noise. A point that is not on the front keeps no other off it.
    pub(super) fn front(&self) -> Front {
        let rivals = self.rivals();
        let speeds: Vec<f64> = rivals.iter().map(|of| self.speed_or_zero(of)).collect();
        let points = self.rival_points();
        let rates = Rates::of(&points, self.rate);
        let statements = each_with_each(points.len());
        let gain = |place: usize, other: usize| rates.gain(other, place, statements);
        let is_ahead =
            |place: usize, other: usize| gain(place, other).is_some_and(|gain| gain.is_ahead());
        let mut kept: Vec<usize> = Vec::new();
        for place in self.best_and_fastest_first(&speeds) {
            let is_dominated_by = |other: &usize| {
                let is_better = rivals[*other].value != rivals[place].value;
                speeds[*other] > speeds[place] || (is_better && !is_ahead(place, *other))
            };
            if !kept.iter().any(is_dominated_by) {
                kept.push(place);
            }
        }
        let places = 0..rivals.len();
        let is_on: Vec<bool> = places.clone().map(|place| kept.contains(&place)).collect();
        let Some(best) = kept.first().copied() else {
            return Front { is_on, doubt: None };
        };
        let faster: Vec<usize> = places
            .filter(|place| speeds[*place] > speeds[best])
            .collect();
        let is_left_out = faster.iter().any(|place| !is_on[*place]);
        let is_untested = |place: &usize| gain(*place, best).is_none();
        let doubt = is_left_out.then(|| match rates.unknown() {
            Some(unknown) => format!("cannot tell the Pareto front: {}", unknown.in_words()),
            None if faster.iter().any(is_untested) => ONCE.to_owned(),
            None => "no other point is faster by more than noise".to_owned(),
        });
        Front { is_on, doubt }
    }

    /// The mean speed of a point; a point without a speed counts as 0.
    fn speed_or_zero(&self, ranked: &RankedPoint<'_>) -> f64 {
        let speed = ranked.point.statistic(self.rate);
        speed.map_or(0.0, |speed| speed.mean.max(0.0))
    }

    /// The places of the rivals, those with the best value first, of one value the fastest first.
    fn best_and_fastest_first(&self, speeds: &[f64]) -> Vec<usize> {
        let rivals = self.rivals();
        let mut places: Vec<usize> = (0..rivals.len()).collect();
        for alike in places.chunk_by_mut(|one, other| rivals[*one].value == rivals[*other].value) {
            alike.sort_by(|one, other| speeds[*other].total_cmp(&speeds[*one]));
        }
        places
    }
}
