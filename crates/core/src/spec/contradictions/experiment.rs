//! Contradictions of a whole experiment, with their places in the file.

use std::time::Duration;

use super::{PatternMemo, ResolvedPoint, contradictions, data::of_given_tokenizer, search};
use crate::{
    kinds::{KeyFault, Model},
    spec::{
        axes::{axis_keys, may_vary, varying_sections},
        derivation::sources,
        engine::Engine,
        experiment::Experiment,
        node::Node,
        problem::{Location, Problem},
        run_options::{DeviceName, Devices, OnOom},
        run_slurm::Slurm,
    },
    units::ByteSize,
};

/// Keys of `train` that a workload that does not train would ignore.
const ONLY_FOR_TRAINING: [&str; 13] = [
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
        patterns: &PatternMemo::default(),
        sources: &sources(&experiment.sweep.derive),
    };
    let axes = axis_keys(tree);
    let related = |a: &str, b: &str| within(a, b) || within(b, a);
    let varied = |key: &str| {
        axes.iter().any(|axis| related(axis, key))
            || faulty.iter().any(|faulty| related(faulty, key))
    };
    let mut faults = contradictions(&point);
    faults.extend(of_given_tokenizer(tree));
    faults.extend(of_run(experiment));
    faults.extend(of_gradient_noise(experiment));
    faults.extend(search::faults(experiment));
    faults.extend(search::of_objective(experiment));
    faults.extend(of_command_run(experiment));
    faults.retain(|fault| !fault.involved.iter().any(|key| varied(key)));
    // A part of the model that lacks what one of its keys gives wrongly has one fault.
    let has_fault_within = |key: &str| faulty.iter().any(|faulty| within(faulty, key));
    faults.retain(|fault| !fault.key.starts_with("model.") || !has_fault_within(&fault.key));
    let mut problems: Vec<Problem> = faults
        .into_iter()
        .map(|fault| Problem::at(&locate(tree, &fault.key, top), fault))
        .collect();
    match &*experiment.model {
        _ if varied("model.kind") => {}
        Model::Command(_) => problems.extend(ignored_by_commands(tree)),
        model if !model.trains() => {
            problems.extend(ignored_without_training(tree, model.kind()));
        }
        _ => {}
    }
    problems
}

/// Whether `key` is `section` or inside it.
fn within(key: &str, section: &str) -> bool {
    key.strip_prefix(section)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses `measure.gradient_noise` where no trial can measure it. If some trials of a sweep can, each
/// other one has a note in its row instead.
fn of_gradient_noise(experiment: &Experiment) -> Vec<KeyFault> {
    if experiment.measure.gradient_noise.is_none() {
        return Vec::new();
    }
    let (train, run) = (&experiment.train, &experiment.run);
    let passes = train
        .grad_accumulation
        .saturating_mul(run.devices_per_trial);
    let faults = [
        (
            !experiment.model.trains(),
            "model.kind",
            format!(
                "model kind `{}` trains nothing, so it has no gradient",
                experiment.model.kind()
            ),
        ),
        (
            run.engine != Engine::Libtorch,
            "run.engine",
            "gradients are measured by engine `libtorch` alone; set `run.engine: libtorch`"
                .to_owned(),
        ),
        (
            passes < 2,
            "train.grad_accumulation",
            "noise is the difference between the micro-batches of a step, and a step has one; set \
             `train.grad_accumulation: 2` or more and divide `train.batch_size` by it, which \
             trains the same, or set `run.devices_per_trial`"
                .to_owned(),
        ),
    ];
    let key = "measure.gradient_noise";
    faults
        .into_iter()
        .filter(|(is_so, ..)| *is_so)
        .map(|(_, with, message)| {
            let devices = "run.devices_per_trial";
            KeyFault::between(key, &[key, with, devices], format!("`{key}`: {message}"))
        })
        .collect()
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
    faults.extend(run.slurm.iter().flat_map(Slurm::faults));
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
    let sections = varying_sections().filter_map(|section| tree.get_path(section));
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

/// Contradictions between a command and `run`.
fn of_command_run(experiment: &Experiment) -> Vec<KeyFault> {
    let Some(command) = experiment.model.command() else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let mut push = |key: &str, message: &str| {
        faults.push(KeyFault::between(key, &["model.kind"], message));
    };
    match experiment.run.on_oom {
        OnOom::Shrink => push(
            "run.on_oom",
            "`shrink` is not for commands: kiln does not know how a program trades its batch for \
             accumulation; use `skip-larger` with `model.grows`, or `record`",
        ),
        OnOom::SkipLarger if command.grows.is_empty() => push(
            "run.on_oom",
            "`skip-larger` needs to know which values make memory grow; name them in `model.grows`",
        ),
        OnOom::SkipLarger | OnOom::Record => {}
    }
    faults
}

/// Whether a model ignores a key, which then must not be given.
pub(in crate::spec) fn is_ignored(model: &Model, key: &str) -> bool {
    match model {
        Model::Command(_) => is_ignored_by_commands(key),
        model if model.trains() => false,
        _ => {
            let name = key.strip_prefix("train.");
            name.is_some_and(|name| ONLY_FOR_TRAINING.contains(&name))
        }
    }
}

fn is_ignored_by_commands(key: &str) -> bool {
    let kept = ["train.seed", "measure.sample_interval"];
    let sections = ["train.", "measure.", "run.engine", "run.engines"];
    let is_in = |section: &&str| match section.strip_suffix('.') {
        Some(_) => key.starts_with(*section),
        None => within(key, section),
    };
    !kept.contains(&key) && sections.iter().any(is_in)
}

/// Keys that a command would ignore: all of `train` but its seed, the steps of `measure`, and the
/// engine.
fn ignored_by_commands(tree: &Node) -> Vec<Problem> {
    let say = |key: &str| {
        let instead = match key {
            "train.precision" | "train.batch_size" | "train.grad_accumulation" => {
                "; make it one of `model.values`"
            }
            _ => "; remove it",
        };
        format!("a command reads its own settings, so `{key}` would be ignored{instead}")
    };
    let of_section = |section: &'static str| {
        let entries = tree.get(section).map(Node::entries).unwrap_or_default();
        entries
            .iter()
            .map(move |entry| (format!("{section}.{}", entry.key), &entry.key_location))
    };
    let sections = varying_sections().filter_map(|section| tree.get_path(section));
    let axes = sections
        .flat_map(Node::entries)
        .map(|entry| (entry.key.clone(), &entry.key_location));
    let sections = ["train", "measure", "run"].into_iter().flat_map(of_section);
    sections
        .chain(axes)
        .filter(|(key, _)| is_ignored_by_commands(key))
        .map(|(key, at)| Problem::new(at, key.clone(), say(&key)))
        .collect()
}

/// The place of a key in the file, or of the nearest map around it.
pub(in crate::spec) fn locate(tree: &Node, key: &str, top: &Location) -> Location {
    let mut location = top;
    let mut node = tree;
    for name in key.split('.') {
        let (name, index) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (name, None),
        };
        let Some(entry) = node.entry(name) else { break };
        if let Some(item) = index.and_then(|index| entry.value.items().get(index)) {
            location = &item.location;
            node = item;
            continue;
        }
        location = if entry.value.is_map() {
            &entry.key_location
        } else {
            &entry.value.location
        };
        node = &entry.value;
    }
    location.clone()
}
