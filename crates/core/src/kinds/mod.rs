//! Facts that are known before anything runs: the keys of each model and data kind, and their
//! parameter and FLOP formulas. This module does not depend on experiment files or devices.

mod custom;
mod gpt;
mod lstm;
mod matmul;
mod mlp;
mod panel_lstm;
mod resnet;
mod seq2seq;

pub mod data;
pub mod random;
pub mod samples;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use custom::{Custom, Reads};
pub use data::{Content, Data, InputShape};
pub use gpt::Gpt;
pub use lstm::Lstm;
pub use matmul::Matmul;
pub use mlp::Mlp;
pub use panel_lstm::PanelLstm;
pub use resnet::{Resnet, Stem};
pub use seq2seq::Seq2seq;

/// The model to train: its kind and its shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Model {
    Gpt(Gpt),
    Lstm(Lstm),
    PanelLstm(PanelLstm),
    Resnet(Resnet),
    Seq2seq(Seq2seq),
    Mlp(Mlp),
    Matmul(Matmul),
    Custom(Custom),
}

/// A fault of one key that depends on other keys: ``("num_heads", "`num_heads` 6 does not divide
/// `d_model` 256")``.
pub type Contradiction = (&'static str, String);

impl Model {
    /// The name in `model.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Gpt(_) => "gpt",
            Self::Lstm(_) => "lstm",
            Self::PanelLstm(_) => "panel-lstm",
            Self::Resnet(_) => "resnet",
            Self::Seq2seq(_) => "seq2seq",
            Self::Mlp(_) => "mlp",
            Self::Matmul(_) => "matmul",
            Self::Custom(_) => "custom",
        }
    }

    /// Content of its samples.
    pub fn reads(&self) -> Content {
        match self {
            Self::Gpt(_) | Self::Lstm(_) | Self::Mlp(_) => Content::Text,
            Self::PanelLstm(_) => Content::Panel,
            Self::Resnet(_) => Content::Images,
            Self::Seq2seq(_) => Content::Pairs,
            Self::Matmul(_) => Content::Nothing,
            Self::Custom(custom) => custom.reads.content(),
        }
    }

    /// Tokens, or rows of a panel, per sample; `None` for a model that reads neither.
    pub fn seq_len(&self) -> Option<u64> {
        match self {
            Self::Gpt(gpt) => Some(gpt.seq_len),
            Self::Lstm(lstm) => Some(lstm.seq_len),
            Self::PanelLstm(lstm) => Some(lstm.seq_len),
            Self::Mlp(mlp) => Some(mlp.seq_len),
            Self::Custom(custom) => custom.seq_len,
            Self::Resnet(_) | Self::Seq2seq(_) | Self::Matmul(_) => None,
        }
    }

    /// Vocabulary of the model: its own if given, else that of the data; `None` if neither is
    /// known.
    pub fn vocabulary(&self, input: Option<InputShape>) -> Option<u64> {
        let own = match self {
            Self::Gpt(gpt) => gpt.vocabulary,
            Self::Lstm(lstm) => lstm.vocabulary,
            Self::Mlp(mlp) => mlp.vocabulary,
            Self::Seq2seq(seq2seq) => seq2seq.vocabulary,
            Self::PanelLstm(_) | Self::Resnet(_) | Self::Matmul(_) | Self::Custom(_) => {
                return None;
            }
        };
        own.or_else(|| input?.vocabulary())
    }

    /// Number of trainable parameters, equal to that of the built model; `None` if required facts
    /// of the data are unknown, and for `custom`.
    pub fn parameters(&self, input: Option<InputShape>) -> Option<u64> {
        match self {
            Self::Gpt(gpt) => Some(gpt.parameters(self.vocabulary(input)?)),
            Self::Lstm(lstm) => Some(lstm.parameters(self.vocabulary(input)?)),
            Self::Mlp(mlp) => Some(mlp.parameters(self.vocabulary(input)?)),
            Self::Seq2seq(seq2seq) => Some(seq2seq.parameters(self.vocabulary(input)?)),
            Self::PanelLstm(lstm) => Some(lstm.parameters(input?.panel()?)),
            Self::Resnet(resnet) => resnet.parameters(input?.images()?),
            Self::Matmul(_) => Some(0),
            Self::Custom(_) => None,
        }
    }

    /// Model FLOPs of one sample, forward and backward, without recomputation; `None` if required
    /// facts of the data are unknown, for `custom`, and if the result exceeds a `u64`. Source:
    /// `docs/measurement.md` 8.
    pub fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64> {
        match self {
            Self::Gpt(gpt) => gpt.flops_per_sample(self.vocabulary(input)?),
            Self::Lstm(lstm) => lstm.flops_per_sample(self.vocabulary(input)?),
            Self::Mlp(mlp) => mlp.flops_per_sample(self.vocabulary(input)?),
            Self::Seq2seq(seq2seq) => {
                seq2seq.flops_per_sample(self.vocabulary(input)?, &input?.pairs()?.train)
            }
            Self::PanelLstm(lstm) => lstm.flops_per_sample(input?.panel()?),
            Self::Resnet(resnet) => resnet.flops_per_sample(input?.images()?),
            Self::Matmul(matmul) => Some(matmul.flops_per_sample()),
            Self::Custom(_) => None,
        }
    }

    /// Model FLOPs of this many rows of prompts and responses, from their lengths; `None` for a
    /// model that does not read them.
    pub fn flops_of_rows(&self, input: Option<InputShape>, rows: &data::PairCounts) -> Option<f64> {
        let Self::Seq2seq(seq2seq) = self else {
            return None;
        };
        Some(seq2seq.flops_of_rows(self.vocabulary(input)?, rows))
    }

    /// Short name of the formula behind [`Model::flops_per_sample`]: per token or row, with the
    /// letters of `docs/measurement.md` 8; for `resnet` per multiply-add, for `matmul` per product
    /// of two N × N matrices; `own` for the figure of a user's own model.
    pub fn flops_formula(&self) -> &'static str {
        match self {
            Self::Gpt(_) => "6W+12LHQT",
            Self::Seq2seq(_) => "6NS+6NR+12LHQ(SS+RR+SR)",
            Self::Lstm(_) | Self::Mlp(_) | Self::PanelLstm(_) => "6N",
            Self::Resnet(_) => "6MAC",
            Self::Matmul(_) => "2N^3",
            Self::Custom(_) => "own",
        }
    }

    /// The keys that a named size (`model.size`) sets if they are absent.
    pub fn keys_of_sizes(&self) -> &'static [&'static str] {
        match self {
            Self::Gpt(_) => &Gpt::KEYS_OF_SIZES,
            Self::Seq2seq(_) => &Seq2seq::KEYS_OF_SIZES,
            _ => &[],
        }
    }

    /// Contradictions among the keys of this model.
    pub fn contradictions(&self) -> Vec<Contradiction> {
        match self {
            Self::Gpt(gpt) => gpt.contradictions(),
            Self::Lstm(lstm) => lstm.contradictions(),
            Self::Mlp(mlp) => mlp.contradictions(),
            Self::Resnet(resnet) => resnet.contradictions(),
            Self::Seq2seq(seq2seq) => seq2seq.contradictions(),
            Self::Custom(custom) => custom.contradictions(),
            Self::PanelLstm(_) | Self::Matmul(_) => Vec::new(),
        }
    }
}
