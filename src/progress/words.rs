//! The texts of bars and lines.

use kiln_core::{
    record::{TrialRow, trial_reason::without_trial},
    units::{Fraction, Seconds, counted, decimals, significant},
};

use crate::schedule::{LaunchCounts, TrialProgress};

/// Returns the line of a launch's start; with none, of who attends the launches of others.
pub(super) fn started(folder: &str, launch: Option<u64>, counts: LaunchCounts) -> String {
    let more = if counts.is_open {
        ", then further trials that depend on their results"
    } else {
        ""
    };
    let what = launch.map_or_else(
        || "attending its workers".to_owned(),
        |launch| format!("launch {launch}"),
    );
    format!(
        "{folder}: {what}, {} of {} to run{more}",
        counts.to_run,
        counted(counts.total, "trial")
    )
}

/// The figures of a running trial, the most important first: `loss 2.1`, `80 samples/s`.
pub(super) fn figures(progress: TrialProgress) -> Vec<String> {
    let loss = progress
        .loss
        .map(|loss| format!("loss {}", decimals(loss, 4)));
    let rate = progress
        .samples_per_second
        .map(|rate| format!("{} samples/s", significant(rate)));
    let wait = progress
        .data_wait_fraction
        .map(|share| format!("data wait {}", Fraction(share)));
    [loss, rate, wait].into_iter().flatten().collect()
}

/// Activity of a trial besides training: `evaluating 3/10`.
pub(super) fn activity(progress: TrialProgress) -> Option<String> {
    if progress.is_building {
        return Some("building".to_owned());
    }
    let part = |verb: &str, (done, total): (u64, u64)| format!("{verb} {done}/{total}");
    let writing = progress
        .sampling
        .map(|part_of| part("writing text", part_of));
    let evaluating = progress.evaluating;
    evaluating
        .map(|part_of| part("evaluating", part_of))
        .or(writing)
}

/// The figures and the activity: `, loss 2.1, 80 samples/s, evaluating 3/10`.
pub(super) fn all_figures(progress: TrialProgress) -> String {
    let all = figures(progress).into_iter().chain(activity(progress));
    all.map(|figure| format!(", {figure}")).collect()
}

/// Returns the line of an ended attempt of a trial of this name.
pub(super) fn ended(name: &str, row: &TrialRow) -> String {
    let reason = row.reason.as_deref().filter(|_| !row.is_completed());
    let outcome = row.outcome.name();
    // The reason may be a sentence on the trial, with its duration.
    if let Some(sentence) = reason.and_then(|reason| without_trial(&row.trial, reason)) {
        return if sentence.starts_with(outcome) {
            format!("{name}: {sentence}")
        } else {
            format!("{name}: {outcome}: {sentence}")
        };
    }
    let mut text = format!("{name}: {outcome}");
    if let Some(seconds) = row.trial_seconds {
        text.push_str(&format!(" after {}", Seconds(seconds)));
    }
    if let Some(rate) = row.samples_per_second {
        text.push_str(&format!(", {} samples/s", significant(rate)));
    }
    match (row.valid_loss, row.train_loss) {
        (Some(loss), _) => text.push_str(&format!(", valid loss {}", decimals(loss, 4))),
        (None, Some(loss)) => text.push_str(&format!(", loss {}", decimals(loss, 4))),
        (None, None) => {}
    }
    if let Some(reason) = reason {
        text.push_str(&format!(": {reason}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::{Outcome, TrialId};

    use super::*;

    #[test]
    fn who_attends_has_no_launch_of_its_own() {
        let counts = LaunchCounts {
            total: 9,
            to_run: 2,
            ..LaunchCounts::default()
        };
        assert_eq!(
            started("results/x/r", Some(4), counts),
            "results/x/r: launch 4, 2 of 9 trials to run"
        );
        assert_eq!(
            started("results/x/r", None, counts),
            "results/x/r: attending its workers, 2 of 9 trials to run"
        );
    }

    #[test]
    fn a_trial_is_named_once_and_says_how_it_ended_and_which_loss_it_tells() {
        let trained = TrialRow {
            trial: TrialId("t".to_owned()),
            outcome: Outcome::Completed,
            train_loss: Some(2.5),
            ..TrialRow::default()
        };
        let told = |row: &TrialRow| ended("batch_size=8", row);
        assert_eq!(told(&trained), "batch_size=8: completed, loss 2.5000");
        let validated = TrialRow {
            valid_loss: Some(3.5),
            ..trained.clone()
        };
        assert_eq!(
            told(&validated),
            "batch_size=8: completed, valid loss 3.5000"
        );
        for (outcome, reason, line) in [
            (
                Outcome::Failed,
                "trial t failed after 3.00 s",
                "batch_size=8: failed after 3.00 s",
            ),
            (
                Outcome::Interrupted,
                "trial t was stopped with the run after 3.00 s",
                "batch_size=8: interrupted: was stopped with the run after 3.00 s",
            ),
            (
                Outcome::Oom,
                "device memory ran out",
                "batch_size=8: oom: device memory ran out",
            ),
        ] {
            let row = TrialRow {
                outcome,
                reason: Some(reason.to_owned()),
                train_loss: None,
                ..trained.clone()
            };
            assert_eq!(told(&row), line);
        }
    }

    #[test]
    fn loss_and_rate_stay_beside_an_evaluation() {
        let progress = TrialProgress {
            loss: Some(2.5),
            samples_per_second: Some(64.0),
            evaluating: Some((3, 10)),
            ..TrialProgress::default()
        };
        assert_eq!(
            all_figures(progress),
            ", loss 2.5000, 64.0 samples/s, evaluating 3/10"
        );
    }
}
