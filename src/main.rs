//! Passes the arguments on, prints the error, sets the exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln::commands::main()
}
