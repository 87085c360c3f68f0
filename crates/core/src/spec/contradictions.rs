//! Keys that are valid alone but contradict each other.
//!
//! [`contradictions`] checks one point of the sweep; the experiment's own values are checked when
//! the file is checked, unless an axis varies one of the keys involved: then the plan checks each
//! of its points.

use std::time::Duration;

use super::{
    checkpoint::AfterTraining,
    experiment::{EvaluateEvery, EvaluateMoment, Experiment, Precision, Train},
    node::Node,
    optimizer::{LearningRateSchedule, Optimizer},
    problem::{Location, Problem},
    run_options::{DeviceName, Devices, Engine},
    search,
    sweep::{AXES, axis_keys, may_vary},
};
use crate::{
    kinds::{Content, Data, Model, data::Tokenizer},
    units::ByteSize,
};

/// Keys of `train` that `matmul` would read and ignore.
pub(super) const IGNORED_BY_MATMUL: [&str; 13] = [
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

/// One point of a sweep, everything resolved.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedPoint<'a> {
    pub model: &'a Model,
    pub data: &'a Data,
    pub train: &'a Train,
    pub engine: Engine,
    pub devices: &'a Devices,
    pub devices_per_trial: u64,
}

/// A contradiction: its place, the keys involved, the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFault {
    /// Dotted key.
    pub key: String,
    /// Dotted keys, or sections, whose values decide the fault.
    pub involved: Vec<&'static str>,
    pub message: String,
}

