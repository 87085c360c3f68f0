//! One point with everything that decides its trials: settings, faults, facts of its data, ids.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use serde_json::Value;

use super::{
    PlanProblem, Trial, TrialId,
    canonical::canonical,
    id::{SharedIdentity, TrialIdentity},
    points::Choices,
    settings::{Chosen, Sections, Settings},
};
use crate::{
    kinds::{Data, KeyFault, Model, data::DataFacts, samples::Epoch},
    spec::{Experiment, TWO_TOKENIZERS},
};

/// The largest seed of the experiment file.
const LAST_SEED: u64 = u32::MAX as u64;

/// The values of a command.
const VALUES: &str = "model.values.";

const TOKENIZER: &str = "data.tokenizer";

/// The fault of a point that names a tokenizer beside a file of another one: it would be ignored, even
/// where it is the default.
fn second_tokenizer(data: &Data, axes: &[String], choices: &Choices) -> Option<KeyFault> {
    data.tokenizer_file()?;
    let is_named = |choice: &Option<Value>| choice.as_ref().is_some_and(|value| !value.is_null());
    let mut chosen = axes.iter().zip(choices);
    chosen
        .any(|(key, choice)| key == TOKENIZER && is_named(choice))
        .then(|| KeyFault::between(TOKENIZER, &["data"], TWO_TOKENIZERS))
}

/// Makes the points of an experiment.
pub(super) struct PointMaker<'a> {
    sections: Sections,
    facts: &'a dyn Fn(&Data) -> Option<DataFacts>,
    /// Facts by data source, so that each source is read once.
    known: RefCell<HashMap<String, Option<DataFacts>>>,
    last: RefCell<Option<Identified>>,
    /// The first spelling of each value of an axis, by key and canonical form.
    spellings: RefCell<HashMap<String, Value>>,
}

/// The model and the data of the last point, and their part of its identity.
struct Identified {
    model: Arc<Model>,
    data: Arc<Data>,
    shared: SharedIdentity,
}

/// A point without faults.
pub(super) struct CheckedPoint {
    /// The trial without number and point, with the first seed.
    first: Trial,
    identity: TrialIdentity,
    /// One pass over its training data.
    pub(super) epoch: Option<Epoch>,
}

impl CheckedPoint {
    /// Returns the trial of a seed; the caller sets its number and point.
    pub(super) fn trial(&mut self, repeat: u64) -> Trial {
        let seed = self.first.train.seed.saturating_add(repeat);
        let mut trial = Trial {
            id: self.identity.with_seed(seed),
            repeat,
            block: repeat.saturating_add(1),
            ..self.first.clone()
        };
        Arc::make_mut(&mut trial.train).seed = seed;
        trial
    }
}

impl<'a> PointMaker<'a> {
    pub(super) fn new(
        experiment: &Experiment,
        facts: &'a dyn Fn(&Data) -> Option<DataFacts>,
    ) -> Result<Self, Vec<PlanProblem>> {
        let sections = Sections::new(experiment)
            .map_err(|error| vec![PlanProblem::of_sweep("model", error.to_string())])?;
        Ok(Self {
            sections,
            facts,
            known: RefCell::default(),
            last: RefCell::default(),
            spellings: RefCell::default(),
        })
    }

    /// The value of a dotted key that none of these choices names.
    pub(super) fn value_at(&self, key: &str, chosen: &Chosen<'_>) -> Value {
        self.sections.get_at(key, chosen)
    }

    /// Returns the point's value on each axis; one that the point does not set has the value that
    /// the others leave it. Equal values are written alike.
    pub(super) fn axis_values(&self, axes: &[String], choices: &Choices) -> Vec<(String, Value)> {
        let chosen: Vec<(&str, &Value)> = axes
            .iter()
            .zip(choices)
            .filter_map(|(key, choice)| Some((key.as_str(), choice.as_ref()?)))
            .collect();
        let value = |(key, choice): (&String, &Option<Value>)| {
            let value = choice
                .clone()
                .unwrap_or_else(|| self.sections.get_at(key, &chosen));
            (key.clone(), self.first_spelling(key, value))
        };
        axes.iter().zip(choices).map(value).collect()
    }

