//! Compares the memory that trials need, by their settings: which trials need at least as much as
//! one that ran out of it.

use serde_json::{Value, json};

use super::Trial;
use crate::{kinds::Model, spec::Engine};

/// Keys of batch, sequence and width: a trial with higher values needs more memory.
const GROWING: [&str; 13] = [
    "train.batch_size",
    // Only whether there is accumulation: see [`Trial::memory_settings`].
    "train.grad_accumulation",
    "model.size",
    "model.seq_len",
    "model.d_model",
    "model.d_kv",
    "model.d_ff",
    "model.hidden",
    "model.width",
    "model.symbol_width",
    "data.image_size",
    "data.max_prompt_tokens",
    "data.max_response_tokens",
];

/// Keys of `train` that change no tensor's size.
const WITHOUT_MEMORY: [&str; 5] = [
    "seed",
    "initial_weights",
    "steps",
    "epochs",
    "learning_rate_schedule",
];

/// The part of a [`MemoryDemand`] in which trials must be equal to be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DemandKind {
    engine: Engine,
    devices_per_trial: u64,
    /// The settings, without the numbers of the growing keys.
    settings: Value,
}

/// The numbers of the growing keys.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandSize(Vec<(String, f64)>);

/// The settings that decide the memory of a trial, in a form to compare with other trials.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryDemand {
    pub kind: DemandKind,
    pub size: DemandSize,
}

impl DemandSize {
    /// [`Trial::needs_no_less_than`] of two trials of one kind.
    pub fn is_no_less_than(&self, failed: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&failed.0);
        self.0.len() == failed.0.len()
            && pairs.all(|((key, mine), (other, failed))| key == other && mine >= failed)
    }
}

impl Trial {
    /// True if it is `failed` with no smaller batch, sequence or width: in the same memory it would
    /// fail too.
    ///
    /// Seeds, initial weights, the learning rate with its schedule and the length of the training
    /// do not count. Of weight decay only whether there is any does, and of accumulation too: then
    /// gradients outlive a forward pass.
    pub fn needs_no_less_than(&self, failed: &Self) -> bool {
        let (mine, failed) = (self.memory_demand(), failed.memory_demand());
        mine.kind == failed.kind && mine.size.is_no_less_than(&failed.size)
    }

    /// Returns the two sides of [`Trial::needs_no_less_than`] for many comparisons.
    pub fn memory_demand(&self) -> MemoryDemand {
        let mut settings = self.memory_settings();
        let mut grown = Vec::new();
        take_grown("", &mut settings, &|path| self.is_growing(path), &mut grown);
        // The order of keys in a file does not count.
        grown.sort_by(|(one, _), (other, _)| one.cmp(other));
        MemoryDemand {
            kind: DemandKind {
                engine: self.engine,
                devices_per_trial: self.devices_per_trial,
                settings,
            },
            size: DemandSize(grown),
        }
    }

    fn is_growing(&self, path: &str) -> bool {
        let grows: &[String] = match &*self.model {
            Model::Command(command) => &command.grows,
            _ => &[],
        };
        let value = path.strip_prefix("model.values.");
        GROWING.contains(&path) || value.is_some_and(|value| grows.iter().any(|name| name == value))
    }

    fn memory_settings(&self) -> Value {
        let mut train = json!(self.train);
        if let Value::Object(train) = &mut train {
            for key in WITHOUT_MEMORY {
                train.remove(key);
            }
            if let Some(Value::Object(optimizer)) = train.get_mut("optimizer") {
                optimizer.remove("learning_rate");
                if let Some(decay) = optimizer.get_mut("weight_decay") {
                    *decay = json!(decay.as_f64() != Some(0.0));
                }
            }
            train.insert(
                "grad_accumulation".to_owned(),
                json!(self.train.grad_accumulation.min(2)),
            );
        }
        json!({"model": self.model, "data": self.data, "train": train})
    }
}

