//! The run that `kiln run --read-again` reads.

use std::path::Path;

use kiln_core::record::{RunFolder, TicketQueue, lock, run_folder};

use super::{Stop, runs, sources};

/// Finds the run whose output is to be read.
///
/// # Errors
/// There is no such run, it is being run, or it is one of a commit.
pub(super) fn run_to_read(named: &str, results: &Path) -> Result<RunFolder, Stop> {
    if sources::is_of_revision(named) {
        return Err(Stop::bad_input(format!(
            "{named}: a commit has the tables of a run and not the output of its trials, which git \
             ignores; name a run's folder, such as `results/NAME/latest`"
        )));
    }
    let run = runs::run_folder(named, results)?;
    let queue = TicketQueue::of(&run);
    let taken = queue.map_or(0, |queue| queue.counts().unwrap_or_default().taken);
    let who = match taken {
        0 => launch_on(&run),
        _ => Some("workers have tickets of it".to_owned()),
    };
    match who {
        None => Ok(run),
        Some(who) => Err(Stop::bad_input(format!(
            "{}: this run is being run ({who}); read it again when it has ended",
            runs::below_here(run.path()).display()
        ))),
    }
}

/// The launch that works on a run, in words. Only the newest run of an experiment is ever worked on.
fn launch_on(run: &RunFolder) -> Option<String> {
    let above = run.path().parent()?;
    let (results, experiment) = (above.parent()?, above.file_name()?.to_string_lossy());
    let holder = lock::holder(results, &experiment)?;
    let newest = run_folder::runs(results, &experiment).pop();
    (newest.as_ref() == Some(run)).then_some(holder.0)
}
