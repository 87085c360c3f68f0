//! Whole plans: counts, order, ids, refusals. `benches/large_runs.rs` measures the time they take.

use std::{cell::Cell, collections::HashSet};

use serde_json::Value;

use super::*;
use crate::{
    kinds::{Content, command::compiled_patterns, data::Counts},
    plan::TrialId,
};

const DESIGN: &str = "
kiln: 1
name: wikitext2-gpt-batch
model: {kind: gpt, d_model: 256, num_layers: 2, num_heads: 4, seq_len: 128, dropout: 0.1, vocabulary: 50257, tie_head: false}
data: {kind: wikitext2, tokenizer: word, num_workers: 4, prefetch: 2}
train: {batch_size: 4, precision: amp-bf16, epochs: 5, clip_norm: 1.0, seed: 1}
sweep:
  grid:
    train.batch_size: [4, 8, 16, 24, 32]
    data.num_workers: [0, 4, 8, 40]
  zip:
    model.d_model: [256, 384]
    model.num_layers: [2, 4]
    model.num_heads: [4, 6]
  include: [{train.batch_size: 48, data.num_workers: 8}]
  exclude: [{train.batch_size: 32, data.num_workers: 40}]
  repeats: 3
";

fn facts(data: &Data) -> Option<DataFacts> {
    let counts = Counts::Text {
        train_tokens: 2_088_628,
        valid_tokens: 217_646,
        vocabulary: 33_278,
    };
    (data.content() == Content::Text).then(|| DataFacts {
        counts,
        sha256: String::new(),
    })
}

fn read(yaml: &str) -> Experiment {
    let value: Value = serde_yaml::from_str(yaml).unwrap();
    serde_json::from_value(value).unwrap()
}

fn plan(yaml: &str) -> Result<Plan, Vec<PlanProblem>> {
    expand(&read(yaml), &facts)
}

/// A small file with these lines instead of the defaults.
fn with(model: &str, data: &str, train: &str, sweep: &str) -> String {
    format!(
        "{{kiln: 1, name: x, model: {{{model}}}, data: {{{data}}}, train: {{{train}}}, sweep: \
         {{{sweep}}}}}"
    )
}

fn problems(yaml: &str) -> Vec<(String, String)> {
    plan(yaml)
        .unwrap_err()
        .into_iter()
        .map(|problem| (problem.fault.key, problem.fault.message))
        .collect()
}

#[test]
fn the_example_of_the_design_is_39_points_and_117_trials() {
    let plan = plan(DESIGN).unwrap();
    assert_eq!((plan.points, plan.repeats, plan.trials.len()), (39, 3, 117));
    let ids: HashSet<&TrialId> = plan.trials.iter().map(|trial| &trial.id).collect();
    assert_eq!(ids.len(), 117);
    let numbers: Vec<u64> = plan.trials.iter().map(|trial| trial.number).collect();
    assert_eq!(numbers, (1..=117).collect::<Vec<_>>());
    let added = &plan.trials[38];
    let values: Vec<String> = added
        .axes
        .iter()
        .map(|(_, value)| value.to_string())
        .collect();
    assert_eq!(
        values,
        ["48", "8", "256", "2", "4"],
        "unnamed keys take the file's base value"
    );
    assert_eq!(added.train.batch_size, 48);
    assert!(plan.trials.iter().all(|trial| (
        trial.train.batch_size,
        trial.data.loader().unwrap().num_workers.to_string()
    ) != (32, "40".to_owned())));
}

/// The ids of the trials in the order of their points, and the axes.
fn ids_and_axes(sweep: &str) -> (Vec<TrialId>, Vec<String>) {
    let (data, train) = ("kind: generated", "batch_size: 4, steps: 5");
    let mut plan = plan(&with("kind: mlp", data, train, sweep)).unwrap();
    plan.trials.sort_by_key(|trial| (trial.point, trial.repeat));
    let ids = plan.trials.into_iter().map(|trial| trial.id);
    (ids.collect(), plan.axes)
}

