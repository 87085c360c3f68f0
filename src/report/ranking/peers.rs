//! Points that are compared with each other, and those that stand apart.

use crate::report::{objective::RankingObjective, points::Point};

/// Why a point is not compared with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Apart {
    /// Its trials are shorter than those of the best: of a search in rounds only the longest with a
    /// value are compared.
    Shorter,
    /// Its trials train on one batch again and again (`data.synthetic`), which prices the input
    /// pipeline and is no setting to train with (`docs/measurement.md` 6).
    Twin,
}

/// The points that are compared with each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// Steps of the longest round with a value; `None` where trials of different lengths compare.
    longest: Option<u64>,
    /// Whether some point of the run trains on its data, so that synthetic twins stand apart.
    has_real_data: bool,
}

impl Peers {
    pub(super) fn of<'p>(
        objective: &RankingObjective,
        axes: &[String],
        all: &[Point<'_>],
        with_value: impl Iterator<Item = &'p Point<'p>>,
    ) -> Self {
        let has_real_data = all.iter().any(|point| !point.is_synthetic(axes));
        let rounds = with_value
            .filter(|point| !(has_real_data && point.is_synthetic(axes)))
            .map(|point| objective.round_steps(axes, point));
        Self {
            longest: rounds.max().flatten(),
            has_real_data,
        }
    }

    /// `None` for a point that is compared.
    pub(super) fn apart(
        self,
        objective: &RankingObjective,
        axes: &[String],
        point: &Point<'_>,
    ) -> Option<Apart> {
        if self.has_real_data && point.is_synthetic(axes) {
            return Some(Apart::Twin);
        }
        let is_as_long = self
            .longest
            .is_none_or(|longest| objective.round_steps(axes, point) == Some(longest));
        (!is_as_long).then_some(Apart::Shorter)
    }
}
