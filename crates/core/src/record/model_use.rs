//! The use of a trained model: `kiln sample`, `predict`, `evaluate` and `export` start
//! `kiln-trial --use`, write one [`UseRequest`] as JSON to its standard input, and read one
//! [`UseAnswer`] per line from its standard output. Documented in `docs/child-protocol.md`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::trial_result::OutputNames;
use crate::{plan::TrialFile, spec::Precision};

/// Version of request and answers.
pub const MODEL_USE: u32 = 1;

/// Everything that the child needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UseRequest {
    /// Format version, [`MODEL_USE`].
    pub kiln_use: u32,
    /// The trial as it was trained. Where `task` needs the data, its paths are read again.
    pub trial: TrialFile,
    /// Folder of the checkpoint whose `model.safetensors` is used, absolute.
    pub checkpoint: PathBuf,
    /// SHA-256 of the data that the trial was trained on, if its result is there.
    #[serde(default)]
    pub data_sha256: Option<String>,
    #[serde(flatten)]
    pub outputs: OutputNames,
    pub task: UseTask,
}

/// The task for the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseTask {
    Sample(SampleTask),
    Predict(PredictTask),
    Evaluate(EvaluateTask),
    Export(ExportTask),
}

impl UseTask {
    /// The command that asks for it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Sample(_) => "`kiln sample`",
            Self::Predict(_) => "`kiln predict`",
            Self::Evaluate(_) => "`kiln evaluate`",
            Self::Export(_) => "`kiln export`",
        }
    }
}

/// Continue a prompt, or answer it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleTask {
    pub prompt: String,
    /// Tokens to write, at most.
    pub tokens: u64,
    /// Divisor of the outputs before sampling; 0 takes the most likely token. Default: 1 for a
    /// text, 0 for a response to a prompt.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Number of most likely tokens to sample from; default: all.
    #[serde(default)]
    pub top_k: Option<u64>,
    /// Text `n` depends on this and on `n` alone.
    pub seed: u64,
    /// Number of texts.
    pub count: u64,
    /// Whether keys and values of earlier tokens are kept.
    pub caches: bool,
}

/// Classes or forecasts for files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictTask {
    /// Absolute, and as the user named them.
    pub files: Vec<(PathBuf, String)>,
    /// Most likely classes of each image.
    pub top: u64,
}

/// The loss and the scores of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluateTask {
    /// Other data than the validation data of the trial: absolute, and as the user named them. Empty
    /// for the validation data.
    pub data: Vec<(PathBuf, String)>,
}

/// Files for other programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportTask {
    /// An empty folder, absolute.
    pub to: PathBuf,
    /// Where the model comes from, for `config.json`: run, trial, step, validation loss.
    pub origin: Value,
}

/// One line of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum UseAnswer {
    /// First line: the model is built.
    Ready {
        kiln_use: u32,
        device_name: String,
        parameters: u64,
    },
    /// A notice for the user, on standard error.
    Notice { text: String },
    /// The next letters of a text, which begins with the prompt if the model continues it.
    Piece { sample: u64, text: String },
    /// A finished text, whole.
    Text {
        sample: u64,
        text: String,
        tokens: u64,
        /// Seconds of generation, without loading.
        seconds: f64,
    },
    /// Most likely classes of one image, the most likely first.
    Classes {
        file: String,
        classes: Vec<ClassShare>,
    },
    /// The forecast that follows the last row of one file.
    Forecast(Forecast),
    /// The results of an evaluation.
    Evaluated(EvaluationScores),
    /// Files written into the folder, and what could not be exported, with the reason.
    Exported {
        files: Vec<String>,
        left_out: Vec<String>,
    },
    /// Last line after an error; the exit status says of which sort.
    Failed { reason: String },
    /// Last line.
    Done,
    /// A line of a newer child.
    #[serde(other)]
    Unknown,
}

/// One class of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassShare {
    /// From 0, in the order of the model's outputs.
    pub class: u64,
    /// If the data names its classes.
    #[serde(default)]
    pub name: Option<String>,
    /// As a fraction of 1.
    pub probability: f64,
}

/// The forecast of one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    pub file: String,
    /// As in training.
    pub symbol: String,
    /// Date of the last row; the forecast is for the row after it.
    pub after: String,
    /// Column of the price.
    pub price: String,
    /// The last price.
    pub last_price: f64,
    /// Forecast log return of the price; `None` if the model forecasts directions.
    #[serde(default)]
    pub log_return: Option<f64>,
    /// The last price times e to the log return.
    #[serde(default)]
    pub next_price: Option<f64>,
    /// Probability of a return above 0, as a fraction of 1; `None` if the model forecasts returns.
    #[serde(default)]
    pub rise_probability: Option<f64>,
}

/// The results of an evaluation, over all its targets. The scores are those of `epochs.csv`, and the
/// forecasts without a model those of `trials.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationScores {
    /// Images, rows, windows of a text or of series.
    pub samples: u64,
    /// Tokens of text and responses; else one per sample.
    pub targets: u64,
    /// Mean over the targets, in nats; for returns as in `epochs.csv`.
    pub loss: f64,
    #[serde(default)]
    pub perplexity: Option<f64>,
    #[serde(default)]
    pub top1: Option<f64>,
    #[serde(default)]
    pub top5: Option<f64>,
    #[serde(default)]
    pub mean_absolute_error: Option<f64>,
    #[serde(default)]
    pub hit_rate: Option<f64>,
    #[serde(default)]
    pub persistence_mean_absolute_error: Option<f64>,
    #[serde(default)]
    pub persistence_hit_rate: Option<f64>,
    #[serde(default)]
    pub majority_hit_rate: Option<f64>,
    #[serde(default)]
    pub bleu4: Option<f64>,
    #[serde(default)]
    pub chrf: Option<f64>,
    /// Rows whose responses were generated and scored.
    #[serde(default)]
    pub response_rows: Option<u64>,
    /// The number format of the computation.
    #[serde(default)]
    pub precision: Option<Precision>,
    /// Sentences on the data and the computation.
    #[serde(default)]
    pub notices: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_newer_child_is_unknown_and_others_come_back() {
        let line = |answer: &UseAnswer| serde_json::to_string(answer).unwrap();
        let read = |text: &str| serde_json::from_str::<UseAnswer>(text).unwrap();
        for answer in [
            UseAnswer::Done,
            UseAnswer::Notice {
                text: "x".to_owned(),
            },
            UseAnswer::Piece {
                sample: 1,
                text: "a\n".to_owned(),
            },
            UseAnswer::Failed {
                reason: "x".to_owned(),
            },
        ] {
            assert_eq!(read(&line(&answer)), answer);
        }
        assert_eq!(read("{\"answer\": \"sung\"}"), UseAnswer::Unknown);
    }
}
