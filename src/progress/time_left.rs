//! Remaining time of a launch, from the pace of the running trials, the steps of the waiting ones,
//! and the trials of this launch that have ended. Pure: the time comes in.

use std::collections::HashMap;

use kiln_core::plan::TrialId;

use super::pace::{Costs, Pace};

/// Part of the difference that the shown time makes up for in a second, where it is too long.
const CATCH_UP: f64 = 0.3;
/// The shown time grows only if it is too short by this factor and by these seconds, for so long:
/// then something has changed, such as another program on the machine.
const GROWTH_FACTOR: f64 = 1.5;
const GROWTH_SECONDS: f64 = 5.0;
const GROWTH_AFTER_SECONDS: f64 = 10.0;
/// Growth of the duration of a step with the work of a step, if only trials of one size are known:
/// between not at all (0) and in proportion (1).
const UNKNOWN_SLOPE: f64 = 0.5;
/// A tenth of a trial's own steps tell as much as the ended trials of its point.
const OWN_STEPS: f64 = 10.0;
/// Seconds between two sums over the waiting trials.
const SUM_EVERY: f64 = 2.0;

/// Settings of a trial that are known before it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrialSize {
    pub(crate) steps: Option<u64>,
    /// FLOPs of a step, or any other measure of its work.
    pub(crate) work: Option<f64>,
    /// The trials of one point are alike.
    pub(crate) point: u64,
}

/// The time left of a launch.
#[derive(Debug, Default)]
pub(crate) struct TimeLeft {
    waiting: HashMap<TrialId, TrialSize>,
    /// Number and size of further waiting trials, whose ids do not matter.
    alike: (usize, TrialSize),
    running: HashMap<TrialId, (TrialSize, Pace)>,
    /// Most trials that run at once, as of the last start.
    concurrent: usize,
    known: KnownCosts,
    /// The sum over the waiting trials, and when it was made.
    waiting_seconds: Option<(f64, f64)>,
    shown: Option<Shown>,
    /// Whether the next estimate is shown as it is: something new is known.
    is_new: bool,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    at: f64,
    seconds: f64,
    /// Since when it has been much too short.
    short_since: Option<f64>,
}

impl TimeLeft {
    pub(crate) fn wait_for(&mut self, trial: &TrialId, size: TrialSize) {
        self.waiting.insert(trial.clone(), size);
        self.renew();
    }

    pub(crate) fn start(&mut self, trial: &TrialId, size: TrialSize, pace: Pace) {
        self.waiting.remove(trial);
        self.running.insert(trial.clone(), (size, pace));
        self.concurrent = self.running.len();
        self.waiting_seconds = None;
    }

    /// Changes the pace of a running trial.
    pub(crate) fn update(&mut self, trial: &TrialId, change: impl FnOnce(&mut Pace)) {
        let Some((_, pace)) = self.running.get_mut(trial) else {
            return;
        };
        let was_known = pace.step_seconds().is_some();
        change(pace);
        // The first steps of a trial tell what it costs.
        if !was_known && pace.step_seconds().is_some() {
            self.renew();
        }
    }

    /// An attempt has ended; its costs count if it went through all its steps.
    pub(crate) fn end(&mut self, trial: &TrialId, now: f64, is_whole: bool) {
        self.waiting.remove(trial);
        if let Some((size, pace)) = self.running.remove(trial)
            && is_whole
            && let Some(costs) = pace.costs(now)
        {
            self.known.add(size, costs);
        }
        self.renew();
    }

    /// A trial that ended elsewhere has cost so much.
    pub(crate) fn learn(&mut self, size: TrialSize, costs: Costs) {
        self.known.add(size, costs);
        self.renew();
    }

    /// These trials run now, and so many more like each other wait.
    pub(crate) fn set(
        &mut self,
        running: Vec<(TrialId, TrialSize, Pace)>,
        waiting: usize,
        alike: TrialSize,
    ) {
        let is_known = |pace: &Pace| pace.step_seconds().is_some();
        let is_same = running.len() == self.running.len()
            && running.iter().all(|(trial, _, pace)| {
                let before = self.running.get(trial);
                before.is_some_and(|(_, before)| is_known(before) == is_known(pace))
            });
        if !is_same || self.alike.0 != waiting {
            self.renew();
        }
        self.alike = (waiting, alike);
        self.concurrent = running.len();
        self.running = running
            .into_iter()
            .map(|(trial, size, pace)| (trial, (size, pace)))
            .collect();
    }

    /// The waiting trials will not be started.
    pub(crate) fn start_no_more(&mut self) {
        if !self.waiting.is_empty() {
            self.waiting.clear();
            self.renew();
        }
    }

