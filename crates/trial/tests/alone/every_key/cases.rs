//! For each key two values, what else is set, and where the difference must be seen.

use std::{collections::HashMap, fs, path::Path};

use super::{
    left::{Child, Left, Setting},
    weights,
};
use crate::form::is_long;

/// In place of a value: the key is not set, and has the file's value or its default.
const AS_IT_IS: &str = "";

/// The place where a difference must be visible.
#[derive(Clone, Copy)]
pub(crate) enum Shows {
    /// Both runs succeed and show different things, while the first setting run again shows the
    /// same.
    Differ(Effect),
    /// The two runs show this.
    Are(fn(&Left) -> String, [&'static str; 2]),
    /// It holds of the two runs.
    Holds(fn(&Left, &Left) -> bool),
    /// It holds of the first run and of one of some runs of the second setting, which shows it only
    /// if a thread gets a core in time.
    HoldsOnce(fn(&Left, &Left) -> bool),
}

/// Something to be seen in what a run left.
#[derive(Clone, Copy)]
pub(crate) struct Effect {
    pub(crate) name: &'static str,
    pub(crate) see: fn(&Left) -> String,
}

const fn differ(name: &'static str, see: fn(&Left) -> String) -> Shows {
    Shows::Differ(Effect { name, see })
}

/// A key, two of its values and their effect.
pub(crate) struct Case {
    /// `model.d_model (gpt)`
    pub(crate) key: String,
    pub(crate) values: [&'static str; 2],
    pub(crate) shows: Shows,
    file: String,
    /// Set on both sides, after the key.
    with: Vec<&'static str>,
    child: Child,
    /// Whether the effect is on the run, not on the training: the short form of the test, too,
    /// starts the programs.
    needs_program: bool,
}

impl Case {
    /// The run of one side.
    pub(crate) fn setting(&self, side: usize) -> Setting {
        let Self { file, with, .. } = self;
        let child = if self.child == Child::Real && !self.needs_program && !is_long() {
            Child::InProcess
        } else {
            self.child
        };
        let (path, value) = (self.key.split(' ').next().unwrap(), self.values[side]);
        let mut setting = Setting {
            file: file.clone(),
            sets: Vec::new(),
            child,
        };
        match path {
            // The one key that a file alone can have.
            "extends" => setting.file.push_str(&format!("extends: {value}\n")),
            _ if value == AS_IT_IS => {}
            _ => setting.sets.push(format!("{path}={value}")),
        }
        setting
            .sets
            .extend(with.iter().map(|set| (*set).to_owned()));
        setting
    }

    fn with(self, with: &[&'static str]) -> Self {
        Self {
            with: with.to_vec(),
            ..self
        }
    }

    fn of(self, kind: &str) -> Self {
        Self {
            key: format!("{} ({kind})", self.key),
            ..self
        }
    }

    fn by(self, child: Child) -> Self {
        Self { child, ..self }
    }

    fn by_program(self) -> Self {
        Self {
            needs_program: true,
            ..self
        }
    }
}

fn case(key: &str, file: &str, values: [&'static str; 2], shows: Shows) -> Case {
    Case {
        key: key.to_owned(),
        values,
        shows,
        file: file.to_owned(),
        with: Vec::new(),
        child: Child::Real,
        needs_program: false,
    }
}

const GPT: &str = "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 16}";
const MLP: &str = "{kind: mlp, d_model: 8, hidden: 16, seq_len: 16}";
const LSTM: &str = "{kind: lstm, d_model: 16, hidden: 16, num_layers: 1, seq_len: 16}";
const GENERATED: &str = "{kind: generated, characters: 3000}";

/// A file of 8 small steps, all of them measured.
fn training(model: &str, data: &str, more: &str) -> String {
    format!(
        "kiln: 1\nname: x\nmodel: {model}\ndata: {data}\ntrain: {{steps: 8, batch_size: 4, \
         cpu_threads: 1{more}}}\n\
         measure: {{warmup_steps: 0, warmup_seconds: 0.0}}\n"
    )
}

fn gpt() -> String {
    training(GPT, GENERATED, "")
}

fn mlp() -> String {
    training(MLP, GENERATED, "")
}

/// A file for scripted children: products, which need no data.
fn products(more: &str) -> String {
    format!(
        "kiln: 1\nname: x\nmodel: {{kind: matmul, size: 8}}\ntrain: {{steps: 10, batch_size: 1}}\n\
         {more}"
    )
}

/// The losses of all steps, as the child computed them.
const LOSSES: Shows = differ("losses", |left| left.column("steps.csv", "loss"));
/// The learning rate of each step.
const RATES: Shows = differ("learning rates", |left| {
    left.column("steps.csv", "learning_rate")
});
/// Parameters of the model as it was built.
const PARAMETERS: Shows = differ("parameters", |left| left.measured("parameters"));
/// Samples in the training text as it was cut.
const SAMPLES: Shows = differ("samples", |left| left.measured("train_samples"));
/// The loss over the validation data.
const VALID_LOSS: Shows = differ("validation loss", |left| left.measured("valid_loss"));
/// The mean of the last losses.
const TRAIN_LOSS: Shows = differ("training loss", |left| left.measured("train_loss"));
/// The share of padding, as the row notes it.
const PADDING: Shows = differ("padding", padding);
/// Answers of the trained model.
const ANSWERS: Shows = differ("answers", |left| {
    fs::read_to_string(left.attempt().join("responses.jsonl")).unwrap_or_default()
});
/// Texts of the trained model.
const TEXTS: Shows = differ("texts", |left| {
    fs::read_to_string(left.attempt().join("sample.txt")).unwrap_or_default()
});

fn row_count(table: &str, left: &Left) -> usize {
    left.rows(table).len()
}

fn outcomes(left: &Left) -> String {
    left.column("trials.csv", "outcome")
}

/// Batch size and seed of the trials, in the order they ran.
fn trials(left: &Left) -> String {
    let rows = left.rows("trials.csv");
    rows.iter()
        .map(|row| format!("{}/{}", row["batch_size"], row["seed"]))
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn all() -> Vec<Case> {
    // The slowest cases come first.
    [
        of_machine(),
        of_run(),
        of_slurm(),
        of_top(),
        of_model(),
        of_text(),
        of_images(),
        of_panels(),
        of_pairs(),
        of_training(),
        of_initial_weights(),
        of_optimizer(),
        of_measure(),
        of_sweep(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_top() -> Vec<Case> {
    let without_steps = mlp().replace("steps: 8, ", "");
    vec![
        case(
            "name",
            &products(""),
            ["one", "two"],
            Shows::Are(Left::name, ["one", "two"]),
        )
        .by(Child::Scripted("completes")),
        case(
            "description",
            &products(""),
            [AS_IT_IS, "is wider better"],
            Shows::Holds(|one, other| {
                !one.stdout().contains("is wider better")
                    && other.stdout().contains("is wider better")
            }),
        )
        .by(Child::Scripted("completes")),
        case(
            "objective.metric",
            &mlp(),
            ["train_loss", "samples_per_second"],
            Shows::Holds(|one, other| {
                one.stdout().contains("* lowest training loss")
                    && other.stdout().contains("* fastest")
            }),
        )
        .by(Child::Scripted("completes")),
        case(
            "objective.goal",
            &mlp(),
            ["min", "max"],
            Shows::Holds(|one, other| {
                one.stdout().contains("* lowest training loss")
                    && other.stdout().contains("* highest training loss")
            }),
        )
        .with(&["objective.metric=train_loss"])
        .by(Child::Scripted("completes")),
        case(
            "extends",
            &without_steps,
            ["base/short.yaml", "base/long.yaml"],
            Shows::Are(|left| row_count("steps.csv", left).to_string(), ["4", "8"]),
        ),
    ]
}

fn of_model() -> Vec<Case> {
    let (gpt, mlp, lstm) = (gpt(), mlp(), training(LSTM, GENERATED, ""));
    let (resnet, panel) = (
        training(RESNET, GENERATED_IMAGES, ""),
        training(PANEL_LSTM, "{kind: stocknet, path: one/prices}", ""),
    );
    let of_resnet = |key: &str, value, shows| {
        case(&format!("model.{key}"), &resnet, [AS_IT_IS, value], shows).of("resnet")
    };
    let of_panel = |key: &str, value, shows| {
        case(&format!("model.{key}"), &panel, [AS_IT_IS, value], shows).of("panel-lstm")
    };
    let of_gpt = |key: &str, value, shows| {
        case(&format!("model.{key}"), &gpt, [AS_IT_IS, value], shows).of("gpt")
    };
    let of_lstm = |key: &str, value, shows| {
        case(&format!("model.{key}"), &lstm, [AS_IT_IS, value], shows).of("lstm")
    };
    let of_mlp = |key: &str, value, shows| {
        case(&format!("model.{key}"), &mlp, [AS_IT_IS, value], shows).of("mlp")
    };
    // The stock program has only kiln's own models: it refuses a user's own model by name, if the
    // plan does not before.
    let own = training(
        "{kind: custom, name: one, reads: text, seq_len: 16}",
        GENERATED,
        "",
    );
    vec![
        case(
            "model.name",
            &own,
            [AS_IT_IS, "two"],
            Shows::Holds(|one, two| is_named(one, "one") && is_named(two, "two")),
        )
        .of("custom")
        .by_program(),
        case(
            "model.reads",
            &own,
            [AS_IT_IS, "images"],
            Shows::Holds(|text, images| {
                is_named(text, "one")
                    && images
                        .to_string()
                        .contains("reads images, but `data.kind` is")
            }),
        )
        .of("custom")
        .by_program(),
        case(
            "model.seq_len",
            &own,
            [AS_IT_IS, "5000"],
            Shows::Holds(|short, long| {
                is_named(short, "one")
                    && long
                        .to_string()
                        .contains("one step takes 4 samples of 5000 + 1 tokens")
            }),
        )
        .of("custom")
        .by_program(),
        case("model.kind", &mlp, ["mlp", "gpt"], LOSSES)
            .with(&["model.d_model=16", "model.seq_len=16"]),
        case(
            "model.size",
            &gpt.replace(", num_layers: 1", ""),
            ["gpt2", "gpt2-medium"],
            PARAMETERS,
        )
        .of("gpt")
        .with(&["model.vocabulary=100"]),
        of_gpt("d_model", "32", PARAMETERS),
        of_gpt("num_layers", "2", PARAMETERS),
        of_gpt("num_heads", "4", LOSSES),
        of_gpt("seq_len", "8", SAMPLES),
        of_gpt("dropout", "0.5", LOSSES),
        of_gpt("vocabulary", "300", PARAMETERS),
        of_gpt("tie_head", "false", PARAMETERS),
        of_gpt("bias", "false", PARAMETERS),
        of_lstm("d_model", "8", PARAMETERS),
        of_lstm("hidden", "8", PARAMETERS),
        of_lstm("num_layers", "2", PARAMETERS),
        of_lstm("seq_len", "8", SAMPLES),
        of_lstm("dropout", "0.5", LOSSES),
        of_lstm("vocabulary", "300", PARAMETERS),
        of_lstm("tie_head", "true", PARAMETERS),
        of_mlp("context", "4", PARAMETERS),
        of_mlp("d_model", "16", PARAMETERS),
        of_mlp("hidden", "32", PARAMETERS),
        of_mlp("seq_len", "8", SAMPLES),
        of_mlp("vocabulary", "300", PARAMETERS),
        of_resnet("depth", "34", PARAMETERS),
        of_resnet("width", "8", PARAMETERS),
        of_resnet("stem", "imagenet", PARAMETERS),
        of_resnet("zero_init_gamma", "true", LOSSES),
        of_panel("seq_len", "8", SAMPLES),
        of_panel("symbol_width", "4", PARAMETERS),
        of_panel("hidden", "8", PARAMETERS),
        of_panel("num_layers", "2", PARAMETERS),
        of_panel("dropout", "0.5", LOSSES),
        // Products of a 125 times larger size take some two million times the work. Of a step's
        // time only the least counts, which no noise shortens: it is some microseconds for one
        // size, milliseconds for the other on any machine.
        case(
            "model.size",
            "kiln: 1\nname: x\nmodel: {kind: matmul}\ntrain: {steps: 6, batch_size: 1, \
             cpu_threads: 1}\n\
             measure: {warmup_steps: 1, warmup_seconds: 0.0}\n",
            ["8", "1000"],
            Shows::Holds(|small, large| {
                least_step_seconds(large) > 10.0 * least_step_seconds(small)
            }),
        )
        .of("matmul"),
    ]
}

/// Whether the trial failed for want of a model of this name.
fn is_named(left: &Left, name: &str) -> bool {
    left.column("trials.csv", "reason").contains(&format!(
        "`model.name` is `{name}`, and this program has only kiln's own models"
    ))
}

/// The shortest step; NaN, of which no comparison holds, if none was timed.
fn least_step_seconds(left: &Left) -> f64 {
    let rows = left.rows("steps.csv");
    rows.iter()
        .filter_map(|row| row["step_seconds"].parse::<f64>().ok())
        .reduce(f64::min)
        .unwrap_or(f64::NAN)
}

fn of_text() -> Vec<Case> {
    let known = "{kind: tinyshakespeare, path: one}";
    let mut cases = vec![
        case(
            "data.kind",
            &training(MLP, known, ""),
            ["tinyshakespeare", "wikitext2"],
            LOSSES,
        )
        .with(&["data.path=one", "data.tokenizer=character"]),
        case("data.characters", &mlp(), [AS_IT_IS, "5000"], SAMPLES).of("generated"),
    ];
    let kinds = [
        ("wikitext2", "{kind: wikitext2, path: one}", ["one", "two"]),
        ("tinyshakespeare", known, ["one", "two"]),
        (
            "text",
            "{kind: text, path: one/input.txt}",
            ["one/input.txt", "two/input.txt"],
        ),
        ("generated", GENERATED, [AS_IT_IS; 2]),
    ];
    for (kind, data, paths) in kinds {
        let file = training(MLP, data, "");
        let of =
            |key: &str, values, shows| case(&format!("data.{key}"), &file, values, shows).of(kind);
        if kind != "generated" {
            cases.push(of("path", paths, LOSSES));
        }
        if ["text", "generated"].contains(&kind) {
            cases.push(of("valid_fraction", [AS_IT_IS, "0.3"], SAMPLES));
        }
        let tokenizer = if kind == "wikitext2" {
            "character"
        } else {
            "word"
        };
        cases.extend([
            of("tokenizer", [AS_IT_IS, tokenizer], PARAMETERS),
            of("stride", [AS_IT_IS, "8"], SAMPLES),
            of("sampling", [AS_IT_IS, "random"], LOSSES),
        ]);
        if kind == "text" {
            let file = "one/pairs/tokenizer.json";
            cases.push(of("tokenizer_file", [AS_IT_IS, file], PARAMETERS));
        }
        cases.extend(of_loader(kind, &file));
    }
    cases
}

const PANEL_LSTM: &str = "{kind: panel-lstm, seq_len: 4, symbol_width: 2, hidden: 4, num_layers: \
                          1}";

fn of_panels() -> Vec<Case> {
    let kinds = [
        (
            "panel-csv",
            "{kind: panel-csv, path: one/prices, price: Close}",
        ),
        ("stocknet", "{kind: stocknet, path: one/prices}"),
    ];
    let own = training(PANEL_LSTM, kinds[0].1, "");
    let of_own = |key: &str, values, shows| {
        case(&format!("data.{key}"), &own, values, shows).of("panel-csv")
    };
    let mut cases = vec![
        // By the other column of dates one symbol's rows lie a year later, so that all of the
        // others' train.
        of_own("date", [AS_IT_IS, "Day"], SAMPLES),
        of_own("price", ["Close", "Open"], LOSSES),
        of_own("columns", [AS_IT_IS, "[Close, Volume]"], PARAMETERS),
        // A price that is not a number is an error, or its row is dropped.
        of_own(
            "skip_bad",
            [AS_IT_IS, "true"],
            Shows::Holds(|strict, lenient| {
                strict.succeeded().is_err() && lenient.succeeded().is_ok()
            }),
        )
        .with(&["data.path=one/spoilt-prices"]),
    ];
    for (kind, data) in kinds {
        let file = training(PANEL_LSTM, data, "");
        let of =
            |key: &str, values, shows| case(&format!("data.{key}"), &file, values, shows).of(kind);
        cases.extend([
            of("path", ["one/prices", "two/prices"], LOSSES),
            of("target", [AS_IT_IS, "direction"], LOSSES),
            of("valid_fraction", [AS_IT_IS, "0.3"], SAMPLES),
            of("limit", [AS_IT_IS, "2"], PARAMETERS),
        ]);
        cases.extend(of_loader(kind, &file));
    }
    cases
}

const SEQ2SEQ: &str = "{kind: seq2seq, d_model: 8, d_kv: 4, d_ff: 8, encoder_layers: 1, \
                       decoder_layers: 1, num_heads: 2}";

fn of_pairs() -> Vec<Case> {
    let own = "{kind: sft-jsonl, path: one/pairs/rows.jsonl, tokenizer: one/pairs/tokenizer.json}";
    let file = training(SEQ2SEQ, own, "");
    let of_own = |key: &str, value, shows| {
        case(&format!("data.{key}"), &file, [AS_IT_IS, value], shows).of("sft-jsonl")
    };
    let mut cases = vec![
        of_own("path", "two/pairs/rows.jsonl", LOSSES),
        of_own("tokenizer", "two/pairs/tokenizer.json", PARAMETERS),
        of_own("valid_path", "one/pairs/valid.jsonl", SAMPLES),
        of_own("valid_fraction", "0.3", SAMPLES),
        of_own("prompt_key", "question", LOSSES),
        of_own("response_key", "answer", LOSSES),
        of_own("end_token", "</s>", LOSSES),
        of_own("pad_token", "<pad>", LOSSES),
        // The tokenizer says [UNK]; by another name nothing is unknown.
        of_own(
            "unknown_token",
            "<unk>",
            Shows::Holds(|one, other| has_unknown(one) && !has_unknown(other)),
        ),
    ];
    let known = training(SEQ2SEQ, "{kind: chatlm, path: one/pairs}", "");
    cases.push(case("data.path", &known, ["one/pairs", "two/pairs"], PARAMETERS).of("chatlm"));
    let of_model = |key: &str, value, shows| {
        case(&format!("model.{key}"), &file, [AS_IT_IS, value], shows).of("seq2seq")
    };
    cases.extend([
        of_model("size", "t5-small", PARAMETERS).with(&[
            "model.d_ff=8",
            "model.encoder_layers=1",
            "model.decoder_layers=1",
            "train.steps=1",
        ]),
        of_model("d_model", "12", PARAMETERS),
        of_model("d_kv", "6", PARAMETERS),
        of_model("d_ff", "12", PARAMETERS),
        of_model("encoder_layers", "2", PARAMETERS),
        of_model("decoder_layers", "2", PARAMETERS),
        of_model("num_heads", "3", PARAMETERS),
        of_model("dropout", "0.5", LOSSES),
        of_model("relative_buckets", "8", PARAMETERS),
        of_model("relative_max_distance", "17", LOSSES),
        of_model("vocabulary", "500", PARAMETERS),
    ]);
    let of_generate = |key: &str, values| {
        case(
            &format!("train.evaluate.generate.{key}"),
            &file,
            values,
            ANSWERS,
        )
    };
    cases.extend([
        of_generate("rows", [AS_IT_IS, "2"]).with(&["train.evaluate.generate.max_tokens=4"]),
        of_generate("max_tokens", ["3", "9"]).with(&["train.evaluate.generate.rows=3"]),
        of_generate("beams", [AS_IT_IS, "4"]).with(&[
            "train.evaluate.generate.rows=20",
            "train.evaluate.generate.max_tokens=12",
        ]),
    ]);
    for (kind, file) in [("sft-jsonl", &file), ("chatlm", &known)] {
        let of = |key: &str, value, shows| {
            case(&format!("data.{key}"), file, [AS_IT_IS, value], shows).of(kind)
        };
        cases.extend([
            of("train_rows", "40", SAMPLES),
            of("valid_rows", "3", VALID_LOSS),
            of("max_prompt_tokens", "4", LOSSES),
            of("max_response_tokens", "4", LOSSES),
            of("length_bucket", "1", PADDING),
            of("sort_by_length", "false", LOSSES),
            of("longest_first", "true", PADDING).with(&["data.length_bucket=1"]),
        ]);
        cases.extend(of_loader(kind, file));
    }
    cases
}

/// The row's note about padding.
fn padding(left: &Left) -> String {
    let notes = left.notes();
    notes
        .split("; ")
        .find(|note| note.starts_with("tokens_per_second: "))
        .unwrap_or_default()
        .to_owned()
}

/// Whether a notice speaks of unknown tokens.
fn has_unknown(left: &Left) -> bool {
    left.stdout().contains("are unknown to the tokenizer")
        || left.stderr().contains("are unknown to the tokenizer")
}

const GENERATED_IMAGES: &str = "{kind: generated-images, images: 64, valid_images: 8, image_size: \
                                16}";
const RESNET: &str = "{kind: resnet, depth: 18, width: 4, stem: small}";

fn of_images() -> Vec<Case> {
    let made = GENERATED_IMAGES;
    let kinds = [
        (
            "fashion-mnist",
            "{kind: fashion-mnist, path: one}",
            ["one", "two"],
        ),
        ("cifar10", "{kind: cifar10, path: one}", ["one", "two"]),
        (
            "image-folder",
            "{kind: image-folder, path: one/folder, image_size: 16}",
            ["one/folder", "two/folder"],
        ),
        ("generated-images", made, [AS_IT_IS; 2]),
    ];
    let of_made = |key: &str, value, shows| {
        case(
            &format!("data.{key}"),
            &training(RESNET, made, ""),
            [AS_IT_IS, value],
            shows,
        )
        .of("generated-images")
    };
    let folder = training(RESNET, kinds[2].1, "");
    let of_folder = |key: &str, values, shows| {
        case(&format!("data.{key}"), &folder, values, shows).of("image-folder")
    };
    let mut cases = vec![
        of_made("images", "32", SAMPLES),
        of_made("valid_images", "4", VALID_LOSS),
        of_made("image_size", "32", LOSSES),
        of_made("channels", "1", PARAMETERS),
        of_made("classes", "5", PARAMETERS),
        of_folder("image_size", [AS_IT_IS, "32"], LOSSES),
        of_folder("crop", [AS_IT_IS, "center"], LOSSES),
        of_folder("valid_fraction", [AS_IT_IS, "0.5"], SAMPLES),
        // A file that is not an image fails the trial, or is dropped.
        of_folder(
            "skip_bad",
            [AS_IT_IS, "true"],
            Shows::Are(Left::status, ["3", "0"]),
        )
        .with(&["data.path=one/spoilt"])
        .by_program(),
    ];
    for (kind, data, paths) in kinds {
        let file = training(RESNET, data, "");
        let of =
            |key: &str, values, shows| case(&format!("data.{key}"), &file, values, shows).of(kind);
        if kind != "generated-images" {
            cases.push(of("path", paths, LOSSES));
        }
        if kind != "image-folder" {
            cases.push(of("crop_padding", [AS_IT_IS, "4"], LOSSES));
        }
        cases.push(of("flip", [AS_IT_IS, "true"], LOSSES));
        cases.extend(of_loader(kind, &file));
    }
    cases
}

/// The keys of the loader, which every kind of data has.
fn of_loader(kind: &str, file: &str) -> Vec<Case> {
    let of = |key: &str, values, shows| case(&format!("data.{key}"), file, values, shows).of(kind);
    vec![
        of(
            "num_workers",
            [AS_IT_IS, "2"],
            Shows::Are(|left| left.measured("loader_threads"), ["0", "2"]),
        ),
        of(
            "prefetch",
            ["1", "4"],
            Shows::HoldsOnce(|one, other| batches(one) == Some(1) && batches(other) > Some(1)),
        )
        .with(&["data.num_workers=1"]),
        of(
            "persistent_workers",
            [AS_IT_IS, "false"],
            Shows::Are(|left| left.measured("loader_threads"), ["1", "3"]),
        )
        .with(&["data.num_workers=1", "train.epochs=3"]),
        // One batch again and again: the losses of later steps are those of data that the model
        // memorizes.
        of("synthetic", [AS_IT_IS, "true"], LOSSES),
        // Its effect needs a GPU (`scripts/check-gpu.sh`); on the CPU a note says that it has no
        // effect.
        of(
            "pin_memory",
            [AS_IT_IS, "true"],
            Shows::Holds(|one, other| !pins(one) && pins(other)),
        ),
    ]
}

/// Whether cuDNN was to try its convolutions.
fn tries_convolutions(left: &Left) -> bool {
    left.measured("flags")
        .contains(r#""cudnn_benchmark":"true""#)
}

/// Whether the row notes that steps recorded as CUDA graphs have no effect.
fn records_steps(left: &Left) -> bool {
    left.notes().contains("cuda_graph: no effect on the CPU")
}

/// Whether the row notes that pinned memory has no effect.
fn pins(left: &Left) -> bool {
    left.notes().contains("pin_memory: no effect on the CPU")
}

/// The most batches that were in host memory.
fn batches(left: &Left) -> Option<u64> {
    left.measured("peak_batches_in_memory").parse().ok()
}

/// The keys of trained parameters to begin with. What they do is seen in `tests/checkpoints.rs`;
/// here, that each of them counts.
fn of_initial_weights() -> Vec<Case> {
    let model = MLP.replace('}', ", vocabulary: 70}");
    let given = |path: &str, sha256: &str| {
        training(
            &model,
            GENERATED,
            &format!(", initial_weights: {{path: {path}, sha256: \"{sha256}\"}}"),
        )
    };
    let of = |key: &str, file: &str, values| {
        case(
            &format!("train.initial_weights.{key}"),
            file,
            values,
            Shows::Are(Left::status, ["0", "3"]),
        )
        .by_program()
    };
    vec![
        of(
            "path",
            &given("trained.safetensors", &weights::sha256()),
            [AS_IT_IS, "x.yaml"],
        ),
        of(
            "sha256",
            &given("trained.safetensors", &weights::sha256()),
            [
                AS_IT_IS,
                "abababababababababababababababababababababababababababababababab",
            ],
        ),
        case(
            "train.initial_weights.without",
            &given("trained.safetensors", &weights::sha256()),
            [AS_IT_IS, "[embedding]"],
            LOSSES,
        )
        .by_program(),
    ]
}

fn of_training() -> Vec<Case> {
    let mlp = mlp();
    let of = |key: &str, values, shows| case(&format!("train.{key}"), &mlp, values, shows);
    vec![
        of("batch_size", [AS_IT_IS, "8"], LOSSES),
        of("grad_accumulation", [AS_IT_IS, "2"], LOSSES),
        case("train.precision", &gpt(), [AS_IT_IS, "amp-bf16"], LOSSES),
        of(
            "epochs",
            ["1", "3"],
            Shows::Holds(|one, three| {
                row_count("steps.csv", three) == 3 * row_count("steps.csv", one).max(1)
            }),
        ),
        of(
            "steps",
            ["6", "9"],
            Shows::Are(|left| row_count("steps.csv", left).to_string(), ["6", "9"]),
        ),
        of("seed", [AS_IT_IS, "2"], LOSSES),
        of(
            "evaluate.every",
            [AS_IT_IS, "2"],
            Shows::Are(|left| row_count("epochs.csv", left).to_string(), ["1", "4"]),
        ),
        // The sum of the losses over many batches of one sample is rounded differently from that
        // over few large ones.
        of("evaluate.batch_multiple", [AS_IT_IS, "512"], VALID_LOSS).with(&[
            "train.batch_size=1",
            "data.characters=30000",
            "data.valid_fraction=0.5",
        ]),
        of("label_smoothing", [AS_IT_IS, "0.2"], LOSSES),
        // Its effect needs a GPU; here the test checks that libtorch's switch is set and recorded.
        of(
            "cudnn_benchmark",
            [AS_IT_IS, "true"],
            Shows::Holds(|one, other| !tries_convolutions(one) && tries_convolutions(other)),
        ),
        // The same; here, that a note says it does nothing on the CPU.
        of(
            "cuda_graph",
            [AS_IT_IS, "on"],
            Shows::Holds(|one, other| !records_steps(one) && records_steps(other)),
        ),
        // With updates that change nothing the validation loss stalls at once.
        of(
            "early_stop.patience",
            ["7", "2"],
            Shows::Are(|left| row_count("steps.csv", left).to_string(), ["8", "3"]),
        )
        .with(&[
            "train.evaluate.every=1",
            "train.optimizer.learning_rate=1.0e-30",
        ]),
        of(
            "checkpoint.every_steps",
            ["100", "2"],
            Shows::Are(|left| is_there(left, "checkpoint_bytes"), ["no", "yes"]),
        )
        // Else the best state is written too, whatever the interval.
        .with(&["train.checkpoint.after=delete"]),
        // A training that diverges leaves the checkpoints that it had.
        of("checkpoint.keep", ["1", "2"], Shows::Are(kept, ["1", "2"])).with(&[
            "train.checkpoint.every_steps=1",
            "train.optimizer.kind=sgd",
            "train.optimizer.learning_rate=1.0e+9",
        ]),
        of(
            "checkpoint.after",
            ["delete", "last"],
            Shows::Are(kept, ["0", "1"]),
        )
        .with(&["train.checkpoint.every_steps=2"])
        .by_program(),
        of(
            "memory.watch",
            [AS_IT_IS, "false"],
            Shows::Are(
                |left| is_there(left, "resident_slope_bytes_per_step"),
                ["yes", "no"],
            ),
        )
        .with(&["measure.log_every=1"]),
        of(
            "target.valid_loss",
            ["1.0e-6", "100"],
            Shows::Are(|left| is_there(left, "seconds_to_target"), ["no", "yes"]),
        ),
        of("sample.prompt", ["begins", "river"], TEXTS),
        of("sample.tokens", ["20", "40"], TEXTS),
        of("sample.temperature", ["0", "1.5"], TEXTS).with(&["train.sample.tokens=40"]),
        of("sample.top_k", ["1", "20"], TEXTS).with(&["train.sample.tokens=40"]),
        of("sample.samples", ["1", "2"], TEXTS).with(&["train.sample.tokens=40"]),
        // A process has one number of threads, which the trainings of other tests here set too.
        of(
            "cpu_threads",
            [AS_IT_IS, "2"],
            Shows::Are(|left| left.measured("cpu_threads"), ["1", "2"]),
        )
        .by_program(),
    ]
}

/// The checkpoints that exist.
fn kept(left: &Left) -> String {
    let Some(trial) = left.attempt().parent().map(Path::to_owned) else {
        return String::new();
    };
    fs::read_dir(trial.join("checkpoint"))
        .map_or(0, Iterator::count)
        .to_string()
}

/// Whether the child measured it.
fn is_there(left: &Left, field: &str) -> String {
    if left.measured(field).is_empty() {
        "no".to_owned()
    } else {
        "yes".to_owned()
    }
}

fn of_optimizer() -> Vec<Case> {
    let mlp = mlp();
    let sgd = training(MLP, GENERATED, ", optimizer: {kind: sgd}");
    // Its norms begin at 1, so that decay has something to take from a tensor of one dimension.
    let gpt_sgd = training(GPT, GENERATED, ", optimizer: {kind: sgd}");
    let of = |file: &str, key: &str, value| {
        case(&format!("train.{key}"), file, [AS_IT_IS, value], LOSSES)
    };
    let of_adamw = |key: &str, value| of(&mlp, &format!("optimizer.{key}"), value).of("adamw");
    let adafactor = training(MLP, GENERATED, ", optimizer: {kind: adafactor}");
    let gpt_adafactor = training(GPT, GENERATED, ", optimizer: {kind: adafactor}");
    let of_adafactor =
        |key: &str, value| of(&adafactor, &format!("optimizer.{key}"), value).of("adafactor");
    let of_sgd = |key: &str, value| of(&sgd, &format!("optimizer.{key}"), value).of("sgd");
    let mut cases = vec![
        of(&mlp, "optimizer.kind", "sgd"),
        of_adamw("learning_rate", "0.01"),
        of_adamw("beta1", "0.5"),
        of_adamw("beta2", "0.9"),
        of_adamw("epsilon", "1.0"),
        of_adamw("weight_decay", "1.0"),
        of(&gpt(), "optimizer.weight_decay_on", "matrices")
            .of("adamw")
            .with(&["train.optimizer.weight_decay=1.0"]),
        of_sgd("learning_rate", "0.01"),
        of_sgd("momentum", "0.9"),
        of_sgd("nesterov", "true").with(&["train.optimizer.momentum=0.9"]),
        of_sgd("weight_decay", "0.5"),
        of_adafactor("learning_rate", "0.01"),
        of_adafactor("decay_rate", "0.5"),
        of_adafactor("epsilon", "0.001"),
        of_adafactor("clip_threshold", "0.2"),
        of_adafactor("weight_decay", "0.5"),
        of(&gpt_adafactor, "optimizer.weight_decay_on", "matrices")
            .of("adafactor")
            .with(&["train.optimizer.weight_decay=0.5"]),
        of(&gpt_sgd, "optimizer.weight_decay_on", "matrices")
            .of("sgd")
            .with(&["train.optimizer.weight_decay=0.5"]),
        of(&sgd, "clip_norm", "0.01"),
        of(&mlp, "learning_rate_schedule.kind", "cosine"),
        of(&mlp, "learning_rate_schedule.warmup_steps", "4").of("constant"),
    ];
    for kind in ["linear", "cosine"] {
        let file = training(
            MLP,
            GENERATED,
            &format!(", learning_rate_schedule: {{kind: {kind}}}"),
        );
        cases.push(of(&file, "learning_rate_schedule.warmup_steps", "4").of(kind));
        cases.push(of(&file, "learning_rate_schedule.final_fraction", "0.5").of(kind));
    }
    // A rate too small to move anything: every evaluation is a stall.
    let stalled = ", optimizer: {kind: adamw, learning_rate: 1.0e-30}, evaluate: {every: 1}, \
                   learning_rate_schedule: {kind: plateau}";
    let file = training(MLP, GENERATED, stalled);
    for (key, value) in [("warmup_steps", "4"), ("factor", "0.5"), ("patience", "1")] {
        let key = format!("train.learning_rate_schedule.{key}");
        cases.push(case(&key, &file, [AS_IT_IS, value], RATES).of("plateau"));
    }
    cases
}

fn of_measure() -> Vec<Case> {
    let mlp = mlp();
    vec![
        case(
            "measure.warmup_steps",
            &mlp,
            [AS_IT_IS, "3"],
            Shows::Are(|left| left.measured("left_out_steps"), ["0", "3"]),
        )
        .by_program(),
        case(
            "measure.warmup_seconds",
            &mlp,
            [AS_IT_IS, "100"],
            Shows::Are(|left| is_there(left, "window_seconds"), ["yes", "no"]),
        ),
        // The mean loss over so many steps.
        case("measure.log_every", &mlp, ["1", "8"], TRAIN_LOSS),
        // The last measured step.
        case(
            "measure.gradient_noise.every",
            &mlp,
            ["2", "3"],
            differ("last measured step", |left| {
                left.measured("gradient_noise_step")
            }),
        )
        .with(&["train.grad_accumulation=2"]),
        case(
            "measure.gradient_noise.layer_groups",
            &mlp,
            ["false", "true"],
            Shows::Are(
                |left| left.attempt().join("layers.csv").is_file().to_string(),
                ["false", "true"],
            ),
        )
        .with(&[
            "train.grad_accumulation=2",
            "measure.gradient_noise.every=2",
        ]),
    ]
}

fn of_sweep() -> Vec<Case> {
    let file = products("sweep: {grid: {train.batch_size: [1, 2]}}\n");
    let of = |key: &str, values, seen| {
        case(
            &format!("sweep.{key}"),
            &file,
            values,
            Shows::Are(trials, seen),
        )
        .by(Child::Scripted("completes"))
    };
    let sampled =
        products("sweep: {sample: {count: 2, axes: {train.batch_size: {from: 1, to: 999}}}}\n");
    let random = |key: &str, values| {
        let key = format!("sweep.sample.{key}");
        case(&key, &sampled, values, differ("trials", trials)).by(Child::Scripted("completes"))
    };
    vec![
        of(
            "grid",
            [AS_IT_IS, "{train.batch_size: [3, 1]}"],
            ["1/1 2/1", "3/1 1/1"],
        ),
        of(
            "zip",
            [AS_IT_IS, "{train.seed: [7, 8]}"],
            ["1/1 2/1", "1/7 1/8 2/7 2/8"],
        ),
        of(
            "include",
            [AS_IT_IS, "[{train.batch_size: 5}]"],
            ["1/1 2/1", "1/1 2/1 5/1"],
        ),
        of(
            "exclude",
            [AS_IT_IS, "[{train.batch_size: 1}]"],
            ["1/1 2/1", "2/1"],
        ),
        of(
            "derive",
            [AS_IT_IS, "{train.seed: train.batch_size + 5}"],
            ["1/1 2/1", "1/6 2/7"],
        ),
        random("count", [AS_IT_IS, "3"]),
        random("seed", [AS_IT_IS, "2"]),
        random("axes", [AS_IT_IS, "{train.batch_size: {to: 9999}}"]),
        of("repeats", [AS_IT_IS, "2"], ["1/1 2/1", "1/1 2/1 2/2 1/2"]),
        of(
            "order",
            [AS_IT_IS, "listed"],
            ["1/1 2/1 2/2 1/2", "1/1 1/2 2/1 2/2"],
        )
        .with(&["sweep.repeats=2"]),
        of(
            "together",
            [AS_IT_IS, "[train.batch_size]"],
            ["1/1 1/2 2/1 2/2", "1/1 2/1 1/2 2/2"],
        )
        .with(&["sweep.repeats=2", "sweep.order=listed"]),
    ]
}

/// What the workers of a run ask of Slurm.
fn of_slurm() -> Vec<Case> {
    let file = products("sweep: {grid: {train.batch_size: [1, 2, 3]}}\n");
    let of = |key: &str, value: &'static str| {
        case(
            &format!("run.slurm.{key}"),
            &file,
            [AS_IT_IS, value],
            differ("job", |left| left.job()),
        )
        .with(&["run.on=slurm"])
        .by(Child::InSlurm)
    };
    vec![
        of("workers", "2"),
        of("partition", "gpu"),
        of("account", "lm"),
        of("gres", "gpu:1"),
        of("cpus", "4"),
        of("memory", "1GiB"),
        of("time", "4h"),
        of("constraint", "nvlink"),
        of("exclude", "[gpu013]"),
        of("exclusive", "true"),
        of("resubmissions", "3"),
        of("setup", "['module load cuda']"),
        of("environment", "[HOME]"),
        of("extra", "['--qos=long']"),
    ]
}

fn of_run() -> Vec<Case> {
    let file = products("");
    // A child that falls silent and ends by itself after minutes only, so that a limit stops it.
    // Where both are over, the timeout is named.
    let (stalled, late) = (
        "timed-out: because it sent no message for 2s (`run.stall`)",
        "timed-out: at its time limit (`run.timeout` 1s)",
    );
    vec![
        case(
            "run.on",
            &file,
            [AS_IT_IS, "workers"],
            Shows::Holds(|here, workers| {
                here.stdout().contains("1 trial: 1 completed")
                    && workers
                        .stdout()
                        .contains("start on each node that sees this folder: ")
            }),
        )
        .by(Child::Scripted("completes")),
        case(
            "run.timeout",
            &file,
            [AS_IT_IS, "1s"],
            Shows::Are(stop, [stalled, late]),
        )
        .with(&["run.stall=2s"])
        .by(Child::Scripted("silent")),
        case(
            "run.stall",
            &file,
            ["2s", "1s"],
            Shows::Are(
                stop,
                [
                    stalled,
                    "timed-out: because it sent no message for 1s (`run.stall`)",
                ],
            ),
        )
        .by(Child::Scripted("silent")),
        // Often are eight looks in less than a second, or four in two seconds on a machine that is
        // very busy; seldom is the first alone.
        case(
            "measure.sample_interval",
            &file,
            ["100ms", "1m"],
            Shows::Holds(|often, seldom| {
                row_count("samples.csv", often) > row_count("samples.csv", seldom) + 2
            }),
        )
        .by(Child::Sampled),
        case(
            "run.retries",
            &file,
            [AS_IT_IS, "1"],
            Shows::Are(outcomes, ["failed", "failed completed"]),
        )
        .by(Child::Scripted("fails_first")),
        case(
            "run.memory_limit",
            &file,
            ["3GiB", "2GiB"],
            Shows::Are(
                |left| left.column("trials.csv", "memory_limit_bytes"),
                ["3221225472", "2147483648"],
            ),
        )
        .by(Child::Scripted("completes")),
        case(
            "run.on_oom",
            &products("sweep: {grid: {train.batch_size: [1, 2]}}\n"),
            [AS_IT_IS, "skip-larger"],
            Shows::Are(outcomes, ["oom oom", "oom skipped"]),
        )
        .by(Child::Scripted("runs_out")),
        case("run.engine", &mlp(), [AS_IT_IS, "flex"], LOSSES).by_program(),
        case("run.devices_per_trial", &mlp(), [AS_IT_IS, "2"], LOSSES).by_program(),
    ]
}

/// The outcome of the only attempt, and the limit that ended it.
fn stop(left: &Left) -> String {
    let reason = left.column("trials.csv", "reason");
    let limit = reason
        .split_once(" was stopped ")
        .and_then(|(_, rest)| rest.split_once(" after "));
    format!(
        "{}: {}",
        outcomes(left),
        limit.map_or(&*reason, |(limit, _)| limit)
    )
}

/// Cases that only a GPU can show, with the small NVML library.
fn of_machine() -> Vec<Case> {
    let file = products("sweep: {grid: {train.batch_size: [1, 2, 3, 4]}}\n");
    let busy = products("run: {devices: [0]}\n");
    let shared = ["run.devices=[0]", "run.require_idle_device=false"];
    // Four trials, between which the device is left alone for three seconds, or not. A pause without a
    // rest is some hundredths of a second. A busy machine would have to make each of the three a
    // hundred times longer for the shortest of them to look like a rest.
    let rests = Shows::Holds(|at_once, rested| {
        let (at_once, rested) = (pauses(at_once), pauses(rested));
        at_once.len() == 3
            && at_once.into_iter().reduce(f64::min) < Some(2.5)
            && rested.into_iter().reduce(f64::min) > Some(2.9)
    });
    vec![
        case("run.cool_down.below_celsius", &file, ["60", "40"], rests)
            .with(&[&shared[..], &["run.cool_down.at_most=3s"]].concat())
            .by(Child::OnGpu("completes")),
        case("run.cool_down.at_most", &file, ["1ms", "3s"], rests)
            .with(&[&shared[..], &["run.cool_down.below_celsius=40"]].concat())
            .by(Child::OnGpu("completes")),
        case(
            "run.wait",
            &busy,
            [AS_IT_IS, "300ms"],
            Shows::Holds(|none, some| {
                !none.stderr().contains("waiting up to")
                    && some.stderr().contains("waiting up to")
                    && some.seconds >= 0.3
            }),
        )
        .by(Child::OnGpu("completes")),
        case(
            "run.require_idle_device",
            &busy,
            [AS_IT_IS, "false"],
            Shows::Are(Left::status, ["3", "0"]),
        )
        .by(Child::OnGpu("completes")),
        case(
            "run.devices",
            &products(""),
            ["cpu", "[0]"],
            Shows::Are(
                visible_device,
                ["", "GPU-00000000-0000-0000-0000-000000000001"],
            ),
        )
        .with(&["run.require_idle_device=false"])
        .by(Child::OnGpu("environment")),
        case(
            "record.identity",
            &products(""),
            [AS_IT_IS, "full"],
            Shows::Are(serial_number, ["masked", "1650000000001"]),
        )
        .with(&shared)
        .by(Child::OnGpu("completes")),
    ]
}

/// Seconds from the end of each trial to the start of the next; none unless all completed.
fn pauses(left: &Left) -> Vec<f64> {
    let rows = left.rows("trials.csv");
    if rows.iter().any(|row| row["outcome"] != "completed") {
        return Vec::new();
    }
    let seconds =
        |row: &HashMap<String, String>, column: &str| row[column].parse().unwrap_or(f64::NAN);
    let pause = |pair: &[HashMap<String, String>]| {
        seconds(&pair[1], "run_seconds")
            - seconds(&pair[0], "run_seconds")
            - seconds(&pair[0], "trial_seconds")
    };
    rows.windows(2).map(pause).collect()
}

/// The GPU that the child could see.
fn visible_device(left: &Left) -> String {
    let environment = fs::read_to_string(left.attempt().join("environment"))
        .unwrap_or_else(|_| "CUDA_VISIBLE_DEVICES=nothing ran".to_owned());
    environment
        .lines()
        .find_map(|line| line.strip_prefix("CUDA_VISIBLE_DEVICES="))
        .unwrap_or("unset")
        .to_owned()
}

fn serial_number(left: &Left) -> String {
    let rows = left.rows("snapshots.csv");
    rows.iter()
        .find(|row| row["field"] == "serial_number")
        .map(|row| row["value"].clone())
        .unwrap_or_default()
}
