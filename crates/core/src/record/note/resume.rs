//! Notes on an attempt that ended before its trial, or is of a part of its work.

use std::fmt;

use crate::{record::TrialRow, spec::Metric};

/// The time of the attempt's Slurm job ended before its trial did; a note of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfJobTime {
    /// Whether the attempt had [nearly all](Self::is_most) of the job's time.
    pub had_most: bool,
    /// Whether the attempt wrote a checkpoint after the one from which it resumed.
    pub has_checkpoint: bool,
}

impl OutOfJobTime {
    /// The name under which it is noted.
    pub const COLUMN: &str = "job_time";
    const BEGINNING: &str = "the job's time ended before the trial, which ";
    const MOST: &str = "had most of it and ";
    const WITHOUT: &str = "left no new checkpoint";
    const WITH: &str = "left a new checkpoint";

    /// Reads the note of a row; `None` if its attempt ended otherwise.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let (had_most, rest) = match rest.strip_prefix(Self::MOST) {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let has_checkpoint = match rest {
            Self::WITH => true,
            Self::WITHOUT => false,
            _ => return None,
        };
        Some(Self {
            had_most,
            has_checkpoint,
        })
    }

    /// Whether an attempt had most of a job's time. `left` is the time that the job had left when the
    /// attempt started, `whole` when the worker started, both in seconds. The first trial of a worker
    /// always has most of it.
    pub fn is_most(left: f64, whole: f64) -> bool {
        left >= whole * 0.85
    }
}

impl fmt::Display for OutOfJobTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.had_most { Self::MOST } else { "" };
        let left = if self.has_checkpoint {
            Self::WITH
        } else {
            Self::WITHOUT
        };
        write!(f, "{}{most}{left}", Self::BEGINNING)
    }
}

/// The program of a command may have resumed from what an earlier attempt left, or says so; a note of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumedCommand;

impl ResumedCommand {
    /// The name under which it is noted.
    pub const COLUMN: &str = "resumed";
    pub const TEXT: &str = "files of an earlier attempt were in its checkpoint folder, so times, \
                            rates and energy may be of a part of its work";
    /// The text if no such files were there.
    pub const TOLD_TEXT: &str = "its metric `resumed_at_step` says that it did not begin at step 0, so \
                                 times, rates and energy may be of a part of its work";
    /// The text in tables of earlier versions.
    const FORMER_TEXT: &str =
        "the program found its checkpoint, so times, rates and energy are of the rest of its work";

    /// Whether the row has it.
    pub fn is_of(row: &TrialRow) -> bool {
        let note = row.note(Self::COLUMN);
        note.is_some_and(|note| [Self::TEXT, Self::TOLD_TEXT, Self::FORMER_TEXT].contains(&note))
    }
}

impl TrialRow {
    /// Whether the attempt resumed from a checkpoint, so that `trial_seconds` is of the rest.
    pub fn is_resumed(&self) -> bool {
        self.resumed_at_step.is_some() || ResumedCommand::is_of(self)
    }

    /// Wall time of a trial from its beginning; `None` if the attempt resumed.
    pub fn whole_seconds(&self) -> Option<f64> {
        self.trial_seconds.filter(|_| !self.is_resumed())
    }

    /// A time, rate or energy of the row. `None` of a command that resumed, where it is of an
    /// unknown part of the work; a training measures it in a window after the checkpoint.
    pub fn of_whole_work(&self, number: Option<f64>) -> Option<f64> {
        number.filter(|_| !ResumedCommand::is_of(self))
    }

    /// A metric of the row for means and rankings: a time or a rate only of whole work
    /// ([`Self::of_whole_work`]).
    pub fn metric_of_whole_work(&self, metric: Metric) -> Option<f64> {
        let value = self.metric(metric);
        match metric {
            Metric::SamplesPerSecond | Metric::TokensPerSecond | Metric::SecondsToTarget => {
                self.of_whole_work(value)
            }
            _ => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::note::noted;

    #[test]
    fn the_end_of_a_jobs_time_is_read_again() {
        let both = [false, true];
        for (had_most, has_checkpoint) in both.iter().flat_map(|most| both.map(|new| (*most, new)))
        {
            let cut = OutOfJobTime {
                had_most,
                has_checkpoint,
            };
            let row = noted(&[(OutOfJobTime::COLUMN, &cut.to_string())]);
            assert_eq!(OutOfJobTime::of(&row), Some(cut));
        }
    }

    #[test]
    fn a_row_is_resumed_by_its_column_or_its_note() {
        let of = |notes: &[(&str, &str)], resumed_at_step| TrialRow {
            trial_seconds: Some(2.0),
            resumed_at_step,
            ..noted(notes)
        };
        let told = |row: TrialRow| {
            let rate = row.of_whole_work(Some(1.0));
            (row.is_resumed(), row.whole_seconds(), rate)
        };
        let note = [(ResumedCommand::COLUMN, ResumedCommand::TEXT)];
        assert_eq!(told(of(&[], None)), (false, Some(2.0), Some(1.0)));
        // A training has its rate from a window after the checkpoint.
        assert_eq!(told(of(&[], Some(9))), (true, None, Some(1.0)));
        assert_eq!(told(of(&note, None)), (true, None, None));
        let former = [(ResumedCommand::COLUMN, ResumedCommand::FORMER_TEXT)];
        assert_eq!(told(of(&former, None)), (true, None, None));
        let by_program = [(ResumedCommand::COLUMN, ResumedCommand::TOLD_TEXT)];
        assert_eq!(told(of(&by_program, Some(9))), (true, None, None));
        // A metric of this name may have a note too.
        let other = [("resumed", "'x' is not a number")];
        assert!(!told(of(&other, None)).0);
    }

    #[test]
    fn of_a_command_that_resumed_the_times_and_rates_are_left_out_and_the_losses_stay() {
        let metrics = [
            Metric::SamplesPerSecond,
            Metric::TokensPerSecond,
            Metric::SecondsToTarget,
            Metric::ValidLoss,
        ];
        let of = |notes: &[(&str, &str)]| {
            let row = TrialRow {
                samples_per_second: Some(1.0),
                tokens_per_second: Some(2.0),
                seconds_to_target: Some(3.0),
                valid_loss: Some(4.0),
                ..noted(notes)
            };
            metrics.map(|metric| row.metric_of_whole_work(metric))
        };
        assert_eq!(of(&[]), [1.0, 2.0, 3.0, 4.0].map(Some));
        let note = [(ResumedCommand::COLUMN, ResumedCommand::TEXT)];
        assert_eq!(of(&note), [None, None, None, Some(4.0)]);
    }
}