#[test]
fn derived_values_make_the_trials_of_the_same_values_written_out() {
    let batches = "train.batch_size: [8, 16, 32]";
    let derive = "train.grad_accumulation: 64 / train.batch_size, train.optimizer.learning_rate: \
                  0.0001 * train.batch_size / 8";
    let written = "train.grad_accumulation: [8, 4, 2], train.optimizer.learning_rate: [0.0001, \
                   0.0002, 0.0004]";
    let zip = ids_and_axes(&format!("zip: {{{batches}, {written}}}, repeats: 2"));
    assert_eq!(zip.0.len(), 6);
    for section in ["grid", "zip"] {
        let found = ids_and_axes(&format!(
            "{section}: {{{batches}}}, derive: {{{derive}}}, repeats: 2"
        ));
        assert_eq!(found, zip, "{section}");
    }
    let included = ids_and_axes(&format!(
        "include: [{{train.batch_size: 8}}, {{train.batch_size: 16}}, {{train.batch_size: 32}}], \
         derive: {{{derive}}}, repeats: 2"
    ));
    assert_eq!(included.0, zip.0);
}

#[test]
fn a_value_may_be_derived_from_keys_that_do_not_vary() {
    let fixed = ids_and_axes("derive: {train.grad_accumulation: 64 / train.batch_size}");
    let written = ids_and_axes("grid: {train.grad_accumulation: [16]}");
    assert_eq!(fixed, written);
}

#[test]
fn exclude_sees_derived_values_and_drops_points_without_one() {
    let derive = "derive: {train.grad_accumulation: 64 / train.batch_size}";
    let batches = |sweep: &str| {
        let (data, train) = ("kind: generated", "steps: 5");
        let plan = plan(&with("kind: mlp", data, train, sweep)).unwrap();
        let trials = plan.trials.iter();
        trials
            .map(|trial| trial.train.batch_size)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        batches(&format!(
            "grid: {{train.batch_size: [8, 16, 24, 32]}}, {derive}, exclude: \
             [{{train.grad_accumulation: '>4'}}, {{train.batch_size: 24}}]"
        )),
        [16, 32]
    );
}

#[test]
fn a_derived_value_that_is_not_allowed_names_its_points() {
    let sweep = "grid: {train.batch_size: [8, 24, 48]}, derive: {train.grad_accumulation: 64 / \
                 train.batch_size}";
    let refused = plan(&with("kind: mlp", "kind: generated", "steps: 5", sweep)).unwrap_err();
    let lines: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "`sweep.derive.train.grad_accumulation`: `64 / train.batch_size` is 2.66667 where \
             `train.batch_size` is 24; it must be an integer from 1 to 1048576 (at \
             train.batch_size = 24; train.batch_size = 48)"
        ]
    );
}

#[test]
fn derived_keys_split_no_block() {
    let sweep = "grid: {model.hidden: [4, 8], train.batch_size: [8, 16]}, derive: \
                 {train.grad_accumulation: 16 / train.batch_size}, together: [train.batch_size]";
    let plan = plan(&with("kind: mlp", "kind: generated", "steps: 5", sweep)).unwrap();
    assert_eq!(plan.blocks(), 2);
}

#[test]
fn seeds_expand_inside_each_point_and_rounds_interleave() {
    let plan = plan(DESIGN).unwrap();
    // Every second round goes backwards.
    let round = |repeat: u64| {
        (0..39).map(move |place| (if repeat % 2 == 1 { 38 - place } else { place }, repeat))
    };
    for (trial, expected) in plan.trials.iter().zip((0..3).flat_map(round)) {
        assert_eq!((trial.point, trial.repeat), expected);
        assert_eq!(trial.train.seed, 1 + trial.repeat);
    }
}

#[test]
fn steps_and_sizes_are_known_before_anything_runs() {
    let plan = plan(DESIGN).unwrap();
    let first = &plan.trials[0];
    // (2,088,628 - 129) / 128 + 1 samples, four to a step, five epochs.
    assert_eq!(first.steps, Some(16_317 / 4 * 5));
    assert_eq!(first.effective_batch_size, 4);
    let dropped = |number: usize| {
        plan.epoch_of(&plan.trials[number])
            .unwrap()
            .dropped_samples()
    };
    assert_eq!(
        (
            plan.epoch_of(first).unwrap().samples,
            dropped(0),
            dropped(38)
        ),
        (16_317, 1, 16_317 % 48)
    );
    assert_eq!(first.parameters, first.model.parameters(None));
    let unknown = expand(&read(DESIGN), &|_| None).unwrap();
    assert_eq!(
        (unknown.trials[0].steps, unknown.expected_disk_bytes()),
        (None, None)
    );
    assert!(
        unknown.trials[0].parameters.is_some(),
        "the file names the vocabulary"
    );
}

