//! kiln, the runner: reads an experiment file, plans its trials, runs each in a child process, keeps what was measured.
//!
//! The modules stand in the order of the journey; an arrow of imports points backwards only (`docs/design.md`, held by
//! `tests/imports.rs`). The runner links neither burn nor libtorch: those live in the package `kiln-trial`.

pub mod commands;

pub mod units;

pub mod statistics;

pub mod catalog;

pub mod spec;

pub mod plan;

pub mod schedule;

pub mod hardware;

pub mod record;

pub mod report;
