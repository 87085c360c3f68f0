//! Trial ids: a hash of the canonical form of everything that decides a trial's result.
//!
//! In: the resolved `model`, `data` and `train` (with the trial's seed), all without paths, the
//! `run.` keys that are swept, `run.devices_per_trial`, and for a trial that continues another one
//! the id of that one and the step. Keys equal to their format-1 default
//! are omitted, so a default that is written out, or a key that a newer kiln adds, does not change
//! an id. `kind` is always kept. The defaults are frozen in `format_1_defaults.json`: entries may
//! be added, never changed.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    Origin, TrialId,
    canonical::write_object,
    defaults::{FORMAT_1_DEFAULTS, leave_out_defaults},
};
use crate::{
    kinds::{Data, Model, data::PinMemory},
    spec::{AfterTraining, Train},
};

/// The settings that a trial's id is made of.
pub(super) struct TrialIdentity {
    sections: Map<String, Value>,
}

/// The part of an identity that the points of a sweep often share.
#[derive(Clone)]
pub(super) struct SharedIdentity {
    model: Value,
    data: Value,
}

impl SharedIdentity {
    pub(super) fn new(model: &Model, data: &Data) -> serde_json::Result<Self> {
        let mut shared = Self {
            model: identity_of_model(model)?,
            data: identity_of_data(data, model)?,
        };
        leave_out_defaults(&mut shared.model, "model", &FORMAT_1_DEFAULTS["model"]);
        leave_out_defaults(&mut shared.data, "data", &FORMAT_1_DEFAULTS["data"]);
        Ok(shared)
    }
}

impl TrialIdentity {
    /// `telling_run` holds the keys of `run` that are part of the id, without the prefix.
    pub(super) fn new(
        shared: SharedIdentity,
        train: &Train,
        telling_run: Map<String, Value>,
    ) -> serde_json::Result<Self> {
        let mut train = identity_of_training(train)?;
        let mut run = Value::Object(telling_run);
        for (section, value) in [("train", &mut train), ("run", &mut run)] {
            leave_out_defaults(value, section, &FORMAT_1_DEFAULTS[section]);
        }
        let sections = [
            ("model", shared.model),
            ("data", shared.data),
            ("train", train),
            ("run", run),
        ];
        Ok(Self {
            sections: sections
                .into_iter()
                .map(|(section, value)| (section.to_owned(), value))
                .collect(),
        })
    }

    /// The identity of a trial that continues another one.
    pub(super) fn continuing(mut self, origin: Option<&Origin>) -> Self {
        if let Some(Origin { trial, step, .. }) = origin {
            let value = json!({"trial": trial.digits(), "step": step});
            self.sections.insert("origin".to_owned(), value);
        }
        self
    }

    /// Returns the id for this seed instead of `train.seed`.
    pub(super) fn with_seed(&mut self, seed: u64) -> TrialId {
        if let Some(Value::Object(train)) = self.sections.get_mut("train") {
            train.insert("seed".to_owned(), json!(seed));
            if FORMAT_1_DEFAULTS["train"]["seed"] == json!(seed) {
                train.shift_remove("seed");
            }
        }
        let mut text = String::new();
        write_object(&self.sections, &mut text);
        TrialId::of_digits(&hex::encode(&Sha256::digest(text.as_bytes())[..5]))
    }
}

/// A command without what only looks at it: its metrics, its window, where it runs.
fn identity_of_model(model: &Model) -> serde_json::Result<Value> {
    match model {
        Model::Command(command) => serde_json::to_value(Model::Command(command.identity())),
        other => serde_json::to_value(other),
    }
}

/// Removes paths, and a stride equal to its default. Whether validation has its own file, and whether
/// a text has the file of a tokenizer, stays. The default of `pin_memory` was `false` and is `auto`
/// now: ids of old files must not change, so the two values have the same id.
fn identity_of_data(data: &Data, model: &Model) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(data)?;
    if let Value::Object(map) = &mut value {
        map.shift_remove("path");
        if data
            .loader()
            .is_some_and(|loader| loader.pin_memory != PinMemory::Asked(true))
        {
            map.shift_remove("pin_memory");
        }
        if let Data::SftJsonl(own) = data {
            map.shift_remove("tokenizer");
            if own.valid_path.is_some() {
                map.insert("valid_path".to_owned(), Value::Bool(true));
            }
        }
        if data.tokenizer_file().is_some() {
            map.insert("tokenizer_file".to_owned(), Value::Bool(true));
        }
        if data
            .sampling()
            .is_some_and(|sampling| sampling.stride == model.seq_len())
        {
            map.shift_remove("stride");
        }
    }
    Ok(value)
}