fn fault(key: &str, involved: &[&'static str], message: impl Into<String>) -> KeyFault {
    KeyFault {
        key: key.to_owned(),
        involved: involved.to_vec(),
        message: message.into(),
    }
}

/// Returns the contradictions among the keys of one point.
pub fn contradictions(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let own = point
        .model
        .contradictions()
        .into_iter()
        .map(|(key, message)| fault(&format!("model.{key}"), &["model"], message));
    let others = of_length(point)
        .into_iter()
        .chain(of_data(point))
        .chain(of_training(point.train))
        .chain(of_sample(point))
        .chain(of_engine(point));
    own.chain(others).collect()
}

fn of_length(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let both = ["train.steps", "train.epochs"];
    match (point.train.steps, point.train.epochs, point.model) {
        (None, None, _) => vec![fault(
            "train",
            &both,
            "neither `train.steps` nor `train.epochs` is given; give one of them",
        )],
        (Some(_), Some(_), _) => vec![fault(
            "train.epochs",
            &both,
            "`train.steps` and `train.epochs` are both given; keep one of them",
        )],
        _ => Vec::new(),
    }
}

fn of_data(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let involved = ["model.kind", "data.kind"];
    let (model, data) = (point.model.kind(), point.data.kind());
    let mut faults = Vec::new();
    let keeps_best = point
        .train
        .checkpoint
        .as_ref()
        .is_some_and(|checkpoint| checkpoint.after == AfterTraining::Best);
    let needs_validation = [
        ("train.target", point.train.target.is_some()),
        ("train.early_stop", point.train.early_stop.is_some()),
        ("train.checkpoint.after", keeps_best),
        (
            "train.evaluate.generate",
            point.train.evaluate.generate.is_some(),
        ),
    ];
    for (key, _) in needs_validation
        .into_iter()
        .filter(|(_, is_given)| *is_given && point.data.valid_fraction() == Some(0.0))
    {
        let message = format!("`{key}` needs a validation loss, but `data.valid_fraction` is 0");
        faults.push(fault(key, &["data", key], message));
    }
    if point.model.reads() == Content::Panel && point.train.label_smoothing > 0.0 {
        let message = format!(
            "`label_smoothing` needs classes, and model kind `{model}` has none; remove it"
        );
        faults.push(fault(
            "train.label_smoothing",
            &["model.kind", "train.label_smoothing"],
            message,
        ));
    }
    if point.train.evaluate.generate.is_some() && point.model.kind() != "seq2seq" {
        let message = format!(
            "`generate` needs a sequence-to-sequence model, and model kind `{model}` is not one; \
             remove it"
        );
        faults.push(fault(
            "train.evaluate.generate",
            &["model.kind", "train.evaluate"],
            message,
        ));
    }
    if point.data.pairs().is_some_and(|pairs| pairs.longest_first)
        && point.data.loader().is_some_and(|loader| loader.synthetic)
    {
        let message = "`data.longest_first` makes the first steps longer than the others, but with \
                       `data.synthetic` all steps use one batch; keep one of them";
        faults.push(fault("data.longest_first", &["data"], message));
    }
    faults.extend(of_images(point));
    faults.extend(of_panel(point.data));
    faults.extend(of_pairs(point.data));
    let contiguous = point.data.sampling().filter(|_| point.data.is_contiguous());
    if let (Some(stride), Some(seq_len)) = (
        contiguous.and_then(|sampling| sampling.stride),
        point.model.seq_len(),
    ) && stride != seq_len
    {
        let message = format!(
            "`sampling: contiguous` continues where the previous window ended, but `stride` is \
             {stride} and `seq_len` {seq_len}; remove `stride`"
        );
        faults.push(fault("data.stride", &["data", "model"], message));
    }
    let (reads, holds) = (point.model.reads(), point.data.content());
    let example = match reads {
        Content::Nothing => "remove the `data` section".to_owned(),
        Content::Text => such_as("generated"),
        Content::Images => such_as("generated-images"),
        Content::Panel => such_as("stocknet"),
        Content::Pairs => such_as("chatlm"),
    };
    if reads != holds {
        let held = if holds == Content::Nothing {
            "`none`".to_owned()
        } else {
            format!("`{data}`, {}", holds.name())
        };
        let message = format!(
            "model kind `{model}` reads {}, but `data.kind` is {held}; {example}",
            reads.name()
        );
        faults.push(fault("data.kind", &involved, message));
    }
    faults
}

fn of_images(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let size = match point.data {
        Data::FashionMnist(_) => 28,
        Data::Cifar10(_) => 32,
        Data::GeneratedImages(made) => made.image_size,
        _ => return faults,
    };
    if matches!(point.data, Data::GeneratedImages(made) if made.valid_images == 0)
        && point.train.target.is_some()
    {
        let message = "`train.target` needs a validation loss, but `data.valid_images` is 0";
        faults.push(fault("train.target", &["data", "train.target"], message));
    }
    let padding = point
        .data
        .augmentation()
        .map_or(0, |augmentation| augmentation.crop_padding);
    if padding >= size {
        let message = format!(
            "`data.crop_padding` {padding} allows crops without any pixel of the image, which is \
             {size} pixels wide; make it smaller"
        );
        faults.push(fault("data.crop_padding", &["data"], message));
    }
    faults
}

/// Checks that the column of dates is not used as a column of numbers.
fn of_panel(data: &Data) -> Vec<KeyFault> {
    let Data::PanelCsv(panel) = data else {
        return Vec::new();
    };
    let listed = panel
        .columns
        .iter()
        .flatten()
        .any(|column| *column == panel.date);
    let say = |key: &str| {
        let message = format!(
            "`{key}` names `{}`, which `data.date` names as the column of dates; name columns of \
             numbers",
            panel.date
        );
        fault(key, &["data"], message)
    };
    let named = [
        ("data.price", panel.price == panel.date),
        ("data.columns", listed),
    ];
    named
        .into_iter()
        .filter(|(_, names_dates)| *names_dates)
        .map(|(key, _)| say(key))
        .collect()
}

/// Checks that validation rows have one source, and that the two texts of a row have different
/// keys.
fn of_pairs(data: &Data) -> Vec<KeyFault> {
    let Data::SftJsonl(own) = data else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    if own.valid_path.is_some() && own.valid_fraction.is_some() {
        let message = "`data.valid_path` and `data.valid_fraction` are both given; keep one of \
                       them";
        faults.push(fault("data.valid_fraction", &["data"], message));
    }
    if own.prompt_key == own.response_key {
        let message = format!(
            "`data.prompt_key` and `data.response_key` are both `{}`; name the prompt and the \
             response",
            own.prompt_key
        );
        faults.push(fault("data.response_key", &["data"], message));
    }
    if own.end_token == own.unknown_token {
        let message = format!(
            "`data.end_token` and `data.unknown_token` are both `{}`, so every row would end with \
             the unknown token",
            own.end_token
        );
        faults.push(fault("data.unknown_token", &["data"], message));
    }
    faults
}

fn such_as(kind: &str) -> String {
    format!("name one that fits, such as `data: {{kind: {kind}}}`")
}

fn of_training(train: &Train) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let (LearningRateSchedule::Constant { warmup_steps }
    | LearningRateSchedule::Linear { warmup_steps, .. }
    | LearningRateSchedule::Cosine { warmup_steps, .. }
    | LearningRateSchedule::Plateau { warmup_steps, .. }) = train.learning_rate_schedule;
    if matches!(
        train.learning_rate_schedule,
        LearningRateSchedule::Plateau { .. }
    ) && train.evaluate.every == EvaluateEvery::Moment(EvaluateMoment::End)
    {
        let message = "`plateau` needs the validation loss during training, but \
                       `train.evaluate.every` is `end`; set it to `epoch` or a number of steps";
        faults.push(fault(
            "train.learning_rate_schedule.kind",
            &["train.evaluate", "train.learning_rate_schedule"],
            message,
        ));
    }
    if train.early_stop.is_some()
        && train.evaluate.every == EvaluateEvery::Moment(EvaluateMoment::End)
    {
        let message = "`early_stop` needs the validation loss during training, but \
                       `train.evaluate.every` is `end`; set it to `epoch` or a number of steps";
        faults.push(fault(
            "train.early_stop",
            &["train.evaluate", "train.early_stop"],
            message,
        ));
    }
    if let Some(steps) = train.steps.filter(|steps| warmup_steps > *steps) {
        let message = format!(
            "the learning rate would still rise at the end: `warmup_steps` {warmup_steps} is more \
             than `train.steps` {steps}"
        );
        faults.push(fault(
            "train.learning_rate_schedule.warmup_steps",
            &["train.steps", "train.learning_rate_schedule"],
            message,
        ));
    }
    if let Optimizer::Sgd {
        nesterov: true,
        momentum: 0.0,
        ..
    } = train.optimizer
    {
        let message = "`nesterov` needs momentum; set `train.optimizer.momentum`, such as 0.9";
        faults.push(fault(
            "train.optimizer.nesterov",
            &["train.optimizer"],
            message,
        ));
    }
    faults
}

