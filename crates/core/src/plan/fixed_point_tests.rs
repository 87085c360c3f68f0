//! A point in place of a sweep is the trial that the sweep has there; a value in place of an expression.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use serde_json::Value;

use super::expand;
use crate::spec::{ExperimentRequest, FixedPoint, Loaded, load, swept_file};

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
    let swept = swept_file(&request).unwrap().swept;
    let name = "--at x:t1".to_owned();
    let point = Some(FixedPoint {
        name,
        swept,
        values,
    });
    ExperimentRequest { point, ..request }
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
