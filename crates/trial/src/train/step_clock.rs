//! Durations of steps and of copies to the device (`docs/measurement.md` 3 and 5). Input: the
//! moments that the loop marks. Output: seconds per step, once the device has been waited for
//! anyway; and of a wait for data the part that the device waited, too. A host that computes itself
//! has [`WallClock`]; a GPU, which the host runs ahead of, marks moments on its own stream
//! ([`EventClock`]).

#![cfg_attr(
    not(feature = "libtorch"),
    allow(dead_code, reason = "without libtorch no device has events")
)]

use std::{mem, rc::Rc};

use super::clock::{monotonic_nanoseconds, seconds_between};
use crate::TrialError;

/// The times of one step, in seconds; `None` where it could not be timed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepSeconds {
    /// From the end of the step before (or of what was cut out) to its own end.
    pub(crate) step: Option<f64>,
    /// Part of it in which batches were copied to the device.
    pub(crate) copy: Option<f64>,
    /// Its end, CLOCK_MONOTONIC in nanoseconds.
    pub(crate) ended: Option<u64>,
}

/// Seconds of work that the host queues on a device at most, so that a signal, which is looked at
/// between steps, is answered in time.
const QUEUE_SECONDS: f64 = 1.0;

/// Steps that may be queued whatever their duration: with two the device always has its next one.
const QUEUE_STEPS: usize = 2;

/// Times steps. `now` is always a reading of [`StepClock::now`]. Nothing here waits for the device but
/// [`StepClock::limit_queue`] and [`StepClock::take`].
pub(crate) trait StepClock {
    /// The host's clock, CLOCK_MONOTONIC in nanoseconds: the training loop reads every time from
    /// it. Tests have one that they advance.
    fn now(&self) -> u64 {
        monotonic_nanoseconds()
    }

    /// The next step is timed from here: training begins, the window opens, a cut is over.
    fn restart(&mut self, now: u64);

    fn begin_copy(&mut self, now: u64);

    fn end_copy(&mut self, now: u64);

    fn end_step(&mut self, now: u64);

    /// To be called before a step. Waits while more than [`QUEUE_SECONDS`] of work and more than
    /// [`QUEUE_STEPS`] steps are queued: for a step in the queue, so that the device goes on.
    fn limit_queue(&mut self) {}

    /// The trainer asks the loader for a batch that is not there yet.
    fn begin_wait(&mut self) {}

    /// The trainer got a batch at `now`, after `waited` seconds in the loader. Out: for how many of
    /// them the device had nothing to do.
    fn end_wait(&mut self, waited: f64, _now: u64) -> f64 {
        waited
    }

    /// The steps that ended since the last call, in order. To be called after a wait for the
    /// device.
    fn take(&mut self) -> Vec<StepSeconds>;

    /// The reason why steps have no times, if they have none.
    fn failure(&self) -> Option<&str>;
}

/// The host's own clock.
#[derive(Debug)]
pub(crate) struct WallClock {
    mark: u64,
    copy_began: u64,
    copy_seconds: f64,
    ended: Vec<StepSeconds>,
}

impl WallClock {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            mark: now,
            copy_began: now,
            copy_seconds: 0.0,
            ended: Vec::new(),
        }
    }
}

impl StepClock for WallClock {
    fn restart(&mut self, now: u64) {
        self.mark = now;
    }

    fn begin_copy(&mut self, now: u64) {
        self.copy_began = now;
    }

    fn end_copy(&mut self, now: u64) {
        self.copy_seconds += seconds_between(self.copy_began, now);
    }

    fn end_step(&mut self, now: u64) {
        let step = seconds_between(mem::replace(&mut self.mark, now), now);
        self.ended.push(StepSeconds {
            step: Some(step),
            copy: Some(mem::take(&mut self.copy_seconds)),
            ended: Some(now),
        });
    }

    fn take(&mut self) -> Vec<StepSeconds> {
        mem::take(&mut self.ended)
    }

    fn failure(&self) -> Option<&str> {
        None
    }
}

/// A moment on a device's stream.
pub(crate) trait StreamMoment: Sized {
    /// Marks this moment; does not wait.
    fn record() -> Result<Self, TrialError>;

    /// Waits for `later`.
    fn seconds_until(&self, later: &Self) -> Result<f64, TrialError>;

    /// Whether the device has come this far; does not wait.
    fn is_reached(&self) -> Result<bool, TrialError>;
}

