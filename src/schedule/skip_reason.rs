//! The reason of a trial that `run.on_oom: skip-larger` left out. It is written and read here alone, so
//! that nothing else depends on its words.

use std::collections::HashSet;

use kiln_core::plan::{Trial, TrialId};

/// `failed` ran out of memory, and the trial of the reason needs at least as much.
pub(super) fn skip_reason(failed: &Trial) -> String {
    let at: Vec<String> = failed
        .axes
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    let place = if at.is_empty() {
        String::new()
    } else {
        format!(" ({})", at.join(", "))
    };
    format!(
        "not run (`run.on_oom: skip-larger`): trial {}{place} ran out of memory, this one needs at \
         least as much; `--rerun skipped` runs it anyway",
        failed.id
    )
}

/// Whether a reason names one of these trials. Ids are found wherever they stand, because rows of other
/// versions of kiln have other words.
pub(super) fn names_one_of(reason: &str, trials: &HashSet<TrialId>) -> bool {
    let mut words = reason.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| trials.contains(&TrialId(word.to_owned())))
}

#[cfg(test)]
mod tests {
    use kiln_core::spec::Experiment;
    use serde_json::json;

    use super::*;
    use crate::schedule::sweep::tests::trial;

    #[test]
    fn a_reason_names_the_trial_that_ran_out_of_memory_and_no_other() {
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let mut failed = trial(&experiment, 1, 0);
        let other = trial(&experiment, 2, 0).id;
        assert_ne!(failed.id, other);
        for axes in [
            Vec::new(),
            vec![("model.size".to_owned(), json!(8))],
            vec![("model.values.n".to_owned(), json!("a b"))],
        ] {
            failed.axes = axes;
            let reason = skip_reason(&failed);
            let both = HashSet::from([failed.id.clone(), other.clone()]);
            assert!(names_one_of(&reason, &both), "{reason}");
            assert!(!names_one_of(&reason, &HashSet::from([other.clone()])));
        }
    }
}
