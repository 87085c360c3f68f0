//! Share of the window that the values of one reading cover: a mean of a part is not the window's.

use super::speaking;
use crate::{gpu_reader::GpuTick, limits::LEAST_COVERED_BY_MEAN, sampler::Tick};

/// Ticks without a value that speak for no longer in a row leave no gap: the chip's counters (GPM)
/// give nothing at looks that are nearer than 100 ms. A single tick leaves none either.
const LONGEST_BRIDGED_SECONDS: f64 = 0.2;

/// The reason why a mean of a reading would not be that of the window; `None` if its values cover
/// enough.
pub(super) fn lack(
    ticks: &[Tick],
    pieces: &[(u64, u64)],
    is_known: impl Fn(&GpuTick) -> bool,
) -> Option<String> {
    let covered = covered(ticks, pieces, is_known);
    (covered < LEAST_COVERED_BY_MEAN)
        .then(|| format!("samples cover {:.0} % of the window", covered * 100.0))
}

/// The share of the window's pieces for which a reading has values, of 1.
fn covered(ticks: &[Tick], pieces: &[(u64, u64)], is_known: impl Fn(&GpuTick) -> bool) -> f64 {
    let all: u64 = pieces.iter().map(|(from, to)| to - from).sum();
    let (mut covered, mut gap) = (0.0, Gap::default());
    for (tick, seconds) in pieces.iter().flat_map(|piece| speaking(ticks, *piece)) {
        match &tick.gpu {
            Some(gpu) if is_known(gpu) => {
                covered += seconds + gap.bridged_seconds();
                gap = Gap::default();
            }
            _ => gap.add(tick, seconds),
        }
    }
    (covered + gap.bridged_seconds()) / (all as f64 / 1e9)
}

/// Ticks in a row that lack a reading.
#[derive(Default)]
struct Gap {
    ticks: usize,
    last: u64,
    seconds: f64,
}

impl Gap {
    /// A tick whose time contains a cut comes once for each side of it.
    fn add(&mut self, tick: &Tick, seconds: f64) {
        let is_another = self.ticks == 0 || tick.monotonic_nanoseconds != self.last;
        self.ticks += usize::from(is_another);
        self.last = tick.monotonic_nanoseconds;
        self.seconds += seconds;
    }

    fn bridged_seconds(&self) -> f64 {
        match self.ticks <= 1 || self.seconds <= LONGEST_BRIDGED_SECONDS {
            true => self.seconds,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Ticks every 100 ms, from 0 to 2 s; these have the utilization.
    fn ticks(is_known: impl Fn(u64) -> bool) -> Vec<Tick> {
        let tick = |place: u64| Tick {
            monotonic_nanoseconds: place * SECOND / 10,
            gpu: Some(GpuTick {
                utilization: is_known(place).then_some(0.5),
                ..GpuTick::default()
            }),
            ..Tick::default()
        };
        (0..=20).map(tick).collect()
    }

    fn percent(is_known: impl Fn(u64) -> bool, pieces: &[(u64, u64)]) -> f64 {
        let covered = covered(&ticks(is_known), pieces, |gpu| gpu.utilization.is_some());
        (covered * 100.0).round()
    }

    #[test]
    fn a_short_window_keeps_its_means_without_the_samples_at_its_ends() {
        let window = [(0, 2 * SECOND)];
        assert_eq!(percent(|_| true, &window), 100.0);
        assert_eq!(percent(|place| (1..20).contains(&place), &window), 100.0);
        // Read at every third look, like the counters of the chip where looks are near.
        assert_eq!(percent(|place| place % 3 == 0, &window), 100.0);
        // The sampler looked for the last time before the window's end.
        let late = [(SECOND, 2 * SECOND + SECOND / 10)];
        assert_eq!(percent(|_| true, &late), 91.0);
    }

    #[test]
    fn a_gap_is_not_covered_and_a_cut_neither_hides_nor_doubles_it() {
        assert_eq!(percent(|place| place <= 5, &[(0, 2 * SECOND)]), 25.0);
        let cut = [(0, SECOND / 2), (SECOND * 3 / 2, 2 * SECOND)];
        assert_eq!(percent(|place| place <= 5, &cut), 50.0);
        assert_eq!(percent(|place| !(6..=15).contains(&place), &cut), 100.0);
        // One tick of which a cut takes the middle.
        let within = [
            (0, SECOND / 2 + 20_000_000),
            (SECOND / 2 + 80_000_000, 2 * SECOND),
        ];
        assert_eq!(percent(|place| place != 6, &within), 100.0);
    }
}