#[cfg(feature = "libtorch")]
impl StreamMoment for crate::engine::cuda::DeviceMoment {
    fn record() -> Result<Self, TrialError> {
        Self::record()
    }

    fn seconds_until(&self, later: &Self) -> Result<f64, TrialError> {
        Self::seconds_until(self, later)
    }

    fn is_reached(&self) -> Result<bool, TrialError> {
        Self::is_reached(self)
    }
}

/// The device's clock. A failure leaves the steps without times, not the trial without a result.
pub(crate) struct EventClock<M> {
    /// End of the last step or cut.
    mark: Option<Rc<M>>,
    /// The last moment of which the host's time is known too: the device had done all its work then.
    anchor: Option<(Rc<M>, u64)>,
    copy_began: Option<M>,
    wait_began: Option<M>,
    copies: Vec<(M, M)>,
    ended: Vec<Timed<M>>,
    /// Duration of the newest step of which it is known.
    known_step: Option<f64>,
    failure: Option<String>,
}

/// A step between two moments, and its copies.
struct Timed<M> {
    ends: Option<(Rc<M>, Rc<M>)>,
    anchor: Option<(Rc<M>, u64)>,
    copies: Vec<(M, M)>,
}

impl<M: StreamMoment> EventClock<M> {
    pub(crate) fn new() -> Self {
        let mut clock = Self {
            mark: None,
            anchor: None,
            copy_began: None,
            wait_began: None,
            copies: Vec::new(),
            ended: Vec::new(),
            known_step: None,
            failure: None,
        };
        clock.mark = clock.record().map(Rc::new);
        clock
    }

    /// After a failure, no more moments are marked.
    fn record(&mut self) -> Option<M> {
        if self.failure.is_some() {
            return None;
        }
        M::record()
            .map_err(|error| self.failure = Some(error.to_string()))
            .ok()
    }

    fn seconds(timed: &Timed<M>) -> Result<StepSeconds, TrialError> {
        let Some((from, to)) = &timed.ends else {
            return Ok(StepSeconds::default());
        };
        let copy = timed
            .copies
            .iter()
            .map(|(from, to)| from.seconds_until(to))
            .sum::<Result<f64, _>>()?;
        let ended = timed
            .anchor
            .as_ref()
            .map(|anchor| Self::on_the_host(anchor, to));
        Ok(StepSeconds {
            step: Some(from.seconds_until(to)?),
            copy: Some(copy),
            ended: ended.transpose()?,
        })
    }

    /// The host's time of a moment, in nanoseconds. Waits for it.
    fn on_the_host((anchor, at): &(Rc<M>, u64), moment: &M) -> Result<u64, TrialError> {
        Ok(at + (anchor.seconds_until(moment)? * 1e9) as u64)
    }

    /// The host's time since when the device has had nothing to do; `None` if it still works on what
    /// it was given before `moment`.
    fn idle_since(anchor: &(Rc<M>, u64), moment: &M) -> Result<Option<u64>, TrialError> {
        match moment.is_reached()? {
            true => Self::on_the_host(anchor, moment).map(Some),
            false => Ok(None),
        }
    }
}

impl<M: StreamMoment> StepClock for EventClock<M> {
    fn restart(&mut self, now: u64) {
        self.mark = self.record().map(Rc::new);
        self.anchor = self.mark.clone().map(|mark| (mark, now));
    }

    fn begin_copy(&mut self, _: u64) {
        self.copy_began = self.record();
    }

    fn end_copy(&mut self, _: u64) {
        let ended = self.record();
        self.copies.extend(self.copy_began.take().zip(ended));
    }

    fn end_step(&mut self, _: u64) {
        let now = self.record().map(Rc::new);
        let ends = mem::replace(&mut self.mark, now.clone()).zip(now);
        self.ended.push(Timed {
            ends,
            anchor: self.anchor.clone(),
            copies: mem::take(&mut self.copies),
        });
    }

    fn limit_queue(&mut self) {
        let allowed = self.known_step.map_or(QUEUE_STEPS, |seconds| {
            QUEUE_STEPS.max((QUEUE_SECONDS / seconds) as usize)
        });
        let newest_to_wait_for = self.ended.iter().rev().nth(allowed);
        if let Some((from, to)) = newest_to_wait_for.and_then(|step| step.ends.as_ref()) {
            match from.seconds_until(to) {
                Ok(seconds) => self.known_step = Some(seconds),
                Err(error) => self.failure = Some(error.to_string()),
            }
        }
    }