/// Checks that only a model of text writes text, and only from a prompt that is a token.
fn of_sample(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let Some(sample) = &point.train.sample else {
        return Vec::new();
    };
    let (kind, reads) = (point.model.kind(), point.model.reads());
    if reads != Content::Text {
        let instead = if reads == Content::Pairs {
            "to get its responses, set `train.evaluate.generate`"
        } else {
            "remove it"
        };
        let message = format!(
            "`sample` writes text, but model kind `{kind}` reads {}; {instead}",
            reads.name()
        );
        return vec![fault(
            "train.sample",
            &["model.kind", "train.sample"],
            message,
        )];
    }
    let is_blank = sample.prompt.trim().is_empty() && !sample.prompt.contains('\n');
    if is_blank && point.data.tokenizer() == Some(Tokenizer::Word) {
        let message = "`prompt` has no word and no newline, so it is not a token; give a word of \
                       the text, or `\"\\n\"`";
        return vec![fault(
            "train.sample.prompt",
            &["data", "train.sample"],
            message,
        )];
    }
    Vec::new()
}

fn of_engine(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    if point.engine == Engine::Flex && point.train.precision != Precision::F32 {
        let message = "engine `flex` computes in `f32` only; set `train.precision: f32`, or \
                       `run.engine: libtorch`";
        faults.push(fault(
            "train.precision",
            &["run.engine", "train.precision"],
            message,
        ));
    }
    if point.engine == Engine::Libtorch
        && point.train.precision == Precision::Tf32
        && *point.devices == Devices::Named(DeviceName::Cpu)
    {
        let message = "`tf32` works on GPUs only, but `run.devices` is `cpu`; set \
                       `train.precision: f32`, or `run.devices` to a GPU";
        faults.push(fault(
            "train.precision",
            &["run.engine", "run.devices", "train.precision"],
            message,
        ));
    }
    let gpu = !matches!(
        point.devices,
        Devices::Named(DeviceName::Auto | DeviceName::Cpu)
    );
    if point.engine == Engine::Flex && gpu {
        let message = "engine `flex` runs on the CPU; set `run.devices: cpu`, or `run.engine: \
                       libtorch`";
        faults.push(fault(
            "run.devices",
            &["run.engine", "run.devices"],
            message,
        ));
    }
    faults.extend(of_devices(point));
    faults
}

