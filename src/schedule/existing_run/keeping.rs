//! Says what `kiln run --keep` would save, where a run cannot be resumed.

use std::collections::HashSet;

use kiln_core::{plan::TrialId, spec::RunPlace, units::counted};

use super::{
    super::{
        WantedTrials,
        changes::changes,
        kept_trials::{is_kept, run_alike},
        machine::{self, MachineIdentity},
        recorded_experiment::experiment_of,
    },
    Old,
};

/// Says how many trials of a run of another experiment `--keep` would save; empty for none. Rows of
/// several programs are kept only with `--across programs`.
pub(super) fn keeping(
    wanted: &WantedTrials,
    old: &Old,
    here: &dyn Fn() -> MachineIdentity,
) -> String {
    let kept = old.file.kept_from.as_ref();
    if kept.is_some_and(|kept| kept.programs_from.is_some()) {
        return keeping_across_programs(wanted, old, here);
    }
    match savable(wanted, old, false, here) {
        0 => String::new(),
        kept => format!(
            "; `--keep {}` keeps {kept} of its {}",
            old.folder.path().display(),
            counted(trials_of(wanted, old), "trial")
        ),
    }
}

/// Says what `--keep --across programs` would save of a run of this experiment with another program.
pub(super) fn keeping_across_programs(
    wanted: &WantedTrials,
    old: &Old,
    here: &dyn Fn() -> MachineIdentity,
) -> String {
    match savable(wanted, old, true, here) {
        0 => String::new(),
        kept => format!(
            "; `--keep {} --across programs` keeps {kept} completed of its {} and runs the others with \
             the program of now",
            old.folder.path().display(),
            counted(trials_of(wanted, old), "trial")
        ),
    }
}

/// The number of trials of a run: those of its plan, and the wanted ones that only its table has, where
/// a merge took the `run.json` of another run.
fn trials_of(wanted: &WantedTrials, old: &Old) -> usize {
    let plan: HashSet<&TrialId> = old.file.plan.iter().collect();
    let has_ended = |id: &TrialId| old.history.last(id).is_some();
    let wanted = wanted.trials.iter().map(|trial| &trial.id);
    let others = wanted.filter(|id| !plan.contains(id) && has_ended(id));
    plan.len() + others.count()
}

/// The number of trials that `--keep` would take over; 0 where it would refuse.
fn savable(
    wanted: &WantedTrials,
    old: &Old,
    across_programs: bool,
    here: &dyn Fn() -> MachineIdentity,
) -> usize {
    // Workers take no kept trials.
    if wanted.experiment.run.on != RunPlace::Here {
        return 0;
    }
    let Ok(experiment) = experiment_of(&old.folder) else {
        return 0;
    };
    let changes = changes(&experiment, wanted.experiment);
    let is_search = wanted.search.is_some() || experiment.sweep.search.is_some();
    // Only whether they are alike is asked here.
    let is_alike = || run_alike(&experiment, wanted.experiment, &changes, &|| false).is_ok();
    if is_search || !is_alike() {
        return 0;
    }
    let trials = wanted.trials.iter();
    let kept = trials.filter(|trial| is_kept(old.history.last(&trial.id), across_programs));
    let kept = kept.count();
    let is_elsewhere = || machine::made_elsewhere(&old.file.launches, &here()).is_some();
    match kept > 0 && is_elsewhere() {
        true => 0,
        false => kept,
    }
}
