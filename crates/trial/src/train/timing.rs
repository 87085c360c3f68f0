//! Begin and end of the measured window, and its measurements (`docs/measurement.md` 1–5). Pure:
//! every time is passed in.
//!
//! In: marks of CLOCK_MONOTONIC in nanoseconds, taken after a wait for the device where the window
//! or a cut begins or ends. Out: figures of the window; or why there are none.

use kiln_core::{kinds::data::PairCounts, spec::Measure, statistics::median};

use super::{clock::seconds_between, step_clock::StepSeconds};

/// The host's measurements of one step's data, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DataCost {
    /// The trainer was blocked in the loader, and the device had nothing to do.
    pub(crate) wait_seconds: f64,
    /// Workers were busy making the step's batches.
    pub(crate) load_seconds: f64,
    pub(crate) work: Work,
}

/// Amount of trained data, counted batch by batch: batches that are sorted by length differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// Without padding.
    pub(crate) tokens: u64,
    /// Lengths of prompts and responses; no rows where there are none.
    pub(crate) pairs: PairCounts,
}

impl Work {
    pub(crate) fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.pairs.extend(&other.pairs);
    }
}

/// The clockwork of one training.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    warmup_steps: u64,
    warmup_seconds: f64,
    started: u64,
    /// End of the last step or cut.
    mark: u64,
    /// Steps made and seconds trained, without cuts.
    steps: u64,
    trained_seconds: f64,
    window: Option<Window>,
}

#[derive(Clone, Debug)]
struct Window {
    left_out_steps: u64,
    started: u64,
    ended: Option<u64>,
    cuts: Vec<(u64, u64)>,
    steps: u64,
    data: DataCost,
    /// Times of its steps, as far as they were taken from the clock.
    timed: Vec<StepSeconds>,
    /// Seconds of its steps in which devices exchanged gradients; empty for one device.
    exchanges: Vec<Option<f64>>,
}

/// Measurements of a closed window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) started_nanoseconds: u64,
    pub(crate) ended_nanoseconds: u64,
    /// Wall time without cuts.
    pub(crate) seconds: f64,
    pub(crate) steps: u64,
    pub(crate) work: Work,
    /// `None` if a step was not timed.
    pub(crate) median_step_seconds: Option<f64>,
    pub(crate) data_wait_fraction: f64,
    pub(crate) load_seconds: f64,
    /// `None` if a step was not timed.
    pub(crate) transfer_fraction: Option<f64>,
    /// `None` for one device, and if a step's exchange was not timed.
    pub(crate) communication_fraction: Option<f64>,
}

impl Timing {
    /// Training starts at `now`.
    pub(crate) fn new(measure: &Measure, now: u64) -> Self {
        Self {
            warmup_steps: measure.warmup_steps,
            warmup_seconds: measure.warmup_seconds,
            started: now,
            mark: now,
            steps: 0,
            trained_seconds: 0.0,
            window: None,
        }
    }

    /// A step ended at `now`; whether it belongs to the warm-up.
    pub(crate) fn end_step(&mut self, now: u64, data: DataCost) -> bool {
        self.trained_seconds += seconds_between(self.mark, now);
        self.mark = now;
        self.steps += 1;
        if let Some(window) = &mut self.window {
            window.steps += 1;
            window.data.wait_seconds += data.wait_seconds;
            window.data.load_seconds += data.load_seconds;
            window.data.work.add(&data.work);
        }
        self.window.is_none()
    }

    /// The clock's times of a step that ended in the window.
    pub(crate) fn add_times(&mut self, times: StepSeconds) {
        if let Some(window) = &mut self.window {
            window.timed.push(times);
        }
    }

    /// The seconds in which the devices exchanged gradients, of a step that ended in the window.
    pub(crate) fn add_exchange(&mut self, seconds: Option<f64>) {
        if let Some(window) = &mut self.window {
            window.exchanges.push(seconds);
        }
    }

    /// Whether the window should open before the next step: both halves of the warm-up have passed.
    pub(crate) fn warmup_is_over(&self) -> bool {
        self.window.is_none()
            && self.steps >= self.warmup_steps
            && self.trained_seconds >= self.warmup_seconds
    }

