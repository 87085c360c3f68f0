//! `sweep.derive` in a file and in layers above it, through [`load`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use serde_json::{Value, json};

use super::{Experiment, ExperimentRequest, Sweep, load, write_resolved};

const BASE: &str = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n\
    train: {steps: 5}\n";
const DERIVED: &str = "{grid: {train.batch_size: [8, 16]}, derive: {train.grad_accumulation: 64 / \
    train.batch_size}}";

fn request(sweep: &str, set: &[&str]) -> ExperimentRequest {
    ExperimentRequest {
        file: "x.yaml".into(),
        text: Some(format!("{BASE}sweep: {sweep}\n")),
        set: set.iter().map(|set| (*set).to_owned()).collect(),
        ..ExperimentRequest::default()
    }
}

fn sweep(sweep: &str, set: &[&str]) -> Sweep {
    let loaded = load(&request(sweep, set)).unwrap_or_else(|problems| panic!("{problems}"));
    loaded.experiment.sweep
}

#[test]
fn an_expression_stays_as_written_and_is_read_back() {
    let loaded = load(&request(DERIVED, &[])).unwrap();
    let derive = Value::from(loaded.experiment.sweep.derive.clone());
    let written = json!({"train.grad_accumulation": "64 / train.batch_size"});
    assert_eq!(derive, written);
    let resolved: Experiment = serde_yaml::from_str(&write_resolved(&loaded)).unwrap();
    assert_eq!(resolved.sweep, loaded.experiment.sweep);
}

#[test]
fn an_upper_layer_adds_replaces_and_removes_an_expression() {
    let plain = "{grid: {train.batch_size: [8, 16]}}";
    let key = "train.grad_accumulation";
    let set = "sweep.derive.train.grad_accumulation=64/train.batch_size";
    let added = sweep(plain, &[set]);
    assert_eq!(added.derive[key], json!("64/train.batch_size"));
    let replaced = sweep(DERIVED, &["train.grad_accumulation=4"]);
    assert!(replaced.derive.is_empty());
    assert_eq!(replaced.grid[key], json!([4]));
    let removed = sweep(DERIVED, &["sweep.derive.train.grad_accumulation=null"]);
    assert!(removed.derive.is_empty() && removed.grid.get(key).is_none());
    let listed = sweep(DERIVED, &["sweep.grid.train.grad_accumulation=[1, 2]"]);
    assert!(listed.derive.is_empty());
    let swept = "{grid: {train.batch_size: [8], train.grad_accumulation: [1, 2]}}";
    let derived = sweep(swept, &[set]);
    assert_eq!(derived.grid.get(key), None);
    assert_eq!(derived.derive.len(), 1);
    let of_one = sweep(DERIVED, &["train.batch_size=32"]);
    assert_eq!(of_one.grid["train.batch_size"], json!([32]));
    assert_eq!(of_one.derive.len(), 1);
}

#[test]
fn a_value_for_a_derived_key_adds_no_point_to_included_ones() {
    let included = "{include: [{train.batch_size: 8}, {train.batch_size: 16}], derive: \
                    {train.grad_accumulation: 64 / train.batch_size}}";
    let loaded = load(&request(included, &["train.grad_accumulation=4"])).unwrap();
    let sweep = &loaded.experiment.sweep;
    assert!(sweep.derive.is_empty() && sweep.grid.is_empty());
    assert_eq!(loaded.experiment.train.grad_accumulation, 4);
}

#[test]
fn a_faulty_expression_says_what_is_wrong() {
    let derive = |text: &str| format!("{{grid: {{train.batch_size: [8]}}, derive: {text}}}");
    let accumulation = |text: &str| derive(&format!("{{train.grad_accumulation: {text}}}"));
    let cases = [
        (derive("[1]"), "`sweep.derive` is a list; it must be a map"),
        (accumulation("8"), "is `8`; it must be an expression"),
        (accumulation("8 * 2"), "which uses no key"),
        (accumulation("64 /"), "expected a number, a key or `(`"),
        (
            accumulation("max(1, 64 / train.batch_size)"),
            "found the end of the expression; in a map within `{}` a comma ends the expression, so \
             put it in quotes",
        ),
        (
            accumulation("64 / batch_size"),
            "unknown key `batch_size`; did you mean `train.batch_size`?",
        ),
        (
            accumulation("64 / train.batch_siz"),
            "unknown key `train.batch_siz`; did you mean `train.batch_size`?",
        ),
        (
            accumulation("measure.log_every * 2"),
            "expressions use keys of `model`, `data` and `train`",
        ),
        (
            accumulation("8 * train.precision"),
            "uses `train.precision`, which does not hold numbers",
        ),
        (
            accumulation("train.grad_accumulation * 2"),
            "`sweep.derive.train.grad_accumulation` uses itself",
        ),
        (
            derive("{train.grad_accumulation: 64 / train.seed, train.seed: train.batch_size}"),
            "uses `train.seed`, which is derived too",
        ),
        (
            derive("{train.batch_size: train.seed}"),
            "`train.batch_size` is in both `sweep.derive` and `sweep.grid`",
        ),
        (
            derive("{train.seed: train.batch_size}, include: [{train.seed: 3}]"),
            "`train.seed` is in both `sweep.derive` and `sweep.include`",
        ),
        (
            derive("{train.seed: train.batch_size}, repeats: 2"),
            "`train.seed` is derived while `sweep.repeats` is 2",
        ),
        (
            derive("{train.grad_accumulation: 8 * train.seed}, repeats: 2"),
            "uses `train.seed` while `sweep.repeats` is 2",
        ),
        (
            derive("{train.seed: train.batch_size}, together: [train.seed]"),
            "which is not an axis of this sweep",
        ),
        (
            derive("{train.precision: train.batch_size}"),
            "`train.precision` does not hold numbers",
        ),
        (
            derive("{train.epochs: train.batch_size, train.steps: train.batch_size}"),
            "cannot both vary",
        ),
        (
            derive("{train.optimizer.momentum: train.batch_size}"),
            "`train.optimizer.momentum` is not a key of kind `adamw`",
        ),
        (
            "{search: {kind: workers}, derive: {train.seed: train.batch_size}}".to_owned(),
            "`sweep.derive` is for listed points",
        ),
    ];
    for (sweep, part) in cases {
        let problems = load(&request(&sweep, &[])).unwrap_err().to_string();
        assert!(problems.contains(part), "{sweep}: {problems}");
        assert!(problems.starts_with("x.yaml:6:"), "{sweep}: {problems}");
    }
}

