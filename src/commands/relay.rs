//! `kiln relay`: the process of a command's trial. Only `kiln run` starts it.

use std::{path::PathBuf, process::exit};

use super::{Status, Stop};
use crate::relay;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The trial's file.
    trial_file: PathBuf,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    // Its exit statuses are those of the child's protocol.
    exit(relay::run(&args.trial_file))
}
