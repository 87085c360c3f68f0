//! A trained model as files for other programs: `model.safetensors` under PyTorch's names,
//! `config.json`, `model.py` that builds the same network and loads it, `check.safetensors` with
//! inputs and kiln's own outputs for them, the vocabulary or tokenizer, and, for `gpt` and
//! `seq2seq`, a folder that `transformers` loads.
//!
//! Nothing is approximated: what another program cannot compute exactly is left out by name.

mod data_files;
mod hugging_face;

use std::{
    borrow::Cow,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::{InputShape, Model},
    record::model_use::{ExportTask, UseAnswer},
};
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};

use super::{Answers, Trained, without_kind};
use crate::{
    TrialError,
    data::{
        BatchPixels, BatchSamples, HostBatch, ImageSamples, PairSamples, PanelSamples, TargetScale,
    },
    engine::{BATCH_NORM_EPSILON, IGNORED_TARGET, LAYER_NORM_EPSILON, RMS_NORM_EPSILON},
    pytorch_names,
    train::{
        pretrained::{TOKENS, token_sum_of},
        tensor_file::{self, Said},
    },
};

/// Version of `config.json`.
const EXPORT: u32 = 1;
/// The beginning of every `model.py`, and its end: the loader, and the check of its outputs.
const HEAD: &str = include_str!("python/head.py");
const LOADER: &str = include_str!("python/loader.py");

/// A tensor of numbers on its way to a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    shape: Vec<usize>,
    bytes: Vec<u8>,
    dtype: Dtype,
}

/// Tensors by name.
type NamedNumbers = Vec<(String, Numbers)>;

impl Numbers {
    fn new(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        Self::of_bytes(shape, bytes.collect(), Dtype::F32)
    }

    fn whole(shape: &[usize], values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        Self::of_bytes(shape, bytes.collect(), Dtype::I64)
    }

    fn of_bytes(shape: &[usize], bytes: Vec<u8>, dtype: Dtype) -> Self {
        Self {
            shape: shape.to_vec(),
            bytes,
            dtype,
        }
    }

    /// A matrix with its axes exchanged.
    fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else {
            return self.clone();
        };
        let (width, mut bytes) = (size_of::<f32>(), Vec::with_capacity(self.bytes.len()));
        for column in 0..columns {
            for row in 0..rows {
                let at = (row * columns + column) * width;
                bytes.extend_from_slice(&self.bytes[at..at + width]);
            }
        }
        Self {
            shape: vec![columns, rows],
            bytes,
            dtype: self.dtype,
        }
    }
}

impl View for Numbers {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The folder that is written.
struct Exporting<'a> {
    to: &'a Path,
    files: Vec<String>,
    left_out: Vec<String>,
}

impl Exporting<'_> {
    fn path(&mut self, name: &str) -> PathBuf {
        self.files.push(name.to_owned());
        self.to.join(name)
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), TrialError> {
        let path = self.path(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|error| unwritten(&path, &error))
    }

    fn json(&mut self, name: &str, value: &Value) -> Result<(), TrialError> {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|error| TrialError::Failed(error.to_string()))?;
        text.push('\n');
        self.bytes(name, text.as_bytes())
    }

    fn tensors(&mut self, name: &str, tensors: NamedNumbers) -> Result<(), TrialError> {
        let path = self.path(name);
        // Readers of PyTorch's tensors look for this key.
        let said = Said::from([("format".to_owned(), "pt".to_owned())]);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(|error| unwritten(&path, &error))?;
        tensor_file::serialize(&path, tensors, Some(said))
            .map_err(|error| TrialError::of_writing(format!("{}: {error}", path.display()), &error))
    }
}

fn unwritten(path: &Path, error: &io::Error) -> TrialError {
    TrialError::of_writing(
        format!("{} could not be written: {error}", path.display()),
        error,
    )
}

