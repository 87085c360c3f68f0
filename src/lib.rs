//! kiln, the runner: reads an experiment file, plans its trials, runs each in a child process and
//! stores the measurements. It links neither burn nor libtorch; the package `kiln-trial` does.
//!
//! Imports between modules go in one direction only (`docs/design.md`, checked by
//! `tests/imports.rs`).

pub mod commands;
pub mod fetch;
pub mod follow;
mod git;
pub mod output;
pub mod preflight;
mod processes;
pub mod progress;
pub mod readings;
pub mod relay;
pub mod report;
pub mod schedule;
mod subprocess;

#[cfg(test)]
#[path = "../tests/scripted_child/program.rs"]
mod program;