    fn renew(&mut self) {
        self.waiting_seconds = None;
        self.is_new = true;
    }

    /// Seconds until the last trial ends; `None` while too little is known. It grows only where
    /// something new is known, or where the trials have become much slower for some time.
    pub(crate) fn left(&mut self, now: f64) -> Option<f64> {
        let estimate = self.estimate(now)?;
        let shown = match self.shown {
            Some(shown) if !self.is_new => shown.next(now, estimate),
            _ => Shown {
                at: now,
                seconds: estimate,
                short_since: None,
            },
        };
        self.is_new = false;
        self.shown = Some(shown);
        Some(shown.seconds)
    }

    fn estimate(&mut self, now: f64) -> Option<f64> {
        let known = self.known.with(self.running.values());
        let mut longest = 0.0_f64;
        let mut sum = 0.0;
        for (size, pace) in self.running.values() {
            let costs = self.known.costs_of_running(*size, pace, &known)?;
            let left = pace.left(now, costs)?;
            longest = longest.max(left);
            sum += left;
        }
        sum += self.waiting_sum(now, &known)?;
        let trials = self.running.len() + self.waiting.len() + self.alike.0;
        if trials == 0 {
            return None;
        }
        let at_once = self.concurrent.min(trials).max(1);
        Some(longest.max(sum / at_once as f64))
    }

    fn waiting_sum(&mut self, now: f64, known: &KnownCosts) -> Option<f64> {
        if let Some((sum, at)) = self.waiting_seconds
            && now - at < SUM_EVERY
        {
            return Some(sum);
        }
        let mut sum = 0.0;
        for size in self.waiting.values() {
            sum += known.whole(*size)?;
        }
        if self.alike.0 > 0 {
            sum += self.alike.0 as f64 * known.whole(self.alike.1)?;
        }
        self.waiting_seconds = Some((sum, now));
        Some(sum)
    }
}

impl Shown {
    fn next(self, now: f64, estimate: f64) -> Self {
        let passed = (now - self.at).max(0.0);
        let excess = self.seconds - estimate;
        if excess >= 0.0 {
            let less = (excess * (CATCH_UP * passed).min(1.0)).max(passed.min(excess));
            return Self {
                at: now,
                seconds: self.seconds - less,
                short_since: None,
            };
        }
        let is_short = estimate > self.seconds * GROWTH_FACTOR + GROWTH_SECONDS;
        let short_since = is_short.then(|| self.short_since.unwrap_or(now));
        match short_since {
            Some(since) if now - since >= GROWTH_AFTER_SECONDS => Self {
                at: now,
                seconds: estimate,
                short_since: None,
            },
            _ => Self {
                at: now,
                seconds: self.seconds,
                short_since,
            },
        }
    }
}

/// The costs of the trials of this launch.
#[derive(Clone, Debug, Default)]
struct KnownCosts {
    points: HashMap<u64, PointCosts>,
    steps: Regression,
    evaluation_seconds: Mean,
    preparation_seconds: Mean,
    /// Duration of whole trials, where the number of steps is unknown.
    whole_seconds: Mean,
}

/// The costs of the trials of a point.
#[derive(Clone, Copy, Debug, Default)]
struct PointCosts {
    /// Logarithm of the duration of a step.
    log_step: Mean,
    evaluation_seconds: Mean,
}

impl KnownCosts {
    fn add(&mut self, size: TrialSize, costs: Costs) {
        self.add_step(size, costs.step_seconds);
        let point = self.points.entry(size.point).or_default();
        point.evaluation_seconds.add(costs.evaluation_seconds);
        self.evaluation_seconds.add(costs.evaluation_seconds);
        self.preparation_seconds.add(costs.preparation_seconds);
        if let Some(steps) = size.steps {
            let stepping = steps as f64 * (costs.step_seconds + costs.evaluation_seconds);
            self.whole_seconds.add(costs.preparation_seconds + stepping);
        }
    }

    fn add_step(&mut self, size: TrialSize, seconds: f64) {
        if seconds > 0.0 {
            let point = self.points.entry(size.point).or_default();
            point.log_step.add(seconds.ln());
            self.steps.add(log_work(size), seconds.ln());
        }
    }

