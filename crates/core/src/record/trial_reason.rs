//! Reasons that name their trial: `trial t4f0c1a2b3d failed after 3.00 s`. They are written and read
//! here alone, so that nothing else depends on their words.

use crate::plan::TrialId;

/// The beginning of such a reason, before the id.
const TRIAL: &str = "trial ";

/// The sentence; `what` says how the trial ended.
pub fn of_trial(trial: &TrialId, what: &str) -> String {
    format!("{TRIAL}{trial} {what}")
}

/// The reason without the trial's name, for a place that names the trial already; `None` if the reason
/// does not begin with this trial.
pub fn without_trial<'a>(trial: &TrialId, reason: &'a str) -> Option<&'a str> {
    let (id, what) = reason.strip_prefix(TRIAL)?.split_once(' ')?;
    (id == trial.0).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_on_a_trial_is_read_without_the_trial_it_is_on() {
        let [one, other] = ["t4f0c1a2b3d", "t4f0c1a2b3"].map(|id| TrialId(id.to_owned()));
        let what = "failed after 3.00 s: trial and error";
        let reason = of_trial(&one, what);
        assert_eq!(without_trial(&one, &reason), Some(what));
        assert_eq!(without_trial(&other, &reason), None);
        assert_eq!(without_trial(&one, "device memory ran out"), None);
        // As rows of older runs have it.
        let older = "trial 4f0c1a2b3d was stopped with the run after 3.00 s";
        assert_eq!(
            without_trial(&TrialId("4f0c1a2b3d".to_owned()), older),
            Some("was stopped with the run after 3.00 s")
        );
    }
}
