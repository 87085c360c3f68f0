//! Energy over the window: the driver's counter, and the integral of the power readings as a
//! cross-check. Both are interpolated at the window's ends.

use super::{WindowSummary, note};
use crate::{TrialReadings, gpu_reader::GpuTick, limits::ENERGY_APART, sampler::Tick};

/// Energy needs ticks over at least this share of the window.
const LEAST_COVERED: f64 = 0.98;

/// Readings this many times further apart than they mostly are leave a hole between them.
const HOLE: u64 = 3;

/// A shorter one is none: most boards give the mean power of the last second.
const SHORTEST_HOLE_NANOSECONDS: u64 = 1_000_000_000;

/// A shorter window has no energy: most boards give the mean power of the last second, and the counter
/// moves in steps of up to a tenth of one. On an H200 windows of 20 to 60 ms had counts from 0 J to a
/// tenth of the integral, and in one of 0.6 s the two were 1.9 times apart.
const SHORTEST_WINDOW_NANOSECONDS: u64 = 2_000_000_000;

/// Shorter pieces between evaluations and checkpoints, in the mean, leave the counter's part of each
/// unknown: it moves in steps of up to a tenth of a second.
const SHORTEST_PIECE_OF_COUNTER: u64 = 2_000_000_000;

/// The same for the power readings: a mean of the last second has half a second of the work before in it.
/// For a GPU of 600 W whose evaluations draw 130 W the integral over pieces of 3 s is 13 % too low, of 10 s 4 %.
const SHORTEST_PIECE_OF_INTEGRAL: u64 = 10_000_000_000;

/// Intervals before and after one whose usual length it is compared with: a long series was thinned, and
/// its older part has longer ones.
const NEIGHBORS: usize = 8;

/// A GPU that is on draws power, and windows with an energy are longer than the steps of a counter.
const STANDING_COUNTER: &str = "the counter did not move in the window";
const NO_POWER: &str = "every power reading in the window is 0 W";

pub(super) fn fill_energy(
    summary: &mut WindowSummary,
    readings: &TrialReadings,
    pieces: &[(u64, u64)],
) {
    fill_integral(summary, readings, pieces);
    fill_counter(summary, readings, pieces);
    if let (None, Some(joules)) = (summary.mean_power_watts, summary.energy_counter_joules) {
        let nanoseconds: u64 = pieces.iter().map(|(from, to)| to - from).sum();
        summary.mean_power_watts = Some(joules / (nanoseconds as f64 / 1e9));
        summary.notes.remove("mean_power_watts");
    }
    note_apart(summary);
}

fn fill_integral(summary: &mut WindowSummary, readings: &TrialReadings, pieces: &[(u64, u64)]) {
    let power = ReadingSeries::new(&readings.ticks, |gpu| gpu.power_watts);
    match power.clipped(pieces, SHORTEST_PIECE_OF_INTEGRAL, Hole::is_in) {
        Ok(found) => {
            let joules: f64 = found.iter().map(|points| integral(points)).sum();
            if joules <= 0.0 {
                note(summary, "energy_integral_joules", NO_POWER);
                note(summary, "mean_power_watts", NO_POWER);
                return;
            }
            let seconds: f64 = found
                .iter()
                .map(|points| (points[points.len() - 1].0 - points[0].0) as f64 / 1e9)
                .sum();
            summary.energy_integral_joules = Some(joules);
            summary.mean_power_watts = Some(joules / seconds);
        }
        Err(Some(reason)) => {
            note(summary, "energy_integral_joules", &reason);
            note(summary, "mean_power_watts", &reason);
        }
        Err(None) => {}
    }
}

/// A counter keeps counting in a gap; only its value at an end of the window is unknown there.
fn fill_counter(summary: &mut WindowSummary, readings: &TrialReadings, pieces: &[(u64, u64)]) {
    let counter = ReadingSeries::new(&readings.ticks, |gpu| gpu.energy_joules);
    match counter.clipped(pieces, SHORTEST_PIECE_OF_COUNTER, Hole::is_over_an_end) {
        Ok(found)
            if found
                .iter()
                .flat_map(|points| points.windows(2))
                .any(|pair| pair[1].1 < pair[0].1) =>
        {
            note(
                summary,
                "energy_counter_joules",
                "the counter went backwards, so it was reset or has wrapped",
            );
        }
        Ok(found) => {
            let joules: f64 = found
                .iter()
                .map(|points| points[points.len() - 1].1 - points[0].1)
                .sum();
            if joules > 0.0 {
                summary.energy_counter_joules = Some(joules);
            } else {
                note(summary, "energy_counter_joules", STANDING_COUNTER);
            }
        }
        Err(Some(reason)) => note(summary, "energy_counter_joules", &reason),
        Err(None) => {}
    }
}

fn note_apart(summary: &mut WindowSummary) {
    if let (Some(counted), Some(integrated)) = (
        summary.energy_counter_joules,
        summary.energy_integral_joules,
    ) {
        let apart = (counted - integrated).abs() / counted.max(integrated);
        if apart > ENERGY_APART {
            note(
                summary,
                "energy_counter_joules",
                &format!(
                    "differs from energy_integral_joules by {:.0} %",
                    apart * 100.0
                ),
            );
        }
    }
}

/// A time without readings, in nanoseconds.
#[derive(Clone, Copy)]
struct Hole {
    from: u64,
    to: u64,
}

impl Hole {
    fn nanoseconds_in(self, (from, to): (u64, u64)) -> u64 {
        self.to.min(to).saturating_sub(self.from.max(from))
    }

