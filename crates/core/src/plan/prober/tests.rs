//! The trials of a search equal those of a grid; some searches are refused.

use serde_json::{Value, json};

use super::*;
use crate::{
    kinds::{Content, data::Counts},
    plan::{expand, search::Ask},
};

fn facts(data: &Data) -> Option<DataFacts> {
    let counts = Counts::Text {
        train_tokens: 100_000,
        valid_tokens: 10_000,
        vocabulary: 100,
    };
    (data.content() == Content::Text).then(|| DataFacts {
        counts,
        sha256: String::new(),
    })
}

/// A file with this sweep section.
fn with(sweep: Value) -> Experiment {
    let file = json!({
        "kiln": 1, "name": "x", "model": {"kind": "gpt"}, "data": {"kind": "generated"}, "sweep": sweep,
        "train": {"epochs": 3, "batch_size": 6, "grad_accumulation": 4},
    });
    serde_json::from_value(file).unwrap()
}

fn choice(values: Value, repeat: u64) -> SearchTrial {
    let Value::Object(values) = values else {
        panic!("a map")
    };
    SearchTrial {
        values: values.into_iter().collect(),
        repeat,
    }
}

#[test]
fn a_choice_makes_the_trial_that_a_grid_of_its_values_makes() {
    let cases = [
        (
            json!({"kind": "largest-batch"}),
            json!({"train.batch_size": 16}),
        ),
        (
            json!({"kind": "best-throughput-batch", "keep_effective": true}),
            json!({"train.batch_size": 8, "train.grad_accumulation": 3}),
        ),
        (json!({"kind": "workers"}), json!({"data.num_workers": 4})),
        (
            json!({"kind": "successive-halving", "axes": {"model.d_model": [64], "run.engine": ["flex"]}, "metric": "valid_loss", "steps": 5}),
            json!({"model.d_model": 64, "run.engine": "flex", "train.steps": 5}),
        ),
    ];
    for (search, values) in cases {
        let listed: Value = values
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), json!([value])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let grid = expand(&with(json!({"grid": listed, "repeats": 3})), &facts).unwrap();
        let searched = with(json!({"search": search}));
        let prober = Prober::new(&searched, &facts, 4, 0).unwrap();
        for (repeat, expected) in grid.trials.iter().enumerate() {
            let made = prober
                .trial(&choice(values.clone(), repeat as u64))
                .unwrap();
            assert_eq!(
                Trial {
                    number: expected.number,
                    ..made
                },
                *expected
            );
        }
        let keys: Vec<String> = values.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            (
                prober.strategy().keys(),
                searched
                    .sweep
                    .search
                    .unwrap()
                    .keys(&SearchedKeys::default())
                    .len()
            ),
            (keys.clone(), keys.len())
        );
    }
}

#[test]
fn a_round_of_successive_halving_is_told_apart_by_its_steps() {
    let search = json!({"kind": "successive-halving", "axes": {"model.d_model": [64, 128, 256]}, "metric": "valid_loss", "steps": 5});
    let searched = with(json!({"search": search}));
    let prober = Prober::new(&searched, &facts, 4, 0).unwrap();
    let [short, long] = [5, 15].map(|steps| {
        prober
            .trial(&choice(
                json!({"model.d_model": 64, "train.steps": steps}),
                0,
            ))
            .unwrap()
    });
    assert_ne!(short.id, long.id);
    assert_eq!(
        (short.steps, long.steps, long.train.epochs),
        (Some(5), Some(15), None)
    );
    // Three epochs of 781 windows, 24 to a step: no trial is longer.
    let most = prober.given.steps;
    assert_eq!(most, Some(96));
}

#[test]
fn what_cannot_be_is_said_with_the_chosen_values() {
    let searched = with(json!({"search": {"kind": "largest-batch"}}));
    let prober = Prober::new(&searched, &facts, 4, 0).unwrap();
    let refused = prober
        .trial(&choice(json!({"train.batch_size": 4096}), 0))
        .unwrap_err();
    assert_eq!(
        (refused.len(), refused[0].fault.key.as_str()),
        (1, "train.batch_size")
    );
    let said = refused[0].to_string();
    assert!(
        said.starts_with("one step takes 16384 samples")
            || said.contains("one step takes 16384 samples"),
        "{said}"
    );
    assert!(said.ends_with("(at train.batch_size = 4096)"), "{said}");
    let none = Prober::new(&with(json!({})), &facts, 4, 0).err().unwrap();
    assert_eq!(none[0].fault.key, "sweep.search");
    let huge: Vec<u32> = (1..2000).collect();
    let axes = json!({"train.batch_size": huge, "model.d_model": huge});
    let huge = with(
        json!({"search": {"kind": "successive-halving", "axes": axes, "metric": "valid_loss", "steps": 5}}),
    );
    assert!(Prober::new(&huge, &facts, 4, 0).is_err());
}

#[test]
fn a_search_is_no_plan() {
    let refused = expand(&with(json!({"search": {"kind": "workers"}})), &facts).unwrap_err();
    assert_eq!(
        refused
            .iter()
            .map(|problem| problem.fault.key.as_str())
            .collect::<Vec<_>>(),
        ["sweep.search"]
    );
    assert!(
        refused[0]
            .fault
            .message
            .starts_with("`sweep.search` is for `kiln tune`"),
        "{}",
        refused[0].fault.message
    );
}

#[test]
fn every_kind_begins_with_trials_that_can_be_made() {
    for search in [
        json!({"kind": "largest-batch"}),
        json!({"kind": "best-throughput-batch"}),
        json!({"kind": "best-throughput-batch", "keep_effective": true, "repeats": 1}),
        json!({"kind": "workers", "to": 3}),
        json!({"kind": "successive-halving", "axes": {"train.optimizer.kind": ["sgd", "adamw"]}, "metric": "train_loss", "steps": 5}),
    ] {
        let searched = with(json!({"search": search}));
        let prober = Prober::new(&searched, &facts, 4, 1).unwrap();
        let Ask::Run(first) = prober.strategy().ask(&[]) else {
            panic!("{search} asks for nothing")
        };
        assert!(
            first.iter().all(|choice| prober.trial(choice).is_ok()),
            "{search}"
        );
    }
}
