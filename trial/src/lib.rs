//! kiln-trial, the child process of one trial: reads `trial.yaml`, builds the model and the loader, trains, writes what it
//! measured. burn and libtorch live only here. Also a library, so that people bring their own model.

pub mod error;

pub mod engine;

pub mod model;

pub mod train;

pub mod calibrate;

pub use error::TrialError;
