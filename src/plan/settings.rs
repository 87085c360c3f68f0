//! One point with its choices put in: typed settings, and what they say against one another.

use serde_json::{Map, Value, json};

use crate::{
    catalog::{
        Data, Model,
        data::DataFacts,
        samples::{self, Cut, Epoch},
    },
    spec::{self, Devices, Engine, Experiment, Train},
};

/// The sections of a file that a sweep may vary, as resolved JSON.
pub(super) struct Sections(Value);

impl Sections {
    pub(super) fn new(experiment: &Experiment) -> serde_json::Result<Self> {
        Ok(Self(json!({
            "model": serde_json::to_value(&experiment.model)?,
            "data": serde_json::to_value(&experiment.data)?,
            "train": serde_json::to_value(&experiment.train)?,
            "run": {
                "engine": serde_json::to_value(experiment.run.engine)?,
                "devices": serde_json::to_value(&experiment.run.devices)?,
            },
        })))
    }

    /// The value of a dotted key; `null` if it is not set.
    pub(super) fn get(&self, key: &str) -> Value {
        key.split('.').try_fold(&self.0, |place, part| place.get(part)).cloned().unwrap_or_default()
    }

    /// With the chosen values put in.
    fn with<'a>(&self, choices: impl Iterator<Item = (&'a String, &'a Value)>) -> Value {
        let mut sections = self.0.clone();
        spec::apply_point(&mut sections, choices.map(|(key, value)| (key.as_str(), value)));
        sections
    }
}

/// A fault of a point: dotted key and message.
pub(super) type Fault = (String, String);

/// Everything about a point but its seed.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) model: Model,
    pub(super) data: Data,
    pub(super) train: Train,
    pub(super) engine: Engine,
    pub(super) devices: Devices,
    /// The swept keys of `run`, without the prefix.
    pub(super) swept_run: Map<String, Value>,
}

impl Settings {
    pub(super) fn new<'a>(base: &Sections, choices: impl Iterator<Item = (&'a String, &'a Value)>, axes: &[String]) -> Result<Self, Vec<Fault>> {
        let sections = base.with(choices);
        let mut faults = Vec::new();
        let model = typed::<Model>(&sections, "model", &mut faults);
        let data = typed::<Data>(&sections, "data", &mut faults);
        let train = typed::<Train>(&sections, "train", &mut faults);
        let engine = typed_at::<Engine>(&sections["run"]["engine"], "run.engine", &mut faults);
        let devices = typed_at::<Devices>(&sections["run"]["devices"], "run.devices", &mut faults);
        let swept = axes.iter().filter_map(|axis| axis.strip_prefix("run."));
        let swept_run = swept.map(|key| (key.to_owned(), sections["run"][key].clone())).collect();
        match (model, data, train, engine, devices) {
            (Some(model), Some(data), Some(train), Some(engine), Some(devices)) => Ok(Self { model, data, train, engine, devices, swept_run }),
            _ => Err(faults),
        }
    }

    /// What training data of this many tokens becomes; `None` for a model that reads no text.
    pub(super) fn epoch(&self, tokens: u64, devices: u64) -> Option<Epoch> {
        Some(self.cut(tokens, devices)?.epoch())
    }

    fn cut(&self, tokens: u64, devices: u64) -> Option<Cut> {
        let batch = self.train.batch_size.saturating_mul(devices);
        Some(Cut::new(tokens, self.model.seq_len()?, self.data.sampling()?, batch, self.train.grad_accumulation))
    }

    /// Optimizer steps; `None` while they depend on data of unknown size.
    pub(super) fn steps(&self, facts: Option<&DataFacts>, devices: u64) -> Option<u64> {
        if self.train.steps.is_some() {
            return self.train.steps;
        }
        let epoch = self.epoch(facts?.train_tokens, devices)?;
        samples::total_steps(None, self.train.epochs, epoch.steps)
    }

    /// Everything that cannot be, by name.
    pub(super) fn faults(&self, facts: Option<&DataFacts>, devices: u64) -> Vec<Fault> {
        let point = spec::Point { model: &self.model, data: &self.data, train: &self.train, engine: self.engine, devices: &self.devices };
        let mut faults: Vec<Fault> = spec::contradictions(&point).into_iter().map(|fault| (fault.key, fault.message)).collect();
        faults.extend(self.epochs_without_data());
        if let Some(facts) = facts {
            faults.extend(self.too_little_data(facts, devices));
            faults.extend(self.vocabulary_too_small(facts));
        }
        faults
    }

    fn epochs_without_data(&self) -> Option<Fault> {
        let message = || format!("model kind `{}` reads no data, so it has no epochs; give `train.steps`", self.model.kind());
        (self.model.seq_len().is_none() && self.train.epochs.is_some()).then(|| ("train.epochs".to_owned(), message()))
    }

    fn too_little_data(&self, facts: &DataFacts, devices: u64) -> Option<Fault> {
        let cut = self.cut(facts.train_tokens, devices)?;
        (cut.epoch().steps == 0).then(|| {
            let message = format!(
                "one step takes {} samples of {} + 1 tokens, and the training data has {} ({} tokens); lower `train.batch_size`, \
                 `train.grad_accumulation` or `model.seq_len`",
                cut.effective_batch_size(),
                cut.seq_len,
                cut.samples(),
                cut.tokens
            );
            ("train.batch_size".to_owned(), message)
        })
    }

    fn vocabulary_too_small(&self, facts: &DataFacts) -> Option<Fault> {
        let vocabulary = self.model.vocabulary(None)?;
        (vocabulary < facts.vocabulary).then(|| {
            let message =
                format!("`model.vocabulary` is {vocabulary}, and the data has {} tokens; give at least that, or leave it out", facts.vocabulary);
            ("model.vocabulary".to_owned(), message)
        })
    }
}

fn typed<T: serde::de::DeserializeOwned>(sections: &Value, section: &str, faults: &mut Vec<Fault>) -> Option<T> {
    typed_at(&sections[section], section, faults)
}

fn typed_at<T: serde::de::DeserializeOwned>(value: &Value, key: &str, faults: &mut Vec<Fault>) -> Option<T> {
    T::deserialize(value).map_err(|error| faults.push((key.to_owned(), error.to_string()))).ok()
}
