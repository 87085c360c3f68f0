//! The way from an experiment to its plan: points, settings, refusals, ids, order.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    PlanProblem, Trial, TrialId,
    id::Identity,
    order::order_trials,
    points::{Choices, expand_sweep},
    problem::Problems,
    settings::{Sections, Settings},
};
use crate::{
    catalog::{Data, data::DataFacts, samples::Epoch},
    spec::{Experiment, Order},
};

/// The largest seed of the experiment file.
const LAST_SEED: u64 = u32::MAX as u64;

/// All trials of an experiment, in the order they run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub trials: Vec<Trial>,
    pub points: u64,
    pub repeats: u64,
    pub order: Order,
    /// Dotted keys of the axes, in file order.
    pub axes: Vec<String>,
    /// One pass over the training data, by [`Trial::point`]; `None` where the model reads none or its size is unknown.
    pub epochs: Vec<Option<Epoch>>,
}

impl Plan {
    /// What one epoch of this trial goes through.
    pub fn epoch_of(&self, trial: &Trial) -> Option<Epoch> {
        self.epochs.get(trial.point as usize).copied().flatten()
    }

    /// Bytes the run will need, hardware samples left out; `None` while some trial's steps are unknown.
    pub fn expected_disk_bytes(&self) -> Option<u64> {
        self.trials.iter().map(Trial::expected_disk_bytes).try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }
}

/// Plans the trials of an experiment, or says everything that speaks against it.
///
/// `facts` tells what is known of a data section (`None`: unknown, the cells that need it stay empty); it is asked once per
/// text.
///
/// # Errors
/// Every fault of every point, each with the keys and axis values it comes from.
pub fn expand(experiment: &Experiment, facts: &dyn Fn(&Data) -> Option<DataFacts>) -> Result<Plan, Vec<PlanProblem>> {
    let sections = Sections::new(experiment).map_err(|error| vec![PlanProblem::of_sweep("model", error.to_string())])?;
    let sweep = expand_sweep(&experiment.sweep, |key| sections.get(key))?;
    let mut planner = Planner { sections, axes: sweep.axes, known: HashMap::new(), facts, epochs: Vec::new(), problems: Problems::default() };
    let mut ids = UsedIds::default();
    let repeats = experiment.sweep.repeats;
    let mut by_point: Vec<Vec<Trial>> = Vec::with_capacity(sweep.points.len());
    for (number, choices) in sweep.points.iter().enumerate() {
        let axes = planner.axis_values(choices);
        let trials = planner.point(number as u64, choices, &axes, repeats);
        ids.refuse_twins(number, &axes, &trials, &mut planner.problems);
        by_point.push(trials);
    }
    let (axes, epochs) = (planner.axes, planner.epochs);
    planner.problems.none_or(())?;
    let points = by_point.len() as u64;
    let order = order_trials(points, repeats, experiment.sweep.order, experiment.train.seed);
    let trials = in_order(by_point, &order);
    Ok(Plan { trials, points, repeats, order: experiment.sweep.order, axes, epochs })
}

/// Takes each point's trials out in the given order and numbers them.
fn in_order(by_point: Vec<Vec<Trial>>, order: &[(u64, u64)]) -> Vec<Trial> {
    // A point's repeats always come in their own order, so each point is drained from its front.
    let mut queues: Vec<_> = by_point.into_iter().map(Vec::into_iter).collect();
    let in_order = order.iter().filter_map(|(point, _)| queues.get_mut(*point as usize)?.next());
    in_order.zip(1..).map(|(trial, number)| Trial { number, ..trial }).collect()
}

struct Planner<'a> {
    sections: Sections,
    axes: Vec<String>,
    /// By what identifies a text.
    known: HashMap<String, Option<DataFacts>>,
    facts: &'a dyn Fn(&Data) -> Option<DataFacts>,
    /// Of the points so far; they count only if there are no problems.
    epochs: Vec<Option<Epoch>>,
    problems: Problems,
}