#[test]
fn values_of_a_command_are_derived_and_used() {
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [a, '{batch}', '{rate}'], values: \
                {batch: 8, rate: 0.1}}\nsweep: {grid: {model.values.batch: [8, 16]}, derive: \
                {model.values.rate: 0.1 * model.values.BATCH / 8}}\n";
    let load = |text: String| {
        load(&ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text),
            ..ExperimentRequest::default()
        })
    };
    let problems = load(text.to_owned()).unwrap_err().to_string();
    assert!(
        problems.contains("did you mean `model.values.batch`?"),
        "{problems}"
    );
    let right = text.replace("BATCH", "batch");
    load(right.clone()).unwrap_or_else(|problems| panic!("{problems}"));
    // A value that only an expression uses reaches no argument.
    let multiplied = right
        .replace("values: {", "values: {scale: 1, ")
        .replace("0.1 *", "0.1 * model.values.scale *");
    load(multiplied.clone()).unwrap_or_else(|problems| panic!("{problems}"));
    let unused = multiplied.replace("model.values.scale *", "");
    let problems = load(unused).unwrap_err().to_string();
    assert!(
        problems.contains("`model.values.scale` is not used"),
        "{problems}"
    );
}

#[test]
fn a_value_that_only_a_replaced_expression_used_is_left_out() {
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [a, '{batch}', '{rate}'], values: \
                {batch: 8, rate: 0.1, scale: 2}}\nsweep: {grid: {model.values.batch: [8, 16]}, \
                derive: {model.values.rate: 0.1 * model.values.scale * model.values.batch}}\n";
    let load_with = |text: &str, set: &[&str]| {
        load(&ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text.to_owned()),
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..ExperimentRequest::default()
        })
    };
    let derived = load_with(text, &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert!(derived.left_out.is_empty());
    let set = "model.values.rate=0.5";
    let loaded = load_with(text, &[set]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(loaded.left_out, ["model.values.scale"]);
    let names: Vec<&String> = loaded
        .experiment
        .model
        .command()
        .unwrap()
        .values
        .keys()
        .collect();
    assert_eq!(names, ["batch", "rate"]);
    assert_eq!(
        loaded.experiment.sweep.grid["model.values.rate"],
        json!([0.5])
    );
    load_with(&write_resolved(&loaded), &[]).unwrap_or_else(|problems| panic!("{problems}"));
    // A value that is given anew and has no use is a mistake.
    let both = load_with(text, &["model.values.scale=3", set]);
    let problems = both.unwrap_err().to_string();
    assert!(
        problems.contains("`model.values.scale` is not used"),
        "{problems}"
    );
}

#[test]
fn a_comma_is_blamed_only_where_one_cut_the_expression() {
    let derived = "train.grad_accumulation";
    let flow =
        |text: &str| format!("{{grid: {{train.batch_size: [8]}}, derive: {{{derived}: {text}}}}}");
    let block = format!(
        "\n  grid: {{train.batch_size: [8]}}\n  derive:\n    {derived}: max(1, train.batch_size"
    );
    for (text, is_cut) in [
        (flow("max(1, 64 / train.batch_size)"), true),
        (flow("min(64, max(1, train.batch_size))"), true),
        (flow("\"max(1, 64 / train.batch_size\""), false),
        (flow("64 / (train.batch_size"), false),
        (block, false),
    ] {
        let problems = load(&request(&text, &[])).unwrap_err().to_string();
        assert!(problems.contains("expected `)`"), "{text}: {problems}");
        let is_blamed = problems.contains("a comma ends the expression");
        assert_eq!(is_blamed, is_cut, "{text}: {problems}");
    }
}