    /// The window opens at `now`, taken after a wait for the device.
    pub(crate) fn open_window(&mut self, now: u64) {
        self.mark = now;
        self.window = Some(Window {
            left_out_steps: self.steps,
            started: now,
            ended: None,
            cuts: Vec::new(),
            steps: 0,
            data: DataCost::default(),
            timed: Vec::new(),
            exchanges: Vec::new(),
        });
    }

    /// Leaves out an evaluation (or a checkpoint) between two waits for the device.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        self.mark = to;
        if let Some(window) = self.window.as_mut().filter(|window| window.ended.is_none()) {
            window.cuts.push((from, to));
        }
    }

    /// The window, if there is one, closes at `now`, taken after a wait for the device.
    pub(crate) fn close_window(&mut self, now: u64) {
        if let Some(window) = &mut self.window {
            window.ended.get_or_insert(now);
        }
    }

    /// Since training started, everything included.
    pub(crate) fn seconds_since_start(&self, now: u64) -> f64 {
        seconds_between(self.started, now)
    }

    /// Whether the window has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.window
            .as_ref()
            .is_some_and(|window| window.ended.is_none())
    }

    /// The parts that were cut out of the window so far.
    pub(crate) fn cuts(&self) -> &[(u64, u64)] {
        self.window.as_ref().map_or(&[], |window| &window.cuts)
    }

    /// Steps before the window; all of them where there is none.
    pub(crate) fn left_out_steps(&self) -> u64 {
        self.window
            .as_ref()
            .map_or(self.steps, |window| window.left_out_steps)
    }

    /// The figures of a closed window with at least one step.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let window = self.window.as_ref()?;
        let ended = window.ended?;
        let cut_seconds: f64 = window
            .cuts
            .iter()
            .map(|(from, to)| seconds_between(*from, *to))
            .sum();
        let seconds = seconds_between(window.started, ended) - cut_seconds;
        if window.steps == 0 || seconds <= 0.0 {
            return None;
        }
        Some(Figures {
            started_nanoseconds: window.started,
            ended_nanoseconds: ended,
            seconds,
            steps: window.steps,
            work: window.data.work,
            median_step_seconds: window
                .times(|times| times.step)
                .map(|times| median(times.into_iter())),
            data_wait_fraction: window.data.wait_seconds / seconds,
            load_seconds: window.data.load_seconds,
            transfer_fraction: window
                .times(|times| times.copy)
                .map(|copies| copies.iter().sum::<f64>() / seconds),
            communication_fraction: window
                .exchange_seconds()
                .map(|exchanges| exchanges / seconds),
        })
    }

    /// The reason why there is no window.
    pub(crate) fn why_no_window(&self) -> String {
        if self.window.is_some() {
            return "the training ended inside the window, before its end could be timed"
                .to_string();
        }
        let steps = if self.steps == 1 {
            "1 step".to_string()
        } else {
            format!("{} steps", self.steps)
        };
        format!(
            "only {steps} in {:.1} s, and the warm-up takes {} steps and {} s; train longer, or \
             lower `measure.warmup_steps` and `measure.warmup_seconds`",
            self.trained_seconds, self.warmup_steps, self.warmup_seconds
        )
    }
}

impl Window {
    /// Sum over all its steps; `None` if a step has no value.
    fn exchange_seconds(&self) -> Option<f64> {
        let is_whole = self.exchanges.len() as u64 == self.steps;
        is_whole
            .then(|| self.exchanges.iter().copied().sum())
            .flatten()
    }