    fn begin_wait(&mut self) {
        self.wait_began = self.record();
    }

    fn end_wait(&mut self, waited: f64, now: u64) -> f64 {
        let Some((moment, anchor)) = self.wait_began.take().zip(self.anchor.as_ref()) else {
            return waited;
        };
        match Self::idle_since(anchor, &moment) {
            Ok(since) => since.map_or(0.0, |since| waited.min(seconds_between(since, now))),
            Err(error) => {
                self.failure = Some(error.to_string());
                waited
            }
        }
    }

    fn take(&mut self) -> Vec<StepSeconds> {
        let ended = mem::take(&mut self.ended);
        let mut seconds = Vec::with_capacity(ended.len());
        for timed in &ended {
            seconds.push(Self::seconds(timed).unwrap_or_else(|error| {
                self.failure.get_or_insert(error.to_string());
                StepSeconds::default()
            }));
        }
        self.known_step = seconds
            .last()
            .and_then(|last| last.step)
            .or(self.known_step);
        // The device has done all its work now: a distance of days would be known to milliseconds.
        self.anchor = self
            .record()
            .map(|moment| (Rc::new(moment), monotonic_nanoseconds()));
        seconds
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    thread_local! {
        /// Time of the test's device clock, in seconds; negative once it fails.
        static SHOWN: Cell<f64> = const { Cell::new(0.0) };
        /// The time that it shows once the work queued on the device is done.
        static QUEUED: Cell<f64> = const { Cell::new(0.0) };
    }

    /// A moment that is reached when the device's clock shows this many seconds.
    struct Shown(f64);

    impl StreamMoment for Shown {
        fn record() -> Result<Self, TrialError> {
            let shown = SHOWN.get();
            if shown < 0.0 {
                Err(TrialError::Failed("the device's clock broke".to_owned()))
            } else {
                Ok(Self(shown.max(QUEUED.get())))
            }
        }

        fn seconds_until(&self, later: &Self) -> Result<f64, TrialError> {
            if later.0 > 1000.0 {
                Err(TrialError::Failed("an event was lost".to_owned()))
            } else {
                SHOWN.set(SHOWN.get().max(later.0));
                Ok(later.0 - self.0)
            }
        }

        fn is_reached(&self) -> Result<bool, TrialError> {
            match SHOWN.get() {
                shown if shown < 0.0 => {
                    Err(TrialError::Failed("the device's clock broke".to_owned()))
                }
                shown => Ok(self.0 <= shown),
            }
        }
    }

    fn timed(step: f64, copy: f64, ended: Option<f64>) -> StepSeconds {
        StepSeconds {
            step: Some(step),
            copy: Some(copy),
            ended: ended.map(|seconds| (seconds * SECOND as f64) as u64),
        }
    }

    /// Two steps, the first with two copies, the second after a cut. `at` sets the clock that is
    /// looked at.
    fn two_steps(clock: &mut impl StepClock, at: impl Fn(f64) -> u64) -> Vec<StepSeconds> {
        for copy in [0.5, 1.0] {
            clock.begin_copy(at(copy));
            clock.end_copy(at(copy + 0.25));
        }
        clock.end_step(at(2.0));
        clock.restart(at(10.0));
        clock.end_step(at(13.0));
        clock.take()
    }

    #[test]
    fn both_clocks_time_steps_and_copies_and_leave_out_cuts() {
        let expected =
            |ends: [Option<f64>; 2]| [timed(2.0, 0.5, ends[0]), timed(3.0, 0.0, ends[1])];
        let host = |seconds: f64| (seconds * SECOND as f64) as u64;
        let mut wall = WallClock::new(0);
        assert_eq!(
            two_steps(&mut wall, host),
            expected([Some(2.0), Some(13.0)])
        );
        assert_eq!((wall.take(), wall.failure()), (Vec::new(), None));
        SHOWN.set(0.0);
        let mut events = EventClock::<Shown>::new();
        let device = |seconds: f64| {
            SHOWN.set(seconds);
            // The host's clock has no say but where the device waits: it runs ahead.
            match seconds == 10.0 {
                true => 60 * SECOND,
                false => 0,
            }
        };
        assert_eq!(two_steps(&mut events, device), expected([None, Some(63.0)]));
        assert_eq!((events.take(), events.failure()), (Vec::new(), None));
        // The device had ended all when the times were taken: the host's time counts from there.
        let before = monotonic_nanoseconds();
        assert!(events.take().is_empty());
        let after = monotonic_nanoseconds();
        SHOWN.set(15.0);
        events.end_step(0);
        let ended = events.take()[0].ended.unwrap();
        assert!((before + 2 * SECOND..=after + 2 * SECOND).contains(&ended));
    }

    #[test]
    fn a_wait_for_data_counts_as_far_as_the_device_waits_too() {
        SHOWN.set(10.0);
        let mut clock = EventClock::<Shown>::new();
        clock.restart(60 * SECOND);
        let mut wait = |queued: f64, shown: f64, waited: f64| {
            QUEUED.set(queued);
            clock.begin_wait();
            SHOWN.set(shown);
            clock.end_wait(waited, (shown as u64 + 50) * SECOND)
        };
        assert_eq!(wait(12.0, 11.0, 1.0), 0.0, "the device still works");
        assert_eq!(
            wait(12.0, 16.0, 5.0),
            4.0,
            "it works for one second of five"
        );
        assert_eq!(wait(0.0, 18.0, 2.0), 2.0, "it has nothing to do");
        assert_eq!(wait(0.0, 20.0, 0.5), 0.5, "nor before the wait");
        assert_eq!(
            clock.end_wait(0.25, 90 * SECOND),
            0.25,
            "the batch was there: no wait was begun"
        );
        assert_eq!(clock.failure(), None);
        clock.begin_wait();
        SHOWN.set(-1.0);
        assert_eq!(clock.end_wait(1.0, 90 * SECOND), 1.0);
        assert_eq!(clock.failure(), Some("the device's clock broke"));
        let mut wall = WallClock::new(0);
        wall.begin_wait();
        assert_eq!(
            wall.end_wait(2.0, 9 * SECOND),
            2.0,
            "the host is the device"
        );
    }

    #[test]
    fn a_queue_is_as_deep_as_a_second_or_two_steps() {
        // With the step that is queued after the look; of 40 short ones only the first was waited for,
        // to know how long they are.
        for (step, expected) in [(3.0, 3), (0.25, 5), (0.001, 39)] {
            SHOWN.set(0.0);
            QUEUED.set(0.0);
            let mut clock = EventClock::<Shown>::new();
            clock.restart(0);
            let mut deepest = 0;
            for _ in 0..40 {
                clock.limit_queue();
                QUEUED.set(QUEUED.get() + step);
                clock.end_step(0);
                let depth = (QUEUED.get() - SHOWN.get()) / step;
                deepest = deepest.max(depth.round() as u64);
            }
            assert_eq!(deepest, expected, "steps of {step} s");
            assert_eq!(clock.take().len(), 40);
            assert_eq!(clock.failure(), None);
        }
    }

    #[test]
    fn a_clock_that_breaks_leaves_steps_without_times_and_says_why() {
        SHOWN.set(0.0);
        let mut clock = EventClock::<Shown>::new();
        SHOWN.set(1.0);
        clock.end_step(0);
        SHOWN.set(-1.0);
        clock.end_step(0);
        SHOWN.set(3.0);
        clock.end_step(0);
        assert_eq!(
            clock.take(),
            [
                timed(1.0, 0.0, None),
                StepSeconds::default(),
                StepSeconds::default()
            ]
        );
        assert_eq!(clock.failure(), Some("the device's clock broke"));
    }

    #[test]
    fn a_moment_that_cannot_be_resolved_leaves_its_step_without_a_time() {
        SHOWN.set(0.0);
        let mut clock = EventClock::<Shown>::new();
        SHOWN.set(2000.0);
        clock.end_step(0);
        assert_eq!(clock.take(), [StepSeconds::default()]);
        assert_eq!(clock.failure(), Some("an event was lost"));
    }

    #[test]
    #[cfg(feature = "libtorch")]
    fn without_cuda_the_events_clock_has_no_times_and_the_words_name_cuda() {
        if tch::Cuda::is_available() {
            return; // `scripts/check-gpu.sh` looks at the times there.
        }
        let mut clock = EventClock::<crate::engine::cuda::DeviceMoment>::new();
        clock.end_step(0);
        assert_eq!(clock.take(), [StepSeconds::default()]);
        assert!(
            clock.failure().unwrap().to_lowercase().contains("cuda"),
            "{:?}",
            clock.failure()
        );
    }
}