/// Removes the path of weights. The default of `checkpoint.after` was `delete` and is `auto` now:
/// as for `pin_memory`, both have the id of the old default.
pub(super) fn identity_of_training(train: &Train) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(train)?;
    if train
        .checkpoint
        .as_ref()
        .is_some_and(|checkpoint| checkpoint.after == AfterTraining::Auto)
    {
        value["checkpoint"]["after"] = json!(AfterTraining::Delete);
    }
    if let Some(Value::Object(weights)) = value.get_mut("initial_weights") {
        weights.shift_remove("path");
        // The order of the parts means nothing.
        if let Some(Value::Array(parts)) = weights.get_mut("without") {
            parts.sort_by_key(Value::to_string);
            parts.dedup();
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::canonical::canonical;

    fn id(model: &str, data: &str, train: &str, run: Value) -> String {
        let model: Model = serde_yaml::from_str(model).unwrap();
        let data: Data = serde_yaml::from_str(data).unwrap();
        let train: Train = serde_yaml::from_str(train).unwrap();
        let Value::Object(run) = run else {
            panic!("a map")
        };
        TrialIdentity::new(SharedIdentity::new(&model, &data).unwrap(), &train, run)
            .unwrap()
            .with_seed(train.seed)
            .digits()
            .to_owned()
    }

    fn plain(model: &str, data: &str, train: &str) -> String {
        id(model, data, train, json!({}))
    }

    #[test]
    fn a_text_with_a_file_of_a_tokenizer_is_another_trial_wherever_the_file_lies() {
        let of = |keys: &str| {
            plain(
                "{kind: mlp}",
                &format!("{{kind: text, path: p{keys}}}"),
                "{epochs: 1}",
            )
        };
        assert_eq!(of(", tokenizer_file: t"), of(", tokenizer_file: u"));
        assert_ne!(of(", tokenizer_file: t"), of(""));
    }

    #[test]
    fn the_order_of_parts_of_initial_weights_means_nothing() {
        let of = |without: &str| {
            plain(
                "{kind: panel-lstm}",
                "{kind: stocknet}",
                &format!("{{epochs: 1, initial_weights: {{path: p, sha256: one{without}}}}}"),
            )
        };
        let both = of(", without: [head, embedding]");
        assert_eq!(of(", without: [embedding, head, head]"), both);
        assert_ne!(of(", without: [head]"), both);
        assert_eq!(of(", without: []"), of(""));
    }

    /// Ids of earlier versions: a kiln with other ids cannot resume, compare or name older runs.
    #[test]
    fn ids_stay_what_they_were() {
        assert_eq!(
            plain("{kind: gpt}", "{kind: wikitext2}", "{epochs: 1}"),
            "3dfb18e01b"
        );
        assert_eq!(
            plain(
                "{kind: gpt, d_model: 256, vocabulary: 50257, tie_head: false, dropout: 0.1}",
                "{kind: wikitext2, num_workers: 4}",
                "{batch_size: 4, epochs: 5, precision: amp-bf16, seed: 3, optimizer: {kind: adamw, \
                 learning_rate: 3.0e-4}, evaluate: {every: epoch}}"
            ),
            "782646fe05"
        );
        assert_eq!(
            id(
                "{kind: matmul, size: 4096}",
                "{kind: none}",
                "{steps: 20}",
                json!({"engine": "flex"})
            ),
            "ff1f856c1f"
        );
        let own = "{kind: custom, name: mine, reads: images, width: 3, stem: {kernel: [3, 3], act: \
                   relu}}";
        let id_of_own = plain(own, "{kind: fashion-mnist}", "{epochs: 1}");
        assert_eq!(
            plain(
                &own.replace(
                    "width: 3, stem: {kernel: [3, 3], act: relu}",
                    "stem: {act: relu, kernel: [3, 3.0]}, width: 3.0"
                ),
                "{kind: fashion-mnist}",
                "{epochs: 1}"
            ),
            id_of_own
        );
    }

    #[test]
    fn a_default_written_out_or_a_moved_folder_changes_no_id() {
        let short = plain("{kind: gpt}", "{kind: wikitext2}", "{epochs: 1}");
        let model = "{num_layers: 2, kind: gpt, d_model: 256, num_heads: 4, seq_len: 128, dropout: \
                     0, tie_head: true, bias: true}";
        let data = "{kind: wikitext2, path: /elsewhere, tokenizer: word, stride: 128, sampling: \
                    shuffled, num_workers: 0, prefetch: 2, persistent_workers: true}";
        let train =
            "{seed: 1, batch_size: 8, grad_accumulation: 1, precision: f32, epochs: 1, cpu_threads: auto, evaluate: {every: end, batch_multiple: 1},
            optimizer: {kind: adamw, learning_rate: 1.0e-3, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8, weight_decay: 0.01, weight_decay_on: all},
            learning_rate_schedule: {kind: constant, warmup_steps: 0}}";
        assert_eq!(plain(model, data, train), short);
        assert_eq!(
            id(
                model,
                data,
                train,
                json!({"engine": "libtorch", "devices": "auto", "devices_per_trial": 1})
            ),
            short
        );
        let weights = |path: &str| {
            plain(
                model,
                data,
                &format!("{{epochs: 1, initial_weights: {{path: {path}, sha256: one}}}}"),
            )
        };
        assert_eq!(weights("here"), weights("there"));
        let written = "{epochs: 1, sample: {tokens: 200, prompt: \"\\n\", temperature: 1, samples: \
                       1}}";
        assert_eq!(
            plain("{kind: gpt}", "{kind: wikitext2}", written),
            plain(
                "{kind: gpt}",
                "{kind: wikitext2}",
                "{epochs: 1, sample: {}}"
            )
        );
    }

    #[test]
    fn the_default_of_what_is_kept_changed_and_ids_did_not() {
        let of = |after: &str| {
            plain(
                "{kind: mlp}",
                "{kind: generated}",
                &format!("{{steps: 5, checkpoint: {{every_steps: 2{after}}}}}"),
            )
        };
        // As kiln had them when the default was `delete`.
        for after in ["", ", after: auto", ", after: delete", ", keep: 2"] {
            assert_eq!(of(after), "6421c13f9a", "{after}");
        }
        let others = [of(", after: best"), of(", after: last")];
        assert!(others[0] != others[1] && !others.contains(&of("")));
    }

    #[test]
    fn a_size_has_the_id_of_its_numbers() {
        let numbers = "{kind: gpt, d_model: 1024, num_layers: 3, num_heads: 16, seq_len: 1024, \
                       vocabulary: 50257}";
        let of = |model: &str| plain(model, "{kind: generated}", "{epochs: 1}");
        assert_eq!(
            of("{kind: gpt, size: gpt2-medium, num_layers: 3}"),
            of(numbers)
        );
    }

    #[test]
    fn how_one_looks_at_a_command_changes_no_id() {
        let of = |keys: &str| {
            plain(
                &format!("{{kind: command, {keys}}}"),
                "{kind: none}",
                "{seed: 3}",
            )
        };
        let command = "argv: [a/prog, -n, '{n}'], values: {n: 3, m: x}, environment: {A: '{m}'}, \
                       prepare: [make]";
        let id = of(command);
        for same in [
            &command.replace("a/prog", "/else/where/prog"),
            &command.replace("n: 3, m: x", "m: x, n: 3.0"),
            &format!(
                "{command}, folder: f, files: [x.c], metrics: {{g: {{line: '(a)', better: high}}}}, \
                 window: {{from: x}}, grows: [n], exits: {{oom: [3]}}, checkpoints: true"
            ),
        ] {
            assert_eq!(of(same), id, "{same}");
        }
        for another in [
            command.replace("a/prog", "a/program"),
            command.replace("-n", "-m"),
            command.replace("n: 3", "n: 4"),
            command.replace("n: 3", "n: '3'"),
            command.replace("A: '{m}'", "A: x"),
            command.replace("[make]", "[make, x]"),
        ] {
            assert_ne!(of(&another), id, "{another}");
        }
    }

    #[test]
    fn whatever_decides_the_result_changes_the_id() {
        let all = [
            plain("{kind: gpt}", "{kind: generated}", "{epochs: 1}"),
            plain("{kind: mlp}", "{kind: generated}", "{epochs: 1}"),
            plain(
                "{kind: gpt, bias: false}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain("{kind: gpt}", "{kind: wikitext2}", "{epochs: 1}"),
            plain(
                "{kind: gpt}",
                "{kind: generated, num_workers: 2}",
                "{epochs: 1}",
            ),
            plain("{kind: gpt}", "{kind: generated, stride: 1}", "{epochs: 1}"),
            plain("{kind: gpt}", "{kind: generated}", "{epochs: 2}"),
            plain("{kind: gpt}", "{kind: generated}", "{steps: 1}"),
            plain("{kind: gpt}", "{kind: generated}", "{epochs: 1, seed: 2}"),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, clip_norm: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, optimizer: {kind: sgd}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, optimizer: {kind: sgd, learning_rate: 0.2}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, evaluate: {batch_multiple: 3}}",
            ),
            plain("{kind: panel-lstm}", "{kind: stocknet}", "{epochs: 1}"),
            plain(
                "{kind: panel-lstm}",
                "{kind: stocknet, limit: 5}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: panel-lstm}",
                "{kind: stocknet, target: direction}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: panel-lstm}",
                "{kind: panel-csv, path: p, price: Close}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: panel-lstm}",
                "{kind: panel-csv, path: p, price: Close, columns: [Close]}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: panel-lstm}",
                "{kind: panel-csv, path: p, price: Close, columns: [Close, Open]}",
                "{epochs: 1}",
            ),
            plain("{kind: gpt}", "{kind: chatlm}", "{epochs: 1}"),
            plain("{kind: seq2seq}", "{kind: chatlm}", "{epochs: 1}"),
            plain(
                "{kind: seq2seq, size: chatlm}",
                "{kind: chatlm}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: seq2seq}",
                "{kind: chatlm}",
                "{epochs: 1, evaluate: {generate: {}}}",
            ),
            plain(
                "{kind: seq2seq}",
                "{kind: chatlm}",
                "{epochs: 1, evaluate: {generate: {beams: 4}}}",
            ),
            plain(
                "{kind: seq2seq}",
                "{kind: chatlm}",
                "{epochs: 1, optimizer: {kind: adafactor}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: chatlm, train_rows: 5}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: chatlm, sort_by_length: false}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: sft-jsonl, path: p, tokenizer: t}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: sft-jsonl, path: p, tokenizer: t, valid_path: v}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: sft-jsonl, path: p, tokenizer: t, valid_fraction: 0.2}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, sample: {}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, sample: {tokens: 20}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, sample: {top_k: 20}}",
            ),
            plain(
                "{kind: gpt, size: gpt2}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, initial_weights: {path: p, sha256: one}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, initial_weights: {path: p, sha256: two}}",
            ),
            plain(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1, initial_weights: {path: p, sha256: two, without: [embedding]}}",
            ),
            id(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1}",
                json!({"engine": "flex"}),
            ),
            id(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1}",
                json!({"devices_per_trial": 2}),
            ),
            id(
                "{kind: gpt}",
                "{kind: generated}",
                "{epochs: 1}",
                json!({"devices_per_trial": 4}),
            ),
            plain(
                "{kind: custom, name: one, reads: text, seq_len: 8}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: custom, name: two, reads: text, seq_len: 8}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: custom, name: one, reads: text, seq_len: 9}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: custom, name: one, reads: text, seq_len: 8, width: 3}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: custom, name: one, reads: text, seq_len: 8, width: [3]}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
            plain(
                "{kind: custom, name: one, reads: text, seq_len: 8, stem: {width: 3}}",
                "{kind: generated}",
                "{epochs: 1}",
            ),
        ];
        let different: std::collections::HashSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
    }

    /// An old file without this key keeps its id, and so does a file with `false`.
    #[test]
    fn pinned_memory_tells_trials_apart_only_where_it_is_asked_for() {
        let id = |pinned: &str| {
            plain(
                "{kind: gpt}",
                &format!("{{kind: wikitext2{pinned}}}"),
                "{steps: 10}",
            )
        };
        let [unsaid, auto, no, yes] = [
            "",
            ", pin_memory: auto",
            ", pin_memory: false",
            ", pin_memory: true",
        ]
        .map(id);
        assert!(
            unsaid == auto && auto == no && no != yes,
            "{unsaid} {auto} {no} {yes}"
        );
    }

    /// Today's defaults and the frozen ones have the same keys and values. A new key is added to
    /// the file; an existing default is never changed, because that would change the ids of old
    /// trials.
    #[test]
    fn todays_defaults_are_the_frozen_ones() {
        let model = |kind: &str| {
            serde_json::to_value(serde_json::from_value::<Model>(json!({"kind": kind})).unwrap())
                .unwrap()
        };
        let data = |kind: &str| {
            let given = match kind {
                "text" | "image-folder" => json!({"kind": kind, "path": "p"}),
                "panel-csv" => json!({"kind": kind, "path": "p", "price": "Close"}),
                "sft-jsonl" => {
                    json!({"kind": kind, "path": "p", "tokenizer": "t", "valid_fraction": 0.1})
                }
                _ => json!({"kind": kind}),
            };
            let mut value =
                serde_json::to_value(serde_json::from_value::<Data>(given).unwrap()).unwrap();
            // The default is `auto` now, which has the same id.
            if let Some(pinned) = value.get_mut("pin_memory") {
                assert_eq!(pinned.take(), json!("auto"));
                *pinned = json!(false);
            }
            value
        };
        let train = |key: &str, kind: &str| {
            serde_json::to_value(
                serde_json::from_value::<Train>(json!({key: {"kind": kind}})).unwrap(),
            )
            .unwrap()[key]
                .clone()
        };
        let without = |mut value: Value, keys: &[&str]| {
            value
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !keys.contains(&key.as_str()));
            value
        };
        let given = |kind: &str| -> &[&str] {
            if kind == "sft-jsonl" {
                &["kind", "path", "tokenizer"]
            } else {
                &["kind", "path", "price"]
            }
        };
        let kinds = |names: &[&str], make: &dyn Fn(&str) -> Value| -> Value {
            names
                .iter()
                .map(|name| ((*name).to_owned(), without(make(name), given(name))))
                .collect::<Map<_, _>>()
                .into()
        };
        let run = serde_json::to_value(crate::spec::Run::default()).unwrap();
        let today = json!({
            "model": kinds(&["gpt", "lstm", "panel-lstm", "resnet", "seq2seq", "mlp", "matmul"], &model),
            "data": kinds(
                &[
                    "none", "wikitext2", "tinyshakespeare", "text", "generated", "fashion-mnist", "cifar10", "image-folder",
                    "generated-images", "panel-csv", "stocknet", "sft-jsonl", "chatlm",
                ],
                &data
            ),
            "train": without(serde_json::to_value(Train::default()).unwrap(), &["optimizer", "learning_rate_schedule"]),
            "train.evaluate.generate": serde_json::to_value(crate::spec::Generate::default()).unwrap(),
            "train.sample": serde_json::to_value(crate::spec::Sample::default()).unwrap(),
            "train.optimizer": kinds(&["adamw", "sgd", "adafactor"], &|kind| train("optimizer", kind)),
            "train.learning_rate_schedule": kinds(&["constant", "linear", "cosine", "plateau"], &|kind| train("learning_rate_schedule", kind)),
            "run": {"engine": run["engine"], "devices": run["devices"], "devices_per_trial": run["devices_per_trial"]},
        });
        assert_eq!(canonical(&today), canonical(&FORMAT_1_DEFAULTS));
    }
}
