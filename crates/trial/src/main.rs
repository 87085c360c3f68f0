//! Calls the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln_trial::main(kiln_trial::Registry::new())
}
