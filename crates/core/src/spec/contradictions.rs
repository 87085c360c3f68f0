//! Keys that are valid alone but contradict each other.
//!
//! [`contradictions`] checks one point of the sweep; the experiment's own values are checked when
//! the file is checked, unless an axis varies one of the keys involved: then the plan checks each
//! of its points.

mod command;
mod data;
mod experiment;
mod patterns;
mod search;

pub(super) use command::is_unused;
pub(crate) use data::TWO_TOKENIZERS;
pub(super) use experiment::{check, is_ignored, locate};
pub use patterns::PatternMemo;

use super::{
    engine::Engine,
    experiment::{EvaluateEvery, EvaluateMoment, Precision, Train},
    optimizer::{LearningRateSchedule, Optimizer},
    run_options::{DeviceName, Devices},
    suggest::listed,
};
use crate::kinds::{Content, Data, KeyFault, Model, data::Tokenizer};

/// One point of a sweep, everything resolved.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedPoint<'a> {
    pub model: &'a Model,
    pub data: &'a Data,
    pub train: &'a Train,
    pub engine: Engine,
    pub devices: &'a Devices,
    pub devices_per_trial: u64,
    pub patterns: &'a PatternMemo,
    /// The keys that the expressions of `sweep.derive` use.
    pub sources: &'a [String],
}

/// Returns the contradictions among the keys of one point.
pub fn contradictions(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let own = point
        .model
        .contradictions()
        .into_iter()
        .map(|own| KeyFault::between(own.key, &["model"], own.message).within("model"));
    let others = of_length(point)
        .into_iter()
        .chain(data::of_data(point))
        .chain(of_training(point.train))
        .chain(of_initial_weights(point))
        .chain(of_sample(point))
        .chain(of_engine(point));
    own.chain(command::of_command(point))
        .chain(others)
        .collect()
}

fn of_length(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let both = ["train.steps", "train.epochs"];
    match (point.train.steps, point.train.epochs, point.model) {
        (None, None, Model::Command(_)) => Vec::new(),
        (None, None, _) => vec![KeyFault::between(
            "train",
            &both,
            "neither `train.steps` nor `train.epochs` is given; give one of them",
        )],
        (Some(_), Some(_), _) => vec![KeyFault::between(
            "train.epochs",
            &both,
            "`train.steps` and `train.epochs` are both given; keep one of them",
        )],
        _ => Vec::new(),
    }
}

fn of_training(train: &Train) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let warmup_steps = train.learning_rate_schedule.warmup_steps();
    if matches!(
        train.learning_rate_schedule,
        LearningRateSchedule::Plateau { .. }
    ) && train.evaluate.every == EvaluateEvery::Moment(EvaluateMoment::End)
    {
        let message = "`plateau` needs the validation loss during training, but \
                       `train.evaluate.every` is `end`; set it to `epoch` or a number of steps";
        faults.push(KeyFault::between(
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
        faults.push(KeyFault::between(
            "train.early_stop",
            &["train.evaluate", "train.early_stop"],
            message,
        ));
    }
    if let Some(steps) = train.steps.filter(|steps| warmup_steps > *steps) {
        let message = format!(
            "the learning rate would still rise at the end: `warmup_steps` {warmup_steps} is more \
             than `train.steps` {steps}; lower `train.learning_rate_schedule.warmup_steps`"
        );
        faults.push(KeyFault::between(
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
        faults.push(KeyFault::between(
            "train.optimizer.nesterov",
            &["train.optimizer"],
            message,
        ));
    }
    faults
}

/// Checks that `train.initial_weights.without` names parts of the model. Only the trial knows those of a
/// user's own model.
fn of_initial_weights(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let weights = point.train.initial_weights.as_ref()?;
    if matches!(point.model, Model::Custom(_)) {
        return None;
    }
    let parts: Vec<String> = point
        .model
        .parts()
        .iter()
        .map(|part| part.name.to_owned())
        .collect();
    let unknown = weights.without.iter().find(|name| !parts.contains(name))?;
    let key = "train.initial_weights.without";
    let message = format!(
        "`{key}` names `{unknown}`; for model kind `{}` it may name {}",
        point.model.kind(),
        listed(&parts, "and")
    );
    let involved = ["model.kind", "train.initial_weights"];
    Some(KeyFault::between(key, &involved, message))
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
        return vec![KeyFault::between(
            "train.sample",
            &["model.kind", "train.sample"],
            message,
        )];
    }
    let is_blank = sample.prompt.trim().is_empty() && !sample.prompt.contains('\n');
    if is_blank && point.data.tokenizer() == Some(Tokenizer::Word) {
        let message = "`prompt` has no word and no newline, so it is not a token; give a word of \
                       the text, or `\"\\n\"`";
        return vec![KeyFault::between(
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
        faults.push(KeyFault::between(
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
        faults.push(KeyFault::between(
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
        faults.push(KeyFault::between(
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
        KeyFault::between(
            "run.devices_per_trial",
            &["run.devices", "run.devices_per_trial"],
            message,
        )
    })
}
