//! The limits of an attempt in time: the signs of life of its child and the time on the launch's
//! [`WatchClock`](super::clock::WatchClock) come in, and what is due goes out. Pure, so that no
//! limit is waited for in a test.

use std::time::Duration;

use kiln_core::spec::Run;

use super::judge::StopCause;

/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time from SIGTERM to SIGKILL for a trial that writes a checkpoint first.
const CHECKPOINT_GRACE: Duration = Duration::from_secs(60);
/// Time that a relay has behind the grace to write down the numbers of a program that it ended.
const RELAY_GRACE: Duration = Duration::from_secs(2);
/// Longest time that a child may run after its `finished` message.
const LINGER: Duration = Duration::from_secs(10);

/// When the events of an attempt were first noticed.
#[derive(Clone, Debug)]
pub(super) struct AttemptTimes {
    /// From the stop to [`Due::Kill`].
    grace: Duration,
    /// Whether a relay runs the program.
    has_relay: bool,
    is_program_ended: bool,
    started: Option<Duration>,
    /// Number of messages, and when the last one was noticed.
    heard: Option<(u64, Duration)>,
    finished: Option<Duration>,
    stopped: Option<Duration>,
}

/// State of a child at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SignsOfLife {
    /// Number of messages so far.
    pub(super) messages: u64,
    /// Whether it sent `finished`.
    pub(super) is_finished: bool,
    /// Whether it speaks another version of the protocol.
    pub(super) is_foreign: bool,
    /// Whether it was told to stop.
    pub(super) is_stopped: bool,
}

/// Action on a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Stop(StopCause),
    /// The relay is told to end its program with SIGKILL.
    EndProgram,
    Kill,
}

impl AttemptTimes {
    pub(super) fn new(keeps_checkpoints: bool, has_relay: bool) -> Self {
        let grace = match keeps_checkpoints {
            true => CHECKPOINT_GRACE,
            false => GRACE,
        };
        Self {
            grace: match has_relay {
                true => grace + RELAY_GRACE,
                false => grace,
            },
            has_relay,
            is_program_ended: false,
            started: None,
            heard: None,
            finished: None,
            stopped: None,
        }
    }

    /// From the stop to [`Due::Kill`] passes no more than `most`.
    pub(super) fn shorten_grace(&mut self, most: Duration) {
        self.grace = self.grace.min(most);
    }

    /// Returns what is due `now`: the child speaks another protocol, exceeds its timeout, sends no
    /// message for too long, ignores SIGTERM, or runs on after `finished`.
    pub(super) fn due(&mut self, now: Duration, signs: SignsOfLife, limits: &Run) -> Option<Due> {
        let started = *self.started.get_or_insert(now);
        let heard = match self.heard {
            Some((messages, at)) if messages == signs.messages => at,
            _ => now,
        };
        self.heard = Some((signs.messages, heard));
        if signs.is_stopped {
            let since = *self.stopped.get_or_insert(now);
            return self.due_after_the_stop(now - since);
        }
        if signs.is_foreign {
            return Some(Due::Stop(StopCause::Protocol));
        }
        if signs.is_finished {
            let since = *self.finished.get_or_insert(now);
            return (now - since >= LINGER).then_some(Due::Stop(StopCause::Lingering));
        }
        match limits.timeout {
            Some(timeout) if now - started >= timeout.0 => {
                Some(Due::Stop(StopCause::Timeout(timeout)))
            }
            _ if now - heard >= limits.stall.0 => Some(Due::Stop(StopCause::Stall(limits.stall))),
            _ => None,
        }
    }

