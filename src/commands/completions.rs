//! `kiln completions`: prints a completion script for a shell.

use clap_complete::{Shell, generate};

use super::{Status, Stop, command_line, print_own};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell to complete for.
    shell: Shell,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut script = Vec::new();
    generate(args.shell, &mut command_line(), "kiln", &mut script);
    print_own(&String::from_utf8_lossy(&script))?;
    Ok(Status::Success)
}
