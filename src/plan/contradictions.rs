//! Keys of one point that are each sound but not together: a stand-in until `spec` offers the same.

use super::settings::{Fault, Settings};
use crate::spec::{Engine, Optimizer, Precision};

/// What the keys of a point say against one another.
pub(super) fn contradictions(settings: &Settings) -> Vec<Fault> {
    let own = settings.model.contradictions().into_iter().map(|(key, message)| (format!("model.{key}"), message));
    own.chain(kinds_that_do_not_fit(settings)).chain(training_contradictions(settings)).collect()
}

fn kinds_that_do_not_fit(settings: &Settings) -> Option<Fault> {
    let model = settings.model.kind();
    match (settings.model.seq_len().is_some(), settings.data.is_text()) {
        (true, false) => Some((
            "data.kind".to_owned(),
            format!("`model.kind` {model} reads text, and `data.kind` is none; give one of wikitext2, tinyshakespeare, text, generated"),
        )),
        (false, true) => Some((
            "data.kind".to_owned(),
            format!("`model.kind` {model} makes its own operands, and `data.kind` is {}; leave `data` out", settings.data.kind()),
        )),
        _ => None,
    }
}

fn training_contradictions(settings: &Settings) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |key: &str, message: String| faults.push((key.to_owned(), message));
    let train = &settings.train;
    if train.steps.is_some() && train.epochs.is_some() {
        add("train.epochs", "`train.steps` and `train.epochs` are both given; keep one of them".to_owned());
    }
    if train.steps.is_none() && train.epochs.is_none() {
        add("train", "neither `train.steps` nor `train.epochs` is given; give one of them".to_owned());
    }
    if settings.engine == Engine::Flex && train.precision != Precision::F32 {
        let precision = train.precision.name();
        add("train.precision", format!("`run.engine` flex computes in f32, and `train.precision` is {precision}; use f32 or engine libtorch"));
    }
    if matches!(train.optimizer, Optimizer::Sgd { nesterov: true, momentum, .. } if momentum == 0.0) {
        add("train.optimizer.nesterov", "`nesterov` needs a `momentum` above 0".to_owned());
    }
    faults
}
