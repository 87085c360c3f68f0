//! Reads an experiment and expands its grid, plainly: until `spec` and `plan` do it.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Stop;
use crate::{
    plan::{Trial, TrialId},
    spec::Experiment,
};

/// The experiment, its text, and its trials.
pub(super) fn load(file: &Path, set: &[String]) -> Result<(Experiment, String, Vec<Trial>), Stop> {
    let named = |error: &dyn std::fmt::Display| Stop::bad_input(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
    let mut value: Value = serde_yaml::from_str(&text).map_err(|error| named(&error))?;
    for setting in set {
        let (key, text) = setting.split_once('=').ok_or_else(|| Stop::bad_input(format!("`--set {setting}`: write key=value")))?;
        put(&mut value, key, serde_yaml::from_str(text).map_err(|error| named(&error))?);
    }
    let experiment: Experiment = serde_json::from_value(value.clone()).map_err(|error| named(&error))?;
    let mut trials = Vec::new();
    for repeat in 0..experiment.sweep.repeats {
        for (point, axes) in grid(&experiment).into_iter().enumerate() {
            let mut value = value.clone();
            axes.iter().for_each(|(key, cell)| put(&mut value, key, cell.clone()));
            let one: Experiment = serde_json::from_value(value).map_err(|error| named(&error))?;
            trials.push(trial(one, axes, point as u64, repeat, trials.len() as u64 + 1));
        }
    }
    let resolved = serde_yaml::to_string(&experiment).map_err(|error| named(&error))?;
    Ok((experiment, resolved, trials))
}

fn trial(one: Experiment, axes: Vec<(String, Value)>, point: u64, repeat: u64, number: u64) -> Trial {
    let mut train = one.train;
    train.seed += repeat;
    let hash = Sha256::digest(serde_json::json!([one.model, one.data, train]).to_string());
    Trial {
        id: TrialId(hex::encode(hash)[..10].to_owned()),
        number,
        point,
        repeat,
        axes,
        parameters: one.model.parameters(None),
        flops_per_sample: one.model.flops_per_sample(None),
        effective_batch_size: train.batch_size * train.grad_accumulation,
        steps: train.steps,
        model: one.model,
        data: one.data,
        train,
        engine: one.run.engine,
        devices: one.run.devices,
    }
}

fn grid(experiment: &Experiment) -> Vec<Vec<(String, Value)>> {
    experiment.sweep.grid.iter().fold(vec![Vec::new()], |points, (key, values)| {
        let values = values.as_array().cloned().unwrap_or_default();
        let with = |point: &Vec<(String, Value)>, value: &Value| [point.as_slice(), &[(key.clone(), value.clone())]].concat();
        points.iter().flat_map(|point| values.iter().map(|value| with(point, value)).collect::<Vec<_>>()).collect()
    })
}

fn put(value: &mut Value, key: &str, cell: Value) {
    let pointer = key.split('.').fold(value, |value, name| {
        if !value.is_object() {
            *value = Value::Object(serde_json::Map::new());
        }
        &mut value[name]
    });
    *pointer = cell;
}
