//! One point with its choices applied: typed settings, and the contradictions among them.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{
    kinds::{
        Content, Data, KeyFault, Model,
        data::{Counts, DataFacts},
        samples::{self, Epoch},
    },
    spec::{self, Devices, Engine, Experiment, PatternMemo, Train},
};

/// The sections of a file that a sweep may vary, as JSON.
pub(super) struct Sections {
    /// As given by the layers: the values of a point are applied to these.
    asked: Value,
    /// With the values that a size sets written out.
    resolved: Value,
    models: SectionMemo<Model>,
    data: SectionMemo<Data>,
    patterns: PatternMemo,
    /// The keys that the expressions of `sweep.derive` use.
    sources: Vec<String>,
}

/// The choices of a point, dotted key and value.
pub(super) type Chosen<'a> = [(&'a str, &'a Value)];

/// A section with the choices of a point applied, for each different set of choices: most points
/// of a large sweep share theirs.
struct SectionMemo<T> {
    section: &'static str,
    made: RefCell<HashMap<String, Arc<T>>>,
}

/// Sections that are kept of one kind.
const MOST_KEPT: usize = 1000;

impl<T: DeserializeOwned> SectionMemo<T> {
    fn new(section: &'static str) -> Self {
        Self {
            section,
            made: RefCell::default(),
        }
    }

    fn get(&self, asked: &Value, chosen: &Chosen<'_>) -> Result<Arc<T>, KeyFault> {
        let own = of_section(self.section, chosen);
        let key: String = own
            .iter()
            .map(|(key, value)| format!("{key} {value}\n"))
            .collect();
        if let Some(made) = self.made.borrow().get(&key) {
            return Ok(Arc::clone(made));
        }
        let made: Arc<T> = typed_at(&with(asked, self.section, &own), self.section)?;
        let mut kept = self.made.borrow_mut();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key, Arc::clone(&made));
        Ok(made)
    }
}

/// The choices among these that change a section.
fn of_section<'a>(section: &str, chosen: &Chosen<'a>) -> Vec<(&'a str, &'a Value)> {
    let is_own = |key: &str| key.split('.').next() == Some(section);
    chosen
        .iter()
        .copied()
        .filter(|(key, _)| is_own(key))
        .collect()
}

/// One section with its own choices applied.
fn with(asked: &Value, section: &str, own: &Chosen<'_>) -> Value {
    let mut alone = json!({ section: asked[section].clone() });
    spec::apply_point(&mut alone, own.iter().copied());
    alone[section].take()
}

fn value_at(sections: &Value, key: &str) -> Option<Value> {
    key.split('.')
        .try_fold(sections, |place, part| place.get(part))
        .cloned()
}