/// Moves the numbers of growing keys out of a value.
fn take_grown(
    path: &str,
    value: &mut Value,
    is_growing: &dyn Fn(&str) -> bool,
    grown: &mut Vec<(String, f64)>,
) {
    if let Value::Object(inner) = value {
        for (key, value) in inner.iter_mut() {
            let path = match path {
                "" => key.clone(),
                above => format!("{above}.{key}"),
            };
            take_grown(&path, value, is_growing, grown);
        }
    } else if let Some(number) = value.as_f64().filter(|_| is_growing(path)) {
        grown.push((path.to_owned(), number));
        *value = Value::Null;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec::Experiment};

    /// Whether every value is equal, or for a growing key equal or larger.
    fn no_less(
        path: &str,
        mine: &Value,
        failed: &Value,
        is_growing: &dyn Fn(&str) -> bool,
    ) -> bool {
        match (mine, failed) {
            (Value::Object(mine), Value::Object(failed)) => {
                let inner = |key: &str| match path {
                    "" => key.to_owned(),
                    above => format!("{above}.{key}"),
                };
                mine.len() == failed.len()
                    && mine.iter().all(|(key, value)| {
                        failed
                            .get(key)
                            .is_some_and(|other| no_less(&inner(key), value, other, is_growing))
                    })
            }
            _ if is_growing(path) => match (mine.as_f64(), failed.as_f64()) {
                (Some(mine), Some(failed)) => mine >= failed,
                _ => mine == failed,
            },
            _ => mine == failed,
        }
    }

    /// The same answer by a walk through both trials.
    fn by_walk(mine: &Trial, failed: &Trial) -> bool {
        mine.engine == failed.engine
            && mine.devices_per_trial == failed.devices_per_trial
            && no_less(
                "",
                &mine.memory_settings(),
                &failed.memory_settings(),
                &|path| mine.is_growing(path),
            )
    }

    fn planned(text: &str) -> Vec<Trial> {
        let experiment: Experiment =
            serde_yaml::from_str(&format!("{{kiln: 1, name: x, {text}}}")).unwrap();
        expand(&experiment, &|_| None).unwrap().trials
    }

    #[test]
    fn what_the_learning_rate_and_the_length_are_does_not_count() {
        let trials = planned(
            "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10}, sweep: {grid: \
             {train.batch_size: [8, 16, 32]}, derive: {train.optimizer.learning_rate: 1e-4 * \
             train.batch_size, train.optimizer.weight_decay: 0.8 / train.batch_size, train.steps: \
             320 / train.batch_size, train.learning_rate_schedule.warmup_steps: 64 / \
             train.batch_size}}",
        );
        let [small, middle, large] = trials.as_slice() else {
            panic!("{} trials", trials.len());
        };
        assert!(large.needs_no_less_than(middle) && middle.needs_no_less_than(small));
        assert!(!small.needs_no_less_than(middle));
    }

    #[test]
    fn weight_decay_and_none_are_not_compared() {
        let trials = planned(
            "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10}, sweep: {grid: \
             {train.optimizer.weight_decay: [0.0, 0.1]}}",
        );
        assert!(!trials[0].needs_no_less_than(&trials[1]));
        assert!(!trials[1].needs_no_less_than(&trials[0]));
    }

    #[test]
    fn demands_compare_as_a_walk_through_both_trials_does() {
        let trained = "data: {kind: generated}, train: {steps: 10}";
        let command = |values: &str, grows: &str| {
            format!(
                "model: {{kind: command, argv: [x, '{{n}}', '{{m}}'], values: {{{values}}}, grows: \
                 [{grows}]}}, sweep: {{grid: {{model.values.n: [1, 2.5, 3]}}}}"
            )
        };
        let mut trials = planned(&format!(
            "model: {{kind: gpt, d_model: 64}}, {trained}, sweep: {{grid: {{train.batch_size: [2, \
             8], model.seq_len: [16, 32], train.grad_accumulation: [1, 2, 4], model.num_layers: \
             [1, 2], run.engine: [libtorch, flex]}}, repeats: 2}}"
        ));
        trials.extend(planned(&format!(
            "model: {{kind: mlp}}, {trained}, sweep: {{grid: {{train.batch_size: [2, 8], \
             model.hidden: [16, 32]}}}}"
        )));
        trials.extend(planned(&command("n: 1, m: 1", "n")));
        trials.extend(planned(&command("m: 1, n: 1", "n")));
        trials.extend(planned(&command("n: 1, m: 1", "m, n")));
        let mut found = 0;
        for mine in &trials {
            for failed in &trials {
                let wanted = by_walk(mine, failed);
                assert_eq!(
                    mine.needs_no_less_than(failed),
                    wanted,
                    "{:?} {:?}",
                    mine.axes,
                    failed.axes
                );
                found += usize::from(wanted && mine.id != failed.id);
            }
        }
        assert!(found > trials.len(), "{found}");
    }
}