    /// These costs with those of the running trials, as far as they are known.
    fn with<'a>(&self, running: impl Iterator<Item = &'a (TrialSize, Pace)>) -> Self {
        let mut known = self.clone();
        for (size, pace) in running {
            if let Some(seconds) = pace.step_seconds() {
                known.add_step(*size, seconds);
            }
        }
        known
    }

    /// The costs of a running trial: its first steps count less than the trials of its point that
    /// have ended.
    fn costs_of_running(&self, size: TrialSize, pace: &Pace, all: &Self) -> Option<Costs> {
        let point = self.points.get(&size.point);
        let ended = point.and_then(|point| point.log_step.value());
        let own = pace.step_seconds().map(f64::ln);
        let step = match (own, ended) {
            (Some(own), Some(ended)) => {
                let weight = (pace.observed() * OWN_STEPS).min(1.0);
                Some(weight * own + (1.0 - weight) * ended)
            }
            (own, ended) => own.or(ended),
        };
        all.costs(size, step)
    }

    /// The costs of a trial whose step takes so long (as a logarithm), or as long as those of
    /// trials like it.
    fn costs(&self, size: TrialSize, log_step: Option<f64>) -> Option<Costs> {
        let point = self.points.get(&size.point).copied().unwrap_or_default();
        let alike = || {
            point
                .log_step
                .value()
                .or_else(|| self.steps.at(log_work(size)))
        };
        let evaluation = point.evaluation_seconds.value();
        Some(Costs {
            step_seconds: log_step.or_else(alike)?.exp(),
            evaluation_seconds: evaluation
                .or_else(|| self.evaluation_seconds.value())
                .unwrap_or(0.0),
            preparation_seconds: self.preparation_seconds.value().unwrap_or(0.0),
        })
    }

    /// Duration of a whole trial.
    fn whole(&self, size: TrialSize) -> Option<f64> {
        let Some(steps) = size.steps else {
            return self.whole_seconds.value();
        };
        Pace::new(0.0, Some(steps)).left(0.0, self.costs(size, None)?)
    }
}

fn log_work(size: TrialSize) -> f64 {
    size.work.filter(|work| *work > 0.0).map_or(0.0, f64::ln)
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    number: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.sum += value;
            self.number += 1.0;
        }
    }

    fn value(self) -> Option<f64> {
        (self.number > 0.0).then(|| self.sum / self.number)
    }
}

