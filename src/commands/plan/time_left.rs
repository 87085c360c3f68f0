//! The time of `--for` over several files: `kiln run` runs them one after the other and gives it to
//! all of them together.

use std::time::Duration;

use kiln_core::{
    plan::Plan,
    units::{Seconds, TimeSpan, counted},
};

use crate::schedule::FittingTrials;

/// The time of `--for` that the files before leave.
pub(super) struct BudgetLeft {
    pub(super) span: TimeSpan,
    pub(super) left: Duration,
    /// Whether trials of unknown time begin in the files before.
    is_at_most: bool,
}

impl BudgetLeft {
    pub(super) fn new(span: TimeSpan) -> Self {
        Self {
            span,
            left: span.0,
            is_at_most: false,
        }
    }

    /// These trials of a file begin before those of the next file.
    pub(super) fn pass(&mut self, fitting: &FittingTrials) {
        let used = Duration::try_from_secs_f64(fitting.seconds).unwrap_or(Duration::MAX);
        self.left = self.left.saturating_sub(used);
        self.is_at_most |= fitting.unknown > 0;
    }

    /// `--for 2h: 4 trials fit on one device, about 1 h 50 min, 2 of 3 rounds whole`.
    pub(super) fn in_words(&self, fitting: &FittingTrials, plan: &Plan) -> String {
        if fitting.all_blocks == 0 {
            return format!("--for {}: no trial is left to run", self.span);
        }
        let fit = if fitting.trials == 1 { "fits" } else { "fit" };
        let mut text = format!(
            "--for {}{}: {} {fit} on one device, about {}",
            self.span,
            self.left_in_words(),
            counted(fitting.trials, "trial"),
            Seconds(fitting.seconds)
        );
        if let Some(blocks) = fitting.blocks {
            let one = match plan.together.is_empty() {
                true => "round",
                false => "block",
            };
            text += &format!(", {blocks} of {} whole", counted(fitting.all_blocks, one));
        }
        if fitting.unknown > 0 {
            let unknown = counted(fitting.unknown, "trial");
            text += &format!("; the time of {unknown} is unknown, each begins while time is left");
        }
        text
    }

    /// Empty if the files before need no time.
    fn left_in_words(&self) -> String {
        let about = match self.is_at_most {
            true => "at most",
            false if self.left < self.span.0 => "about",
            false => return String::new(),
        };
        let left = Seconds(self.left.as_secs_f64());
        format!(", of which the files before leave {about} {left}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_before_take_their_time_from_the_next_ones() {
        let mut left = BudgetLeft::new(TimeSpan::from_secs(3600));
        let takes = |seconds, unknown| FittingTrials {
            seconds,
            unknown,
            ..FittingTrials::default()
        };
        left.pass(&takes(0.0, 0));
        assert_eq!(left.left_in_words(), "");
        left.pass(&takes(600.0, 0));
        let words = ", of which the files before leave about 50 min 0 s";
        assert_eq!(left.left_in_words(), words);
        left.pass(&takes(600.0, 1));
        let words = ", of which the files before leave at most 40 min 0 s";
        assert_eq!(left.left_in_words(), words);
        left.pass(&takes(f64::INFINITY, 0));
        assert_eq!(left.left, Duration::ZERO);
    }
}