pub(super) fn export<W: Write>(
    trained: &Trained<'_>,
    task: &ExportTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let code = network_code(&trained.file.model)?;
    let input = trained.input()?;
    let mut learner = trained.learner(answers)?;
    let mut exporting = Exporting {
        to: &task.to,
        files: Vec::new(),
        left_out: Vec::new(),
    };
    let tensors = renamed(trained)?;
    hugging_face::export(trained, &tensors, input, &mut exporting)?;
    exporting.tensors("model.safetensors", tensors)?;
    let batch = check_batch(trained, input);
    let (outputs, shape) = learner.outputs(&batch)?;
    if outputs.iter().any(|output| !output.is_finite()) {
        return Err(TrialError::Bad(
            "the model's outputs are NaN or infinite, so its weights are of no use; name an earlier \
             checkpoint with `--step`"
                .to_owned(),
        ));
    }
    let outputs: Vec<f32> = outputs.iter().map(|output| *output as f32).collect();
    let mut check = check_inputs(&batch);
    check.push(("outputs".to_owned(), Numbers::new(&shape, &outputs)));
    exporting.tensors("check.safetensors", check)?;
    exporting.bytes(
        "model.py",
        format!("{HEAD}\n\n{code}\n\n{LOADER}").as_bytes(),
    )?;
    let mut config = config(trained, input, task)?;
    data_files::describe_data(trained, &mut config, &mut exporting)?;
    exporting.json("config.json", &Value::Object(config))?;
    answers.say(&UseAnswer::Exported {
        files: exporting.files,
        left_out: exporting.left_out,
    })
}

/// `model.py` without its loader.
fn network_code(model: &Model) -> Result<&'static str, TrialError> {
    Ok(match model {
        Model::Gpt(_) => include_str!("python/gpt.py"),
        Model::Lstm(_) => include_str!("python/lstm.py"),
        Model::Mlp(_) => include_str!("python/mlp.py"),
        Model::PanelLstm(_) => include_str!("python/panel_lstm.py"),
        Model::Resnet(_) => include_str!("python/resnet.py"),
        Model::Seq2seq(_) => include_str!("python/seq2seq.py"),
        other => {
            return Err(TrialError::Bad(format!(
                "`model.kind` {} cannot be exported, because its code is not kiln's; its \
                 checkpoint's `model.safetensors` holds its weights by path",
                other.kind()
            )));
        }
    })
}

/// Every tensor of the checkpoint under PyTorch's name, in f32.
fn renamed(trained: &Trained<'_>) -> Result<NamedNumbers, TrialError> {
    let weights = &trained.weights;
    let mut found = weights.names();
    found.sort_unstable();
    let renamed = |name: String| {
        let within = without_kind(&name);
        let new = pytorch_names::of(&trained.file.model, within)
            .ok_or_else(|| weights.unfit(&name, "is not a parameter of the model"))?;
        let shape = weights.shape(&name)?.to_vec();
        let values = weights.values(&name, shape.iter().product())?;
        Ok((new, Numbers::new(&shape, &values)))
    };
    found.into_iter().map(renamed).collect()
}

/// `config.json`: what `model.py` builds the network from, and where it comes from.
fn config(
    trained: &Trained<'_>,
    input: InputShape,
    task: &ExportTask,
) -> Result<Map<String, Value>, TrialError> {
    let failed = |error: serde_json::Error| TrialError::Failed(error.to_string());
    let model = &trained.file.model;
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| drop(config.insert(key.to_owned(), value));
    set("kiln_export", json!(EXPORT));
    set("kind", json!(model.kind()));
    set("model", serde_json::to_value(model).map_err(failed)?);
    match input {
        InputShape::Text { vocabulary } => set("vocabulary", json!(vocabulary)),
        InputShape::Pairs(pairs) => set("vocabulary", json!(pairs.vocabulary)),
        InputShape::Images(images) => set("images", json!(images)),
        InputShape::Panel(panel) => set("panel", json!(panel)),
    }
    match model {
        Model::Gpt(_) => set("norm_epsilon", json!(LAYER_NORM_EPSILON)),
        Model::Resnet(_) => set("norm_epsilon", json!(BATCH_NORM_EPSILON)),
        Model::Seq2seq(_) => set("norm_epsilon", json!(RMS_NORM_EPSILON)),
        _ => {}
    }
    if let Model::Resnet(resnet) = model {
        set("blocks", json!(resnet.blocks()));
        set("bottlenecks", json!(resnet.has_bottlenecks()));
    }
    if let Some(tokens) = token_sum_of(&trained.weights) {
        set(TOKENS, json!(tokens));
    }
    set("data", json!({"kind": trained.file.data.kind()}));
    set("origin", task.origin.clone());
    Ok(config)
}

