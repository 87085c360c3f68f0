//! Says what `kiln run --keep` would save, where a run cannot be resumed.

use std::{collections::HashSet, path::Path};

use kiln_core::{
    plan::TrialId,
    record::{
        command_line::{experiment_file, is_variable, with_variables},
        command_options::{BesideKeep, CommandOption},
    },
    spec::RunPlace,
    units::{counted, shell_word},
};

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

/// Says in a line of its own how many trials of a run of another experiment `--keep` would save; empty
/// for none. Rows of several programs are kept only with `--across programs`.
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
            "\n  `{}`{} keeps {kept} of its {}",
            command(wanted, old),
            with_variables(&variables_here()),
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
            "\n  `{} --across programs`{} keeps {kept} completed of its {}; all that runs has the \
             program of now",
            command(wanted, old),
            with_variables(&variables_here()),
            counted(trials_of(wanted, old), "trial")
        ),
    }
}

/// The variables that set keys of the experiment now.
fn variables_here() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_variable(name)).collect();
    names.sort();
    names
}

/// The whole command that keeps the trials of a run, without `--across`.
fn command(wanted: &WantedTrials, old: &Old) -> String {
    let path = old.folder.path().to_string_lossy();
    let Some(typed) = typed(wanted.command_line) else {
        return format!("kiln run FILE --keep {}", shell_word(&path));
    };
    let name = short_name(old);
    let name = match Path::new(&name).exists() {
        true => &*path,
        false => name.as_str(),
    };
    format!("{typed} --keep {}", shell_word(name))
}

/// The command line as typed, if `--keep` can be added to it. It names the folder of the runs, if it is
/// not the usual one, so that a short name is read there.
fn typed(words: &[String]) -> Option<String> {
    experiment_file(words)?;
    // Variables may be secrets.
    let is_excluded = |word: &String| {
        word.contains("model.environment") || beside_keep(word) == BesideKeep::Excludes
    };
    let (program, rest) = words.split_first()?;
    // But for `--json`, the options of `plan` are options of `run`.
    let rest = match rest.split_first()? {
        (verb, rest) if verb == "run" => rest,
        (verb, rest) if verb == "plan" && !rest.iter().any(|word| word == "--json") => rest,
        _ => return None,
    };
    if rest.iter().any(is_excluded) {
        return None;
    }
    let rest = rest
        .iter()
        .filter(|word| beside_keep(word) == BesideKeep::Stays);
    let rest: Vec<String> = rest.map(|word| shell_word(word)).collect();
    Some(format!("{} run {}", shell_word(program), rest.join(" ")))
}

/// What becomes of a word of the command line.
fn beside_keep(word: &str) -> BesideKeep {
    CommandOption::of(word).map_or(BesideKeep::Stays, |option| option.beside_keep)
}

/// A short name of the run. Where a new run is started at once, the name of the experiment would mean
/// the new one.
fn short_name(old: &Old) -> String {
    let experiment = old.folder.experiment_name();
    match old.is_finished() {
        true => format!("{experiment}/{}", old.folder.name()),
        false => experiment.into_owned(),
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
    // Workers take no kept trials, and `--keep` does not go with `--continue`.
    let is_continued = wanted.trials.iter().any(|trial| trial.origin.is_some());
    if wanted.experiment.run.on != RunPlace::Here || is_continued {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typed_command_is_extended_where_the_option_goes_with_it() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            typed(&words)
        };
        let line = "kiln run x.yaml --set train.steps=3 --results runs";
        assert_eq!(of(line).as_deref(), Some(line));
        let dry = "kiln run x.yaml --dry-run --set train.steps=3 --fresh --at y:t1";
        let run = "kiln run x.yaml --set train.steps=3 --at y:t1";
        assert_eq!(of(dry).as_deref(), Some(run));
        let plan = of("kiln plan x.yaml --set train.steps=3");
        assert_eq!(plan.as_deref(), Some("kiln run x.yaml --set train.steps=3"));
        for other in [
            "kiln run x.yaml --rerun failed",
            "kiln run x.yaml y.yaml",
            "kiln tune x.yaml",
            "kiln plan x.yaml --json",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
