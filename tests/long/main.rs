//! The tests that `make test-all` adds to the suite: those that need a browser, real data, or
//! minutes of a quiet machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod browser;
#[path = "../scripted_child/mod.rs"]
mod scripted_child;

mod calibrate;
mod page;
mod planted;
mod real_sweep;
