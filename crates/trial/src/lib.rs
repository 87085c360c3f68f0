//! kiln-trial, the child process of one trial: reads `trial.yaml`, builds the model and the loader,
//! trains, and writes its measurements. burn and libtorch live only here. It is also a library, so
//! that users can add their own models.
//!
//! The modules are in the order in which data passes through them.

#![allow(
    clippy::disallowed_methods,
    reason = "its standard output is the protocol, and kiln shows its standard error"
)]

pub mod error;

mod program;

pub mod engine;

pub mod data;

pub mod model;

mod matmul;
pub mod train;

pub mod model_use;

pub mod calibrate;
pub mod examine;
mod flavour;

/// burn as this package is built with it: a user's own model needs the same.
pub use burn;
pub use error::TrialError;
pub(crate) use kiln_core::pretrained::names as pytorch_names;
pub use model::Registry;
pub use program::main;

#[cfg(test)]
#[path = "../../../tests/fuzzing.rs"]
mod fuzzing;
