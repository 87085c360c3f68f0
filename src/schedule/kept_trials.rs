//! Decides which trials of a run another run may keep: by both experiments, and by how they ended.

use std::collections::BTreeSet;

use kiln_core::{
    plan::Outcome,
    spec::{Experiment, Sweep},
};

use super::changes::{KeyChange, describe};

/// Whether a trial is kept that ended so. `across_programs`: the others may run with other programs.
pub(super) fn is_kept(last: Option<Outcome>, across_programs: bool) -> bool {
    match across_programs {
        true => last == Some(Outcome::Completed),
        false => last.is_some_and(Outcome::is_final),
    }
}

/// Checks that trials of one id were run and measured in the same way in both experiments. Where they
/// differ only in how output is read, `can_be_read_again` says whether the old run has output to read.
///
/// # Errors
/// The keys that say otherwise, and what to do.
pub(super) fn run_alike(
    old: &Experiment,
    new: &Experiment,
    changes: &[KeyChange],
    can_be_read_again: &dyn Fn() -> bool,
) -> Result<(), String> {
    if let Some(key) = swept_run_keys(old)
        .symmetric_difference(&swept_run_keys(new))
        .next()
    {
        return Err(format!(
            "`{key}` is an axis in one of the two experiments alone, and ids of trials tell its values \
             apart only where it is one; restore that, or run all trials with `--fresh` in place of `--keep`"
        ));
    }
    let bound = bound(new, changes);
    if bound.is_empty() {
        return Ok(());
    }
    let again = match new.model.command() {
        Some(_) if bound.iter().all(KeyChange::is_of_reading) && can_be_read_again() => {
            "; `--read-again` reads the metrics anew from the output of its trials"
        }
        _ => "",
    };
    Err(format!(
        "its trials were run or measured in another way:\n{}\nrestore it, or run all trials with `--fresh` \
         in place of `--keep`{again}",
        describe(&bound)
    ))
}

/// The changes that ids of trials do not tell and that a resume does not accept.
fn bound(new: &Experiment, changes: &[KeyChange]) -> Vec<KeyChange> {
    let is_told_by_ids = match new.model.command() {
        Some(_) => KeyChange::is_told_by_ids,
        None => KeyChange::is_told_by_ids_of_trainings,
    };
    let others = changes.iter();
    let others = others.filter(|change| !change.is_free() && !is_told_by_ids(change));
    others.cloned().collect()
}

/// The keys of `run` that are axes.
fn swept_run_keys(experiment: &Experiment) -> BTreeSet<&str> {
    let Sweep {
        grid,
        zip,
        derive,
        include,
        ..
    } = &experiment.sweep;
    let included = include.iter().flat_map(|entry| entry.keys());
    let keys = grid.keys().chain(zip.keys()).chain(derive.keys());
    let keys = keys.chain(included);
    let keys = keys.map(String::as_str);
    keys.filter(|key| key.starts_with("run.")).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::changes::changes, *};

    fn experiment(more: &str) -> Experiment {
        let text = format!("{{kiln: 1, name: x, model: {{kind: matmul, size: 8}}, {more}}}");
        serde_yaml::from_str(&text).unwrap()
    }

    fn why_not(old: &str, new: &str) -> Option<String> {
        let (old, new) = (experiment(old), experiment(new));
        run_alike(&old, &new, &changes(&old, &new), &|| true).err()
    }

    #[test]
    fn reading_again_is_advised_only_where_there_is_output_to_read() {
        let of = |word: &str| -> Experiment {
            let metrics = format!("metrics: {{speed: {{line: '{word} (x)'}}}}");
            let model = format!("{{kind: command, argv: [run], {metrics}}}");
            serde_yaml::from_str(&format!("{{kiln: 1, name: x, model: {model}}}")).unwrap()
        };
        let (old, new) = (of("sped"), of("speed"));
        let why = |is_possible: bool| {
            run_alike(&old, &new, &changes(&old, &new), &|| is_possible).unwrap_err()
        };
        assert!(why(true).contains("`--read-again`"));
        assert!(!why(false).contains("`--read-again`"));
    }

    #[test]
    fn a_sweep_may_change_and_how_trials_are_measured_may_not() {
        let one = "train: {steps: 3}, sweep: {grid: {model.size: [8]}}";
        let more = "train: {steps: 3}, run: {timeout: 1h}, sweep: {grid: {model.size: [8, 16]}, \
                    repeats: 2}";
        assert_eq!(why_not(one, more), None);
        let measured = why_not(one, &format!("{one}, measure: {{warmup_steps: 1}}")).unwrap();
        assert!(
            measured.contains("`measure.warmup_steps`: was"),
            "{measured}"
        );
    }

    #[test]
    fn an_axis_of_run_is_not_added_to_trials_whose_ids_lack_it() {
        let one = "train: {steps: 3}, run: {engine: flex}";
        let swept = format!("{one}, sweep: {{grid: {{run.engine: [libtorch, flex]}}}}");
        let why = why_not(one, &swept).unwrap();
        assert!(why.contains("`run.engine` is an axis in one"), "{why}");
        assert_eq!(why_not(&swept, &swept), None);
    }

    #[test]
    fn across_programs_only_completed_trials_are_kept() {
        let kept = |across| {
            let all = Outcome::ALL.into_iter();
            all.filter(|outcome| is_kept(Some(*outcome), across))
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(true), [Outcome::Completed]);
        assert!(kept(false).contains(&Outcome::Oom));
        assert!(!kept(false).contains(&Outcome::Killed));
        assert!(!is_kept(None, false));
    }
}
