//! The use of a trained model: `kiln-trial --use`.
//!
//! In: one request as JSON, with the trial as it was trained and its checkpoint. Out: answers as
//! JSON lines: texts, classes, forecasts, scores, or the list of exported files. Everything is
//! computed in f32, whatever the precision of the training; only an evaluation is computed as in the
//! training. Choosing the checkpoint is left to `kiln`.

mod evaluate;
mod export;
mod missing_data;
mod predict;
mod sample;

use std::{
    io::{Read, Write},
    path::Path,
};

use kiln_core::{
    kinds::{
        Data, InputShape, Model,
        data::{ImageShape, PairCounts, PairShape, PanelShape},
    },
    limits::STATE_BYTES,
    plan::{ChildDevice, TrialFile},
    record::{
        checkpoint::MODEL_FILE,
        message::exit_status,
        model_use::{MODEL_USE, UseAnswer, UseRequest, UseTask},
        trial_result::OutputNames,
    },
    spec::{CudaGraph, Precision},
    units::short_hash,
};
use kiln_data::{error::DataError, images, pairs::TokenFile};

use crate::{
    TrialError,
    data::{self},
    engine::guard_result,
    model::{Registry, without_kind},
    train::{Learner, tensor_file::TensorFile},
};

/// Reads a request, does it, and returns the exit status of the process.
pub(crate) fn answer(registry: &Registry, input: impl Read, output: impl Write) -> i32 {
    let mut answers = Answers(output);
    let done = read(input).and_then(|request| {
        guard_result(|| perform(registry, request, &mut answers))?;
        answers.say(&UseAnswer::Done)
    });
    let Err(error) = done else {
        return exit_status::RESULT;
    };
    // The parent may be gone; the exit status is then all that is left.
    let _ = answers.say(&UseAnswer::Failed {
        reason: error.to_string(),
    });
    error.exit_status()
}

/// Writes answers, one per line.
struct Answers<W: Write>(W);

impl<W: Write> Answers<W> {
    /// Errors: nobody reads them.
    fn say(&mut self, answer: &UseAnswer) -> Result<(), TrialError> {
        let mut line =
            serde_json::to_vec(answer).map_err(|error| TrialError::Failed(error.to_string()))?;
        line.push(b'\n');
        self.0
            .write_all(&line)
            .and_then(|()| self.0.flush())
            .map_err(|error| TrialError::Failed(format!("an answer could not be written: {error}")))
    }
}

fn read(input: impl Read) -> Result<UseRequest, TrialError> {
    let bad = |error: String| {
        TrialError::Bad(format!(
            "standard input is not a request of `kiln sample`, `predict`, `evaluate` or `export`: \
             {error}"
        ))
    };
    let mut bytes = Vec::new();
    input
        .take(STATE_BYTES.value())
        .read_to_end(&mut bytes)
        .map_err(|error| bad(error.to_string()))?;
    let request: UseRequest =
        serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if request.kiln_use != MODEL_USE {
        return Err(bad(format!(
            "`kiln_use` is {}; this program reads format {MODEL_USE}",
            request.kiln_use
        )));
    }
    Ok(request)
}

/// A trained model before it is built: its trial, and its weights.
struct Trained<'a> {
    file: TrialFile,
    weights: TensorFile,
    registry: &'a Registry,
    /// SHA-256 of the data of the training, if known.
    data_sha256: Option<String>,
    outputs: OutputNames,
}

fn perform<W: Write>(
    registry: &Registry,
    request: UseRequest,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let file = match request.task {
        UseTask::Evaluate(_) => as_evaluated(request.trial),
        _ => in_f32(request.trial),
    };
    let trained = Trained {
        file,
        weights: TensorFile::read(&request.checkpoint.join(MODEL_FILE))?,
        registry,
        data_sha256: request.data_sha256,
        outputs: request.outputs,
    };
    match request.task {
        UseTask::Sample(task) => sample::sample(trained, &task, answers),
        UseTask::Predict(task) => predict::predict(&trained, &task, answers),
        UseTask::Evaluate(task) => evaluate::evaluate(&trained, &task, answers),
        UseTask::Export(task) => export::export(&trained, &task, answers),
    }
}

/// The trial as it is built to be used: in f32, without what only a training needs.
fn in_f32(file: TrialFile) -> TrialFile {
    let mut file = as_trained(file);
    file.train.precision = Precision::F32;
    file
}

/// The trial with the arithmetic of its evaluations. The CPU has no TF32 and computes in f32.
fn as_evaluated(file: TrialFile) -> TrialFile {
    let mut file = as_trained(file);
    if file.device == ChildDevice::Cpu && file.train.precision == Precision::Tf32 {
        file.train.precision = Precision::F32;
    }
    file
}

/// The trial with the arithmetic of its training, on one device, without what only a training needs.
fn as_trained(mut file: TrialFile) -> TrialFile {
    file.devices_per_trial = 1;
    file.checkpoint_folder = None;
    let train = &mut file.train;
    train.cuda_graph = CudaGraph::Off;
    train.initial_weights = None;
    train.checkpoint = None;
    file
}

