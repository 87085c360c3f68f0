//! The registry of model kinds: each is one line here, and an implementation of [`ModelKind`]
//! beside its settings.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Command, Content, Custom, Gpt, InputShape, KeyFault, Lstm, Matmul, Mlp, PanelLstm, Resnet,
    Seq2seq, data::PairCounts,
};

/// The facts that the settings of a model define. A [`Model`] of any kind has these methods.
/// `input` is the shape of the data, if it is known.
pub trait ModelKind {
    /// The name in `model.kind`.
    fn kind(&self) -> &'static str;

    /// Content of its samples.
    fn reads(&self) -> Content;

    /// Whether the model is trained. `false` for a pure workload such as matrix products: it has no
    /// loss, no optimizer and no batch, and the keys of `train` about them do not apply.
    fn trains(&self) -> bool {
        true
    }

    /// Tokens, or rows of a panel, per sample; `None` for a model that reads neither.
    fn seq_len(&self) -> Option<u64> {
        None
    }

    /// Vocabulary of the model: its own if given, else that of the data; `None` if neither is
    /// known, or it has none.
    fn vocabulary(&self, _input: Option<InputShape>) -> Option<u64> {
        None
    }

    /// Number of trainable parameters, equal to that of the built model; `None` if required facts
    /// of the data are unknown.
    fn parameters(&self, input: Option<InputShape>) -> Option<u64>;

    /// Model FLOPs of one sample, forward and backward, without recomputation; `None` if required
    /// facts of the data are unknown, or if the result exceeds a `u64`. Source:
    /// `docs/measurement.md` 8.
    fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64>;

    /// Model FLOPs of this many rows of prompts and responses, from their lengths; `None` for a
    /// model that does not read them.
    fn flops_of_rows(&self, _input: Option<InputShape>, _rows: &PairCounts) -> Option<f64> {
        None
    }

    /// Short name of the formula behind `flops_per_sample`: per token or row, with the letters of
    /// `docs/measurement.md` 8; for `resnet` per multiply-add, for `matmul` per product of two
    /// N × N matrices; `own` for the figure of a user's own model.
    fn flops_formula(&self) -> &'static str;

    /// The keys that a named size (`model.size`) sets if they are absent.
    fn keys_of_sizes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Contradictions among its keys, such as `num_heads` with "`num_heads` 6 does not divide
    /// `d_model` 256".
    fn contradictions(&self) -> Vec<KeyFault> {
        Vec::new()
    }
}

/// Declares the kinds: the enum that files are read into.
macro_rules! models {
    ($($kind:ident),+ $(,)?) => {
        /// The model to train: its kind and its shape.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        #[allow(clippy::large_enum_variant, reason = "a trial has one")]
        pub enum Model {
            $($kind($kind),)+
        }

        impl Deref for Model {
            type Target = dyn ModelKind;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$kind(settings) => settings,)+
                }
            }
        }
    };
}

impl Model {
    /// The program that is run as a trial, if it is one.
    pub fn command(&self) -> Option<&Command> {
        match self {
            Self::Command(command) => Some(command),
            _ => None,
        }
    }
}

models!(
    Gpt, Lstm, PanelLstm, Resnet, Seq2seq, Mlp, Matmul, Command, Custom
);
