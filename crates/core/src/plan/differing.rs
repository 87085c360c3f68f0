//! The keys of a trial that a program has to know to run it.

use serde_json::{Value, json};

use super::{
    defaults::{FORMAT_1_DEFAULTS, leave_out_defaults},
    id::identity_of_training,
};
use crate::{
    kinds::{Data, Model, data::PinMemory},
    spec::Train,
};

/// The dotted keys of a trial's `model`, `data` and `train` that are not at their default in format
/// 1: those that a program has to know to run this trial. The kinds of model and data are always
/// among them.
///
/// # Errors
/// A section cannot be written as JSON.
pub fn differs_from_defaults(
    model: &Model,
    data: &Data,
    train: &Train,
) -> serde_json::Result<Vec<String>> {
    let mut data_value = serde_json::to_value(data)?;
    if let (Some(loader), Value::Object(map)) = (data.loader(), &mut data_value)
        && loader.pin_memory != PinMemory::Asked(true)
    {
        map.shift_remove("pin_memory");
    }
    let mut differing = Vec::new();
    for (section, mut value) in [
        ("model", serde_json::to_value(model)?),
        ("data", data_value),
        ("train", identity_of_training(train)?),
    ] {
        leave_out_defaults(&mut value, section, &FORMAT_1_DEFAULTS[section]);
        list_keys(&value, section, &mut differing);
    }
    // A map of `train` has a default kind.
    let kind = |train: &Value, key: &str| {
        train
            .pointer(&format!("/{}", key.replace('.', "/")))
            .cloned()
    };
    let default = json!({"train": serde_json::from_value::<Train>(json!({}))?});
    let asked = json!({"train": train});
    differing.retain(|key| {
        !key.starts_with("train.")
            || !key.ends_with(".kind")
            || kind(&default, key) != kind(&asked, key)
    });
    Ok(differing)
}

/// The dotted keys of the values in a map; a map without any is one itself.
fn list_keys(value: &Value, path: &str, keys: &mut Vec<String>) {
    match value.as_object() {
        Some(map) if !map.is_empty() => {
            for (key, value) in map {
                list_keys(value, &format!("{path}.{key}"), keys);
            }
        }
        _ => keys.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_differ_from_their_defaults_are_named() {
        let differing = |model: &str, data: &str, train: &str| {
            let mut keys = differs_from_defaults(
                &serde_yaml::from_str(model).unwrap(),
                &serde_yaml::from_str(data).unwrap(),
                &serde_yaml::from_str(train).unwrap(),
            )
            .unwrap();
            keys.sort();
            keys
        };
        assert_eq!(
            differing(
                "{kind: gpt, d_model: 256}",
                "{kind: tinyshakespeare}",
                "{steps: 5, seed: 1, optimizer: {kind: adamw, weight_decay: 0.01}}"
            ),
            ["data.kind", "model.kind", "train.steps"]
        );
        assert_eq!(
            differing(
                "{kind: gpt, num_layers: 3}",
                "{kind: tinyshakespeare, path: /x, sampling: random, pin_memory: true}",
                "{epochs: 5, seed: 2, clip_norm: 1.0, optimizer: {kind: sgd}, learning_rate_schedule: \
                 {kind: constant, warmup_steps: 9}, evaluate: {every: epoch}, checkpoint: {every_steps: 9}}"
            ),
            [
                "data.kind",
                "data.path",
                "data.pin_memory",
                "data.sampling",
                "model.kind",
                "model.num_layers",
                "train.checkpoint.after",
                "train.checkpoint.every_steps",
                "train.checkpoint.keep",
                "train.clip_norm",
                "train.epochs",
                "train.evaluate.every",
                "train.learning_rate_schedule.warmup_steps",
                "train.optimizer.kind",
                "train.seed",
            ]
        );
    }
}
