//! `kiln relay`: the process of a trial whose program is not `kiln-trial`. Only `kiln run` starts
//! it.

use std::{ffi::OsString, path::Path, process::exit};

use super::{Status, Stop};
use crate::relay;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run an engine: a program that keeps the child's protocol itself.
    #[arg(long)]
    engine: bool,
    /// The trial's file; of an engine, the program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    // Its exit statuses are those of the child's protocol.
    match args.program.split_first() {
        Some((program, arguments)) if args.engine => exit(relay::keep(program, arguments)),
        Some((file, [])) => exit(relay::run(Path::new(file))),
        _ => Err(Stop::new(
            Status::BadInput,
            "`kiln relay` takes one trial's file; `--engine` takes a program and its arguments",
        )),
    }
}