/// Rows of the check.
const CHECK_ROWS: usize = 2;
/// Most tokens of a row of the check.
const CHECK_TIME: usize = 32;

/// A small batch that is the same wherever a model of this shape is exported.
fn check_batch(trained: &Trained<'_>, input: InputShape) -> HostBatch {
    let model = &trained.file.model;
    let time = model
        .seq_len()
        .map_or(CHECK_TIME, |seq_len| (seq_len as usize).min(CHECK_TIME));
    let ids = |count: usize, below: u64| -> Vec<i64> {
        (0..count as u64)
            .map(|at| (at * 7919 + at * at * 31 + 3) % below.max(1))
            .map(|id| id as i64)
            .collect()
    };
    // From −1 on to 1, exact in f32.
    let numbers = |count: usize| -> Vec<f32> {
        (0..count as u64)
            .map(|at| ((at * 7919 + at * at % 8191) % 257) as f32 / 128.0 - 1.0)
            .collect()
    };
    let rows = CHECK_ROWS;
    let samples = match input {
        InputShape::Text { vocabulary } => {
            return HostBatch::of_text(
                rows,
                time,
                ids(rows * time, vocabulary),
                vec![IGNORED_TARGET; rows * time],
            );
        }
        InputShape::Images(shape) => BatchSamples::Images(ImageSamples {
            pixels: BatchPixels::Numbers(numbers(
                rows * (shape.channels * shape.height * shape.width) as usize,
            )),
            labels: vec![0; rows],
            shape,
        }),
        InputShape::Panel(shape) => {
            let time = model.seq_len().unwrap_or(1) as usize;
            BatchSamples::Panel(PanelSamples {
                features: numbers(rows * time * shape.features as usize),
                symbols: ids(rows, shape.symbols),
                targets: vec![0.0; rows],
                seq_len: time,
                shape,
                scale: TargetScale::Directions,
            })
        }
        InputShape::Pairs(pairs) => {
            let (prompt_len, response_len) = (11, 6);
            BatchSamples::Pairs(PairSamples {
                prompts: ids(rows * prompt_len, pairs.vocabulary),
                prompt_lengths: vec![prompt_len as i64, 7],
                decoder_inputs: ids(rows * response_len, pairs.vocabulary),
                targets: vec![IGNORED_TARGET; rows * response_len],
                prompt_len,
                response_len,
                pad: 0,
            })
        }
    };
    HostBatch {
        rows,
        samples,
        step_targets: None,
    }
}

/// The inputs of a batch under the names of the arguments of `Network.forward` in `model.py`.
fn check_inputs(batch: &HostBatch) -> NamedNumbers {
    let rows = batch.rows;
    let named = |name: &str, numbers: Numbers| (name.to_owned(), numbers);
    match &batch.samples {
        BatchSamples::Text(text) => vec![named(
            "tokens",
            Numbers::whole(&[rows, text.seq_len], &text.inputs),
        )],
        BatchSamples::Images(images) => {
            let shape = images.shape;
            let sides = [shape.channels, shape.height, shape.width].map(|side| side as usize);
            let BatchPixels::Numbers(pixels) = &images.pixels else {
                return Vec::new();
            };
            vec![named(
                "images",
                Numbers::new(&[rows, sides[0], sides[1], sides[2]], pixels),
            )]
        }
        BatchSamples::Panel(panel) => vec![
            named(
                "features",
                Numbers::new(
                    &[rows, panel.seq_len, panel.shape.features as usize],
                    &panel.features,
                ),
            ),
            named("symbols", Numbers::whole(&[rows], &panel.symbols)),
        ],
        BatchSamples::Pairs(pairs) => vec![
            named(
                "prompts",
                Numbers::whole(&[rows, pairs.prompt_len], &pairs.prompts),
            ),
            named(
                "prompt_lengths",
                Numbers::whole(&[rows], &pairs.prompt_lengths),
            ),
            named(
                "decoder_inputs",
                Numbers::whole(&[rows, pairs.response_len], &pairs.decoder_inputs),
            ),
        ],
    }
}
