//! Tests generated from the table of keys: each key misspelled, given a value of another type, and
//! given twice, with the exact line, column and suggestion expected; each key changed, in a layer and
//! by a point of a sweep.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::{fs, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    Experiment, ExperimentRequest, Problems, Train, apply_override,
    axes::may_vary,
    keys::{self, KeyLookup, KnownKey},
    load,
    shapes::{KeyShape, join},
};
use crate::kinds::{Data, Model};

/// A file whose last line gives `key` (or a misspelling of its last name) the value, inside maps of
/// the right kind.
fn document(known: &KnownKey, name: &str, value: &str) -> (String, usize, usize) {
    let mut text = "kiln: 1\nname: x\nmodel: {kind: gpt}\ndata: {kind: generated}\ntrain: {steps: \
                    5}\n"
        .to_owned();
    let names: Vec<&str> = known.path.split('.').collect();
    text = text
        .lines()
        .filter(|line| !line.starts_with(&format!("{}:", names[0])))
        .map(|line| format!("{line}\n"))
        .collect();
    for depth in 0..names.len() - 1 {
        let indent = "  ".repeat(depth);
        text.push_str(&format!("{indent}{}:\n", names[depth]));
        let path = names[..=depth].join(".");
        if let Some((_, kind)) = known.kind.as_ref().filter(|(map, _)| *map == path) {
            text.push_str(&format!("{indent}  kind: {kind}\n"));
        }
    }
    let indent = (names.len() - 1) * 2;
    text.push_str(&format!("{}{name}: {value}\n", " ".repeat(indent)));
    (text.clone(), text.lines().count(), indent + 1)
}

struct Folder(TempDir);

impl Folder {
    /// A small experiment with these `--set`s.
    fn with(&self, set: &[String]) -> Result<Experiment, Problems> {
        let file = self.0.path().join("x.yaml");
        let text = "kiln: 1\nname: x\nmodel: {kind: gpt}\ndata: {kind: generated}\ntrain: {steps: \
                    50}\n";
        fs::write(&file, text).unwrap();
        let request = ExperimentRequest {
            file,
            set: set.to_vec(),
            ..ExperimentRequest::default()
        };
        load(&request).map(|loaded| loaded.experiment)
    }

    fn problems(&self, text: &str) -> Vec<String> {
        let file: PathBuf = self.0.path().join("x.yaml");
        fs::write(&file, text).unwrap();
        let prefix = format!("{}:", file.display());
        let request = ExperimentRequest {
            file,
            ..ExperimentRequest::default()
        };
        match load(&request) {
            Ok(_) => Vec::new(),
            Err(problems) => problems
                .to_string()
                .lines()
                .map(|line| line.replacen(&prefix, "", 1))
                .collect(),
        }
    }
}

pub(super) fn every_key() -> &'static [KnownKey] {
    let keys = keys::every_key();
    assert!(keys.len() > 80);
    keys
}

pub(super) fn shape(known: &KnownKey) -> KeyShape {
    let kinds = |path: &str| {
        known
            .kind
            .iter()
            .filter(|(map, _)| map == path)
            .map(|(_, kind)| kind.clone())
            .collect()
    };
    match keys::find(&known.path, &kinds) {
        KeyLookup::Shapes(mut shapes) => shapes.remove(0),
        _ => panic!("{}", known.path),
    }
}

fn last(known: &KnownKey) -> &str {
    known.path.rsplit('.').next().unwrap()
}

#[test]
fn every_key_misspelled_is_found_with_its_name_suggested() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let wrong = format!("{}x", last(known));
        let (text, line, column) = document(known, &wrong, "1");
        let full = join(
            known.path.rsplit_once('.').map_or("", |(parent, _)| parent),
            &wrong,
        );
        let expected = format!(
            "{line}:{column}: unknown key `{full}`; did you mean `{}`?",
            last(known)
        );
        let found = folder.problems(&text);
        assert!(
            found.contains(&expected),
            "{expected}\nnot in\n{}\nof\n{text}",
            found.join("\n")
        );
    }
}

