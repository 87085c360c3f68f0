//! Which settings a training may change when it continues another one: `kiln run --continue`.
//!
//! In: the trial as it was trained, and a planned one. Out: the differences that forbid it, and how
//! many others there are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::difference::{Difference, differences, leaves};
use crate::{
    kinds::{Data, Model, data::Sampling},
    plan::{Trial, TrialFile},
    spec::{Engine, Train},
};

/// Keys of `data`, beside its paths, that change neither the samples nor their order.
const FREE_DATA: [&str; 4] = [
    "data.num_workers",
    "data.prefetch",
    "data.pin_memory",
    "data.persistent_workers",
];
/// Keys of `train` that must stay: those on which the meaning of the saved state, the order of the
/// samples or the count of steps depends.
const BOUND_TRAINING: [&str; 13] = [
    "train.precision",
    "train.seed",
    "train.optimizer.kind",
    "train.optimizer.momentum",
    "train.optimizer.nesterov",
    "train.optimizer.beta1",
    "train.optimizer.beta2",
    "train.optimizer.decay_rate",
    // Losses before and after would be other numbers.
    "train.label_smoothing",
    "train.initial_weights.sha256",
    "train.initial_weights.without",
    // The time to the target counts from the beginning of the training.
    "train.target.valid_loss",
    EFFECTIVE,
];
/// Keys of `train` that a child gets resolved, so that they differ from the planned ones.
const RESOLVED_TRAINING: [&str; 4] = ["cpu_threads", "cuda_graph", "checkpoint", "initial_weights"];
/// batch × accumulation × devices.
const EFFECTIVE: &str = "effective batch size";

/// The settings of a training that decide its result.
#[derive(Clone, Debug)]
pub struct TrainingSettings {
    /// By dotted key.
    leaves: BTreeMap<String, Value>,
    /// Whether each row of a batch reads on in its own part of the text, so that rows belong to places
    /// in the batch.
    is_contiguous: bool,
    /// Whether the data are prompts and responses.
    has_pairs: bool,
}

/// The differences between the settings of a finished trial and those of its continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContinuedSettings {
    /// Those that forbid it.
    pub forbidden: Vec<Difference>,
    /// Number of the others.
    pub allowed: usize,
}

impl TrainingSettings {
    /// Those of a trial as it was trained.
    pub fn trained(file: &TrialFile) -> Self {
        let effective = file.train.batch_size * file.batches_per_step();
        Self::of(&file.model, &file.data, &file.train, file.engine, effective)
    }

    /// Those of a planned trial.
    pub fn planned(trial: &Trial) -> Self {
        let effective = trial.effective_batch_size;
        Self::of(
            &trial.model,
            &trial.data,
            &trial.train,
            trial.engine,
            effective,
        )
    }

    fn of(
        model: &Model,
        data: &Data,
        train: &Train,
        engine: Engine,
        effective_batch_size: u64,
    ) -> Self {
        let mut trained = serde_json::to_value(train).unwrap_or_default();
        if let Value::Object(train) = &mut trained {
            let weights = train.remove("initial_weights").unwrap_or_default();
            train.retain(|key, _| !RESOLVED_TRAINING.contains(&key.as_str()));
            for key in ["sha256", "without"] {
                let value = weights.get(key).cloned();
                train.extend(value.map(|value| (format!("initial_weights.{key}"), value)));
            }
        }
        let whole: Map<String, Value> = [
            ("model", serde_json::to_value(model).unwrap_or_default()),
            ("data", serde_json::to_value(data).unwrap_or_default()),
            ("train", trained),
            (
                "run.engine",
                serde_json::to_value(engine).unwrap_or_default(),
            ),
            (EFFECTIVE, effective_batch_size.into()),
        ]
        .into_iter()
        .map(|(name, section)| (name.to_owned(), section))
        .collect();
        Self {
            leaves: leaves(Value::Object(whole), &|_| false),
            is_contiguous: data
                .sampling()
                .is_some_and(|text| text.sampling == Sampling::Contiguous),
            has_pairs: data.pairs().is_some(),
        }
    }

    /// Whether a difference from these settings forbids a continuation with them.
    fn forbid(&self, difference: &Difference) -> bool {
        let key = difference.key.as_str();
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        match section {
            "train" => {
                BOUND_TRAINING.contains(&key)
                    || (self.is_contiguous
                        && ["train.batch_size", "train.grad_accumulation"].contains(&key))
            }
            // The tokens of prompts and responses are in a file, whose sum is checked.
            "data" if name == "tokenizer" => !self.has_pairs,
            "data" => !(Data::PATH_KEYS.contains(&key) || FREE_DATA.contains(&key)),
            _ => true,
        }
    }
}

