//! A point in place of a sweep is the trial that the sweep has there; a value in place of an expression.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use serde_json::Value;

use super::expand;
use crate::spec::{ExperimentRequest, FixedPoint, Loaded, load, swept_file, write_point};

const BASE: &str = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n\
    train: {steps: 5, optimizer: {kind: adamw, learning_rate: 1.0e-3}}\nrun: {engine: flex}\n";

fn request(sweep: &str, set: &[&str]) -> ExperimentRequest {
    ExperimentRequest {
        file: "x.yaml".into(),
        text: Some(format!("{BASE}sweep: {sweep}\n")),
        set: set.iter().map(|set| (*set).to_owned()).collect(),
        ..ExperimentRequest::default()
    }
}

/// The ids of a file's trials in listed order, with the values of its axes.
fn trials(request: &ExperimentRequest) -> Vec<(String, Vec<(String, Value)>)> {
    let experiment = load(request).unwrap().experiment;
    let trials = expand(&experiment, &|_| None).unwrap().trials;
    let pairs = trials.into_iter().map(|trial| (trial.id.0, trial.axes));
    pairs.collect()
}

#[test]
fn a_value_for_a_derived_key_adds_no_point_to_included_ones() {
    let included = "{include: [{train.batch_size: 8}, {train.batch_size: 16}], derive: \
                    {train.grad_accumulation: 64 / train.batch_size}}";
    let request = request(included, &["train.grad_accumulation=4"]);
    let experiment = load(&request).unwrap().experiment;
    let trials = expand(&experiment, &|_| None).unwrap().trials;
    let sizes: Vec<(u64, u64)> = trials
        .iter()
        .map(|trial| (trial.train.batch_size, trial.train.grad_accumulation))
        .collect();
    assert_eq!(sizes, [(8, 4), (16, 4)]);
}

fn fixed(sweep: &str, values: Vec<(String, Value)>, set: &[&str]) -> ExperimentRequest {
    let request = request(sweep, set);
    let point = Some(point_of(&request, values));
    ExperimentRequest { point, ..request }
}

/// A point in place of the sweep of a file.
fn point_of(request: &ExperimentRequest, values: Vec<(String, Value)>) -> FixedPoint {
    let file = swept_file(request).unwrap();
    FixedPoint {
        name: "--at x:t1".to_owned(),
        swept: file.swept,
        derived: file.derived,
        values,
    }
}

/// The values of a key alone.
fn of_key(key: &str, values: Vec<(String, Value)>) -> Vec<(String, Value)> {
    values.into_iter().filter(|(name, _)| name == key).collect()
}

#[test]
fn a_fixed_point_is_the_trial_of_that_point_whatever_form_the_sweep_has() {
    let forms = [
        "{grid: {train.batch_size: [4, 8], train.grad_accumulation: [1, 2]}}",
        "{zip: {train.batch_size: [4, 8], train.grad_accumulation: [1, 2]}}",
        "{grid: {train.batch_size: [4, 8, 16]}, exclude: [{train.batch_size: \">8\"}], \
         include: [{train.batch_size: 32}]}",
        "{sample: {count: 3, axes: {train.batch_size: {from: 1, to: 64}}}}",
        "{grid: {train.cpu_threads: [1, 2], train.batch_size: [4, 8]}, together: \
         [train.cpu_threads]}",
        "{grid: {train.optimizer: [{kind: sgd, momentum: 0.5}, {kind: adamw}]}}",
        "{grid: {run.engine: [flex, libtorch], train.batch_size: [4, 8]}}",
        "{grid: {train.batch_size: [4, 8]}, derive: {train.grad_accumulation: 16 / \
         train.batch_size, train.optimizer.learning_rate: 1e-3 * sqrt(train.batch_size)}}",
    ];
    for form in forms {
        for (id, values) in trials(&request(form, &[])) {
            let one = trials(&fixed(form, values.clone(), &[]));
            let ids: Vec<&str> = one.iter().map(|(id, _)| id.as_str()).collect();
            assert_eq!(ids, [id], "{form} {values:?}");
        }
    }
}

