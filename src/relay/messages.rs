//! The messages of the relay to its parent.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use kiln_core::record::Message;

/// Time between two signs of life.
const PAUSE: Duration = Duration::from_secs(1);

/// How far a program is, from its metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    pub(super) step: Option<u64>,
    pub(super) total_steps: Option<u64>,
    pub(super) loss: Option<f64>,
    pub(super) samples_per_second: Option<f64>,
}

impl Progress {
    /// Whether another says the same: NaN is equal to itself here.
    fn is_told_by(&self, other: &Self) -> bool {
        let bits =
            |of: &Self| [of.loss, of.samples_per_second].map(|number| number.map(f64::to_bits));
        (self.step, self.total_steps, bits(self)) == (other.step, other.total_steps, bits(other))
    }
}

#[derive(Debug, Default)]
pub(super) struct Talk {
    told: Progress,
    alive: Option<Instant>,
}

impl Talk {
    #[allow(
        clippy::disallowed_methods,
        reason = "messages go to the parent, not to a terminal"
    )]
    pub(super) fn say(&self, message: &Message) {
        let Ok(mut line) = serde_json::to_vec(message) else {
            return;
        };
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        // A parent that has ended takes the relay with it.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }

    /// The last step that was told.
    pub(super) fn step(&self) -> u64 {
        self.told.step.unwrap_or(0)
    }

    /// Tells what has changed, else once a second that the program lives if it does.
    pub(super) fn progress(&mut self, progress: &Progress, has_worked: impl FnOnce() -> bool) {
        if !progress.is_told_by(&self.told) && progress.step.is_some() {
            self.told = progress.clone();
            self.alive = Some(Instant::now());
            self.say(&Message::Progress {
                step: self.step(),
                total_steps: progress.total_steps,
                loss: progress.loss.filter(|loss| loss.is_finite()),
                samples_per_second: progress.samples_per_second.filter(|rate| rate.is_finite()),
                data_wait_fraction: None,
            });
        } else if self.alive.is_none_or(|last| last.elapsed() >= PAUSE) {
            self.alive = Some(Instant::now());
            if has_worked() {
                self.say(&Message::Alive);
            }
        }
    }
}