impl ContinuedSettings {
    /// Compares the settings of a trained trial with those of a planned one.
    pub fn compare(trained: &TrainingSettings, planned: &TrainingSettings) -> Self {
        let (forbidden, allowed): (Vec<_>, Vec<_>) =
            differences(trained.leaves.clone(), planned.leaves.clone())
                .into_iter()
                .partition(|difference| planned.forbid(difference));
        let is_told = |difference: &&Difference| !difference.key.starts_with("data.");
        Self {
            forbidden,
            allowed: allowed.iter().filter(is_told).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{ChildDevice, TRIAL_FILE, child_data, child_train, expand},
        spec,
    };

    fn planned(data: &str, train: &str) -> Trial {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp, seq_len: 8}}, data: {{{data}}}, train: \
             {{{train}}}}}"
        );
        let plan = expand(&spec::read_yaml(&text).unwrap(), &|_| None).unwrap();
        plan.trials[0].clone()
    }

    /// The trial as its child got it.
    fn trained(data: &str, train: &str) -> TrialFile {
        let trial = planned(data, train);
        let here = std::path::Path::new("/there");
        TrialFile {
            kiln_trial: TRIAL_FILE,
            trial: trial.id.clone(),
            attempt: 1,
            model: (*trial.model).clone(),
            data: child_data(&trial.data, 4, here),
            train: child_train(&trial.train, &trial.data, 4, here),
            measure: spec::Measure::default(),
            engine: trial.engine,
            device: ChildDevice::Cpu,
            devices_per_trial: 1,
            data_folder: None,
            folder: here.into(),
            checkpoint_folder: None,
            origin: None,
            run_anchor_nanoseconds: 0,
        }
    }

    const TEXT: &str = "kind: text, path: a.txt, num_workers: auto";
    const TRAIN: &str = "steps: 200, batch_size: 8, checkpoint: {every_steps: 10}";

    fn compared(trained: &TrialFile, planned: &Trial) -> ContinuedSettings {
        ContinuedSettings::compare(
            &TrainingSettings::trained(trained),
            &TrainingSettings::planned(planned),
        )
    }

    fn forbidden(data: &str, train: &str) -> Vec<String> {
        let compared = compared(&trained(TEXT, TRAIN), &planned(data, train));
        let keys = compared.forbidden.into_iter();
        keys.map(|difference| difference.key).collect()
    }

    #[test]
    fn what_a_child_gets_resolved_is_no_difference() {
        let same = compared(&trained(TEXT, TRAIN), &planned(TEXT, TRAIN));
        assert_eq!(same, ContinuedSettings::default());
        let longer = "steps: 400, batch_size: 8, checkpoint: {every_steps: 10}";
        let more = compared(&trained(TEXT, TRAIN), &planned(TEXT, longer));
        assert_eq!((more.forbidden, more.allowed), (Vec::new(), 1));
    }

    #[test]
    fn rates_schedules_and_loaders_may_change_and_what_decides_the_state_may_not() {
        let free = [
            ("kind: text, path: b.txt, num_workers: 2", TRAIN),
            (
                TEXT,
                "epochs: 3, batch_size: 8, optimizer: {kind: adamw, learning_rate: 0.5, \
                 weight_decay: 0.0}, learning_rate_schedule: {kind: cosine}, clip_norm: 1.0, \
                 evaluate: {every: 5}, early_stop: {patience: 2}, cpu_threads: 3",
            ),
            (TEXT, "steps: 9, batch_size: 2, grad_accumulation: 4"),
        ];
        for (data, train) in free {
            assert_eq!(forbidden(data, train), [""; 0], "{data} {train}");
        }
        let bound = [
            (TEXT, "steps: 9, batch_size: 4", EFFECTIVE),
            (TEXT, "steps: 9, batch_size: 8, seed: 2", "train.seed"),
            (
                TEXT,
                "steps: 9, batch_size: 8, precision: bf16",
                "train.precision",
            ),
            (
                TEXT,
                "steps: 9, batch_size: 8, optimizer: {kind: sgd}",
                "train.optimizer.kind",
            ),
            (
                TEXT,
                "steps: 9, batch_size: 8, label_smoothing: 0.5",
                "train.label_smoothing",
            ),
            (
                TEXT,
                "steps: 9, batch_size: 8, optimizer: {kind: adamw, beta1: 0.5}",
                "train.optimizer.beta1",
            ),
            (
                "kind: text, path: a.txt, tokenizer: byte",
                TRAIN,
                "data.tokenizer",
            ),
            (
                TEXT,
                "steps: 9, batch_size: 8, target: {valid_loss: 1.0}",
                "train.target.valid_loss",
            ),
        ];
        for (data, train, key) in bound {
            let found = forbidden(data, train);
            assert!(found.contains(&key.to_owned()), "{data} {train}: {found:?}");
        }
    }

    #[test]
    fn the_parts_of_initial_weights_that_are_left_out_may_not_change() {
        let with = |more: &str| {
            let weights = format!("{{path: w, sha256: '{}'{more}}}", "ab".repeat(32));
            format!("steps: 9, initial_weights: {weights}")
        };
        let of = |more: &str| {
            let compared = compared(&trained(TEXT, &with("")), &planned(TEXT, &with(more)));
            compared.forbidden.len()
        };
        assert_eq!((of(""), of(", without: [embedding]")), (0, 1));
    }

    #[test]
    fn rows_of_contiguous_text_belong_to_places_in_the_batch() {
        let data = "kind: text, path: a.txt, sampling: contiguous";
        let split = planned(data, "steps: 9, batch_size: 4, grad_accumulation: 2");
        let compared = compared(&trained(data, TRAIN), &split);
        let keys: Vec<&str> = compared
            .forbidden
            .iter()
            .map(|difference| difference.key.as_str())
            .collect();
        assert_eq!(keys, ["train.batch_size", "train.grad_accumulation"]);
    }
}