#[test]
fn a_text_is_asked_for_once() {
    let asked = Cell::new(0);
    let count = |data: &Data| {
        asked.set(asked.get() + 1);
        facts(data)
    };
    expand(&read(DESIGN), &count).unwrap();
    assert_eq!(asked.get(), 1);
}

#[test]
fn a_moved_folder_another_order_or_a_description_keep_the_ids() {
    let ids = |yaml: &str| {
        plan(yaml)
            .unwrap()
            .trials
            .into_iter()
            .map(|trial| trial.id)
            .collect::<HashSet<_>>()
    };
    let moved = DESIGN
        .replace("tokenizer: word", "path: /elsewhere")
        .replace("name: wiki", "description: other\nname: wiki");
    let turned = moved
        .replace(
            "    train.batch_size: [4, 8, 16, 24, 32]\n    data.num_workers: [0, 4, 8, 40]",
            "    data.num_workers: [8, 4, 40, 0]\n    train.batch_size: [4, 8, 16, 24, 32]",
        )
        .replace("repeats: 3", "repeats: 3\n  order: shuffled");
    assert_ne!(turned, moved);
    assert_eq!(ids(DESIGN), ids(&turned));
}

#[test]
fn an_axis_over_kinds_starts_each_map_anew_whatever_the_order() {
    let file = with(
        "kind: gpt, num_layers: 3",
        "kind: generated",
        "steps: 5",
        "grid: {model.d_model: [32, 64], model.kind: [gpt, mlp]}",
    );
    let trials = plan(&file).unwrap().trials;
    let models: Vec<Value> = trials
        .iter()
        .map(|trial| serde_json::to_value(&trial.model).unwrap())
        .collect();
    assert_eq!(models[0]["num_layers"], 3);
    assert_eq!(
        (
            &models[3]["kind"],
            &models[3]["d_model"],
            &models[3]["hidden"]
        ),
        (&"mlp".into(), &64.into(), &128.into())
    );
    let file = with(
        "kind: gpt",
        "kind: generated",
        "epochs: 2",
        "grid: {train.steps: [5, null], run.engine: [flex, libtorch]}",
    );
    let epochs: Vec<_> = expand(&read(&file), &facts)
        .unwrap()
        .trials
        .iter()
        .map(|trial| (trial.train.steps, trial.train.epochs))
        .collect();
    assert_eq!(
        epochs,
        [
            (Some(5), None),
            (Some(5), None),
            (None, Some(2)),
            (None, Some(2))
        ]
    );
}

/// Points of a sweep as `kind value`, of the kind and the value of one key.
fn cells(model: &str, train: &str, sweep: &str, key: &str) -> Vec<String> {
    let trials = plan(&with(model, "kind: generated", train, sweep))
        .unwrap()
        .trials;
    let cell = |trial: &Trial| {
        let optimizer = serde_json::to_value(&trial.train.optimizer).unwrap();
        let of = |wanted: &str| trial.axes.iter().find(|(key, _)| key == wanted);
        let kind = of("model.kind").map_or(optimizer["kind"].clone(), |(_, kind)| kind.clone());
        let value = of(key).map(|(_, value)| value.to_string());
        format!("{} {}", kind.as_str().unwrap(), value.unwrap_or_default())
    };
    trials.iter().map(cell).collect()
}

#[test]
fn a_cell_of_an_axis_has_the_value_that_the_point_trains_with() {
    let train = "steps: 5, optimizer: {kind: adamw, learning_rate: 0.003}";
    let rate = "train.optimizer.learning_rate";
    let kinds = "grid: {train.optimizer.kind: [adamw, sgd]}, include: [{train.optimizer.learning_rate: 0.7}]";
    assert_eq!(
        cells("kind: gpt", train, kinds, rate),
        ["adamw 0.003", "sgd 0.1", "adamw 0.7"]
    );
    let maps = "grid: {train.optimizer: [{kind: adamw}, {kind: sgd}]}, include: [{train.optimizer.learning_rate: 0.7}]";
    assert_eq!(
        cells("kind: gpt", train, maps, rate),
        ["adamw 0.003", "sgd 0.1", "adamw 0.7"]
    );
    let models = "grid: {model.kind: [mlp, gpt, lstm]}, include: [{model.d_model: 64}]";
    assert_eq!(
        cells(
            "kind: mlp, d_model: 32",
            "steps: 5",
            models,
            "model.d_model"
        ),
        ["mlp 32", "gpt 256", "lstm 200", "mlp 64"]
    );
}

