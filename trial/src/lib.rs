//! kiln-trial, the child process of one trial: reads `trial.yaml`, trains, writes what it measured, says how it goes. Also a
//! library, so that people bring their own model.
//!
//! The modules stand in the order of the journey.

pub mod error;

pub mod data;

pub use error::TrialError;