/// Returns a value that is invalid for this shape.
fn mistyped(shape: &KeyShape) -> &'static str {
    match shape {
        KeyShape::Text(_) | KeyShape::TimeSpan | KeyShape::ByteSize | KeyShape::Choice(_) => {
            "[{a: 1}]"
        }
        KeyShape::List(_)
        | KeyShape::Arguments { .. }
        | KeyShape::Map(_)
        | KeyShape::Named(_)
        | KeyShape::Tagged(_)
        | KeyShape::Free
        | KeyShape::Anything => "17",
        KeyShape::Scalar { .. } => "[1]",
        KeyShape::Integer { .. } | KeyShape::Number(_) | KeyShape::Bool => "seventeen",
        KeyShape::Any(_) => "{a: 1}",
    }
}

#[test]
fn every_key_mistyped_is_found_at_its_value() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let value = mistyped(&shape(known));
        let (text, line, column) = document(known, last(known), value);
        let place = format!(
            "{line}:{}: `{}` is ",
            column + last(known).len() + 2,
            known.path
        );
        let found = folder.problems(&text);
        let held = found
            .iter()
            .any(|problem| problem.starts_with(&place) && problem.contains("; it must be "));
        assert!(held, "{place}\nnot in\n{}\nof\n{text}", found.join("\n"));
    }
}

#[test]
fn every_key_given_twice_is_found_at_the_second() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let (text, line, column) = document(known, last(known), "1");
        let (twice, second) = (
            format!("{text}{}{}: 1\n", " ".repeat(column - 1), last(known)),
            line + 1,
        );
        let expected = format!(
            "{second}:{column}: duplicate key `{}`; it is first given on line {line}, keep one of \
             them",
            known.path
        );
        let found = folder.problems(&twice);
        assert!(
            found.contains(&expected),
            "{expected}\nnot in\n{}\nof\n{twice}",
            found.join("\n")
        );
    }
}

#[test]
fn every_key_left_empty_is_found() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let (text, line, _) = document(known, last(known), "");
        let found = folder.problems(&text);
        let is_free = match shape(known) {
            KeyShape::Free => true,
            KeyShape::List(item) => matches!(*item, KeyShape::Free),
            _ => false,
        };
        let words = if is_free {
            format!("`{}` is empty", known.path)
        } else {
            format!("`{}` has no value", known.path)
        };
        let held = found
            .iter()
            .any(|problem| problem.starts_with(&format!("{line}:")) && problem.contains(&words));
        assert!(held, "{words}\nnot in\n{}\nof\n{text}", found.join("\n"));
    }
}

/// Returns a valid value of this shape other than `now`; `None` for maps, and if there is only one.
fn another(known: &KnownKey, now: &Value) -> Option<String> {
    let value = match shape(known) {
        KeyShape::Integer { min, max } if min == max => return None,
        KeyShape::Integer { .. } if known.path == "model.depth" => "34".to_owned(),
        KeyShape::Integer { min, max } => match now.as_u64() {
            Some(now) if now > 0 && i128::from(now) * 2 <= max => (now * 2).to_string(),
            Some(now) if now > 0 => min.to_string(),
            _ => (min + 1).to_string(),
        },
        KeyShape::Number(range) => (range.max.unwrap_or(2.5) * 0.5).to_string(),
        KeyShape::Bool => (!now.as_bool().unwrap_or_default()).to_string(),
        KeyShape::Text(_) if known.path.ends_with(".sha256") => "ab".repeat(32),
        KeyShape::Text(_) => "another".to_owned(),
        KeyShape::TimeSpan => "77s".to_owned(),
        KeyShape::ByteSize => "77GiB".to_owned(),
        // Other data would be needed as well; `crates/trial/tests/alone/every_key` shows that the
        // key has an effect.
        KeyShape::Choice(_) if known.path == "model.reads" => return None,
        KeyShape::Choice(words) => words.into_iter().find(|word| now != word)?,
        KeyShape::Any(_) if known.path == "run.engine" => "flex".to_owned(),
        KeyShape::Any(_) if known.path.ends_with(".metric") => "train_loss".to_owned(),
        KeyShape::Any(_) if known.path == "run.devices" => "cpu".to_owned(),
        KeyShape::Any(_) if known.path == "data.pin_memory" => "true".to_owned(),
        KeyShape::Any(_) => "3".to_owned(),
        KeyShape::List(_) if known.path.ends_with(".without") => "[embedding]".to_owned(),
        KeyShape::Map(_)
        | KeyShape::Tagged(_)
        | KeyShape::Named(_)
        | KeyShape::List(_)
        | KeyShape::Arguments { .. }
        | KeyShape::Scalar { .. }
        | KeyShape::Free
        | KeyShape::Anything => return None,
    };
    Some(value)
}