#[test]
fn exclude_takes_the_value_that_a_point_has_of_a_key_that_varies_with_another() {
    let train = "steps: 5, optimizer: {kind: adamw, learning_rate: 0.003}";
    let left = |sweep: &str, key: &str| cells("kind: mlp, d_model: 32", train, sweep, key);
    let clip = "train.clip_norm";
    let maps = "train.optimizer: [{kind: adamw, learning_rate: 0.2}, {kind: sgd}], train.clip_norm: [0.5, 1.0]";
    assert_eq!(
        left(
            &format!(
                "grid: {{{maps}}}, exclude: [{{train.optimizer.kind: adamw, train.clip_norm: 0.5}}]"
            ),
            clip
        ),
        ["adamw 1.0", "sgd 0.5", "sgd 1.0"]
    );
    assert_eq!(
        left(
            &format!("grid: {{{maps}}}, exclude: [{{train.optimizer.learning_rate: '>0.15'}}]"),
            clip
        ),
        ["sgd 0.5", "sgd 1.0"]
    );
    assert_eq!(
        left(
            "grid: {model.kind: [mlp, gpt, lstm]}, exclude: [{model.d_model: 32}]",
            "model.kind"
        ),
        ["gpt \"gpt\"", "lstm \"lstm\""]
    );
}

#[test]
fn a_swept_size_is_an_axis_and_leaves_what_is_written_as_it_is() {
    let shapes = |model: &str, sweep: &str| -> Vec<String> {
        let trials = plan(&with(model, "kind: generated", "steps: 1", sweep))
            .unwrap()
            .trials;
        let shape = |trial: &Trial| {
            let model = serde_json::to_value(&trial.model).unwrap();
            let axes: Vec<&str> = trial
                .axes
                .iter()
                .map(|(_, value)| value.as_str().unwrap_or("-"))
                .collect();
            format!(
                "{} {}/{}/{}",
                axes.join(" "),
                model["d_model"],
                model["num_layers"],
                model["num_heads"]
            )
        };
        trials.iter().map(shape).collect()
    };
    let sweep = "grid: {model.size: [gpt2, gpt2-medium, null]}";
    assert_eq!(
        shapes("kind: gpt, num_layers: 3", sweep),
        ["gpt2 768/3/12", "gpt2-medium 1024/3/16", "- 256/3/4"]
    );
    let include = "grid: {model.size: [gpt2-xl]}, include: [{train.batch_size: 4}]";
    assert_eq!(
        shapes("kind: gpt, size: gpt2", include),
        ["gpt2-xl - 1600/48/25", "gpt2 - 768/12/12"]
    );
    let own = "grid: {model.num_layers: [1, null], model.size: [gpt2-large]}";
    assert_eq!(
        shapes("kind: gpt", own),
        ["- gpt2-large 1280/1/20", "- gpt2-large 1280/36/20"]
    );
    let file = with(
        "kind: gpt, size: gpt2",
        "kind: generated",
        "steps: 1",
        "grid: {model.num_heads: [12, null]}",
    );
    let twins = problems(&file);
    assert!(twins[0].1.contains("are the same trial"), "{twins:?}");
}

#[test]
fn points_that_a_kind_makes_the_same_name_the_exclude_that_drops_the_later_ones() {
    let axes = "grid: {train.batch_size: [2, 4], train.optimizer.kind: [sgd, adamw], \
                train.optimizer.momentum: [0.0, 0.9]}";
    let file = |more: &str| {
        let sweep = format!("{axes}{more}");
        with("kind: gpt", "kind: generated", "steps: 1", &sweep)
    };
    let found = problems(&file(""));
    let repair = "exclude: [{train.optimizer.kind: adamw, train.optimizer.momentum: 0.9}]";
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].1.contains("points 3 and 4 are the same trial")
            && found[0].1.contains(&format!("with `{repair}` in `sweep`")),
        "{found:?}"
    );
    let trials = plan(&file(&format!(", {repair}"))).unwrap().trials;
    assert_eq!(trials.len(), 6);
    // An `exclude` that is there is added to.
    let beside = problems(&file(", exclude: [{train.batch_size: 4}]"));
    assert!(
        beside[0].1.contains("momentum: 0.9}` in `sweep.exclude`"),
        "{beside:?}"
    );
    // The point that would stay is dropped already where the batch is 4, so no list is short.
    let other = "{train.batch_size: 4, train.optimizer.kind: adamw, train.optimizer.momentum: 0.0}";
    let unsafe_list = problems(&file(&format!(", exclude: [{other}]")));
    assert!(
        unsafe_list[0].1.contains("drop one of them") && !unsafe_list[0].1.contains("momentum"),
        "{unsafe_list:?}"
    );
}

