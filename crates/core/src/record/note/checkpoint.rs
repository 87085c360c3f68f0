//! Notes on checkpoints: one that could not be written, one of another run.

use std::fmt;

use crate::{plan::Origin, record::TrialRow};

/// The trial went on from a checkpoint of another run's trial; a note of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuedFrom {
    pub trial: String,
    /// Experiment and name of the run.
    pub run: String,
    pub step: u64,
    /// First digits of the SHA-256 of the checkpoint.
    pub sha256: String,
}

impl ContinuedFrom {
    /// The name under which it is noted.
    pub const COLUMN: &str = "continued_from";
    const SUM_DIGITS: usize = 12;

    pub fn new(origin: &Origin) -> Self {
        Self {
            trial: origin.trial.to_string(),
            run: origin.run_name(),
            step: origin.step,
            sha256: origin.sha256.chars().take(Self::SUM_DIGITS).collect(),
        }
    }

    /// Reads the note of a row; `None` if it began from the beginning.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix("trial ")?;
        let (trial, rest) = rest.split_once(" of ")?;
        let (run, rest) = rest.rsplit_once(" at step ")?;
        let (step, sum) = rest.split_once(", checkpoint ")?;
        Some(Self {
            trial: trial.to_owned(),
            run: run.to_owned(),
            step: step.parse().ok()?,
            sha256: sum.trim_end_matches('…').to_owned(),
        })
    }
}

impl fmt::Display for ContinuedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trial,
            run,
            step,
            sha256,
        } = self;
        write!(
            f,
            "trial {trial} of {run} at step {step}, checkpoint {sha256}…"
        )
    }
}

/// A checkpoint could not be written; a note on their size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenCheckpoint {
    pub step: u64,
    pub error: String,
}

impl UnwrittenCheckpoint {
    /// The column that it is about.
    pub const COLUMN: &str = "checkpoint_bytes";

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row
            .note(Self::COLUMN)?
            .strip_prefix("the checkpoint of step ")?;
        let (step, error) = rest.split_once(" could not be written: ")?;
        Some(Self {
            step: step.parse().ok()?,
            error: error.to_owned(),
        })
    }
}

impl fmt::Display for UnwrittenCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, error } = self;
        write!(
            f,
            "the checkpoint of step {step} could not be written: {error}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::TrialId, record::note::noted};

    #[test]
    fn an_unwritten_checkpoint_is_read_again() {
        let unwritten = UnwrittenCheckpoint {
            step: 40,
            error: "No space left on device (os error 28)".to_owned(),
        };
        let row = noted(&[(UnwrittenCheckpoint::COLUMN, &unwritten.to_string())]);
        assert_eq!(UnwrittenCheckpoint::of(&row), Some(unwritten));
        let other = noted(&[(UnwrittenCheckpoint::COLUMN, "this program keeps none")]);
        assert_eq!(UnwrittenCheckpoint::of(&other), None);
    }

    #[test]
    fn the_origin_is_read_again() {
        let continued = ContinuedFrom::new(&Origin {
            run: "results/x y/20261120T100809Z-4da13ed".into(),
            trial: TrialId("t0123456789".to_owned()),
            step: 200,
            sha256: "ab".repeat(32),
        });
        assert_eq!(continued.sha256, "abababababab");
        let row = noted(&[(ContinuedFrom::COLUMN, &continued.to_string())]);
        assert_eq!(ContinuedFrom::of(&row), Some(continued));
    }
}
