//! Notes on a training: an early stop, a loss that rose.

use std::fmt;

use crate::{record::TrialRow, statistics::prediction_interval};

/// `train.early_stop` ended a training; a note on its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedEarly;

impl StoppedEarly {
    /// The column that it is about.
    pub const COLUMN: &str = "steps";
    const BEGINNING: &str = "stopped early at step ";

    /// The note, with the reason.
    pub fn text(step: u64, reason: &str) -> String {
        format!("{}{step}: {reason}", Self::BEGINNING)
    }

    /// Whether the row has it.
    pub fn is_of(row: &TrialRow) -> bool {
        let note = row.note(Self::COLUMN);
        note.is_some_and(|note| note.starts_with(Self::BEGINNING))
    }
}

/// A training ended with a higher loss than it began with; a note on the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossRose {
    /// The first loss that was logged.
    pub first: f64,
}

impl LossRose {
    /// The column that it is about.
    pub const COLUMN: &str = "train_loss";
    /// Least ratio of the last loss to the first one.
    pub const LEAST_RATIO: f64 = 1.1;
    /// The first loss must lie below this prediction interval for one more loss of the second half.
    pub const PREDICTION: f64 = 0.999;
    const BEGINNING: &str = "ended above the first logged loss, ";

    /// Whether the last loss is worth a look at the others.
    pub fn is_suspected(first: f64, last: f64) -> bool {
        first.is_finite() && first > 0.0 && last >= first * Self::LEAST_RATIO
    }

    /// `second_half` are losses of the second half of the training, each of one batch; `last` is
    /// the loss at its end. `None` if the first loss could as well be one of them: small batches
    /// differ by much. By the logarithms of the losses, because they vary by factors.
    pub fn between(first: f64, second_half: &[f64], last: f64) -> Option<Self> {
        let logarithms: Vec<f64> = second_half.iter().map(|loss| loss.ln()).collect();
        let (low, _) = prediction_interval(&logarithms, Self::PREDICTION)?;
        (Self::is_suspected(first, last) && first.ln() < low).then_some(Self { first })
    }

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let first = rest.parse().ok()?;
        Some(Self { first })
    }
}

impl fmt::Display for LossRose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::BEGINNING, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::note::noted;

    #[test]
    fn a_loss_that_rose_is_read_again() {
        let rose = LossRose::between(4.25, &[2000.0, 2700.0, 2400.0], 2366.0).unwrap();
        let row = noted(&[(LossRose::COLUMN, &rose.to_string())]);
        assert_eq!(LossRose::of(&row), Some(rose));
    }

    #[test]
    fn a_loss_rose_only_if_the_first_one_could_not_be_one_of_the_second_half() {
        let rose =
            |first, rest: &[f64], last| LossRose::between(first, rest, last).map(|rose| rose.first);
        // Losses of batches of four images that nothing can be learned from.
        assert_eq!(rose(0.62, &[0.81, 0.94, 0.7, 0.58, 0.86], 0.74), None);
        assert_eq!(rose(0.62, &[0.8, 0.82, 0.81, 0.83], 0.82), Some(0.62));
        // Too few to tell, or hardly above the first.
        assert_eq!(rose(4.0, &[2366.0], 2366.0), None);
        assert_eq!(rose(4.0, &[90.0, 2366.0], 2366.0), None);
        assert_eq!(rose(4.25, &[4.3, 4.3, 4.3], 4.3), None);
        for first in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rose(first, &[9.0, 9.1, 9.2, 9.1], 9.2), None, "{first}");
        }
        // Not a positive number in between: its logarithm tells nothing.
        for odd in [0.0, -1.0, f64::NAN] {
            assert_eq!(rose(4.0, &[9.1, 9.2, odd, 9.1], 9.2), None, "{odd}");
        }
        assert_eq!(rose(1.0, &[], 9.0), None);
    }

    #[test]
    fn noise_alone_makes_a_loss_rise_in_at_most_one_of_a_thousand_trainings() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut found = 0;
        for _ in 0..20_000 {
            let mut loss = || (0.3 * normal()).exp();
            let (first, rest) = (loss(), [(); 6].map(|()| loss()));
            found += usize::from(LossRose::between(first, &rest, 1e9).is_some());
        }
        // Of 10 expected, half of one in a thousand.
        assert!((1..=22).contains(&found), "{found}");
    }
}