    /// An equal value of this axis that came first, such as the same map with its keys in another
    /// order; without one, this value.
    fn first_spelling(&self, key: &str, value: Value) -> Value {
        let has_spellings = value.is_object() || value.is_array() || value.is_number();
        if !has_spellings {
            return value;
        }
        let canonical = format!("{key} {}", canonical(&value));
        let mut spellings = self.spellings.borrow_mut();
        spellings.entry(canonical).or_insert(value).clone()
    }

    /// Returns the point of these choices, or all its faults. `repeats` is the number of seeds it
    /// needs.
    pub(super) fn point(
        &self,
        axes: &[String],
        choices: &Choices,
        repeats: u64,
    ) -> Result<CheckedPoint, Vec<KeyFault>> {
        let values = self.axis_values(axes, choices);
        let chosen = values.iter().zip(choices);
        let chosen = chosen.filter_map(|((key, value), choice)| {
            // A program sees how a number is written: its table shows what it gets.
            let is_of_program = key.starts_with(VALUES);
            match choice {
                Some(choice) if !is_of_program => Some((key, choice)),
                None if !is_of_program || value.is_null() => None,
                _ => Some((key, value)),
            }
        });
        let settings = Settings::new(&self.sections, chosen, axes)?;
        let facts = self.facts_of(&settings.data);
        let mut faults = settings.faults(facts.as_ref(), &self.sections);
        if !faults.iter().any(|fault| fault.key == TOKENIZER) {
            faults.extend(second_tokenizer(&settings.data, axes, choices));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        if settings
            .train
            .seed
            .saturating_add(repeats.saturating_sub(1))
            > LAST_SEED
        {
            let message = format!(
                "`train.seed` {} and {repeats} repeats exceed the largest seed, {LAST_SEED}",
                settings.train.seed
            );
            return Err(vec![KeyFault::new("train.seed", message)]);
        }
        let identity = self.identity_of(&settings);
        let identity = identity.map_err(|error| vec![KeyFault::new("model", error.to_string())])?;
        let epoch = facts.as_ref().and_then(|facts| settings.epoch(facts));
        Ok(CheckedPoint {
            first: first_trial(values, settings, facts.as_ref()),
            identity,
            epoch,
        })
    }

    fn identity_of(&self, settings: &Settings) -> serde_json::Result<TrialIdentity> {
        let (model, data) = (&settings.model, &settings.data);
        let mut last = self.last.borrow_mut();
        let shared = match &*last {
            Some(last) if last.model == *model && last.data == *data => last.shared.clone(),
            _ => {
                let shared = SharedIdentity::new(model, data)?;
                *last = Some(Identified {
                    model: Arc::clone(model),
                    data: Arc::clone(data),
                    shared: shared.clone(),
                });
                shared
            }
        };
        TrialIdentity::new(shared, &settings.train, settings.telling_run.clone())
    }

    fn facts_of(&self, data: &Data) -> Option<DataFacts> {
        let key = data.source_key();
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let found = (self.facts)(data);
        self.known.borrow_mut().insert(key, found.clone());
        found
    }
}

fn first_trial(axes: Vec<(String, Value)>, settings: Settings, facts: Option<&DataFacts>) -> Trial {
    let input = facts.map(DataFacts::input_shape);
    Trial {
        id: TrialId(String::new()),
        number: 0,
        point: 0,
        repeat: 0,
        block: 1,
        axes,
        parameters: settings.model.parameters(input),
        flops_per_sample: settings.model.flops_per_sample(input),
        fallback_of: None,
        origin: None,
        effective_batch_size: settings.effective_batch_size(),
        steps: settings.steps(facts),
        model: settings.model,
        data: settings.data,
        train: Arc::new(settings.train),
        engine: settings.engine,
        devices: settings.devices,
        devices_per_trial: settings.devices_per_trial,
    }
}