/// Whether a choice of `choice` may change the value of `key`, which is another key: one of them is
/// inside the other, or the choice is the kind or the size of what holds the key.
pub(crate) fn is_changed_by(key: &str, choice: &str) -> bool {
    let is_inside = |key: &str, outer: &str| {
        key.strip_prefix(outer)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let holder = choice
        .strip_suffix(".kind")
        .or_else(|| choice.strip_suffix(".size"));
    is_inside(key, choice)
        || is_inside(choice, key)
        || holder.is_some_and(|holder| is_inside(key, holder))
}

impl Sections {
    pub(super) fn new(experiment: &Experiment) -> serde_json::Result<Self> {
        let asked = json!({
            "model": serde_json::to_value(&experiment.model)?,
            "data": serde_json::to_value(&experiment.data)?,
            "train": serde_json::to_value(&experiment.train)?,
            "run": {
                "engine": serde_json::to_value(experiment.run.engine)?,
                "devices": serde_json::to_value(&experiment.run.devices)?,
                "devices_per_trial": experiment.run.devices_per_trial,
            },
        });
        let mut resolved = asked.clone();
        resolved["model"] = serde_json::to_value(&*experiment.model)?;
        Ok(Self {
            asked,
            resolved,
            models: SectionMemo::new("model"),
            data: SectionMemo::new("data"),
            patterns: PatternMemo::default(),
            sources: spec::sources(&experiment.sweep.derive),
        })
    }

    /// The value of a dotted key; `null` if it is not set.
    pub(super) fn get(&self, key: &str) -> Value {
        value_at(&self.resolved, key)
            .or_else(|| value_at(&self.asked, key))
            .unwrap_or_default()
    }

    /// The value of a dotted key at a point of these choices, of which none names the key: the
    /// file's, unless a choice changes what the key belongs to, as a kind changes its keys.
    pub(super) fn get_at(&self, key: &str, chosen: &Chosen<'_>) -> Value {
        let Some(section) = key.split('.').next() else {
            return self.get(key);
        };
        let own = of_section(section, chosen);
        if !own.iter().any(|(choice, _)| is_changed_by(key, choice)) {
            return self.get(key);
        }
        let json = |section: &str| match section {
            "model" => serde_json::to_value(&*self.models.get(&self.asked, chosen).ok()?).ok(),
            "data" => serde_json::to_value(&*self.data.get(&self.asked, chosen).ok()?).ok(),
            "train" => {
                let train: Train = typed_at(&self.with(section, chosen), section).ok()?;
                serde_json::to_value(train).ok()
            }
            _ => None,
        };
        // A choice that its section refuses is told later.
        let found = json(section).unwrap_or_else(|| self.with(section, chosen));
        value_at(&json!({ section: found }), key).unwrap_or_default()
    }

    /// Returns a section with the chosen values applied.
    fn with(&self, section: &str, chosen: &Chosen<'_>) -> Value {
        with(&self.asked, section, &of_section(section, chosen))
    }
}

/// All settings of a point except its seed.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) model: Arc<Model>,
    pub(super) data: Arc<Data>,
    pub(super) train: Train,
    pub(super) engine: Engine,
    pub(super) devices: Devices,
    pub(super) devices_per_trial: u64,
    /// The keys of `run` that are part of the trial id, without the prefix: those that are swept,
    /// and `devices_per_trial`, which affects losses.
    pub(super) telling_run: Map<String, Value>,
}