impl Trained<'_> {
    /// Builds the model, and says so.
    fn learner<W: Write>(&self, answers: &mut Answers<W>) -> Result<Learner, TrialError> {
        let learner =
            Learner::build_trained(&self.file, self.input()?, self.registry, &self.weights)?;
        answers.say(&UseAnswer::Ready {
            kiln_use: MODEL_USE,
            device_name: learner.device().name(),
            parameters: learner.parameters(),
        })?;
        Ok(learner)
    }

    /// The shape of a tensor by its path within the model.
    fn sizes(&self, within: &str) -> Result<Vec<u64>, TrialError> {
        let names = self.weights.names();
        let name = names
            .iter()
            .find(|name| without_kind(name) == within)
            .map_or(within, String::as_str);
        let shape = self.weights.shape(name)?;
        Ok(shape.iter().map(|size| *size as u64).collect())
    }

    /// One size of a tensor.
    fn size(&self, within: &str, axis: usize) -> Result<u64, TrialError> {
        let sizes = self.sizes(within)?;
        sizes.get(axis).copied().ok_or_else(|| {
            self.weights.unfit(
                within,
                &format!("has shape {sizes:?}, which has no axis {axis}"),
            )
        })
    }

    /// Facts of the data that the model needs, from the shapes of its weights; the data is opened
    /// for a user's own model alone.
    fn input(&self) -> Result<InputShape, TrialError> {
        Ok(match &self.file.model {
            Model::Gpt(_) | Model::Lstm(_) | Model::Mlp(_) => InputShape::Text {
                vocabulary: self.size("token_table", 0)?,
            },
            Model::Seq2seq(_) => InputShape::Pairs(PairShape {
                vocabulary: self.size("token_table", 0)?,
                train: PairCounts::default(),
            }),
            Model::Resnet(_) => {
                let [height, width] = image_sides(&self.file.data)?;
                InputShape::Images(ImageShape {
                    channels: self.size("stem.weight", 1)?,
                    height,
                    width,
                    classes: self.size("head.weight", 0)?,
                })
            }
            Model::PanelLstm(panel) => InputShape::Panel(PanelShape {
                features: self
                    .size("layers.0.input_weight", 1)?
                    .saturating_sub(panel.symbol_width),
                symbols: self.size("symbol_table", 0)?,
            }),
            _ => data::open(&self.file)
                .map_err(TrialError::Bad)?
                .facts
                .input_shape(),
        })
    }

    fn data_folder(&self) -> Option<&Path> {
        self.file.data_folder.as_deref()
    }

    /// The names of the image classes, in the order of their labels; `None` if there are none.
    ///
    /// Errors: a folder tells them, it has changed, and the training did not record them.
    fn class_names(&self) -> Result<Option<Vec<String>>, TrialError> {
        if !self.outputs.class_names.is_empty() {
            return Ok(Some(self.outputs.class_names.clone()));
        }
        let bad = |error: DataError| TrialError::Bad(error.to_string());
        let data = &self.file.data;
        if let Data::ImageFolder(_) = data {
            let facts = images::facts(data, self.data_folder()).map_err(bad)?;
            self.check_data(&facts.sha256, "classes are numbered by its folders")?;
        }
        Ok(images::describe(data).map_err(bad)?.classes)
    }

    /// Errors: the tokenizer is not that of the training.
    fn check_tokenizer(&self, tokens: &TokenFile) -> Result<(), TrialError> {
        unchanged(
            "tokenizer",
            (self.outputs.tokenizer_sha256.as_deref(), tokens.sha256()),
            "tokens are numbered by it; restore it",
        )
    }

    /// Errors: the tokenizer is not that of the training, or has more tokens than the model.
    fn check_tokens(&self, tokens: &TokenFile) -> Result<(), TrialError> {
        self.check_tokenizer(tokens)?;
        let rows = self.size("token_table", 0)?;
        if tokens.len() as u64 > rows {
            return Err(TrialError::Bad(format!(
                "the tokenizer has {} tokens, and the model was trained with at most {rows}; \
                 restore the tokenizer of the training",
                tokens.len()
            )));
        }
        Ok(())
    }

    /// Errors: the data is not what the trial was trained on.
    fn check_data(&self, sha256: &str, consequence: &str) -> Result<(), TrialError> {
        let kind = self.file.data.kind();
        unchanged(
            "data",
            (self.data_sha256.as_deref(), sha256),
            &format!("{consequence}; restore the data of `data.kind` {kind}"),
        )
    }
}

/// Compares the SHA-256 of the training, if it is known, with that of now.
///
/// Errors: they differ; the message ends with the consequence and the remedy.
fn unchanged(
    what: &str,
    (then, now): (Option<&str>, &str),
    consequence: &str,
) -> Result<(), TrialError> {
    match then {
        Some(then) if then != now => Err(TrialError::Bad(format!(
            "the {what} has changed since the training: its SHA-256 was {} and is {}, and \
             {consequence}",
            short_hash(then),
            short_hash(now)
        ))),
        _ => Ok(()),
    }
}

/// Height and width of the images that `data` holds.
fn image_sides(data: &Data) -> Result<[u64; 2], TrialError> {
    // A folder's size is a setting; the folder itself need not be there.
    if let Data::ImageFolder(folder) = data {
        return Ok([folder.image_size; 2]);
    }
    images::describe(data)
        .map(|found| [found.shape.height, found.shape.width])
        .map_err(|error| TrialError::Bad(error.to_string()))
}

#[cfg(test)]
mod tests;
