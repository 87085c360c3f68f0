//! Contradictions of a whole experiment, with their places in the file.

use std::time::Duration;

use super::{ResolvedPoint, contradictions, search};
use crate::{
    kinds::KeyFault,
    spec::{
        axes::{AXES, axis_keys, may_vary},
        experiment::Experiment,
        node::Node,
        problem::{Location, Problem},
        run_options::{DeviceName, Devices},
    },
    units::ByteSize,
};

/// Keys of `train` that a workload that does not train would ignore.
pub(in crate::spec) const ONLY_FOR_TRAINING: [&str; 13] = [
    "epochs",
    "grad_accumulation",
    "optimizer",
    "learning_rate_schedule",
    "clip_norm",
    "label_smoothing",
    "cudnn_benchmark",
    "cuda_graph",
    "evaluate",
    "target",
    "early_stop",
    "checkpoint",
    "initial_weights",
];

/// With less memory libtorch waits forever for a thread that could not start.
const LEAST_MEMORY: ByteSize = ByteSize(256 << 20);

/// Returns the contradictions of a whole experiment, with their places in `tree`, which holds the
/// values of the layers without defaults.
///
/// `faulty` names keys that have other problems: contradictions that involve one of them are not
/// reported.
pub(in crate::spec) fn check(
    experiment: &Experiment,
    tree: &Node,
    top: &Location,
    faulty: &[String],
) -> Vec<Problem> {
    let run = &experiment.run;
    let point = ResolvedPoint {
        model: &experiment.model,
        data: &experiment.data,
        train: &experiment.train,
        engine: run.engine,
        devices: &run.devices,
        devices_per_trial: run.devices_per_trial,
    };
    let axes = axis_keys(tree);
    let related = |a: &str, b: &str| within(a, b) || within(b, a);
    let varied = |key: &str| {
        axes.iter().any(|axis| related(axis, key))
            || faulty.iter().any(|faulty| related(faulty, key))
    };
    let mut faults = contradictions(&point);
    faults.extend(of_run(experiment));
    faults.extend(search::faults(experiment));
    faults.extend(search::of_objective(experiment));
    faults.retain(|fault| !fault.involved.iter().any(|key| varied(key)));
    let mut problems: Vec<Problem> = faults
        .into_iter()
        .map(|fault| Problem::at(&locate(tree, &fault.key, top), fault))
        .collect();
    if !experiment.model.trains() && !varied("model.kind") {
        problems.extend(ignored_without_training(tree, experiment.model.kind()));
    }
    problems
}

/// Whether `key` is `section` or inside it.
fn within(key: &str, section: &str) -> bool {
    key.strip_prefix(section)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn of_run(experiment: &Experiment) -> Vec<KeyFault> {
    let (run, measure) = (&experiment.run, &experiment.measure);
    let mut faults = Vec::new();
    if measure.sample_interval.0 < Duration::from_millis(100) {
        let message = format!(
            "`measure.sample_interval` is {}; it must be at least 100ms, or sampling disturbs the \
             trial",
            measure.sample_interval
        );
        faults.push(KeyFault::new("measure.sample_interval", message));
    }
    if let Some(limit) = experiment
        .run
        .memory_limit
        .filter(|limit| *limit < LEAST_MEMORY)
    {
        let message = format!(
            "`run.memory_limit` is {limit}; it must be at least {LEAST_MEMORY}: libtorch and its \
             threads take half of that by themselves"
        );
        faults.push(KeyFault::new("run.memory_limit", message));
    }
    let spans = [("run.timeout", run.timeout), ("run.stall", Some(run.stall))];
    for (key, span) in spans
        .into_iter()
        .filter_map(|(key, span)| Some((key, span?)))
    {
        if span.0 < Duration::from_secs(1) {
            faults.push(KeyFault::new(
                key,
                format!("`{key}` is {span}; it must be at least 1s, or no trial could start"),
            ));
        }
    }
    if !run.wait.0.is_zero() && !run.require_idle_device {
        faults.push(KeyFault::new(
            "run.wait",
            "`run.wait` has no effect: `run.require_idle_device` is `false`, so kiln does not wait \
             for a device",
        ));
    }
    if run.cool_down.is_some() && run.devices == Devices::Named(DeviceName::Cpu) {
        faults.push(KeyFault::between(
            "run.cool_down",
            &["run.devices"],
            "`run.cool_down` has no effect: `run.devices` is `cpu`, and cool-down applies to GPUs \
             only",
        ));
    }
    faults
}

fn ignored_without_training(tree: &Node, kind: &str) -> Vec<Problem> {
    let say = |key: &str| {
        format!("model kind `{kind}` trains nothing, so `{key}` would be ignored; remove it")
    };
    let given = ONLY_FOR_TRAINING
        .iter()
        .filter_map(|key| tree.get("train")?.entry(key));
    let given = given.map(|entry| (format!("train.{}", entry.key), &entry.key_location));
    let sections = AXES.iter().filter_map(|section| tree.get_path(section));
    let axes = sections
        .flat_map(Node::entries)
        .filter(|entry| may_vary(&entry.key));
    let axes = axes.filter(|entry| {
        ONLY_FOR_TRAINING
            .iter()
            .any(|key| within(&entry.key, &format!("train.{key}")))
    });
    given
        .chain(axes.map(|entry| (entry.key.clone(), &entry.key_location)))
        .map(|(key, at)| Problem::new(at, key.clone(), say(&key)))
        .collect()
}

/// The place of a key in the file, or of the nearest map around it.
pub(in crate::spec) fn locate(tree: &Node, key: &str, top: &Location) -> Location {
    let mut location = top;
    let mut node = tree;
    for name in key.split('.') {
        let Some(entry) = node.entry(name) else { break };
        location = if entry.value.is_map() {
            &entry.key_location
        } else {
            &entry.value.location
        };
        node = &entry.value;
    }
    location.clone()
}