#[test]
fn repeats_stay_and_a_set_lies_above_the_point() {
    let form = "{grid: {train.batch_size: [4, 8]}, repeats: 2}";
    let values = vec![("train.batch_size".to_owned(), Value::from(8))];
    let all = trials(&request(form, &[]));
    let of_eight: Vec<&str> = all
        .iter()
        .filter(|(_, axes)| axes[0].1 == 8)
        .map(|(id, _)| id.as_str())
        .collect();
    let one = trials(&fixed(form, values.clone(), &["sweep.repeats=3"]));
    let ids: Vec<&str> = one.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!((ids.len(), &ids[..2]), (3, &of_eight[..]));
    let loaded = load(&fixed(form, values.clone(), &[])).unwrap();
    let layer = |loaded: &Loaded| {
        let mut origins = loaded.origins.iter();
        let found = origins.find(|origin| origin.key == "train.batch_size");
        found.map(|origin| (origin.value.clone(), origin.layer.clone()))
    };
    assert_eq!(
        layer(&loaded),
        Some((Value::from(8), "--at x:t1".to_owned()))
    );
    let above = load(&fixed(form, values, &["train.batch_size=16"])).unwrap();
    assert_eq!(layer(&above).unwrap().0, Value::from(16));
    let again = ["sweep.grid.train.batch_size=[6, 7]"];
    let values = vec![("train.batch_size".to_owned(), Value::from(8))];
    assert_eq!(trials(&fixed(form, values, &again)).len(), 4);
}

#[test]
fn a_derived_key_without_a_value_is_computed_at_the_fixed_point() {
    let form = "{grid: {train.batch_size: [4, 8]}, derive: {train.grad_accumulation: 16 / \
                train.batch_size, train.optimizer.learning_rate: 1e-3 * sqrt(train.batch_size)}}";
    let size = "train.batch_size";
    for (id, values) in trials(&request(form, &[])) {
        let one = trials(&fixed(form, of_key(size, values), &[]));
        let ids: Vec<&str> = one.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, [id]);
    }
    let accumulation = "train.grad_accumulation";
    let four = vec![(size.to_owned(), Value::from(4))];
    let of_two = trials(&fixed(form, four.clone(), &["train.batch_size=2"]));
    let found = of_key(accumulation, of_two[0].1.clone());
    assert_eq!(found, [(accumulation.to_owned(), Value::from(8))]);
    // The expression goes with a value of its own; the other one stays.
    let given = [four, vec![(accumulation.to_owned(), Value::from(3))]].concat();
    let experiment = load(&fixed(form, given, &[])).unwrap().experiment;
    assert_eq!(experiment.train.grad_accumulation, 3);
    let expressions: Vec<&String> = experiment.sweep.derive.keys().collect();
    assert_eq!(expressions, ["train.optimizer.learning_rate"]);
}

#[test]
fn a_value_that_only_an_expression_uses_can_be_fixed_and_written() {
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [a, '{rate}'], values: {scale: 1, \
                rate: 1}}\nsweep: {grid: {model.values.scale: [2, 3]}, derive: \
                {model.values.rate: 0.1 * model.values.scale}}\n";
    let request = ExperimentRequest {
        file: "x.yaml".into(),
        text: Some(text.to_owned()),
        ..ExperimentRequest::default()
    };
    let all = trials(&request);
    assert_eq!(all.len(), 2);
    for (id, values) in all {
        let point = point_of(&request, of_key("model.values.scale", values));
        let written = ExperimentRequest {
            text: Some(write_point(request.clone(), "one", point.clone()).unwrap()),
            ..request.clone()
        };
        let fixed = ExperimentRequest {
            point: Some(point),
            ..request.clone()
        };
        for one in [trials(&fixed), trials(&written)] {
            let ids: Vec<&str> = one.iter().map(|(id, _)| id.as_str()).collect();
            assert_eq!(ids, [id.as_str()]);
        }
    }
}