/// A line through points, by least squares; its slope is between 0 and 1.
#[derive(Clone, Copy, Debug, Default)]
struct Regression {
    number: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Regression {
    fn add(&mut self, x: f64, y: f64) {
        self.number += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    fn at(&self, x: f64) -> Option<f64> {
        if self.number == 0.0 {
            return None;
        }
        let (mean_x, mean_y) = (self.x / self.number, self.y / self.number);
        let spread = self.xx / self.number - mean_x * mean_x;
        let slope = if spread > 1e-6 {
            ((self.xy / self.number - mean_x * mean_y) / spread).clamp(0.0, 1.0)
        } else {
            UNKNOWN_SLOPE
        };
        Some(mean_y + slope * (x - mean_x))
    }
}

/// A duration in few digits, so that it does not flicker: `8 s`, `45 s`, `3 min 10 s`, `25 min`,
/// `2 h 5 min`.
pub(crate) fn rough(seconds: f64) -> String {
    let rounded = |unit: f64| ((seconds / unit).ceil() * unit).min(1e15) as u64;
    match seconds {
        s if s <= 10.0 => format!("{} s", rounded(1.0).max(1)),
        s if s <= 55.0 => format!("{} s", rounded(5.0)),
        s if s <= 590.0 => match rounded(10.0) {
            whole if whole % 60 == 0 => format!("{} min", whole / 60),
            s => format!("{} min {} s", s / 60, s % 60),
        },
        s if s <= 3540.0 => format!("{} min", rounded(60.0) / 60),
        _ => match rounded(300.0) / 60 {
            minutes if minutes % 60 == 0 => format!("{} h", minutes / 60),
            minutes => format!("{} h {} min", minutes / 60, minutes % 60),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on one device whose steps take a time of their own, with an evaluation every 50 steps.
    struct Simulation {
        estimate: TimeLeft,
        now: f64,
        /// Time and what was shown.
        told: Vec<(f64, Option<f64>)>,
        random: fastrand::Rng,
    }

    const STEPS: u64 = 400;
    const EVALUATION: f64 = 2.0;

    impl Simulation {
        fn tell(&mut self) {
            let left = self.estimate.left(self.now);
            self.told.push((self.now, left));
        }

        /// Runs a trial; returns what was told while it ran.
        fn run(&mut self, trial: &TrialId, size: TrialSize, step_seconds: f64) -> usize {
            let first = self.told.len();
            let pace = Pace::new(self.now, size.steps);
            self.estimate.start(trial, size, pace);
            self.tell();
            self.now += 1.5;
            for step in 1..=STEPS {
                // The first steps are slow, and each step has its own duration.
                let warm_up = if step < 10 { 1.3 } else { 1.0 };
                self.now += step_seconds * warm_up * (0.8 + 0.4 * self.random.f64());
                let now = self.now;
                self.estimate.update(trial, |pace| {
                    pace.trains(now);
                    pace.stepped(now, step);
                });
                self.tell();
                if step % 50 == 0 {
                    for part in 1..=4 {
                        self.now += EVALUATION / 4.0;
                        let now = self.now;
                        self.estimate.update(trial, |pace| {
                            pace.evaluates(now - EVALUATION / 4.0, f64::from(part) / 4.0);
                        });
                        self.tell();
                    }
                }
            }
            self.estimate.end(trial, self.now, true);
            first
        }
    }

    #[test]
    fn the_time_left_is_known_from_the_first_steps_and_does_not_grow_within_a_trial() {
        let mut simulation = Simulation {
            estimate: TimeLeft::default(),
            now: 100.0,
            told: Vec::new(),
            random: fastrand::Rng::with_seed(7),
        };
        // Four times the work takes three times as long; two seeds of each point.
        let trials: Vec<(TrialId, TrialSize, f64)> = (0..6)
            .map(|number: u64| {
                let is_large = number % 2 == 1;
                let size = TrialSize {
                    steps: Some(STEPS),
                    work: Some(if is_large { 4e9 } else { 1e9 }),
                    point: number % 2,
                };
                let step_seconds = if is_large { 0.15 } else { 0.05 };
                (TrialId(format!("t{number:010}")), size, step_seconds)
            })
            .collect();
        for (trial, size, _) in &trials {
            simulation.estimate.wait_for(trial, *size);
        }
        let starts: Vec<usize> = trials
            .iter()
            .map(|(trial, size, seconds)| simulation.run(trial, *size, *seconds))
            .collect();
        let end = simulation.now;
        let told = &simulation.told;
        let known = told.iter().position(|(_, left)| left.is_some()).unwrap();
        assert!(known < 15, "{known} steps before anything was told");
        let ends = starts[1..].iter().copied().chain([told.len()]);
        for (start, stop) in starts.iter().zip(ends) {
            // The first steps of a trial tell what it costs; from there on the time never grows.
            let settled = start + 15;
            for pair in told[settled..stop].windows(2) {
                let (before, after) = (pair[0].1.unwrap(), pair[1].1.unwrap());
                assert!(after <= before + 1e-9, "{before} became {after}");
            }
        }
        // From the second point on it is right to a third, and to a tenth in the last trial.
        for (from, most) in [(starts[2], 0.34), (starts[5] + 15, 0.15)] {
            let (at, left) = told[from];
            let (left, truth) = (left.unwrap(), end - at);
            assert!(
                (left / truth - 1.0).abs() < most,
                "{left} s were told, and it took {truth} s"
            );
        }
    }

    #[test]
    fn trials_that_run_at_once_share_the_waiting_ones() {
        let mut estimate = TimeLeft::default();
        let size = TrialSize {
            steps: Some(100),
            ..TrialSize::default()
        };
        let trial = |number: u64| TrialId(format!("t{number:010}"));
        for number in 0..6 {
            estimate.wait_for(&trial(number), size);
        }
        for number in 0..2 {
            estimate.start(&trial(number), size, Pace::new(0.0, size.steps));
        }
        assert_eq!(estimate.left(0.5), None, "no step is known");
        for number in 0..2 {
            estimate.update(&trial(number), |pace| {
                pace.stepped(1.0, 1);
                pace.stepped(10.0, 10);
            });
        }
        // 90 s for each of the two, and four times 100 s on two devices.
        assert_eq!(estimate.left(10.0), Some(290.0));
        estimate.start_no_more();
        assert_eq!(estimate.left(10.0), Some(90.0));
        estimate.update(&trial(0), |pace| pace.stepped(11.0, 20));
        assert!(estimate.left(11.0).unwrap() <= 90.0);
    }

    #[test]
    fn a_trial_that_becomes_much_slower_is_told_after_a_while() {
        let mut shown = Shown {
            at: 0.0,
            seconds: 100.0,
            short_since: None,
        };
        let mut told = Vec::new();
        for second in 1..=12_u32 {
            shown = shown.next(f64::from(second), 300.0);
            told.push(shown.seconds);
        }
        assert!(
            told[..9].iter().all(|seconds| *seconds == 100.0),
            "{told:?}"
        );
        assert_eq!(told[11], 300.0);
    }

    #[test]
    fn few_digits_tell_a_time_left() {
        let cases = [
            (0.2, "1 s"),
            (8.2, "9 s"),
            (41.0, "45 s"),
            (56.0, "1 min"),
            (181.0, "3 min 10 s"),
            (1490.0, "25 min"),
            (3590.0, "1 h"),
            (7300.0, "2 h 5 min"),
        ];
        for (seconds, text) in cases {
            assert_eq!(rough(seconds), text);
        }
    }
}
