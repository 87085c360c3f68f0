//! The tests that draw random numbers in their own process. Each engine has one generator per
//! process, which every forward pass seeds, so the tests of one engine take turns
//! (`common::alone_with_the_generator_of`), and nothing else trains in this executable.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../tests/form.rs"]
mod form;

mod checkpoint;
mod dropout;
mod evaluation;
#[cfg(feature = "libtorch")]
mod every_key;
mod generator;
mod gpt2;
mod pretrained;
#[cfg(feature = "libtorch")]
mod recorded;
mod sample;