/// Keys that a kind of the map also needs.
fn beside_kind(kind: &str) -> &'static [&'static str] {
    match kind {
        "data.kind=text" => &["data.path=a.txt"],
        "data.kind=fashion-mnist" | "data.kind=cifar10" | "data.kind=generated-images" => {
            &["model.kind=resnet"]
        }
        "data.kind=image-folder" => &["model.kind=resnet", "data.path=images"],
        "data.kind=stocknet" => &["model.kind=panel-lstm"],
        "data.kind=panel-csv" => &[
            "model.kind=panel-lstm",
            "data.path=prices",
            "data.price=Close",
        ],
        "data.kind=chatlm" => &["model.kind=seq2seq"],
        "data.kind=sft-jsonl" => &[
            "model.kind=seq2seq",
            "data.path=rows.jsonl",
            "data.tokenizer=tokenizer.json",
        ],
        "model.kind=seq2seq" => &["data.kind=chatlm"],
        "model.kind=resnet" => &["data.kind=generated-images"],
        "model.kind=panel-lstm" => &["data.kind=stocknet"],
        "model.kind=command" => &["model.argv=[a]", "data=null", "train=null"],
        "model.kind=custom" => &["model.name=mine", "model.reads=text", "model.seq_len=8"],
        "sweep.search.kind=successive-halving" => &[
            "sweep.search.axes={train.batch_size: [4, 8]}",
            "sweep.search.metric=valid_loss",
            "sweep.search.steps=10",
        ],
        "train.learning_rate_schedule.kind=plateau" => &["train.evaluate.every=10"],
        _ => &[],
    }
}

/// Settings that are required before the key may be given.
fn beside(known: &KnownKey) -> Vec<String> {
    let more: &[&str] = match known.path.as_str() {
        "model.size"
            if known
                .kind
                .as_ref()
                .is_some_and(|(_, kind)| kind == "matmul") =>
        {
            &["data=null"]
        }
        "objective.goal" => &["objective.metric=valid_loss"],
        "train.optimizer.nesterov" => &["train.optimizer.momentum=0.5"],
        "train.early_stop.patience" => &["train.evaluate.every=10"],
        "train.checkpoint.keep" | "train.checkpoint.after" => &["train.checkpoint.every_steps=10"],
        path if path.starts_with("train.initial_weights.") => {
            &["train.initial_weights={path: weights.safetensors, sha256: \
               cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd}"]
        }
        path if path.starts_with("train.evaluate.generate.") => {
            &["model.kind=seq2seq", "data.kind=chatlm"]
        }
        path if path.starts_with("sweep.sample.") => {
            &["sweep.sample={count: 3, seed: 5, axes: {train.batch_size: {from: 2, to: 64}}}"]
        }
        "measure.gradient_noise.every" => &["train.grad_accumulation=2"],
        "measure.gradient_noise.layer_groups" => &[
            "train.grad_accumulation=2",
            "measure.gradient_noise.every=10",
        ],
        "run.cool_down.at_most" => &["run.cool_down.below_celsius=50"],
        _ => &[],
    };
    let kind = known
        .kind
        .as_ref()
        .map(|(map, kind)| format!("{map}.kind={kind}"));
    let needed = kind.as_deref().map(beside_kind).unwrap_or_default();
    kind.into_iter()
        .chain(
            needed
                .iter()
                .chain(more)
                .map(|argument| (*argument).to_owned()),
        )
        .collect()
}

