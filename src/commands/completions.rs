//! `kiln completions`.

use super::{Status, Stop};

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> Result<Status, Stop> {
    Err(Stop::new(Status::Failed, "`kiln completions` is being built"))
}
