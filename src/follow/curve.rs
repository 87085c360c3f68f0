//! A series of numbers of any length in a bounded space, and its picture in one line.

/// Most means that are kept.
const MOST: usize = 512;
/// The eighths of a line's height.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The course of a number.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Means of `stride` values each.
    means: Vec<f64>,
    stride: u64,
    /// Sum and number of the newest values, which make no mean yet.
    sum: f64,
    number: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            means: Vec::new(),
            stride: 1,
            sum: 0.0,
            number: 0,
        }
    }
}

impl Curve {
    /// Adds a value; a value that is NaN or infinite has no place.
    pub(super) fn push(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.sum += value;
        self.number += 1;
        if self.number < self.stride {
            return;
        }
        self.means.push(self.sum / self.number as f64);
        (self.sum, self.number) = (0.0, 0);
        if self.means.len() == MOST {
            let halved = self.means.chunks(2).map(mean).collect();
            self.means = halved;
            self.stride *= 2;
        }
    }

    /// The course in at most so many block characters, from the lowest to the highest value; empty for
    /// fewer than two values.
    pub fn sparkline(&self, columns: usize) -> String {
        let newest = (self.number > 0).then(|| self.sum / self.number as f64);
        let values: Vec<f64> = self.means.iter().copied().chain(newest).collect();
        if values.len() < 2 || columns == 0 {
            return String::new();
        }
        let shown: Vec<f64> = match values.len() <= columns {
            true => values,
            false => (0..columns)
                .map(|place| {
                    let from = place * values.len() / columns;
                    let to = (place + 1) * values.len() / columns;
                    mean(&values[from..to])
                })
                .collect(),
        };
        let lowest = shown.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let range = (highest - lowest).max(f64::MIN_POSITIVE);
        let block = |value: &f64| {
            let highest_block = (BLOCKS.len() - 1) as f64;
            let height = ((value - lowest) / range * highest_block).round() as usize;
            BLOCKS[height.min(BLOCKS.len() - 1)]
        };
        shown.iter().map(block).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_course_keeps_its_shape_in_a_bounded_space() {
        let mut curve = Curve::default();
        assert_eq!(curve.sparkline(10), "");
        (0..8).for_each(|value| curve.push(f64::from(8 - value)));
        curve.push(f64::NAN);
        assert_eq!(curve.sparkline(10), "█▇▆▅▄▃▂▁");
        (0..1_000_000).for_each(|value| curve.push(f64::from(value) / 1e5));
        assert!(curve.means.len() < MOST && curve.means.capacity() <= 2 * MOST);
        assert_eq!(curve.sparkline(8), "▁▂▃▄▅▆▇█");
        let mut flat = Curve::default();
        (0..3).for_each(|_| flat.push(2.5));
        assert_eq!(flat.sparkline(10), "▁▁▁");
    }
}