impl Planner<'_> {
    /// What the point has on each axis; the file's base value where it chooses none.
    fn axis_values(&self, choices: &Choices) -> Vec<(String, Value)> {
        let value = |(key, choice): (&String, &Option<Value>)| (key.clone(), choice.clone().unwrap_or_else(|| self.sections.get(key)));
        self.axes.iter().zip(choices).map(value).collect()
    }

    /// The trials of a point, one per seed; none if something speaks against it, which is then among the problems.
    fn point(&mut self, point: u64, choices: &Choices, axes: &[(String, Value)], repeats: u64) -> Vec<Trial> {
        let chosen = self.axes.iter().zip(choices).filter_map(|(key, choice)| Some((key, choice.as_ref()?)));
        let settings = match Settings::new(&self.sections, chosen, &self.axes) {
            Ok(settings) => settings,
            Err(faults) => return self.refuse(axes, faults),
        };
        let facts = self.facts_of(&settings.data);
        let faults = settings.faults(facts.as_ref());
        if !faults.is_empty() {
            return self.refuse(axes, faults);
        }
        self.epochs.push(facts.as_ref().and_then(|facts| settings.epoch(facts)));
        if settings.train.seed.saturating_add(repeats - 1) > LAST_SEED {
            let message = format!("`train.seed` {} and {repeats} repeats go past the last seed, {LAST_SEED}", settings.train.seed);
            return self.refuse(axes, vec![("train.seed".to_owned(), message)]);
        }
        match Identity::new(&settings.model, &settings.data, &settings.train, settings.telling_run.clone()) {
            Ok(identity) => repeat(&self.first_trial(point, axes, settings, facts.as_ref()), identity, repeats),
            Err(error) => self.refuse(axes, vec![("model".to_owned(), error.to_string())]),
        }
    }

    fn refuse(&mut self, axes: &[(String, Value)], faults: Vec<(String, String)>) -> Vec<Trial> {
        for (key, message) in faults {
            self.problems.add_for_point(axes, key, message);
        }
        Vec::new()
    }

    /// The point's trial with its first seed, and without number and id.
    fn first_trial(&self, point: u64, axes: &[(String, Value)], settings: Settings, facts: Option<&DataFacts>) -> Trial {
        let input = facts.map(DataFacts::input_shape);
        Trial {
            id: TrialId(String::new()),
            number: 0,
            point,
            repeat: 0,
            axes: axes.to_vec(),
            parameters: settings.model.parameters(input),
            flops_per_sample: settings.model.flops_per_sample(input),
            fallback_of: None,
            effective_batch_size: settings.effective_batch_size(),
            steps: settings.steps(facts),
            model: settings.model,
            data: settings.data,
            train: settings.train,
            engine: settings.engine,
            devices: settings.devices,
            devices_per_trial: settings.devices_per_trial,
        }
    }

    fn facts_of(&mut self, data: &Data) -> Option<DataFacts> {
        let key = data.source_key();
        if !self.known.contains_key(&key) {
            self.known.insert(key.clone(), (self.facts)(data));
        }
        self.known.get(&key).cloned().flatten()
    }
}

/// One trial per seed, each with its id.
fn repeat(first: &Trial, mut identity: Identity, repeats: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for repeat in 0..repeats {
        let seed = first.train.seed.saturating_add(repeat);
        let mut trial = Trial { id: identity.with_seed(seed), repeat, ..first.clone() };
        trial.train.seed = seed;
        trials.push(trial);
    }
    trials
}

/// Which point has an id already.
#[derive(Default)]
struct UsedIds(HashMap<TrialId, usize>);

impl UsedIds {
    fn refuse_twins(&mut self, point: usize, axes: &[(String, Value)], trials: &[Trial], problems: &mut Problems) {
        for trial in trials {
            if let Some(other) = self.0.insert(trial.id.clone(), point) {
                let message = format!(
                    "points {} and {} are the same trial ({}, seed {}); drop one of them{}",
                    other + 1,
                    point + 1,
                    trial.id,
                    trial.train.seed,
                    why_the_same(axes)
                );
                problems.add_for_point(axes, "sweep".to_owned(), message);
                return;
            }
        }
    }
}

fn why_the_same(axes: &[(String, Value)]) -> &'static str {
    if axes.iter().any(|(key, _)| ["data.path", "data.valid_path", "data.tokenizer"].contains(&key.as_str())) {
        return "; a path is where data lies and tells no trials apart";
    }
    if axes.iter().any(|(key, _)| key == "train.seed") {
        return "; `sweep.repeats` counts on from each `train.seed`";
    }
    ""
}

#[cfg(test)]
mod tests;
