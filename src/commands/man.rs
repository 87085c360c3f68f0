//! `kiln man`: prints the manual pages, generated from the same text as `--help`.

use std::path::PathBuf;

use clap_mangen::Man;

use super::{Status, Stop, command_line, print_own};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Write one page per command into this folder (kiln.1, kiln-run.1, …) instead of printing the
    /// page of kiln.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let Some(folder) = args.to else {
        let mut page = Vec::new();
        Man::new(command_line())
            .render(&mut page)
            .map_err(|error| Stop::new(Status::Failed, error))?;
        print_own(&String::from_utf8_lossy(&page))?;
        return Ok(Status::Success);
    };
    if !folder.is_dir() {
        return Err(Stop::bad_input(format!(
            "{} is not a folder; create it first",
            folder.display()
        )));
    }
    let failed = |error| {
        Stop::new(
            Status::Failed,
            format!(
                "the manual pages could not be written to {}: {error}",
                folder.display()
            ),
        )
    };
    clap_mangen::generate_to(command_line(), &folder).map_err(failed)?;
    Ok(Status::Success)
}
