//! The tests of whole trials, one file per subject, in one executable: each links libtorch and
//! burn.
//!
//! `make test` runs the short form, `make test-all` (`KILN_TESTS=long`) the long one. What draws
//! random numbers in this process is in `alone/`, an executable of its own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod common;
#[path = "../../../tests/form.rs"]
mod form;

#[cfg(feature = "libtorch")]
mod amp;
mod checkpoint;
mod engine;
#[cfg(feature = "libtorch")]
mod kernels;
mod loader;
#[cfg(feature = "libtorch")]
mod operations;
#[cfg(feature = "libtorch")]
mod operators;
mod parity;
mod replicas;
mod transposed;
mod trial;
mod window;
