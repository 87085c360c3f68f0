//! Lists the changes between two resolved experiments, key by key.

mod words;

use std::collections::BTreeMap;

use kiln_core::{
    kinds::{Model, data::Loader},
    record::difference::{Difference, differences, leaves},
    spec::Experiment,
};
use serde_json::Value;

pub(super) use self::words::describe;

/// Keys that do not affect results: a run can be resumed when they change, and the launch records
/// the new value.
const FREE: [&str; 8] = [
    "description",
    "data.path",
    "train.initial_weights.path",
    "run.timeout",
    "run.stall",
    "run.retries",
    "run.wait",
    "run.on",
];

/// The section that says what the workers ask of Slurm; free as a whole.
const SLURM: &str = "run.slurm";

/// The sections of axes; their keys are the axes.
const AXES: [&str; 3] = ["sweep.grid", "sweep.zip", "sweep.derive"];

/// A key whose value differs; `None` if the key is absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyChange {
    pub(super) key: String,
    pub(super) old: Option<Value>,
    pub(super) new: Option<Value>,
    /// Whether it is only the path of a file of prompts and responses, or of a program, whose
    /// content is compared.
    is_moved: bool,
    /// Whether one value is the key's former default and the other its present one ([`was_default`]).
    is_of_a_default: bool,
}

impl KeyChange {
    /// Whether it is the device setting, which may change until the first measurement.
    pub(super) fn is_of_the_device(&self) -> bool {
        self.key == "run.devices"
    }

    /// Whether a resume accepts the new value.
    pub(super) fn is_free(&self) -> bool {
        let is_of_slurm = self.key == SLURM || self.key.starts_with("run.slurm.");
        FREE.contains(&self.key.as_str()) || is_of_slurm || self.is_moved || self.is_of_a_default
    }

    /// Whether it says only how the output of a command is read: the same output can be read again.
    pub(super) fn is_of_reading(&self) -> bool {
        self.is_in(&OF_READING)
    }

    /// Whether trials of a command with one id were run in the same way, although this key changed.
    pub(super) fn is_told_by_ids(&self) -> bool {
        self.is_in(&TOLD_BY_IDS)
    }

    /// Whether trainings with one id were run in the same way, although this key changed.
    pub(super) fn is_told_by_ids_of_trainings(&self) -> bool {
        self.is_in(&TOLD_BY_IDS_OF_TRAININGS)
    }