#[test]
fn what_cannot_be_is_refused_by_name_and_all_at_once() {
    let file = with(
        "kind: gpt, num_heads: 5, vocabulary: 100",
        "kind: wikitext2",
        "steps: 5, batch_size: 100000",
        "",
    );
    let found = problems(&file);
    let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        ["model.num_heads", "train.batch_size", "model.vocabulary"]
    );
    assert_eq!(found[0].1, "`num_heads` 5 does not divide `d_model` 256");
    assert!(
        found[1]
            .1
            .contains("100000 samples of 128 + 1 tokens, and the training data has 16317"),
        "{}",
        found[1].1
    );
    assert!(found[2].1.contains("33278"), "{}", found[2].1);
}

#[test]
fn every_refusal_has_its_key() {
    for (file, key) in [
        (with("kind: gpt", "kind: none", "steps: 1", ""), "data.kind"),
        (
            with("kind: matmul", "kind: generated", "steps: 1", ""),
            "data.kind",
        ),
        (
            with("kind: matmul", "kind: none", "epochs: 1", ""),
            "train.epochs",
        ),
        (with("kind: gpt", "kind: generated", "", ""), "train"),
        (
            with("kind: gpt", "kind: generated", "steps: 1, epochs: 1", ""),
            "train.epochs",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1, precision: amp-bf16",
                "grid: {run.engine: [flex]}",
            ),
            "train.precision",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1",
                "grid: {run.devices: [cpu], train.precision: [f32, tf32]}",
            ),
            "train.precision",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1, optimizer: {kind: sgd, nesterov: true}",
                "",
            ),
            "train.optimizer.nesterov",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated, valid_fraction: 0",
                "steps: 1, target: {valid_loss: 1}",
                "",
            ),
            "train.target",
        ),
        (
            with(
                "kind: gpt, size: gpt2",
                "kind: generated",
                "steps: 1",
                "grid: {model.d_model: [100]}",
            ),
            "model.num_heads",
        ),
        (
            with("kind: matmul", "kind: none", "steps: 1, sample: {}", ""),
            "train.sample",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated, tokenizer: word",
                "steps: 1, sample: {prompt: '  '}",
                "",
            ),
            "train.sample.prompt",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1",
                "grid: {train.batch_size: [x]}",
            ),
            "train",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1",
                "grid: {train.batch_size: [8, 8]}",
            ),
            "sweep",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1",
                "grid: {train.batch_size: [8]}, include: [{train.batch_size: 8}]",
            ),
            "sweep",
        ),
        (
            with(
                "kind: gpt",
                "kind: generated",
                "steps: 1",
                "repeats: 2, grid: {train.seed: [1, 2]}",
            ),
            "sweep",
        ),
    ] {
        let keys: Vec<String> = problems(&file).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [key], "{file}");
    }
}

#[test]
fn devices_that_share_a_trial_multiply_its_batch_and_tell_it_apart() {
    let of = |run: &str, sweep: &str| {
        plan(
            &with(
                "kind: gpt",
                "kind: generated",
                "batch_size: 8, grad_accumulation: 2, epochs: 1",
                sweep,
            )
            .replace("sweep:", &format!("run: {{{run}}}, sweep:")),
        )
    };
    let one = of("", "").unwrap().trials.remove(0);
    let written = of("devices_per_trial: 1", "").unwrap().trials.remove(0);
    assert_eq!(
        (one.effective_batch_size, one.devices_per_trial, &one.id),
        (16, 1, &written.id)
    );
    let four = of("devices_per_trial: 4", "").unwrap();
    assert_eq!(
        (four.trials[0].effective_batch_size, four.trials[0].steps),
        (64, one.steps.map(|steps| steps / 4))
    );
    assert_eq!(
        four.epochs[0].unwrap().dropped_partial_batch,
        of("", "").unwrap().epochs[0].unwrap().dropped_partial_batch
    );
    let swept = of("", "grid: {run.devices_per_trial: [1, 2, 4]}")
        .unwrap()
        .trials;
    assert_eq!(
        swept
            .iter()
            .map(|trial| trial.effective_batch_size)
            .collect::<Vec<_>>(),
        [16, 32, 64]
    );
    assert_eq!(
        (&swept[0].id, &swept[2].id),
        (&one.id, &four.trials[0].id),
        "swept or not"
    );
    let too_few = with(
        "kind: gpt",
        "kind: generated",
        "batch_size: 1000, steps: 1",
        "grid: {run.devices_per_trial: [16, 17]}",
    );
    let refused = problems(&too_few).remove(0).1;
    assert!(
        refused.starts_with(
            "one step takes 17000 samples of 128 + 1 tokens, and the training data has 16317"
        ),
        "{refused}"
    );
    assert!(
        refused.contains("`train.grad_accumulation`, `run.devices_per_trial` or `model.seq_len`"),
        "{refused}"
    );
    let listed = of(
        "devices: [0, 1]",
        "grid: {run.devices_per_trial: [1, 2, 4]}",
    )
    .unwrap_err()
    .remove(0);
    assert_eq!(
        (listed.fault.key.as_str(), listed.points),
        ("run.devices_per_trial", 1)
    );
    assert!(
        listed
            .fault
            .message
            .starts_with("`run.devices` names 2 GPUs, fewer than the 4 that each trial uses"),
        "{}",
        listed.fault.message
    );
}

