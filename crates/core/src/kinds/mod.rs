//! Facts that are known before anything runs: the keys of each model and data kind, and their
//! parameter and FLOP formulas. This module does not depend on experiment files or devices.

mod custom;
mod gpt;
mod key_fault;
mod lstm;
mod matmul;
mod mlp;
mod model;
mod named;
mod panel_lstm;
mod parts;
mod resnet;
mod seq2seq;
mod text_model;
mod value_text;

pub mod command;
pub mod data;
pub mod random;
pub mod samples;

pub use command::Command;
pub use custom::{Custom, Reads};
pub use data::{Content, Data, InputShape};
pub use gpt::Gpt;
pub use key_fault::KeyFault;
pub use lstm::Lstm;
pub use matmul::{Matmul, kind_trains};
pub use mlp::Mlp;
pub use model::{Model, ModelKind};
pub use named::Named;
pub use panel_lstm::PanelLstm;
pub use parts::ModelPart;
pub use resnet::{Resnet, Stem};
pub use seq2seq::Seq2seq;
pub use value_text::text_of;