    fn is_in(&self, sections: &[&str]) -> bool {
        sections.iter().any(|section| {
            let rest = self.key.strip_prefix(section);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

/// Sections that say how the output of a command is read and what is looked for in it.
const OF_READING: [&str; 3] = ["model.metrics", "model.exits", "objective"];
/// Sections that are part of the id of a command's trial, or change no trial: the plan and names.
const TOLD_BY_IDS: [&str; 8] = [
    "model.argv",
    "model.values",
    "model.environment",
    "model.prepare",
    "train.seed",
    "sweep",
    "name",
    "model.grows",
];
/// Sections that are part of the id of a training, or change no trial.
const TOLD_BY_IDS_OF_TRAININGS: [&str; 6] = [
    "model",
    "data",
    "train",
    "run.devices_per_trial",
    "sweep",
    "name",
];

/// Every key whose value differs, sorted by key.
pub(super) fn changes(old: &Experiment, new: &Experiment) -> Vec<KeyChange> {
    // For other kinds `data.tokenizer` defines the tokens; adding or removing `valid_path` is
    // another split.
    let moves = |key: &str| {
        key == "data.tokenizer_file"
            || (["data.valid_path", "data.tokenizer"].contains(&key)
                && old.data.pairs().is_some()
                && new.data.pairs().is_some())
    };
    let is_same_command = is_same_command(old, new);
    let of_keys = |Difference { key, old, new }| {
        let is_moved = (moves(&key) && old.is_some() && new.is_some())
            || (PLACES.contains(&key.as_str()) && is_same_command)
            || is_engine_moved(&key, old.as_ref(), new.as_ref());
        let is_of_a_default = [&old, &new]
            .into_iter()
            .flatten()
            .all(|value| was_default(&key, value));
        KeyChange {
            key,
            old,
            new,
            is_moved,
            is_of_a_default,
        }
    };
    differences(leaves_of(old), leaves_of(new))
        .into_iter()
        .map(of_keys)
        .collect()
}

/// Whether the default of a key has changed and this is the old one or the new one: a run of an earlier
/// version has the old one in its file, though nobody asked for it. Ids of trials do not tell them
/// apart either.
fn was_default(key: &str, value: &Value) -> bool {
    match key {
        "train.checkpoint.after" => *value == "delete" || *value == "auto",
        Loader::PIN_MEMORY => *value == false || *value == "auto",
        _ => false,
    }
}

/// Keys of a command that say where its program lies; its content is compared by its hash.
const PLACES: [&str; 3] = ["model.argv", "model.folder", "model.files"];

/// Whether both are one command, wherever its program lies.
fn is_same_command(old: &Experiment, new: &Experiment) -> bool {
    match (&*old.model, &*new.model) {
        (Model::Command(old), Model::Command(new)) => {
            let names = [old, new].map(|command| command.argv.with_program_name());
            names[0] == names[1]
        }
        _ => false,
    }
}

/// Whether only the places of the files of an engine of one's own changed.
fn is_engine_moved(key: &str, old: Option<&Value>, new: Option<&Value>) -> bool {
    let Some(rest) = key.strip_prefix("run.engines.") else {
        return false;
    };
    let words = |value: Option<&Value>| -> Option<Vec<String>> {
        let words = value?.as_array()?.iter();
        let name = |word: &Value| Some(word.as_str()?.rsplit('/').next()?.to_owned());
        words.map(name).collect()
    };
    match rest.rsplit_once('.') {
        Some((_, "files")) => true,
        Some((_, "argv")) => {
            let (old, new) = (words(old), words(new));
            old.is_some() && old == new
        }
        _ => false,
    }
}

/// Each axis is one value, and so is each other key of the sweep.
fn leaves_of(experiment: &Experiment) -> BTreeMap<String, Value> {
    let is_whole = |key: &str| key.starts_with("sweep.") && !AXES.contains(&key);
    let of = |mut value: Value| {
        value.get_mut("sweep").into_iter().for_each(without_places);
        leaves(value, &is_whole)
    };
    serde_json::to_value(experiment).map(of).unwrap_or_default()
}

/// Removes the paths of swept weights, which may change like the path of all trials' weights.
fn without_places(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("train.initial_weights.path");
            if map.contains_key("sha256") {
                map.remove("path");
            }
            map.values_mut().for_each(without_places);
        }
        Value::Array(items) => items.iter_mut().for_each(without_places),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn experiment(extra: &str) -> Experiment {
        serde_yaml::from_str(&format!(
            "{{kiln: 1, name: x, model: {{kind: matmul, size: 8}}, {extra}}}"
        ))
        .unwrap()
    }

    #[test]
    fn the_same_experiment_has_no_changes_and_limits_are_free_to_change() {
        assert_eq!(changes(&experiment(""), &experiment("")), []);
        let found = changes(
            &experiment("run: {timeout: 30m}"),
            &experiment("run: {timeout: 1h}"),
        );
        assert!(found.len() == 1 && found[0].is_free());
        let found = changes(
            &experiment("sweep: {grid: {train.seed: [1]}}"),
            &experiment("sweep: {grid: {train.seed: [1, 2]}}"),
        );
        assert!(found.len() == 1 && !found[0].is_free());
    }

    #[test]
    fn another_way_to_write_a_value_is_no_change_and_a_text_is_not_a_number() {
        let of = |swept: &str| experiment(&format!("sweep: {{grid: {{{swept}}}}}"));
        let is_same = |old: &str, new: &str| changes(&of(old), &of(new)).is_empty();
        for (old, new) in [
            ("train.batch_size: [8, 16]", "train.batch_size: [8.0, 16]"),
            (
                "train.clip_norm: [1, 0.001]",
                "train.clip_norm: [1.0, 1.0e-3]",
            ),
            (
                "train.optimizer: [{kind: sgd, learning_rate: 1}]",
                "train.optimizer: [{learning_rate: 1.0, kind: sgd}]",
            ),
        ] {
            assert!(is_same(old, new), "{old} and {new}");
        }
        assert!(!is_same("model.name: [1]", "model.name: ['1']"));
        assert!(!is_same("model.size: [8, 16]", "model.size: [16, 8]"));
    }

    #[test]
    fn the_old_and_the_new_default_of_what_is_kept_are_no_obstacle() {
        let of = |after: &str| {
            experiment(&format!(
                "train: {{steps: 3, checkpoint: {{every_steps: 1, after: {after}}}}}"
            ))
        };
        let is_free = |old, new| changes(&of(old), &of(new))[0].is_free();
        assert!(is_free("delete", "auto") && is_free("auto", "delete"));
        assert!(!is_free("delete", "best") && !is_free("auto", "last"));
    }

    #[test]
    fn the_old_and_the_new_default_of_pinned_memory_are_no_obstacle() {
        let of = |pinned: &str| {
            serde_yaml::from_str::<Experiment>(&format!(
                "{{kiln: 1, name: x, model: {{kind: mlp, hidden: 4}}, data: {{kind: \
                 generated-images, classes: 2, pin_memory: {pinned}}}, train: {{steps: 3}}}}"
            ))
            .unwrap()
        };
        let is_free = |old, new| changes(&of(old), &of(new))[0].is_free();
        assert!(is_free("false", "auto") && is_free("auto", "false"));
        assert!(!is_free("false", "true") && !is_free("auto", "true"));
    }

    #[test]
    fn weights_may_lie_elsewhere_and_may_not_be_others() {
        let alone = |path: &str, sum: &str| {
            experiment(&format!(
                "train: {{steps: 3, initial_weights: {{path: {path}, sha256: {sum}}}}}"
            ))
        };
        let swept = |path: &str, sum: &str| {
            let weights = format!("{{path: {path}, sha256: {sum}}}");
            experiment(&format!(
                "sweep: {{grid: {{train.initial_weights: [null, {weights}]}}, include: \
                 [{{train.initial_weights: {weights}}}]}}"
            ))
        };
        assert!(
            changes(&alone("a", "one"), &alone("b", "one"))
                .iter()
                .all(KeyChange::is_free)
        );
        assert_eq!(changes(&swept("a", "one"), &swept("b", "one")), []);
        for other in [
            changes(&alone("a", "one"), &alone("a", "two")),
            changes(&swept("a", "one"), &swept("a", "two")),
        ] {
            assert!(
                !other.is_empty() && !other.iter().any(KeyChange::is_free),
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_program_may_lie_elsewhere_and_may_not_be_called_otherwise() {
        let of = |model: &str, engine: &str| {
            serde_yaml::from_str::<Experiment>(&format!(
                "{{kiln: 1, name: x, model: {{kind: command, {model}}}, \
                 run: {{engines: {{own: {engine}}}}}}}"
            ))
            .unwrap()
        };
        let is_free = |old: [&str; 2], new: [&str; 2]| {
            let changes = changes(&of(old[0], old[1]), &of(new[0], new[1]));
            !changes.is_empty() && changes.iter().all(KeyChange::is_free)
        };
        let (command, engine) = ("argv: [./a, x]", "{argv: [python, e.py, --fast]}");
        assert!(is_free([command, engine], ["argv: [bin/a, x]", engine]));
        assert!(is_free(
            [command, engine],
            ["argv: [./a, x], folder: f, files: [x.c]", engine]
        ));
        assert!(!is_free([command, engine], ["argv: [./b, x]", engine]));
        assert!(!is_free([command, engine], ["argv: [./a, y]", engine]));
        let moved = "{argv: [.venv/bin/python, lib/e.py, --fast], files: [lib/*.py]}";
        assert!(is_free([command, engine], [command, moved]));
        assert!(!is_free(
            [command, engine],
            [command, "{argv: [python, e.py]}"]
        ));
        assert!(!is_free(
            [command, engine],
            [command, "{argv: [python, f.py, --fast]}"]
        ));
    }

    #[test]
    fn what_reads_an_output_is_told_from_what_made_it() {
        let of = |more: &str, below: &str| {
            serde_yaml::from_str::<Experiment>(&format!(
                "{{kiln: 1, name: x, model: {{kind: command, argv: [x], {more}}}, {below}}}"
            ))
            .unwrap()
        };
        let of_each = |[old, new]: [(&str, &str); 2]| {
            let changes = changes(&of(old.0, old.1), &of(new.0, new.1));
            assert!(!changes.is_empty());
            let all = |is: fn(&KeyChange) -> bool| changes.iter().all(is);
            (
                all(KeyChange::is_of_reading),
                all(KeyChange::is_told_by_ids),
            )
        };
        let metrics = [
            ("metrics: {a: {line: 'a (x)'}}", ""),
            (
                "metrics: {a: {line: 'a (y)'}, b: {key: b}}",
                "objective: {metric: b, goal: max}",
            ),
        ];
        assert_eq!(of_each(metrics), (true, false));
        let exits = [("", ""), ("exits: {oom: [3]}", "")];
        assert_eq!(of_each(exits), (true, false));
        let values = [
            ("values: {n: 1}", ""),
            ("values: {n: 2}", "sweep: {repeats: 3}"),
        ];
        assert_eq!(of_each(values), (false, true));
        for other in [
            [("", ""), ("window: {from: a}", "")],
            [("", "run: {devices: cpu}"), ("", "run: {devices: all}")],
        ] {
            assert_eq!(of_each(other), (false, false), "{other:?}");
        }
    }

    #[test]
    fn what_is_part_of_the_id_of_a_training_is_told_from_how_it_runs() {
        let is_told = |new: &str| {
            let changes = changes(&experiment("train: {steps: 3}"), &experiment(new));
            assert!(!changes.is_empty(), "{new}");
            changes.iter().all(KeyChange::is_told_by_ids_of_trainings)
        };
        for told in [
            "train: {steps: 4}",
            "train: {steps: 3}, sweep: {repeats: 2}",
        ] {
            assert!(is_told(told), "{told}");
        }
        for other in [
            "train: {steps: 3}, measure: {warmup_steps: 1}",
            "train: {steps: 3}, run: {devices: cpu}",
        ] {
            assert!(!is_told(other), "{other}");
        }
    }

    #[test]
    fn a_moved_file_is_free_to_change_and_another_split_is_not() {
        let of = |data: &str| {
            serde_yaml::from_str::<Experiment>(&format!(
                "{{kiln: 1, name: x, model: {{kind: seq2seq}}, data: {data}, train: {{steps: 1}}}}"
            ))
            .unwrap()
        };
        let is_free =
            |old: &str, new: &str| changes(&of(old), &of(new)).iter().all(KeyChange::is_free);
        let pairs = |more: &str| format!("{{kind: sft-jsonl, path: a{more}}}");
        assert!(is_free(&pairs(", tokenizer: t"), &pairs(", tokenizer: u")));
        assert!(is_free(
            &pairs(", tokenizer: t, valid_path: v"),
            &pairs(", tokenizer: t, valid_path: w")
        ));
        assert!(!is_free(
            &pairs(", tokenizer: t"),
            &pairs(", tokenizer: t, valid_path: w")
        ));
        assert!(!is_free(
            &pairs(", tokenizer: t, valid_path: v"),
            &pairs(", tokenizer: t")
        ));
        assert!(!is_free(
            "{kind: text, path: a, tokenizer: word}",
            "{kind: text, path: a, tokenizer: byte}"
        ));
        let text = |more: &str| format!("{{kind: text, path: a{more}}}");
        let of_file = |file: &str| text(&format!(", tokenizer_file: {file}"));
        assert!(is_free(&of_file("t"), &of_file("u")));
        assert!(!is_free(&text(""), &of_file("u")));
    }
}