/// A named GPU that no trial would use is an error.
fn of_devices(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let Devices::List(named) = point.devices else {
        return None;
    };
    let (named, each) = (named.len() as u64, point.devices_per_trial.max(1));
    let what = if named < each {
        "fewer than the"
    } else {
        "not a multiple of the"
    };
    let gpus = if named == 1 {
        "1 GPU"
    } else {
        &format!("{named} GPUs")
    };
    let message = format!(
        "`run.devices` names {gpus}, {what} {each} that each trial uses (`run.devices_per_trial`)"
    );
    (named % each != 0).then(|| {
        fault(
            "run.devices_per_trial",
            &["run.devices", "run.devices_per_trial"],
            message,
        )
    })
}

/// Returns the contradictions of a whole experiment, with their places in `tree`, which holds the
/// values of the layers without defaults.
///
/// `faulty` names keys that have other problems: contradictions that involve one of them are not
/// reported.
pub(super) fn check(
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
    faults.retain(|fault| !fault.involved.iter().any(|key| varied(key)));
    let mut problems: Vec<Problem> = faults
        .into_iter()
        .map(|fault| Problem::new(&locate(tree, &fault.key, top), fault.key, fault.message))
        .collect();
    if matches!(*experiment.model, Model::Matmul(_)) && !varied("model.kind") {
        problems.extend(ignored_by_matmul(tree));
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
        faults.push(fault("measure.sample_interval", &[], message));
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
        faults.push(fault("run.memory_limit", &[], message));
    }
    let spans = [("run.timeout", run.timeout), ("run.stall", Some(run.stall))];
    for (key, span) in spans
        .into_iter()
        .filter_map(|(key, span)| Some((key, span?)))
    {
        if span.0 < Duration::from_secs(1) {
            faults.push(fault(
                key,
                &[],
                format!("`{key}` is {span}; it must be at least 1s, or no trial could start"),
            ));
        }
    }
    if !run.wait.0.is_zero() && !run.require_idle_device {
        faults.push(fault(
            "run.wait",
            &[],
            "`run.wait` has no effect: `run.require_idle_device` is `false`, so kiln does not wait \
             for a device",
        ));
    }
    if run.cool_down.is_some() && run.devices == Devices::Named(DeviceName::Cpu) {
        faults.push(fault(
            "run.cool_down",
            &["run.devices"],
            "`run.cool_down` has no effect: `run.devices` is `cpu`, and cool-down applies to GPUs \
             only",
        ));
    }
    faults
}

fn ignored_by_matmul(tree: &Node) -> Vec<Problem> {
    let say = |key: &str| {
        format!("model kind `matmul` trains nothing, so `{key}` would be ignored; remove it")
    };
    let given = IGNORED_BY_MATMUL
        .iter()
        .filter_map(|key| tree.get("train")?.entry(key));
    let given = given.map(|entry| (format!("train.{}", entry.key), &entry.key_location));
    let sections = AXES.iter().filter_map(|section| tree.get_path(section));
    let axes = sections
        .flat_map(Node::entries)
        .filter(|entry| may_vary(&entry.key));
    let axes = axes.filter(|entry| {
        IGNORED_BY_MATMUL
            .iter()
            .any(|key| within(&entry.key, &format!("train.{key}")))
    });
    given
        .chain(axes.map(|entry| (entry.key.clone(), &entry.key_location)))
        .map(|(key, at)| Problem::new(at, key.clone(), say(&key)))
        .collect()
}

/// The place of a key in the file, or of the nearest map around it.
pub(super) fn locate(tree: &Node, key: &str, top: &Location) -> Location {
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