#[test]
fn every_key_changes_the_experiment() {
    let folder = Folder(TempDir::new().unwrap());
    let value_at = |path: &str, set: &[String]| {
        let loaded = folder.with(set);
        let experiment = loaded.unwrap_or_else(|problems| panic!("{set:?}\n{problems}"));
        serde_json::to_value(experiment)
            .unwrap()
            .pointer(&format!("/{}", path.replace('.', "/")))
            .cloned()
            .unwrap_or_default()
    };
    let mut changed = 0;
    for known in every_key()
        .iter()
        .filter(|known| !known.path.ends_with(".kind"))
    {
        let base = beside(known);
        let now = value_at(&known.path, &base);
        let Some(value) = another(known, &now) else {
            continue;
        };
        let with = [base.clone(), vec![format!("{}={value}", known.path)]].concat();
        // The values that a size sets are written out in its place.
        let seen = match known.path.as_str() {
            "model.size" => "model",
            path if path.starts_with("sweep.sample.") => "sweep.zip",
            path => path,
        };
        assert_ne!(
            value_at(seen, &with),
            value_at(seen, &base),
            "{}",
            known.path
        );
        changed += 1;
    }
    assert!(changed > 60, "{changed}");
}

/// The parts of an experiment that a sweep may vary, after a point has set a key.
fn point(experiment: &Experiment, key: &str, value: &str) -> (Model, Data, Train, Value) {
    let mut sections = serde_json::to_value(experiment).unwrap();
    apply_override(&mut sections, key, &serde_yaml::from_str(value).unwrap());
    let section = |name: &str| sections[name].clone();
    (
        serde_json::from_value(section("model")).unwrap(),
        serde_json::from_value(section("data")).unwrap(),
        serde_json::from_value(section("train")).unwrap(),
        section("run"),
    )
}

fn assert_point_is_like_set(folder: &Folder, base: &[String], key: &str, value: &str) {
    let set = [base, &[format!("{key}={value}")]].concat();
    let set = folder.with(&set).unwrap_or_else(|p| panic!("{set:?}\n{p}"));
    let expected = (
        (*set.model).clone(),
        set.data,
        set.train,
        serde_json::to_value(set.run).unwrap(),
    );
    let base_experiment = folder.with(base).unwrap();
    assert_eq!(
        point(&base_experiment, key, value),
        expected,
        "{base:?} {key}={value}"
    );
}

#[test]
fn a_point_of_a_sweep_is_merged_like_a_set() {
    let folder = Folder(TempDir::new().unwrap());
    let custom = ["kind=custom", "name=mine", "reads=images", "stem.kernel=3"];
    let custom = custom.map(|set| format!("model.{set}"));
    let custom = [&custom[..], &["data.kind=generated-images".to_owned()]].concat();
    for (base, key, value) in [
        (&[][..], "train.optimizer", "{kind: sgd, momentum: 0.9}"),
        (&[], "train.optimizer", "{learning_rate: 0.5, beta1: null}"),
        (&[], "train.optimizer.kind", "sgd"),
        (&[], "train.epochs", "3"),
        (&[], "train.checkpoint", "{every_steps: 5}"),
        (&[], "train.target.valid_loss", "2.5"),
        (&[], "model", "{kind: mlp, hidden: 8}"),
        (&[], "model.kind", "mlp"),
        (&custom, "model.stem", "{stride: 2}"),
        (&custom, "model.stem.kernel", "null"),
        (&custom, "model.head.width", "9"),
        (&custom, "model.stem", "null"),
    ] {
        assert_point_is_like_set(&folder, base, key, value);
    }
    let mut compared = 0;
    for known in every_key() {
        let is_kind = known.path.ends_with(".kind");
        // A size gives the defaults of other keys: a file that sweeps it leaves them open.
        if !may_vary(&known.path) || is_kind || known.path == "model.size" {
            continue;
        }
        let base = beside(known);
        let now = serde_json::to_value(folder.with(&base).unwrap()).unwrap();
        let now = now.pointer(&format!("/{}", known.path.replace('.', "/")));
        let Some(value) = another(known, now.unwrap_or(&Value::Null)) else {
            continue;
        };
        assert_point_is_like_set(&folder, &base, &known.path, &value);
        let given = [base, vec![format!("{}={value}", known.path)]].concat();
        // Some keys have no default.
        let null = [&given[..], &[format!("{}=null", known.path)]].concat();
        if folder.with(&null).is_ok() {
            assert_point_is_like_set(&folder, &given, &known.path, "null");
        }
        compared += 1;
    }
    assert!(compared > 60, "{compared}");
}