    /// One time of each step; `None` if a step lacks it.
    fn times(&self, time: impl Fn(&StepSeconds) -> Option<f64>) -> Option<Vec<f64>> {
        let is_whole = self.timed.len() as u64 == self.steps;
        is_whole
            .then(|| self.timed.iter().map(time).collect::<Option<Vec<f64>>>())
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn timing(warmup_steps: u64, warmup_seconds: f64) -> Timing {
        Timing::new(
            &Measure {
                warmup_steps,
                warmup_seconds,
                ..Measure::default()
            },
            100 * SECOND,
        )
    }

    fn cost(wait_seconds: f64) -> DataCost {
        DataCost {
            wait_seconds,
            load_seconds: 2.0 * wait_seconds,
            work: Work {
                tokens: (10.0 * wait_seconds) as u64,
                pairs: PairCounts::default(),
            },
        }
    }

    fn times(step: f64) -> StepSeconds {
        StepSeconds {
            step: Some(step),
            copy: Some(0.125),
            ended: None,
        }
    }

    #[test]
    fn warm_up_lasts_until_both_its_steps_and_its_seconds_have_passed() {
        let mut slow = timing(2, 1.0);
        slow.end_step(105 * SECOND, DataCost::default());
        assert!(!slow.warmup_is_over(), "1 of 2 steps");
        slow.end_step(106 * SECOND, DataCost::default());
        assert!(slow.warmup_is_over());
        let mut fast = timing(1, 1.0);
        fast.end_step(100 * SECOND + SECOND / 2, DataCost::default());
        assert!(!fast.warmup_is_over(), "0.5 of 1 s");
        fast.cut(100 * SECOND + SECOND / 2, 150 * SECOND);
        assert!(!fast.warmup_is_over(), "an evaluation warms nothing up");
        fast.end_step(150 * SECOND + SECOND / 2, DataCost::default());
        assert!(fast.warmup_is_over());
        assert!(timing(0, 0.0).warmup_is_over(), "no warm-up asked for");
    }

    #[test]
    fn the_window_leaves_out_warm_up_and_evaluation() {
        let mut timing = timing(1, 0.0);
        assert!(timing.end_step(110 * SECOND, cost(9.0)), "warm-up");
        timing.open_window(111 * SECOND);
        assert!(!timing.end_step(112 * SECOND, cost(0.5)));
        timing.end_step(115 * SECOND, cost(1.0));
        timing.cut(115 * SECOND, 140 * SECOND);
        timing.end_step(142 * SECOND, cost(0.5));
        for step in [1.0, 3.0, 2.0] {
            timing.add_times(times(step));
            timing.add_exchange(Some(0.5));
        }
        timing.close_window(143 * SECOND);
        timing.cut(143 * SECOND, 160 * SECOND);
        let figures = timing.figures().unwrap();
        let expected = Figures {
            started_nanoseconds: 111 * SECOND,
            ended_nanoseconds: 143 * SECOND,
            seconds: 7.0,
            steps: 3,
            // The warm-up is not counted.
            work: Work {
                tokens: 20,
                pairs: PairCounts::default(),
            },
            median_step_seconds: Some(2.0),
            data_wait_fraction: 2.0 / 7.0,
            load_seconds: 4.0,
            transfer_fraction: Some(0.375 / 7.0),
            communication_fraction: Some(1.5 / 7.0),
        };
        assert_eq!(figures, expected);
        assert_eq!(timing.left_out_steps(), 1);
    }

    #[test]
    fn a_step_without_a_time_leaves_what_is_made_of_all_times_empty() {
        let mut timing = timing(0, 0.0);
        timing.open_window(100 * SECOND);
        timing.end_step(101 * SECOND, cost(0.0));
        timing.end_step(102 * SECOND, cost(0.0));
        timing.add_times(times(1.0));
        timing.close_window(102 * SECOND);
        timing.add_exchange(Some(0.5));
        let empty = |timing: &Timing| {
            let figures = timing.figures()?;
            Some((
                figures.steps,
                figures.median_step_seconds,
                figures.transfer_fraction,
                figures.communication_fraction,
            ))
        };
        assert_eq!(empty(&timing), Some((2, None, None, None)), "one of two");
        timing.add_times(StepSeconds::default());
        timing.add_exchange(None);
        assert_eq!(
            empty(&timing),
            Some((2, None, None, None)),
            "the second not timed"
        );
    }

    #[test]
    fn a_training_shorter_than_its_warm_up_has_no_figures_and_says_so() {
        let mut timing = timing(10, 2.0);
        for step in 1..=8 {
            timing.end_step((100 + step) * SECOND, DataCost::default());
        }
        timing.close_window(108 * SECOND);
        assert_eq!(timing.figures(), None);
        assert_eq!(timing.left_out_steps(), 8);
        assert!(
            timing
                .why_no_window()
                .starts_with("only 8 steps in 8.0 s, and the warm-up takes 10 steps and 2 s")
        );
    }
}