    fn due_after_the_stop(&mut self, passed: Duration) -> Option<Due> {
        if passed >= self.grace {
            return Some(Due::Kill);
        }
        let of_program = self.grace - RELAY_GRACE.min(self.grace / 2);
        if !self.has_relay || self.is_program_ended || passed < of_program {
            return None;
        }
        self.is_program_ended = true;
        Some(Due::EndProgram)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kiln_core::units::TimeSpan;

    use super::{super::clock::WatchClock, *};

    fn limits(timeout: Option<u64>, stall: u64) -> Run {
        Run {
            timeout: timeout.map(TimeSpan::from_secs),
            stall: TimeSpan::from_secs(stall),
            ..Run::default()
        }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A child that has sent so many messages.
    fn said(messages: u64) -> SignsOfLife {
        SignsOfLife {
            messages,
            ..SignsOfLife::default()
        }
    }

    #[test]
    fn each_limit_is_due_at_its_time_and_not_before() {
        let mut times = AttemptTimes::new(false, false);
        let stall = Some(Due::Stop(StopCause::Stall(TimeSpan::from_secs(600))));
        let limits = limits(Some(1800), 600);
        for (seconds, messages, due) in [
            (10, 0, None),
            (609, 0, None),
            (610, 0, stall),
            // A message arrived meanwhile.
            (610, 1, None),
            (1209, 1, None),
            (1210, 1, stall),
            (1210, 2, None),
            (1809, 3, None),
            (
                1810,
                4,
                Some(Due::Stop(StopCause::Timeout(TimeSpan::from_secs(1800)))),
            ),
        ] {
            assert_eq!(
                times.due(at(seconds), said(messages), &limits),
                due,
                "{seconds} s"
            );
        }
    }

    #[test]
    fn after_finished_only_lingering_counts_and_another_protocol_at_once() {
        let mut times = AttemptTimes::new(false, false);
        let limits = limits(Some(60), 60);
        let finished = SignsOfLife {
            is_finished: true,
            ..said(9)
        };
        assert_eq!(times.due(at(0), said(8), &limits), None);
        assert_eq!(times.due(at(100), finished, &limits), None);
        assert_eq!(times.due(at(109), finished, &limits), None);
        let lingering = Some(Due::Stop(StopCause::Lingering));
        assert_eq!(times.due(at(110), finished, &limits), lingering);
        let foreign = SignsOfLife {
            is_foreign: true,
            ..finished
        };
        let protocol = Some(Due::Stop(StopCause::Protocol));
        assert_eq!(times.due(at(0), foreign, &limits), protocol);
    }

    #[test]
    fn a_stopped_child_is_killed_after_its_grace() {
        let stopped = SignsOfLife {
            is_stopped: true,
            ..said(1)
        };
        for (keeps_checkpoints, most, grace) in [
            (false, None, 5),
            (true, None, 60),
            (true, Some(25), 25),
            (false, Some(25), 5),
        ] {
            let mut times = AttemptTimes::new(keeps_checkpoints, false);
            most.into_iter()
                .for_each(|most| times.shorten_grace(at(most)));
            let limits = limits(Some(1), 1);
            assert_eq!(times.due(at(1000), stopped, &limits), None);
            assert_eq!(times.due(at(1000 + grace - 1), stopped, &limits), None);
            let due = times.due(at(1000 + grace), stopped, &limits);
            assert_eq!(due, Some(Due::Kill));
        }
    }

    #[test]
    fn a_relay_ends_its_program_before_it_is_killed() {
        let stopped = SignsOfLife {
            is_stopped: true,
            ..said(1)
        };
        for (keeps_checkpoints, most, program, relay) in [
            (false, None, 5_000, 7_000),
            (true, None, 60_000, 62_000),
            (true, Some(25_000), 23_000, 25_000),
            (false, Some(3_000), 1_500, 3_000),
        ] {
            let at = Duration::from_millis;
            let mut times = AttemptTimes::new(keeps_checkpoints, true);
            most.into_iter()
                .for_each(|most| times.shorten_grace(at(most)));
            let limits = limits(None, 600);
            let mut due = |milliseconds| times.due(at(milliseconds), stopped, &limits);
            assert_eq!(due(0), None);
            assert_eq!(due(program - 1), None);
            assert_eq!(due(program), Some(Due::EndProgram));
            assert_eq!(due(relay - 1), None, "it is told once");
            assert_eq!(due(relay), Some(Due::Kill));
        }
    }

    #[test]
    fn the_time_for_which_kiln_was_stopped_counts_for_no_limit() {
        let start = Instant::now();
        let mut clock = WatchClock::start(start);
        let mut times = AttemptTimes::new(false, false);
        let limits = limits(Some(60), 10);
        let stopped = SignsOfLife {
            is_stopped: true,
            ..said(3)
        };
        let mut due = |seconds: u64, signs: SignsOfLife| {
            times.due(clock.tick(start + at(seconds)), signs, &limits)
        };
        assert_eq!(due(1, said(3)), None);
        // An hour in the background; its child was stopped too, and has said nothing since.
        assert_eq!(due(3601, said(3)), None);
        assert_eq!(due(3602, said(3)), None);
        assert_eq!(due(3602, stopped), None);
        assert_eq!(due(7200, stopped), None, "its grace is not over either");
    }
}
