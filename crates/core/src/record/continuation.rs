//! Which settings a training may change when it continues another one: `kiln run --continue`.
//!
//! In: the trial as it was trained, and a planned one. Out: the differences that forbid it, and how
//! many others there are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::difference::{Difference, differences, leaves};
use crate::{
    kinds::data::Sampling,
    plan::{Trial, TrialFile},
};

/// Keys of `data` that change neither the samples nor their order.
const FREE_DATA: [&str; 6] = [
    "path",
    "valid_path",
    "num_workers",
    "prefetch",
    "pin_memory",
    "persistent_workers",
];
/// Keys of `train` that must stay: those on which the meaning of the saved state, the order of the
/// samples or the count of steps depends.
const BOUND_TRAINING: [&str; 7] = [
    "train.precision",
    "train.seed",
    "train.optimizer.kind",
    "train.optimizer.momentum",
    "train.initial_weights.sha256",
    // The time to the target counts from the beginning of the training.
    "train.target.valid_loss",
    EFFECTIVE,
];
/// Keys of `train` that a child gets resolved, so that they differ from the planned ones.
const RESOLVED_TRAINING: [&str; 4] = ["cpu_threads", "cuda_graph", "checkpoint", "initial_weights"];
/// batch × accumulation × devices.
const EFFECTIVE: &str = "effective batch size";

/// The differences between the settings of a finished trial and those of its continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContinuedSettings {
    /// Those that forbid it.
    pub forbidden: Vec<Difference>,
    /// Number of the others.
    pub allowed: usize,
}

impl ContinuedSettings {
    /// Compares the trial as it was trained with a planned one.
    pub fn compare(source: &TrialFile, planned: &Trial) -> Self {
        let before = settings(
            [
                ("model", serde_json::to_value(&source.model)),
                ("data", serde_json::to_value(&source.data)),
                ("train", serde_json::to_value(&source.train)),
                ("run.engine", serde_json::to_value(source.engine)),
            ],
            source.train.batch_size * source.batches_per_step(),
        );
        let now = settings(
            [
                ("model", serde_json::to_value(&planned.model)),
                ("data", serde_json::to_value(&planned.data)),
                ("train", serde_json::to_value(&planned.train)),
                ("run.engine", serde_json::to_value(planned.engine)),
            ],
            planned.effective_batch_size,
        );
        // Rows of contiguous text belong to places in the batch.
        let is_contiguous = planned
            .data
            .sampling()
            .is_some_and(|text| text.sampling == Sampling::Contiguous);
        let is_bound = |difference: &Difference| {
            let key = difference.key.as_str();
            let (section, name) = key.split_once('.').unwrap_or((key, ""));
            match section {
                "train" => {
                    BOUND_TRAINING.contains(&key)
                        || (is_contiguous
                            && ["train.batch_size", "train.grad_accumulation"].contains(&key))
                }
                // The tokens of prompts and responses are in a file, whose sum is checked.
                "data" if name == "tokenizer" => planned.data.pairs().is_none(),
                "data" => !FREE_DATA.contains(&name),
                _ => true,
            }
        };
        let (forbidden, allowed): (Vec<_>, Vec<_>) =
            differences(before, now).into_iter().partition(is_bound);
        let is_told = |difference: &&Difference| !difference.key.starts_with("data.");
        Self {
            forbidden,
            allowed: allowed.iter().filter(is_told).count(),
        }
    }
}

/// Every setting that decides a result, by its dotted key.
fn settings(
    sections: [(&str, serde_json::Result<Value>); 4],
    effective_batch_size: u64,
) -> BTreeMap<String, Value> {
    let mut whole = Map::new();
    for (name, section) in sections {
        let mut section = section.unwrap_or_default();
        if let (Value::Object(train), "train") = (&mut section, name) {
            let weights = train.get("initial_weights").map(|it| it["sha256"].clone());
            train.retain(|key, _| !RESOLVED_TRAINING.contains(&key.as_str()));
            train.extend(weights.map(|sha256| ("initial_weights.sha256".to_owned(), sha256)));
        }
        whole.insert(name.to_owned(), section);
    }
    whole.insert(EFFECTIVE.to_owned(), effective_batch_size.into());
    leaves(Value::Object(whole), &|_| false)
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
            model: trial.model.clone(),
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

    fn forbidden(data: &str, train: &str) -> Vec<String> {
        let compared = ContinuedSettings::compare(&trained(TEXT, TRAIN), &planned(data, train));
        let keys = compared.forbidden.into_iter();
        keys.map(|difference| difference.key).collect()
    }

    #[test]
    fn what_a_child_gets_resolved_is_no_difference() {
        let compared = ContinuedSettings::compare(&trained(TEXT, TRAIN), &planned(TEXT, TRAIN));
        assert_eq!(compared, ContinuedSettings::default());
        let longer = "steps: 400, batch_size: 8, checkpoint: {every_steps: 10}";
        let compared = ContinuedSettings::compare(&trained(TEXT, TRAIN), &planned(TEXT, longer));
        assert_eq!((compared.forbidden, compared.allowed), (Vec::new(), 1));
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
    fn rows_of_contiguous_text_belong_to_places_in_the_batch() {
        let data = "kind: text, path: a.txt, sampling: contiguous";
        let split = planned(data, "steps: 9, batch_size: 4, grad_accumulation: 2");
        let compared = ContinuedSettings::compare(&trained(data, TRAIN), &split);
        let keys: Vec<&str> = compared
            .forbidden
            .iter()
            .map(|difference| difference.key.as_str())
            .collect();
        assert_eq!(keys, ["train.batch_size", "train.grad_accumulation"]);
    }
}