#[test]
fn a_fault_of_many_points_is_told_once_with_its_first_point() {
    let file = with(
        "kind: gpt, num_heads: 5",
        "kind: generated",
        "steps: 1",
        "grid: {train.batch_size: [1, 2, 3]}",
    );
    let found = plan(&file).unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].points, 3);
    assert_eq!(
        found[0].to_string(),
        "`model.num_heads`: `num_heads` 5 does not divide `d_model` 256 (at train.batch_size = 1; \
         train.batch_size = 2; train.batch_size = 3)"
    );
}

#[test]
fn each_of_ten_thousand_trials_has_an_id_of_its_own() {
    let list = |from: u32| (from..from + 50).collect::<Vec<_>>();
    let sweep = format!(
        "grid: {{train.batch_size: {:?}, data.num_workers: {:?}}}, repeats: 4",
        list(1),
        list(0)
    );
    let trials = plan(&with("kind: gpt", "kind: generated", "steps: 5", &sweep))
        .unwrap()
        .trials;
    assert_eq!(
        trials
            .iter()
            .map(|trial| &trial.id)
            .collect::<HashSet<_>>()
            .len(),
        10_000
    );
}

#[test]
fn checkpoints_take_room_for_weights_and_moments() {
    let trial = |train: &str| {
        plan(&with(
            "kind: mlp, vocabulary: 40000",
            "kind: generated",
            &format!("steps: 10, {train}"),
            "",
        ))
        .unwrap()
        .trials
        .remove(0)
    };
    let plain = trial("seed: 1");
    let mut unknown = trial("checkpoint: {every_steps: 5}");
    unknown.parameters = None;
    assert_eq!(
        unknown.expected_disk_bytes(),
        None,
        "not that of no weights"
    );
    let parameters = plain.parameters.unwrap();
    let more = |train: &str| {
        trial(train).expected_disk_bytes().unwrap() - plain.expected_disk_bytes().unwrap()
    };
    assert_eq!(
        more("checkpoint: {every_steps: 5}"),
        parameters * 12 * 4,
        "AdamW's, the newest two, the best and the one under way"
    );
    assert_eq!(
        more("checkpoint: {every_steps: 5, keep: 1, after: best}"),
        parameters * 12 * 3
    );
    assert_eq!(
        more("optimizer: {kind: sgd}, checkpoint: {every_steps: 5, keep: 1}"),
        parameters * 4 * 3
    );
    assert_eq!(
        more("optimizer: {kind: sgd, momentum: 0.9}, checkpoint: {every_steps: 5, keep: 1}"),
        parameters * 8 * 3
    );
}

#[test]
fn trials_need_together_what_each_leaves_and_what_one_needs_beside() {
    let together = |train: &str| {
        let plan = plan(&with(
            "kind: mlp, vocabulary: 40000",
            "kind: generated",
            &format!("steps: 10, {train}"),
            "repeats: 10",
        ))
        .unwrap();
        let parameters = plan.trials[0].parameters.unwrap();
        (plan.expected_disk_bytes().unwrap(), parameters * 12)
    };
    let (plain, each) = together("batch_size: 2");
    // The newest two, the best and the one under way of one trial; one of each of the others.
    let (kept, _) = together("batch_size: 2, checkpoint: {every_steps: 5}");
    assert_eq!(kept - plain, (4 + 9) * each);
    let (deleted, _) = together("batch_size: 2, checkpoint: {every_steps: 5, after: delete}");
    assert_eq!(deleted - plain, 3 * each, "no best one");
}

