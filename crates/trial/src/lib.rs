//! kiln-trial, the child process of one trial: reads `trial.yaml`, builds the model and the loader, trains, writes what it
//! measured. burn and libtorch live only here. Also a library, so that people bring their own model.
//!
//! The modules stand in the order of the journey.

pub mod error;

mod program;

pub mod engine;

pub mod data;

pub mod model;

pub mod train;

pub mod calibrate;
pub mod examine;
mod flavour;

/// burn as this package is built with it: a model of one's own needs the same.
pub use burn;
pub use error::TrialError;
pub use model::Registry;
pub use program::main;
