//! `kiln schema`: prints the JSON Schema of the experiment file, for editors.

use kiln_core::spec;

use super::{Status, Stop, print_json};

#[derive(clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> Result<Status, Stop> {
    let text = serde_json::to_string_pretty(&spec::schema())
        .map_err(|error| Stop::new(Status::Failed, error))?;
    print_json(&(text + "\n"))?;
    Ok(Status::Success)
}
