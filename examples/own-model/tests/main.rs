//! The tests of the example, in one executable.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../tests/form.rs"]
mod form;

mod forgetful;
mod patches;
