//! The runs of each point by the number of concurrent trials: whether fewer at once are faster.

use std::ops::Range;

use crate::report::{
    points::Point,
    rates::{Blocks, Gain, Rates},
};

/// The runs of each point, grouped by the number of concurrent trials.
#[derive(Debug)]
pub(super) struct Crowds<'a> {
    /// Number of concurrent trials, and the runs.
    parts: Vec<(u64, Point<'a>)>,
    /// Indexes of the parts of each point.
    of_point: Vec<Range<usize>>,
    /// `None` where no point has two parts.
    rates: Option<Rates>,
    /// Number of pairs of parts that belong to one point.
    pairs: usize,
}

impl<'a> Crowds<'a> {
    pub(super) fn new(points: &[Point<'a>], blocks: &Blocks<'_>) -> Self {
        let (mut parts, mut of_point): (Vec<(u64, Point<'a>)>, Vec<Range<usize>>) =
            Default::default();
        for point in points {
            let first = parts.len();
            for row in point.rows.iter().copied().filter(|row| row.is_completed()) {
                match parts[first..]
                    .iter_mut()
                    .find(|(trials, _)| *trials == row.concurrent_trials)
                {
                    Some((_, part)) => part.rows.push(row),
                    None => parts.push((
                        row.concurrent_trials,
                        Point {
                            values: point.values,
                            rows: vec![row],
                        },
                    )),
                }
            }
            of_point.push(first..parts.len());
        }
        let alone = || {
            parts
                .iter()
                .map(|(_, part)| part.clone())
                .collect::<Vec<_>>()
        };
        let has_crowds = of_point.iter().any(|parts| parts.len() > 1);
        let rates = has_crowds.then(|| {
            Rates::within(&alone(), blocks, |row| {
                row.of_whole_work(row.samples_per_second)
            })
        });
        let comparable = |parts: &Range<usize>| {
            parts
                .clone()
                .filter(|place| rates.as_ref().is_some_and(|rates| rates.has(*place)))
                .count()
        };
        let pairs = of_point.iter().map(|parts| pairs(comparable(parts))).sum();
        Self {
            parts,
            of_point,
            rates,
            pairs,
        }
    }

    /// Compares the runs of a point at this number of concurrent trials with its runs at fewer.
    /// Returns the latter where they are clearly faster.
    pub(super) fn faster(&self, point: usize, trials: u64) -> Option<Calmer<'_, 'a>> {
        let rates = self.rates.as_ref()?;
        let places = || self.of_point[point].clone();
        let own = places().find(|place| self.parts[*place].0 == trials)?;
        let calmer = |place: usize| {
            let (fewer, ref part) = self.parts[place];
            Some(Calmer {
                trials: fewer,
                part,
                own: &self.parts[own].1,
                gain: rates.faster(own, place, self.pairs)?,
            })
        };
        places()
            .filter(|place| self.parts[*place].0 < trials)
            .filter_map(calmer)
            .max_by(|one, other| one.gain.ratio.total_cmp(&other.gain.ratio))
    }
}

/// Repeats with fewer concurrent trials that were faster than the other repeats.
#[derive(Debug)]
pub(super) struct Calmer<'p, 'a> {
    pub(super) trials: u64,
    pub(super) part: &'p Point<'a>,
    pub(super) own: &'p Point<'a>,
    pub(super) gain: Gain,
}

/// Number of pairs of so many points.
pub(super) fn pairs(points: usize) -> usize {
    points * points.saturating_sub(1) / 2
}
