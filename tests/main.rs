//! The tests that drive the built program, one file per command or promise. They are one
//! executable: forty took ten minutes to link.
//!
//! `make test` runs the short form, `make test-all` (`KILN_TESTS=long`) the long one: the same
//! tests with more cases, kills and seconds (`form`).
//! `cargo test --release -p kiln --test suite compare::` runs one file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a test reports on its own standard error"
)]

mod form;
mod pages;
mod scripted_child;

mod at;
mod calibrate;
mod captures;
mod check;
mod checkpoints;
mod commands_as_trials;
mod compare;
mod completions;
mod continuation;
mod damaged_records;
mod data;
mod data_show;
mod diagnosis;
mod diff;
mod doctor;
mod engines;
mod escape;
mod evaluate;
mod experiment_headers;
mod experiments;
mod for_time;
mod foreign_trial;
mod fuzz;
mod fuzzing;
mod guide;
mod hardware_scenarios;
mod helper;
mod imports;
mod init;
mod keep;
mod limits;
mod ls;
mod mig;
mod nvml;
mod oom;
mod plan;
mod planted;
mod program_ends;
mod program_output;
mod provenance;
mod read_again;
mod report_files;
mod report_gates;
mod resume;
mod rm;
mod run;
mod sampler;
mod scale;
mod schema;
mod signals;
mod slurm;
mod snapshot;
mod strays;
mod tables;
mod terminal;
mod tidy_table;
mod tune;
mod tune_commands;
mod use_model;
mod watch;
mod workers;
