//! Layers, merging and provenance, through [`load`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ExperimentRequest, Goal, Loaded, Optimizer, load, objective_of, write_resolved};
use crate::kinds::Model;

const BASE: &str = "kiln: 1\nname: x\nmodel: {kind: gpt, d_model: 128}\ndata: {kind: generated, \
                    num_workers: 2}\ntrain:\n  epochs: 2\n  optimizer: {kind: adamw, beta1: 0.8}\n";

struct Case {
    folder: TempDir,
    set: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Case {
    fn new(text: &str) -> Self {
        let case = Self {
            folder: TempDir::new().unwrap(),
            set: Vec::new(),
            variables: Vec::new(),
        };
        case.file("x.yaml", text)
    }

    fn file(self, name: &str, text: &str) -> Self {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn set(mut self, arguments: &[&str]) -> Self {
        self.set = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        self
    }

    fn variables(mut self, variables: &[(&str, &str)]) -> Self {
        self.variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self
    }

    fn request(&self) -> ExperimentRequest {
        ExperimentRequest {
            file: self.folder.path().join("x.yaml"),
            set: self.set.clone(),
            variables: self.variables.clone(),
            text: None,
            point: None,
        }
    }

    fn load(&self) -> Loaded {
        load(&self.request()).unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// The problems, without the folder's name.
    fn problems(&self) -> String {
        let folder = format!("{}/", self.folder.path().display());
        load(&self.request())
            .map(|_| String::new())
            .unwrap_or_else(|problems| problems.to_string().replace(&folder, ""))
    }

    fn origin(&self, key: &str) -> (Value, String) {
        let folder = format!("{}/", self.folder.path().display());
        let loaded = self.load();
        let origin = loaded
            .origins
            .iter()
            .find(|origin| origin.key == key)
            .unwrap_or_else(|| panic!("{key}"));
        (origin.value.clone(), origin.layer.replace(&folder, ""))
    }
}

#[test]
fn layers_win_in_their_order_and_each_value_knows_its_layer() {
    let case = Case::new("extends: base/b.yaml\nname: y\ntrain: {batch_size: 4}\n")
        .file(
            "base/b.yaml",
            &format!("{BASE}  batch_size: 2\n  seed: 3\n"),
        )
        .variables(&[("KILN_TRAIN__SEED", "5"), ("KILN_DATA__NUM_WORKERS", "7")])
        .set(&["data.num_workers=9"]);
    assert_eq!(case.origin("name"), (json!("y"), "x.yaml:2".to_owned()));
    assert_eq!(
        case.origin("train.batch_size"),
        (json!(4), "x.yaml:3".to_owned())
    );
    assert_eq!(
        case.origin("train.epochs"),
        (json!(2), "base/b.yaml:6".to_owned())
    );
    assert_eq!(
        case.origin("train.seed"),
        (json!(5), "KILN_TRAIN__SEED".to_owned())
    );
    assert_eq!(
        case.origin("data.num_workers"),
        (json!(9), "--set data.num_workers=9".to_owned())
    );
    assert_eq!(
        case.origin("data.prefetch"),
        (json!(2), "default".to_owned())
    );
}

#[test]
fn a_file_by_the_name_of_the_defaults_is_a_layer_of_its_own() {
    let request = ExperimentRequest {
        file: "default".into(),
        text: Some(BASE.to_owned()),
        ..ExperimentRequest::default()
    };
    let loaded = load(&request).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(loaded.experiment, Case::new(BASE).load().experiment);
}

#[test]
fn settings_of_the_program_never_enter_the_experiment() {
    let settings = [
        "KILN_DATA",
        "KILN_TRIAL",
        "KILN_LIBTORCH",
        "KILN_NVML_LIB",
        "KILN_LOCKS",
    ];
    let variables: Vec<(&str, &str)> = settings
        .iter()
        .map(|name| (*name, "/somewhere"))
        .chain([("HOME", "/x"), ("MY_KILN_A__B", "1")])
        .collect();
    let plain = Case::new(BASE).load();
    let with = Case::new(BASE).variables(&variables).load();
    assert_eq!(plain.experiment, with.experiment);
    assert!(
        Case::new(BASE)
            .variables(&[("KILN_TRIAN__SEED", "1")])
            .problems()
            .contains("KILN_TRIAN__SEED: unknown key `trian`; did you mean `train`?")
    );
}

#[test]
fn another_kind_replaces_its_map_and_the_same_kind_merges() {
    let sgd = Case::new(BASE)
        .set(&["train.optimizer={kind: sgd, momentum: 0.9}"])
        .load();
    let Optimizer::Sgd {
        learning_rate,
        momentum,
        ..
    } = sgd.experiment.train.optimizer
    else {
        panic!()
    };
    assert_eq!((learning_rate, momentum), (0.1, 0.9));
    let adamw = Case::new(BASE)
        .set(&["train.optimizer={learning_rate: 0.5}"])
        .load();
    let Optimizer::Adamw {
        learning_rate,
        beta1,
        ..
    } = adamw.experiment.train.optimizer
    else {
        panic!()
    };
    assert_eq!((learning_rate, beta1), (0.5, 0.8));
}

#[test]
fn a_kind_goes_before_the_keys_of_its_map_in_whatever_order_they_are_given() {
    let set = Case::new(BASE)
        .set(&["train.optimizer.momentum=0.9", "train.optimizer.kind=sgd"])
        .load();
    assert!(matches!(
        set.experiment.train.optimizer,
        Optimizer::Sgd { momentum: 0.9, .. }
    ));
    let variables = Case::new(BASE)
        .variables(&[("KILN_MODEL__HIDDEN", "16"), ("KILN_MODEL__KIND", "mlp")])
        .load();
    assert_eq!(variables.experiment.model.kind(), "mlp");
}

#[test]
fn sets_may_change_the_lists_of_zip_together() {
    let swept =
        format!("{BASE}sweep:\n  zip: {{model.num_layers: [1, 2], model.num_heads: [2, 4]}}\n");
    let longer = [
        "sweep.zip.model.num_layers=[1, 2, 3]",
        "sweep.zip.model.num_heads=[1, 2, 4]",
    ];
    assert_eq!(
        Case::new(&swept).set(&longer).load().experiment.sweep.zip["model.num_heads"],
        json!([1, 2, 4])
    );
    assert!(
        Case::new(&swept)
            .set(&longer[..1])
            .problems()
            .contains("walks its keys together")
    );
}

#[test]
fn steps_displace_epochs_and_the_reverse() {
    let train = Case::new(BASE)
        .set(&["train.steps=7"])
        .load()
        .experiment
        .train;
    assert_eq!((train.steps, train.epochs), (Some(7), None));
    let train = Case::new(BASE)
        .set(&["train.steps=7", "train.epochs=3"])
        .load()
        .experiment
        .train;
    assert_eq!((train.steps, train.epochs), (None, Some(3)));
}

#[test]
fn a_length_of_training_displaces_the_axis_of_the_other() {
    let with_axis = |axis: &str, set: &str| {
        let case = Case::new(&format!("{BASE}sweep: {{{axis}}}\n")).set(&[set]);
        let experiment = case.load().experiment;
        let sweep = &experiment.sweep;
        let axes = sweep.grid.keys().chain(sweep.zip.keys()).cloned();
        let train = &experiment.train;
        (train.steps, train.epochs, axes.collect::<Vec<_>>())
    };
    assert_eq!(
        with_axis("grid: {train.steps: [5, 6]}", "train.epochs=3"),
        (None, Some(3), vec![])
    );
    assert_eq!(
        with_axis(
            "grid: {train.epochs: [5, 6], train.seed: [1, 2]}",
            "train.steps=3"
        ),
        (Some(3), None, vec!["train.seed".to_owned()])
    );
    let zipped = "zip: {train.steps: [5, 6], train.seed: [1, 2]}";
    assert_eq!(
        with_axis(zipped, "train.epochs=3"),
        (None, Some(3), vec!["train.seed".to_owned()])
    );
}

#[test]
fn a_set_of_a_map_replaces_the_axes_below_it() {
    let swept = format!(
        "{BASE}sweep: {{grid: {{train.optimizer.learning_rate: [0.1, 0.2], \
         train.optimizer.weight_decay: [0.1, 0.2]}}}}\n"
    );
    let set = "train.optimizer={kind: adamw, learning_rate: 0.5}";
    let sweep = Case::new(&swept).set(&[set]).load().experiment.sweep;
    assert_eq!(sweep.grid["train.optimizer.learning_rate"], json!([0.5]));
    assert_eq!(
        sweep.grid["train.optimizer.weight_decay"],
        json!([0.1, 0.2])
    );
}

#[test]
fn a_set_within_the_maps_of_an_axis_counts_or_is_refused() {
    let swept = format!(
        "{BASE}sweep: {{grid: {{train.optimizer: [{{kind: adamw, learning_rate: 0.1}}, {{kind: adamw, \
         weight_decay: 0.3}}]}}}}\n"
    );
    let problems = |set: &str| Case::new(&swept).set(&[set]).problems();
    let found = problems("train.optimizer.learning_rate=0.5");
    assert!(
        found.contains(
            "`train.optimizer.learning_rate` would not count at 1 of the values of the axis \
             `train.optimizer`, which replace it; `--set \
             'sweep.grid.train.optimizer.learning_rate=[…]'` gives it to every point"
        ),
        "{found}"
    );
    assert_eq!(
        problems("sweep.grid.train.optimizer.learning_rate=[0.5]"),
        ""
    );
    assert_eq!(problems("train.optimizer.beta1=0.8"), "");
    assert_eq!(
        problems("train.optimizer={kind: adamw, learning_rate: 0.5}"),
        ""
    );
}

#[test]
fn a_set_that_the_kinds_of_an_axis_reset_is_refused() {
    let problems = |axis: &str, set: &str| {
        let case = Case::new(&format!("{BASE}sweep: {{grid: {{{axis}}}}}\n"));
        case.set(&[set]).problems()
    };
    let (rate, beta) = (
        "train.optimizer.learning_rate=0.5",
        "train.optimizer.beta1=0.7",
    );
    for axis in [
        "train.optimizer: [{kind: sgd}, {kind: adamw}]",
        "train.optimizer.kind: [sgd, adamw]",
    ] {
        let found = problems(axis, rate);
        let says = "`train.optimizer.learning_rate` would not count at 1 of the values";
        assert!(found.contains(says), "{axis}: {found}");
        // The other kind has no such key.
        assert_eq!(problems(axis, beta), "", "{axis}");
    }
    assert_eq!(problems("train.optimizer.kind: [adamw]", rate), "");
    let both = "train.optimizer.kind: [sgd, adamw], train.optimizer.learning_rate: [0.1]";
    assert_eq!(problems(both, rate), "");
}

#[test]
fn null_over_a_map_or_a_key_takes_its_axes_out() {
    let swept = format!(
        "{BASE}sweep: {{grid: {{train.optimizer.learning_rate: [0.1, 0.2], train.seed: [1, 2]}}}}\n"
    );
    let axes = |case: Case| {
        let sweep = case.load().experiment.sweep;
        sweep.grid.keys().cloned().collect::<Vec<_>>()
    };
    for set in [
        "train.optimizer=null",
        "train.optimizer={learning_rate: null}",
    ] {
        assert_eq!(axes(Case::new(&swept).set(&[set])), ["train.seed"], "{set}");
    }
    let upper = "extends: lower.yaml\ntrain: {optimizer: {learning_rate: null}}\n";
    let case = Case::new(upper).file("lower.yaml", &swept);
    assert_eq!(axes(case), ["train.seed"]);
}

#[test]
fn a_plain_value_of_an_upper_file_replaces_the_axis_beneath() {
    let lower = format!(
        "{BASE}sweep: {{grid: {{train.seed: [1, 2], train.optimizer: [{{learning_rate: 0.1}}]}}}}\n"
    );
    let sweep = |upper: &str| {
        let case = Case::new(&format!("extends: lower.yaml\n{upper}\n"));
        let case = case.file("lower.yaml", &lower);
        case.load().experiment.sweep
    };
    assert_eq!(sweep("train: {seed: 7}").grid["train.seed"], json!([7]));
    let own = sweep("train: {seed: 7}\nsweep: {grid: {train.seed: [3, 4]}}");
    assert_eq!(own.grid["train.seed"], json!([3, 4]));
    for away in ["{grid: {train.seed: null}}", "{grid: null}", "null"] {
        let without = sweep(&format!("train: {{seed: 7}}\nsweep: {away}"));
        assert!(!without.grid.contains_key("train.seed"), "{away}");
    }
    // Its values complete the map beneath them.
    let completed = sweep("train: {optimizer: {weight_decay: 0.3}}");
    assert_eq!(
        completed.grid["train.optimizer"],
        json!([{"learning_rate": 0.1}])
    );
}

#[test]
fn a_variable_that_takes_a_value_away_stands_in_the_resolved_experiment() {
    let case = Case::new(&format!("{BASE}  clip_norm: 0.5\n  seed: 3\n")).variables(&[
        ("KILN_TRAIN__CLIP_NORM", "null"),
        ("KILN_TRAIN__SEED", "null"),
    ]);
    let written = write_resolved(&case.load());
    let lines = "# train.clip_norm: null  # KILN_TRAIN__CLIP_NORM\n# train.seed: null  # \
                 KILN_TRAIN__SEED\n";
    assert!(written.ends_with(lines), "{written}");
    let again = Case::new(&written).load();
    assert_eq!(again.experiment, case.load().experiment);
    // A higher layer gives one of them a value again.
    let written = write_resolved(&case.set(&["train.seed=4"]).load());
    assert!(!written.contains("KILN_TRAIN__SEED"), "{written}");
}

#[test]
fn null_restores_the_default_and_removes_an_axis() {
    let swept =
        format!("{BASE}sweep:\n  grid: {{train.batch_size: [4, 8], model.num_layers: [1, 2]}}\n");
    assert_eq!(
        Case::new(BASE)
            .set(&["train.optimizer.beta1=null"])
            .origin("train.optimizer.beta1"),
        (json!(0.9), "default".to_owned())
    );
    let removed = Case::new(&swept)
        .set(&["sweep.grid.train.batch_size=null"])
        .load()
        .experiment
        .sweep;
    assert_eq!(
        removed.grid.keys().collect::<Vec<_>>(),
        ["model.num_layers"]
    );
    let zipped =
        format!("{BASE}sweep: {{zip: {{train.batch_size: [4, 8], data.num_workers: [0, 2]}}}}\n");
    let moved = Case::new(&zipped)
        .set(&[
            "sweep.zip.train.batch_size=null",
            "sweep.grid.train.batch_size=[16]",
        ])
        .load()
        .experiment
        .sweep;
    assert_eq!((moved.grid.len(), moved.zip.len()), (1, 1));
    assert!(
        Case::new(BASE)
            .set(&["model=null"])
            .problems()
            .contains("`model` is missing")
    );
}

#[test]
fn a_set_names_an_axis_of_random_points_as_one_of_the_grid() {
    let drawn = format!("{BASE}sweep: {{sample: {{count: 2, axes: {{train.seed: [1, 2, 3]}}}}}}\n");
    let sweep = Case::new(&drawn)
        .set(&["sweep.sample.axes.train.batch_size=[4, 8]"])
        .load()
        .experiment
        .sweep;
    assert_eq!(
        sweep.zip.keys().collect::<Vec<_>>(),
        ["train.seed", "train.batch_size"]
    );
}

#[test]
fn an_axis_that_the_last_layer_removes_is_none_beside_the_others() {
    let problems = |sweep: &str, set: &[&str]| {
        Case::new(&format!("{BASE}sweep: {{{sweep}}}\n"))
            .set(set)
            .problems()
    };
    let seeds = "grid: {train.seed: [1, 2]}";
    let repeated = ["sweep.repeats=2", "sweep.grid.train.seed=null"];
    assert_eq!(problems(seeds, &repeated), "");
    let steps = "grid: {train.steps: [5, 6]}";
    let epochs = [
        "sweep.grid.train.epochs=[1, 2]",
        "sweep.grid.train.steps=null",
    ];
    assert_eq!(problems(steps, &epochs), "");
    let together = "grid: {train.batch_size: [4, 8], train.seed: [1, 2]}, together: [train.seed]";
    let alone = problems(together, &["sweep.grid.train.seed=null"]);
    assert!(
        alone.contains("`train.seed`, which is not an axis of this sweep"),
        "{alone}"
    );
}

#[test]
fn a_set_on_a_swept_key_replaces_its_axis_and_axes_keep_file_order() {
    let swept = format!(
        "{BASE}sweep:\n  grid: {{train.seed: [1, 2], train.batch_size: [4, 8], data.num_workers: \
         [0, 1]}}\n  zip: {{model.num_layers: [1, 2], model.num_heads: [2, 4]}}\n"
    );
    let loaded = Case::new(&swept)
        .set(&["train.batch_size=16", "model.num_heads=1"])
        .load();
    let sweep = &loaded.experiment.sweep;
    let grid: Vec<(&str, &Value)> = sweep
        .grid
        .iter()
        .map(|(key, values)| (key.as_str(), values))
        .collect();
    let expected = [
        ("train.seed", json!([1, 2])),
        ("train.batch_size", json!([16])),
        ("data.num_workers", json!([0, 1])),
        ("model.num_heads", json!([1])),
    ];
    assert_eq!(
        grid,
        expected
            .iter()
            .map(|(key, values)| (*key, values))
            .collect::<Vec<_>>()
    );
    assert_eq!(sweep.zip.keys().collect::<Vec<_>>(), ["model.num_layers"]);
    assert_eq!(loaded.experiment.train.batch_size, 16);
}

const SIZED: &str = "kiln: 1\nname: x\nmodel:\n  kind: gpt\n  size: gpt2\n  vocabulary: 50304\n\
                     data: {kind: generated}\ntrain: {steps: 2}\n";

#[test]
fn a_size_gives_what_no_layer_does_and_is_itself_no_part_of_the_resolved_file() {
    let case = Case::new(SIZED).set(&["model.num_layers=2"]);
    assert_eq!(
        case.origin("model.d_model"),
        (json!(768), "x.yaml:5".to_owned())
    );
    assert_eq!(
        case.origin("model.vocabulary"),
        (json!(50304), "x.yaml:6".to_owned())
    );
    assert_eq!(
        case.origin("model.num_layers"),
        (json!(2), "--set model.num_layers=2".to_owned())
    );
    assert_eq!(
        Case::new(SIZED)
            .set(&["model.size=null"])
            .origin("model.d_model"),
        (json!(256), "default".to_owned())
    );
    let loaded = case.load();
    assert!(
        loaded
            .origins
            .iter()
            .all(|origin| origin.key != "model.size")
    );
    let numbers = SIZED.replace(
        "size: gpt2",
        "d_model: 768\n  num_layers: 2\n  num_heads: 12\n  seq_len: 1024",
    );
    assert_eq!(Case::new(&numbers).load().experiment, loaded.experiment);
    assert_eq!(
        Case::new(&write_resolved(&loaded)).load().experiment,
        loaded.experiment
    );
    let unknown = Case::new(SIZED).set(&["model.size=gpt2-mediun"]).problems();
    assert_eq!(
        unknown,
        "--set model.size=gpt2-mediun: `model.size` is `gpt2-mediun`; it must be `gpt2`, \
         `gpt2-medium`, `gpt2-large` or `gpt2-xl`; did you mean `gpt2-medium`?"
    );
}

#[test]
fn where_points_differ_in_size_the_resolved_file_leaves_it_to_them() {
    let swept = format!("{SIZED}sweep:\n  grid: {{model.size: [gpt2-medium, gpt2-large]}}\n");
    let own = SIZED.to_owned() + "sweep:\n  grid: {model.num_layers: [1, null]}\n";
    for text in [swept, own] {
        let loaded = Case::new(&text).set(&["model.num_heads=1"]).load();
        let keys: Vec<&str> = loaded
            .origins
            .iter()
            .filter_map(|origin| origin.key.strip_prefix("model."))
            .collect();
        assert_eq!(
            keys,
            [
                "kind",
                "size",
                "num_heads",
                "dropout",
                "vocabulary",
                "tie_head",
                "bias"
            ]
        );
        assert_eq!(
            Case::new(&write_resolved(&loaded)).load().experiment,
            loaded.experiment
        );
    }
}

#[test]
fn extends_chains_from_the_naming_file_and_may_not_cycle() {
    let chain = Case::new("extends: base/a.yaml\n")
        .file("base/a.yaml", "extends: deeper/b.yaml\ntrain: {seed: 4}\n")
        .file("base/deeper/b.yaml", BASE);
    assert_eq!(chain.load().experiment.train.seed, 4);
    let cycle = Case::new("extends: b.yaml\n")
        .file("b.yaml", "extends: x.yaml\n")
        .problems();
    assert!(
        cycle.starts_with(
            "b.yaml:1:10: `extends` forms a cycle: `x.yaml` already extends this file"
        ),
        "{cycle}"
    );
    let missing = Case::new("name: x\nextends: bas.yaml\n")
        .file("base.yaml", BASE)
        .problems();
    assert_eq!(
        missing,
        "x.yaml:2:10: `extends` names `bas.yaml`: there is no such file; did you mean `base.yaml`?"
    );
}

#[test]
fn a_value_beneath_another_is_checked_too() {
    let case = Case::new("extends: b.yaml\ntrain: {batch_size: 4}\n")
        .file("b.yaml", &format!("{BASE}  batch_size: 0\n"));
    assert_eq!(
        case.problems(),
        "b.yaml:8:15: `train.batch_size` is `0`; it must be an integer from 1 to 1048576"
    );
}

#[test]
fn the_resolved_file_reads_back_to_the_same_experiment() {
    let rich = format!(
        "{BASE}  clip_norm: 1\n  target: {{valid_loss: 2.5}}\nrun: {{devices: [0, GPU-1], timeout: \
         1h 30m, cool_down: {{below_celsius: 60}}}}\ndescription: |\n  two: lines\n  '08'\n\
         sweep:\n  grid: {{train.clip_norm: [null, 0.5], train.optimizer: [{{kind: sgd}}, {{beta1: \
         0.7}}]}}\n  exclude: [{{train.clip_norm: \"<0.5\"}}]\n"
    );
    for text in [
        BASE,
        rich.as_str(),
        "kiln: 1\nname: m\nmodel: {kind: matmul}\ntrain: {steps: 3}\n",
    ] {
        let loaded = Case::new(text).set(&["train.seed=11"]).load();
        let written = write_resolved(&loaded);
        assert!(written.contains("# --set train.seed=11"), "{written}");
        assert!(written.contains("# default"), "{written}");
        assert_eq!(
            Case::new(&written).load().experiment,
            loaded.experiment,
            "{written}"
        );
    }
}

#[test]
fn a_text_with_a_tokenizer_file_has_no_other_tokenizer_given_or_written() {
    let text = |keys: &str| {
        format!(
            "{{kiln: 1, name: x, model: {{kind: lstm}}, train: {{steps: 5}}, data: {{kind: text, path: \
             a, tokenizer_file: b{keys}}}}}"
        )
    };
    let loaded = Case::new(&text("")).load();
    let written = write_resolved(&loaded);
    assert!(!written.contains("tokenizer:"), "{written}");
    assert_eq!(Case::new(&written).load().experiment, loaded.experiment);
    for unit in ["character", "word"] {
        let told = Case::new(&text(&format!(", tokenizer: {unit}"))).problems();
        let words = "`data.tokenizer` and `data.tokenizer_file` are both given; keep one of them";
        assert_eq!(told.matches(words).count(), 1, "{told}");
    }
    let restored = Case::new(&text(", tokenizer: null")).load();
    assert_eq!(restored.experiment, loaded.experiment);
}

#[test]
fn a_place_is_found_for_every_key() {
    let loaded = Case::new(&format!(
        "{BASE}sweep:\n  grid: {{train.batch_size: [4, 8]}}\n"
    ))
    .load();
    let place = |key: &str| loaded.locate(key).unwrap().position.unwrap();
    assert_eq!(place("model.d_model"), (3, 29));
    assert_eq!(place("model.num_heads"), (3, 1));
    assert_eq!(place("run.devices"), (1, 1));
    let axis = |index| {
        loaded
            .axis_location("grid", "train.batch_size", index)
            .unwrap()
            .position
            .unwrap()
    };
    assert_eq!((axis(None), axis(Some(1))), ((9, 10), (9, 32)));
}

#[test]
fn a_command_is_merged_by_the_names_of_its_values_variables_and_metrics() {
    let base = "kiln: 1\nname: x\nmodel:\n  kind: command\n  argv: [run, \"{n}\", {when: m, then: \
                [\"{m}\"]}]\n  values: {n: 1, m: null}\n  environment: {A: one, B: two}\n  metrics: \
                {speed: {line: '(a)', take: mean, better: high}, error: {key: e}}\n";
    let upper = "extends: base/b.yaml\nname: y\nmodel: {values: {n: null, m: 3}, environment: {A: \
                 null}, metrics: {speed: {key: s}, error: null, more: {key: m}}}\n";
    let case = Case::new(upper).file("base/b.yaml", base);
    let model = |case: &Case| {
        let Model::Command(command) = (*case.load().experiment.model).clone() else {
            panic!("a command")
        };
        command
    };
    let problems = case.problems();
    assert!(
        problems.contains("`model.values.n` is `null`"),
        "`null` is a value: {problems}"
    );
    let merged = model(&case.set(&["model.values.n=4"]));
    assert_eq!(
        serde_json::to_string(&merged.values).unwrap(),
        r#"{"n":4,"m":3}"#
    );
    assert_eq!(
        serde_json::to_string(&merged.environment).unwrap(),
        r#"{"B":"two"}"#
    );
    assert_eq!(
        serde_json::to_string(&merged.metrics).unwrap(),
        r#"{"speed":{"key":"s"},"more":{"key":"m"}}"#,
        "a metric is replaced as a whole, in its place"
    );
}

#[test]
fn a_command_is_ranked_by_its_objective_or_its_first_metric_with_a_direction() {
    let objective = |more: &str| {
        let text = format!(
            "kiln: 1\nname: x\nmodel: {{kind: command, argv: [run], metrics: {{plain: {{key: a}}, \
             speed: {{key: b, better: high}}, error: {{key: c, better: low}}}}}}\n{more}"
        );
        let loaded = Case::new(&text).load();
        let found = loaded.experiment.ranking_objective().unwrap();
        let written = write_resolved(&loaded);
        assert_eq!(objective_of(&written), Some(found), "{written}");
        (found.metric.key(), found.goal())
    };
    assert_eq!(objective(""), ("speed", Goal::Max));
    assert_eq!(
        objective("objective: {metric: error}\n"),
        ("error", Goal::Min)
    );
    assert_eq!(
        objective("objective: {metric: plain, goal: max}\n"),
        ("plain", Goal::Max)
    );
    let problems = Case::new(
        "kiln: 1\nname: x\nmodel: {kind: command, argv: [run], metrics: {plain: {key: \
         a}}}\nobjective: {metric: plain}\n",
    )
    .problems();
    assert!(problems.contains("set `objective.goal`"), "{problems}");
    let without = Case::new("kiln: 1\nname: x\nmodel: {kind: command, argv: [run]}\n").load();
    let found = without.experiment.ranking_objective().unwrap();
    assert_eq!(
        (found.metric.name(), found.goal()),
        ("metric.wall_seconds", Goal::Min)
    );
}

#[test]
fn a_key_of_another_kind_names_the_key_that_this_kind_has_for_it() {
    let file = BASE.replace("d_model: 128", "d_model: 128, context: 4")
        + "sweep: {grid: {model.context: [4, 8]}}\n";
    assert_eq!(
        Case::new(&file).problems(),
        "x.yaml:3:34: `model.context` is not a key of kind `gpt`; it belongs to kind `mlp`; did you \
         mean `seq_len`?\nx.yaml:8:16: `model.context` is not a key of kind `gpt`; it belongs to \
         kind `mlp`; did you mean `model.seq_len`?"
    );
    let none = Case::new(&BASE.replace("beta1", "momentum")).problems();
    assert!(none.ends_with("it belongs to kind `sgd`"), "{none}");
}

#[test]
fn a_file_as_the_unit_of_tokens_is_told_its_key() {
    let told = |data: &str| {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: lstm}}, train: {{steps: 5}}, data: {{{data}}}}}"
        );
        Case::new(&text).problems()
    };
    let (allowed, hint) = (
        "it must be `character`, `byte` or `word`",
        "; a file of a tokenizer goes to `data.tokenizer_file`",
    );
    let of_text = told("kind: text, path: a, tokenizer: some/tokenizer.json");
    assert!(of_text.ends_with(&format!("{allowed}{hint}")), "{of_text}");
    for data in [
        "kind: generated, tokenizer: some/tokenizer.json",
        "kind: text, path: a, tokenizer: letters",
    ] {
        let told = told(data);
        assert!(told.ends_with(allowed), "{told}");
    }
}