impl Settings {
    pub(super) fn new<'a>(
        base: &Sections,
        choices: impl Iterator<Item = (&'a String, &'a Value)>,
        axes: &[String],
    ) -> Result<Self, Vec<KeyFault>> {
        let chosen: Vec<(&str, &Value)> =
            choices.map(|(key, value)| (key.as_str(), value)).collect();
        let run = base.with("run", &chosen);
        let mut faults = Vec::new();
        let model = or_fault(base.models.get(&base.asked, &chosen), &mut faults);
        let data = or_fault(base.data.get(&base.asked, &chosen), &mut faults);
        let train: Option<Train> =
            or_fault(typed_at(&base.with("train", &chosen), "train"), &mut faults);
        let engine: Option<Engine> = or_fault(typed_at(&run["engine"], "run.engine"), &mut faults);
        let devices: Option<Devices> =
            or_fault(typed_at(&run["devices"], "run.devices"), &mut faults);
        let devices_per_trial: Option<u64> = or_fault(
            typed_at(&run["devices_per_trial"], "run.devices_per_trial"),
            &mut faults,
        );
        let swept = axes.iter().filter_map(|axis| axis.strip_prefix("run."));
        let telling = swept.chain(["devices_per_trial"]);
        let telling_run = telling
            .map(|key| (key.to_owned(), run[key].clone()))
            .collect();
        match (model, data, train, engine, devices, devices_per_trial) {
            (
                Some(model),
                Some(data),
                Some(train),
                Some(engine),
                Some(devices),
                Some(devices_per_trial),
            ) => Ok(Self {
                model,
                data,
                train,
                engine,
                devices,
                devices_per_trial,
                telling_run,
            }),
            _ => Err(faults),
        }
    }

    /// Data of one pass over the training data; `None` for a model that reads none.
    pub(super) fn epoch(&self, facts: &DataFacts) -> Option<Epoch> {
        let samples = facts.train_samples(&self.data, self.model.seq_len())?;
        let sampling = self
            .data
            .sampling()
            .map(|text| text.sampling)
            .unwrap_or_default();
        Some(Epoch::of(
            samples,
            sampling,
            self.train.batch_size,
            self.train
                .grad_accumulation
                .saturating_mul(self.devices_per_trial),
        ))
    }

    /// batch × accumulation × devices.
    pub(super) fn effective_batch_size(&self) -> u64 {
        self.train
            .batch_size
            .saturating_mul(self.train.grad_accumulation)
            .saturating_mul(self.devices_per_trial)
    }

    /// Optimizer steps; `None` if they depend on data of unknown size.
    pub(super) fn steps(&self, facts: Option<&DataFacts>) -> Option<u64> {
        if self.train.steps.is_some() {
            return self.train.steps;
        }
        let epoch = self.epoch(facts?)?;
        samples::total_steps(None, self.train.epochs, epoch.steps)
    }

    /// Adds everything that cannot work, with its key.
    pub(super) fn faults(&self, facts: Option<&DataFacts>, base: &Sections) -> Vec<KeyFault> {
        let point = spec::ResolvedPoint {
            model: &self.model,
            data: &self.data,
            train: &self.train,
            engine: self.engine,
            devices: &self.devices,
            devices_per_trial: self.devices_per_trial,
            patterns: &base.patterns,
            sources: &base.sources,
        };
        let mut faults = spec::contradictions(&point);
        faults.extend(self.epochs_without_data());
        if let Some(facts) = facts {
            faults.extend(self.too_little_data(facts));
            faults.extend(self.vocabulary_too_small(facts));
        }
        faults
    }

    fn epochs_without_data(&self) -> Option<KeyFault> {
        let message = || {
            format!(
                "model kind `{}` reads no data, so it has no epochs; give `train.steps`",
                self.model.kind()
            )
        };
        (self.model.reads() == Content::Nothing && self.train.epochs.is_some())
            .then(|| KeyFault::new("train.epochs", message()))
    }

    fn too_little_data(&self, facts: &DataFacts) -> Option<KeyFault> {
        let epoch = self.epoch(facts)?;
        (epoch.steps == 0).then(|| {
            let step = self.effective_batch_size();
            let seq_len = self.model.seq_len().unwrap_or_default();
            let (size, total, or_shorter) = match &facts.counts {
                Counts::Text { train_tokens, .. } => (
                    format!(" of {seq_len} + 1 tokens"),
                    format!(" ({train_tokens} tokens)"),
                    " or `model.seq_len`",
                ),
                Counts::Panel { .. } => (
                    format!(" of {seq_len} + 1 rows"),
                    String::new(),
                    " or `model.seq_len`",
                ),
                Counts::Images { .. } | Counts::Pairs { .. } => (String::new(), String::new(), ""),
            };
            let devices = if self.devices_per_trial > 1 {
                ", `run.devices_per_trial`"
            } else {
                ""
            };
            let comma = if or_shorter.is_empty() { " or" } else { "," };
            let message = format!(
                "one step takes {step} samples{size}, and the training data has {}{total}; lower \
                 `train.batch_size`{comma} `train.grad_accumulation`{devices}{or_shorter}",
                epoch.samples,
            );
            KeyFault::new("train.batch_size", message)
        })
    }

    fn vocabulary_too_small(&self, facts: &DataFacts) -> Option<KeyFault> {
        let (own, data) = (
            self.model.vocabulary(None)?,
            facts.input_shape().vocabulary()?,
        );
        (own < data).then(|| {
            let message = format!(
                "`model.vocabulary` is {own}, but the data has {data} tokens; set at least that, \
                 or remove the key"
            );
            KeyFault::new("model.vocabulary", message)
        })
    }
}

fn typed_at<T: DeserializeOwned>(value: &Value, key: &str) -> Result<T, KeyFault> {
    T::deserialize(value).map_err(|error| KeyFault::new(key, error.to_string()))
}

fn or_fault<T>(made: Result<T, KeyFault>, faults: &mut Vec<KeyFault>) -> Option<T> {
    made.map_err(|fault| faults.push(fault)).ok()
}