/// The plan of a sweep of matrix products.
fn of_products(sweep: &str) -> Plan {
    plan(&format!(
        "kiln: 1\nname: x\nmodel: {{kind: matmul}}\ntrain: {{steps: 10}}\nsweep: {{{sweep}}}\n"
    ))
    .unwrap()
}

#[test]
fn points_that_run_together_are_blocks_and_who_is_first_rotates() {
    let axes = "grid: {model.size: [64, 128], train.cpu_threads: [1, 2]}, repeats: 3";
    let plan = of_products(&format!(
        "{axes}, together: [train.cpu_threads], order: rotated"
    ));
    let of = |trial: &Trial| {
        let values: Vec<String> = trial
            .axes
            .iter()
            .map(|(_, value)| value.to_string())
            .collect();
        (trial.block, trial.repeat, values.join("/"))
    };
    let found: Vec<(u64, u64, String)> = plan.trials.iter().map(of).collect();
    let expected = [
        (1, 0, "64/1"),
        (1, 0, "64/2"),
        (2, 0, "128/2"),
        (2, 0, "128/1"),
        (3, 1, "128/1"),
        (3, 1, "128/2"),
        (4, 1, "64/2"),
        (4, 1, "64/1"),
        (5, 2, "64/1"),
        (5, 2, "64/2"),
        (6, 2, "128/2"),
        (6, 2, "128/1"),
    ];
    let expected = expected.map(|(block, repeat, values)| (block, repeat, values.to_owned()));
    assert_eq!(found, expected);
    assert_eq!(plan.blocks(), 6);
    // Order and blocks are in no id.
    let ids = |sweep: &str| -> Vec<String> {
        let mut ids: Vec<String> = of_products(sweep)
            .trials
            .into_iter()
            .map(|trial| trial.id.to_string())
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(
        ids(axes),
        ids(&format!(
            "{axes}, together: [train.cpu_threads], order: rotated"
        ))
    );
}

#[test]
fn without_axes_together_a_block_is_a_round() {
    for order in ["interleaved", "shuffled", "listed", "rotated"] {
        let axes = "grid: {model.size: [64, 128, 256]}, repeats: 4";
        let plan = of_products(&format!("{axes}, order: {order}"));
        assert!(
            plan.trials
                .iter()
                .all(|trial| trial.block == trial.repeat + 1),
            "{order}"
        );
    }
    let listed = of_products(
        "grid: {model.size: [64, 128], train.cpu_threads: [1, 2]}, repeats: 2, order: listed, \
         together: [train.cpu_threads]",
    );
    let blocks: Vec<(u64, u64)> = listed
        .trials
        .iter()
        .map(|trial| (trial.block, trial.point))
        .collect();
    assert_eq!(
        blocks,
        [
            (1, 0),
            (1, 1),
            (2, 0),
            (2, 1),
            (3, 2),
            (3, 3),
            (4, 2),
            (4, 3)
        ]
    );
}

/// The ids are those of the values, and were the same before equal values were written alike.
#[test]
fn equal_maps_are_one_value_of_an_axis_however_they_are_spelt() {
    let sweep = "grid: {train.optimizer: [{kind: adamw, weight_decay: 0.1}, {kind: sgd, momentum: \
                 0}]}, include: [{train.optimizer: {weight_decay: 0.10, kind: adamw}, train.seed: \
                 2}, {train.optimizer: {momentum: 0.0, kind: sgd}, train.seed: 2}]";
    let model = "kind: mlp, hidden: 8, context: 4";
    let train = "steps: 3, batch_size: 2";
    let file = |sweep: &str| with(model, "kind: generated", train, sweep);
    let trials = plan(&file(sweep)).unwrap().trials;
    let values: Vec<String> = trials
        .iter()
        .map(|trial| trial.axes[0].1.to_string())
        .collect();
    let [adamw, sgd] = [
        r#"{"kind":"adamw","weight_decay":0.1}"#,
        r#"{"kind":"sgd","momentum":0}"#,
    ];
    assert_eq!(values, [adamw, sgd, adamw, sgd]);
    assert_eq!(trials[0].id.to_string(), "tc0970f04ba");
    assert_eq!(trials[2].id.to_string(), "t4bf29e6aca");
    let excluded = "grid: {train.optimizer: [{kind: adamw, learning_rate: 1}, {kind: sgd}]}, \
                    exclude: [{train.optimizer: {learning_rate: 1.0, kind: adamw}}]";
    let plan = plan(&file(excluded)).unwrap();
    assert_eq!((plan.points, plan.unmatched_excludes.len()), (1, 0));
}

#[test]
fn a_program_gets_a_number_as_its_table_shows_it() {
    let trials = plan(
        "{kiln: 1, name: x, model: {kind: command, argv: [x, '{v}', '{w}'], values: {v: 1.0, w: \
         0}}, sweep: {grid: {model.values.v: [1, 0.5]}, include: [{model.values.v: 1.0, \
         model.values.w: 2}, {model.values.w: 3}]}}",
    )
    .unwrap()
    .trials;
    let given = |trial: &Trial| match &*trial.model {
        crate::kinds::Model::Command(command) => command.values["v"].to_string(),
        _ => String::new(),
    };
    let shown = |trial: &Trial| trial.axes[0].1.to_string();
    let expected = ["1", "0.5", "1", "1"];
    assert_eq!(trials.iter().map(given).collect::<Vec<_>>(), expected);
    assert_eq!(trials.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn a_text_has_one_tokenizer() {
    let of = |keys: &str| {
        let data = format!("kind: text, path: p, tokenizer_file: t{keys}");
        with("kind: mlp", &data, "steps: 1", "")
    };
    assert!(plan(&of("")).is_ok());
    let (key, message) = problems(&of(", tokenizer: word")).remove(0);
    assert_eq!(key, "data.tokenizer");
    assert!(message.contains("are both given"), "{message}");
    let swept = |axes: &str| {
        let data = "kind: text, path: p, tokenizer_file: t";
        with("kind: mlp", data, "steps: 1", &format!("grid: {{{axes}}}"))
    };
    for values in ["[character]", "[word]", "[character, byte]"] {
        let found = problems(&swept(&format!("data.tokenizer: {values}")));
        assert!(
            !found.is_empty()
                && found
                    .iter()
                    .all(|(_, message)| message.contains("both given")),
            "{values}: {found:?}"
        );
    }
    assert!(plan(&swept("data.tokenizer: [null]")).is_ok());
    let either = "data.tokenizer: [character, null], data.tokenizer_file: [null, t]";
    let zipped = swept("").replace("grid: {}", &format!("zip: {{{either}}}"));
    assert!(plan(&zipped).is_ok(), "{:?}", plan(&zipped));
}

#[test]
fn points_of_a_program_share_its_compiled_patterns() {
    let file = |line: &str| {
        format!(
            "{{kiln: 1, name: x, model: {{kind: command, argv: [x, '{{v}}'], values: {{v: 0}}, \
             metrics: {{a: {{line: 'a=(.*)'}}, b: {{line: '{line}'}}}}, window: {{from: begin}}}}, \
             sweep: {{grid: {{model.values.v: [1, 2, 3, 4, 5, 6, 7]}}}}}}"
        )
    };
    let compiled = |yaml: &str| {
        let before = compiled_patterns();
        let points = plan(yaml).map(|plan| plan.points);
        (points, compiled_patterns() - before)
    };
    assert_eq!(compiled(&file("b=(.*)")), (Ok(7), 3));
    let (refused, times) = compiled(&file("b=.*"));
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused[0].fault.key.as_str(), times),
        ("model.metrics.b.line", 3)
    );
    assert!(refused[0].fault.message.contains("no group"), "{refused:?}");
}

#[test]
fn a_sweep_of_millions_of_points_is_not_told_to_raise_the_limit() {
    let refused = |values: u32| {
        let list: Vec<String> = (1..=values).map(|value| value.to_string()).collect();
        let list = list.join(", ");
        let axes = format!(
            "grid: {{train.seed: [{list}], train.steps: [{list}], train.batch_size: [{list}]}}"
        );
        let yaml = with("kind: matmul", "kind: generated", "steps: 1", &axes);
        problems(&yaml)
    };
    let more = "KILN_LIMIT_POINTS=1000000 to allow more";
    let million = refused(100);
    assert!(million[0].1.ends_with(more), "{million:?}");
    let less = "it has 1030301 points, more than the 100000 points allowed for a sweep; draw \
                random points with `sweep.sample`, vary axes together in `sweep.zip`, or list \
                fewer values";
    let expected = [("sweep".to_owned(), less.to_owned())];
    assert_eq!(refused(101), expected);
}
