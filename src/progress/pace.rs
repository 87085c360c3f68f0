//! The pace of one trial, from the times of its steps and evaluations so far. Pure.

/// Shortest time over which the duration of a step is told.
const LEAST_SECONDS: f64 = 0.3;

/// The steps and evaluations of a running trial. Times are seconds on one clock.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    started: f64,
    /// Planned steps; `None` if unknown.
    total: Option<u64>,
    /// The first step that was seen: what comes before it is preparation.
    first: Option<Moment>,
    last: Option<Moment>,
    /// Start of the evaluation that runs.
    evaluating_since: Option<f64>,
    /// Part of the running evaluation that is done, as a fraction of 1.
    evaluated: f64,
    /// Step and duration of the last evaluation.
    evaluation: Option<(u64, f64)>,
    /// Steps between the last two evaluations.
    interval: Option<u64>,
    /// Time of all evaluations.
    evaluation_seconds: f64,
}

/// A step, when it was seen, and the time of the evaluations up to then.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: f64,
    step: u64,
    evaluation_seconds: f64,
}

impl Pace {
    pub(crate) fn new(started: f64, total: Option<u64>) -> Self {
        Self {
            started,
            total,
            first: None,
            last: None,
            evaluating_since: None,
            evaluated: 0.0,
            evaluation: None,
            interval: None,
            evaluation_seconds: 0.0,
        }
    }

    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = Some(total);
    }

    fn step(&self) -> Option<u64> {
        self.last.map(|last| last.step)
    }

    /// This step had ended at this moment.
    pub(crate) fn stepped(&mut self, at: f64, step: u64) {
        let moment = Moment {
            at,
            step,
            evaluation_seconds: self.evaluation_seconds,
        };
        if step == 0 {
            return;
        }
        self.first.get_or_insert(moment);
        if self.last.is_none_or(|last| step > last.step) {
            self.last = Some(moment);
        }
    }

    /// An evaluation runs, and this fraction of it is done.
    pub(crate) fn evaluates(&mut self, at: f64, fraction: f64) {
        self.evaluating_since.get_or_insert(at);
        self.evaluated = fraction.clamp(0.0, 1.0);
    }

    /// No evaluation runs at this moment; if one did, it has ended.
    pub(crate) fn trains(&mut self, at: f64) {
        if let Some(since) = self.evaluating_since.take() {
            let step = self.step().unwrap_or(0);
            self.evaluated(step, (at - since).max(0.0));
        }
    }

    /// An evaluation after this step took so long.
    pub(crate) fn evaluated(&mut self, step: u64, seconds: f64) {
        let before = self.evaluation.map_or(0, |(step, _)| step);
        self.interval = step.checked_sub(before).filter(|steps| *steps > 0);
        self.evaluation = Some((step, seconds));
        self.evaluation_seconds += seconds;
    }

    /// Earlier evaluations took so long.
    pub(crate) fn exclude(&mut self, seconds: f64) {
        self.evaluation_seconds += seconds;
    }

    /// Duration of a step; `None` before there are enough of them.
    pub(crate) fn step_seconds(&self) -> Option<f64> {
        let (first, last) = (self.first?, self.last?);
        let steps = last
            .step
            .checked_sub(first.step)
            .filter(|steps| *steps > 0)?;
        let paused = last.evaluation_seconds - first.evaluation_seconds;
        let seconds = last.at - first.at - paused;
        (seconds >= LEAST_SECONDS).then(|| seconds / steps as f64)
    }

    /// The part of its steps that tells the duration of a step, as a fraction of 1.
    pub(crate) fn observed(&self) -> f64 {
        let steps = |moment: Option<Moment>| moment.map_or(0, |moment| moment.step);
        let seen = steps(self.last).saturating_sub(steps(self.first));
        seen as f64 / self.total.unwrap_or(seen).max(1) as f64
    }

    /// Time that the rest of the trial takes at these costs; its own evaluations count more than
    /// those of others. `None` if its steps are not known.
    pub(crate) fn left(&self, now: f64, costs: Costs) -> Option<f64> {
        let total = self.total?;
        let Some(last) = self.last else {
            let prepared = (now - self.started).max(0.0);
            let steps = total as f64 * (costs.step_seconds + costs.evaluation_seconds);
            return Some((costs.preparation_seconds - prepared).max(0.0) + steps);
        };
        let steps = total.saturating_sub(last.step);
        let since = match self.evaluating_since {
            Some(_) => 0.0,
            None => (now - last.at).clamp(0.0, costs.step_seconds),
        };
        let training = (steps as f64 * costs.step_seconds - since).max(0.0);
        Some(training + self.evaluations_left(now, steps, costs.evaluation_seconds))
    }

    fn evaluations_left(&self, now: f64, steps: u64, per_step: f64) -> f64 {
        let known = self.evaluation.map(|(_, seconds)| seconds);
        let current = self.evaluating_since.map_or(0.0, |since| {
            let seconds = (now - since).max(0.0);
            let by_its_pace = || seconds * (1.0 - self.evaluated) / self.evaluated;
            match known {
                Some(known) => (known - seconds).max(0.0),
                None if self.evaluated > 0.0 => by_its_pace(),
                None => 0.0,
            }
        });
        let Some(known) = known else {
            return current + steps as f64 * per_step;
        };
        let later = match (steps, self.interval) {
            (0, _) => 0,
            (_, None) => 1,
            (_, Some(interval)) => steps.div_ceil(interval),
        };
        current + later as f64 * known
    }

    /// Durations of the whole trial, at its end; `None` if it was too short to measure.
    pub(super) fn costs(&self, ended: f64) -> Option<Costs> {
        let last = self.last?;
        let step_seconds = self
            .step_seconds()
            .unwrap_or((ended - self.started).max(0.0) / last.step.max(1) as f64);
        let first = self.first.map_or(0, |first| first.step.saturating_sub(1));
        let training = last.step.saturating_sub(first) as f64 * step_seconds;
        let mut whole = self.clone();
        whole.trains(ended);
        let other = ended - self.started - training - whole.evaluation_seconds;
        Some(Costs {
            step_seconds,
            evaluation_seconds: whole.evaluation_seconds / last.step.max(1) as f64,
            preparation_seconds: other.max(0.0),
        })
    }
}

/// The durations of a trial's parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    pub(crate) step_seconds: f64,
    /// Time of evaluations, for each step.
    pub(crate) evaluation_seconds: f64,
    /// Time before the first step and after the last one.
    pub(crate) preparation_seconds: f64,
}