#[test]
fn the_description_of_a_file_beneath_stays_there_but_is_checked() {
    let description = |own: &str, beneath: &str| {
        Case::new(&format!("extends: b.yaml\n{own}")).file("b.yaml", &format!("{BASE}{beneath}"))
    };
    let beneath = "description: the base\n";
    let of = |own: &str| description(own, beneath).load().experiment.description;
    assert_eq!(of("name: y\n"), None);
    assert_eq!(of("description: mine\n").as_deref(), Some("mine"));
    let set = description("name: y\n", beneath).set(&["description=set"]);
    assert_eq!(set.load().experiment.description.as_deref(), Some("set"));
    let faulty = description("name: y\n", "description: [1]\n").problems();
    assert!(faulty.contains("b.yaml:8:14: `description`"), "{faulty}");
}

#[test]
fn the_record_of_a_trial_is_one_problem_that_says_how_to_run_its_point() {
    let problems = |file: &str| {
        let request = ExperimentRequest {
            file: file.into(),
            text: Some("kiln_trial: 1\ntrial: t0e3b\nattempt: 1\nengine: flex\n".to_owned()),
            ..ExperimentRequest::default()
        };
        load(&request).unwrap_err()
    };
    let found = problems("results/a/latest/trials/t0e3b/trial.yaml");
    assert_eq!(found.as_slice().len(), 1, "{found}");
    let message = &found.as_slice()[0].message;
    for part in [
        "record of a trial",
        "`kiln run FILE --at results/a/latest:t0e3b`",
        "`kiln init NEW.yaml --from results/a/latest:t0e3b`",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let elsewhere = problems("copied/to/here/trial.yaml").to_string();
    assert!(elsewhere.contains("--at RUN:t0e3b"), "{elsewhere}");
}