    fn is_in(self, piece: (u64, u64)) -> bool {
        self.nanoseconds_in(piece) > 0
    }

    fn is_over_an_end(self, (from, to): (u64, u64)) -> bool {
        [from, to]
            .iter()
            .any(|end| self.from < *end && *end < self.to)
    }
}

/// One reading over time: nanoseconds and value.
struct ReadingSeries(Vec<(u64, f64)>);

impl ReadingSeries {
    fn new(ticks: &[Tick], of: impl Fn(&GpuTick) -> Option<f64>) -> Self {
        Self(
            ticks
                .iter()
                .filter_map(|tick| Some((tick.monotonic_nanoseconds, of(tick.gpu.as_ref()?)?)))
                .collect(),
        )
    }

    /// Gaps in the readings, compared with the usual interval between those around them.
    fn holes(&self) -> Vec<Hole> {
        let between = |pair: &[(u64, f64)]| Hole {
            from: pair[0].0,
            to: pair[1].0,
        };
        let lengths: Vec<u64> = self
            .0
            .windows(2)
            .map(|pair| pair[1].0 - pair[0].0)
            .collect();
        let is_long = |place: usize| {
            if lengths[place] <= SHORTEST_HOLE_NANOSECONDS {
                return false;
            }
            let from = place.saturating_sub(NEIGHBORS);
            let to = (place + NEIGHBORS + 1).min(lengths.len());
            let mut around = lengths[from..to].to_vec();
            around.sort_unstable();
            let usual = around[around.len() / 2];
            lengths[place] > usual * HOLE
        };
        let pairs = self.0.windows(2).enumerate();
        pairs
            .filter(|(place, _)| is_long(*place))
            .map(|(_, pair)| between(pair))
            .collect()
    }

    /// The points inside each piece of the window, with interpolated ones at its two ends; at least
    /// two. `Err(None)` if nothing was read at all, else the reason, such as too short a window or
    /// pieces that are shorter than `shortest` in the mean. `counts` says whether a hole takes
    /// something from a piece.
    fn clipped(
        &self,
        pieces: &[(u64, u64)],
        shortest: u64,
        counts: fn(Hole, (u64, u64)) -> bool,
    ) -> Result<Vec<Vec<(u64, f64)>>, Option<String>> {
        let (first, last) = (self.0.first().ok_or(None)?.0, self.0.last().ok_or(None)?.0);
        let all: u64 = pieces.iter().map(|(start, end)| end - start).sum();
        if all < SHORTEST_WINDOW_NANOSECONDS {
            return Err(Some(too_short(all)));
        }
        if pieces.len() > 1 && all / (pieces.len() as u64) < shortest {
            return Err(Some(too_cut(all, pieces.len(), shortest)));
        }
        let pieces: Vec<(u64, u64)> = pieces
            .iter()
            .map(|(start, end)| ((*start).max(first), (*end).min(last)))
            .filter(|(from, to)| from < to)
            .collect();
        let holes = self.holes();
        let missing = |piece: (u64, u64)| {
            holes
                .iter()
                .filter(|hole| counts(**hole, piece))
                .map(|hole| hole.nanoseconds_in(piece))
                .sum::<u64>()
        };
        let covered = pieces
            .iter()
            .map(|(from, to)| to - from - missing((*from, *to)))
            .sum::<u64>() as f64
            / all as f64;
        if pieces.is_empty() || covered < LEAST_COVERED {
            return Err(Some(format!(
                "samples cover {:.0} % of the window",
                covered * 100.0
            )));
        }
        let clip = |(from, to): (u64, u64)| {
            let inside = self
                .0
                .iter()
                .copied()
                .filter(|(time, _)| from < *time && *time < to);
            std::iter::once((from, self.at(from)))
                .chain(inside)
                .chain(std::iter::once((to, self.at(to))))
                .collect()
        };
        Ok(pieces.into_iter().map(clip).collect())
    }

    /// Linear between the two points around `time`, which lies within the series.
    fn at(&self, time: u64) -> f64 {
        let after = self
            .0
            .partition_point(|(at, _)| *at < time)
            .clamp(1, self.0.len().max(2) - 1);
        match (self.0.get(after - 1), self.0.get(after)) {
            (Some(&(t0, v0)), Some(&(t1, v1))) if t1 > t0 => {
                v0 + (v1 - v0) * (time.saturating_sub(t0) as f64 / (t1 - t0) as f64)
            }
            (Some(&(_, only)), _) => only,
            (None, _) => f64::NAN,
        }
    }
}

/// Why a window of so many nanoseconds has no energy; its length is rounded down.
fn too_short(window: u64) -> String {
    let hundredths = (window / 10_000_000) as f64 / 100.0;
    format!(
        "a window of {hundredths:.2} s is too short for the power readings, which are means of a \
         second; it takes {} s",
        SHORTEST_WINDOW_NANOSECONDS / 1_000_000_000
    )
}

/// Why a window of so many nanoseconds in so many pieces has no energy.
fn too_cut(window: u64, pieces: usize, shortest: u64) -> String {
    let mean = window as f64 / pieces as f64 / 1e9;
    format!(
        "evaluations and checkpoints cut the window into {pieces} pieces of {mean:.1} s in the mean, and the \
         readings cannot be told apart at their ends; they take {} s",
        shortest / 1_000_000_000
    )
}

/// Trapezoids; seconds times the unit of the values.
fn integral(points: &[(u64, f64)]) -> f64 {
    points
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0) as f64 / 1e9 * (pair[0].1 + pair[1].1) / 2.0)
        .sum()
}
