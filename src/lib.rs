//! kiln, the runner: reads an experiment file, plans its trials, runs each in a child process, keeps what was measured. It links neither burn nor
//! libtorch: those live in the package `kiln-trial`.
//!
//! An arrow of imports points backwards only (`docs/design.md`, held by `tests/imports.rs`).

pub mod commands;
pub mod fetch;
pub mod readings;
pub mod report;
pub mod schedule;
