//! The run of which `kiln run --keep` and `kiln run --read-again` make a new run.

use std::path::Path;

use kiln_core::{
    record::{RunFolder, lock},
    spec::RunPlace,
};

use super::{
    Stop,
    run_and_trial::refuse_trial,
    run_name::{Taken, is_of_revision, listed_run},
    runs, sources, tickets,
};
use crate::schedule::CopyPurpose;

/// Trials of another run in place of trials that would run.
#[derive(clap::Args)]
pub(super) struct KeepArgs {
    /// Start a new run that keeps the trials of this run that are in the plan too and have a final
    /// outcome: for values or repeats that were added to a sweep. Only the others run. A run is named
    /// as in `kiln report`.
    #[arg(long, value_name = "RUN")]
    pub(super) keep: Option<String>,
    /// With `--keep`: allow another program of the trials than that of RUN, such as a corrected
    /// `train.py`. Then only completed trials are kept.
    #[arg(long, value_name = "WHAT", requires = "keep")]
    across: Option<Across>,
}

/// Differences to the run that is kept that the user allows.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Across {
    /// The files of the programs of the trials.
    Programs,
}

impl KeepArgs {
    /// Whether the other trials may run with other programs.
    pub(super) fn is_across_programs(&self) -> bool {
        self.across == Some(Across::Programs)
    }

    pub(super) fn purpose(&self) -> CopyPurpose {
        CopyPurpose::Keep {
            across_programs: self.is_across_programs(),
        }
    }
}

/// The reason why `--keep` does not go with `--continue`.
pub(super) const CONTINUED_IS_NOT_KEPT: &str = "that makes other trials, which no run has yet";

/// Refuses `--keep` beside an option that contradicts it; `why` is the reason.
pub(super) fn refused_beside(other: &str, why: &str) -> Stop {
    Stop::bad_input(format!(
        "`--keep` does not go with `{other}`: {why}; leave one of them out"
    ))
}

/// Why no run is copied where the trials do not run in the command itself.
pub(super) fn refused_elsewhere(place: RunPlace, purpose: CopyPurpose) -> Option<String> {
    (place != RunPlace::Here).then(|| {
        format!(
            "`{}` runs the other trials in this command; give `--on here`",
            purpose.option()
        )
    })
}

/// Finds the run to copy.
///
/// # Errors
/// There is no such run, it is being run, it is one of a commit, or its table was changed.
pub(super) fn run_to_copy(
    named: &str,
    purpose: CopyPurpose,
    results: &Path,
) -> Result<RunFolder, Stop> {
    let (parts, again) = match purpose {
        CopyPurpose::ReadAgain => ("output", "read it again"),
        CopyPurpose::Keep { .. } => ("files", "keep its trials"),
    };
    let command = format!("run {}", purpose.option());
    refuse_trial(&command, named, results, "leave the trial out")?;
    if is_of_revision(named) {
        return Err(Stop::bad_input(format!(
            "{named}: a commit has the tables of a run and not the {parts} of its trials, which git \
             ignores; name a run's folder, such as `results/NAME/latest`"
        )));
    }
    let run = listed_run(named, results, Taken::Runs)?;
    let who = match tickets::taken(&run)? {
        0 => launch_on(&run),
        _ => Some("workers have tickets of it".to_owned()),
    };
    match who {
        None => {
            // The copy would have the values of the plan in rows that were changed.
            sources::table_of_run(&run).map_err(Stop::bad_input)?;
            Ok(run)
        }
        Some(who) => Err(Stop::bad_input(format!(
            "{}: this run is being run ({who}); {again} when it has ended",
            runs::below_here(run.path()).display()
        ))),
    }
}

/// The launch that works on a run, in words. Only the newest run of an experiment is ever worked on.
fn launch_on(run: &RunFolder) -> Option<String> {
    let (results, experiment) = run.place()?;
    let holder = lock::launch_at_work(results, &experiment)?;
    // Where the runs cannot be listed, it may be the newest.
    run.is_newest().unwrap_or(true).then_some(holder.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_copied_only_where_the_trials_run_here() {
        let purpose = CopyPurpose::Keep {
            across_programs: false,
        };
        assert_eq!(refused_elsewhere(RunPlace::Here, purpose), None);
        for place in [RunPlace::Workers, RunPlace::Slurm] {
            let why = refused_elsewhere(place, purpose).unwrap();
            assert!(why.starts_with("`--keep` runs the other trials"), "{why}");
        }
    }
}
