//! Messages to the parent: one JSON object per line, sent as they come; progress at most a few
//! times a second.

use std::io::Write;

use kiln_core::record::Message;

use super::clock::seconds_between;
use crate::TrialError;

/// Shortest time between two messages of progress.
const PROGRESS_SECONDS: f64 = 0.2;

/// Writes messages, and keeps the rates since the last message of progress.
pub(crate) struct Messenger<'a, W: Write> {
    out: &'a mut W,
    /// Time of the last message of progress or sign of life.
    sent: u64,
    /// Start of the time that the rates cover.
    since: u64,
    /// Part of that time that trains nothing: evaluations, checkpoints.
    excluded: u64,
    samples: u64,
    wait_seconds: f64,
    /// Time of the last message that a cut began, and whether its end is to be told.
    cut_sent: Option<u64>,
    owes_cut_end: bool,
}

impl<'a, W: Write> Messenger<'a, W> {
    /// `now` in nanoseconds of CLOCK_MONOTONIC, as in all calls.
    pub(crate) fn new(out: &'a mut W, now: u64) -> Self {
        Self {
            out,
            sent: now,
            since: now,
            excluded: 0,
            samples: 0,
            wait_seconds: 0.0,
            cut_sent: None,
            owes_cut_end: false,
        }
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<(), TrialError> {
        let line = serde_json::to_string(message).map_err(|error| {
            TrialError::Failed(format!("a message could not be written: {error}"))
        })?;
        let sent = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        sent.map_err(|error| {
            TrialError::Failed(format!(
                "standard output cannot be written, so nobody reads the trial's messages: {error}"
            ))
        })
    }

    /// Counts one step; true where a message of progress is due.
    pub(crate) fn count_step(&mut self, samples: u64, wait_seconds: f64, now: u64) -> bool {
        self.samples += samples;
        self.wait_seconds += wait_seconds;
        self.is_due(now)
    }

    pub(crate) fn is_due(&self, now: u64) -> bool {
        seconds_between(self.sent, now) >= PROGRESS_SECONDS
    }

    /// Sends progress with the rates since the last one.
    pub(crate) fn progress(
        &mut self,
        step: u64,
        total_steps: u64,
        loss: Option<f64>,
        now: u64,
    ) -> Result<(), TrialError> {
        let seconds = seconds_between(self.since.saturating_add(self.excluded), now);
        let rate = |value: f64| (seconds > 0.0 && self.samples > 0).then(|| value / seconds);
        let message = Message::Progress {
            step,
            total_steps: Some(total_steps),
            loss,
            samples_per_second: rate(self.samples as f64),
            data_wait_fraction: rate(self.wait_seconds).map(|share| share.min(1.0)),
        };
        self.restart(now);
        self.send(&message)
    }

    /// Sends a sign of life, such as one from an evaluation, if one is due.
    pub(crate) fn sign_of_life(&mut self, message: &Message, now: u64) -> Result<(), TrialError> {
        if !self.is_due(now) {
            return Ok(());
        }
        self.sent = now;
        self.send(message)
    }

    /// Sends that a cut of the window begins at `now`, unless the last one is recent: the parent reads
    /// the device at both of its ends, at the second if they are not a moment apart.
    pub(crate) fn begin_cut(&mut self, step: u64, now: u64) -> Result<(), TrialError> {
        let is_recent = |sent| seconds_between(sent, now) < PROGRESS_SECONDS;
        if self.cut_sent.is_some_and(is_recent) {
            return Ok(());
        }
        (self.cut_sent, self.owes_cut_end) = (Some(now), true);
        self.send(&Message::CutStarted {
            step,
            monotonic_nanoseconds: now,
        })
    }

    /// Sends that a cut whose beginning was sent ends at `now`.
    pub(crate) fn end_cut(&mut self, step: u64, now: u64) -> Result<(), TrialError> {
        if !std::mem::take(&mut self.owes_cut_end) {
            return Ok(());
        }
        self.send(&Message::CutEnded {
            step,
            monotonic_nanoseconds: now,
        })
    }

    /// Leaves a time that trains nothing, an evaluation or a checkpoint, out of the rates. The steps
    /// before it count: where checkpoints come more often than messages, no rate would be known.
    pub(crate) fn exclude(&mut self, from: u64, to: u64) {
        self.excluded += to.saturating_sub(from);
    }

    /// Restarts the measurement of rates at `now`.
    pub(crate) fn restart(&mut self, now: u64) {
        self.sent = now;
        self.since = now;
        self.excluded = 0;
        self.samples = 0;
        self.wait_seconds = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_due_every_fifth_of_a_second_and_tells_the_rates_in_between() {
        let mut out = Vec::new();
        let mut messenger = Messenger::new(&mut out, 0);
        assert!(!messenger.count_step(8, 0.05, 100_000_000));
        assert!(messenger.count_step(8, 0.05, 400_000_000));
        messenger.progress(2, 9, Some(1.5), 400_000_000).unwrap();
        assert!(!messenger.count_step(8, 0.0, 500_000_000));
        let text = String::from_utf8(out).unwrap();
        let message: Message = serde_json::from_str(text.trim()).unwrap();
        let expected = Message::Progress {
            step: 2,
            total_steps: Some(9),
            loss: Some(1.5),
            samples_per_second: Some(40.0),
            data_wait_fraction: Some(0.25),
        };
        assert_eq!(message, expected);
    }

    #[test]
    fn checkpoints_that_come_more_often_than_messages_leave_the_rate_and_the_loss() {
        let mut out = Vec::new();
        let mut messenger = Messenger::new(&mut out, 0);
        // Each step takes 50 ms, and a checkpoint of 100 ms follows it.
        let mut due = Vec::new();
        for step in 1..=2_u64 {
            let ended = (step - 1) * 150_000_000 + 50_000_000;
            due.push(messenger.count_step(8, 0.005, ended));
            messenger.exclude(ended, ended + 100_000_000);
        }
        assert!(messenger.count_step(8, 0.005, 350_000_000));
        messenger.progress(3, 9, Some(1.5), 350_000_000).unwrap();
        assert_eq!(due, [false, true]);
        let message: Message = serde_json::from_slice(&out).unwrap();
        let Message::Progress {
            samples_per_second: Some(rate),
            data_wait_fraction: Some(wait),
            loss: Some(_),
            ..
        } = message
        else {
            panic!("{message:?}");
        };
        assert!((rate - 160.0).abs() < 1e-6 && (wait - 0.1).abs() < 1e-6);
    }
}
