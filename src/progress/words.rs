//! The texts of bars and lines.

use std::time::Duration;

use kiln_core::{
    plan::{Outcome, Trial},
    record::TrialRow,
    units::{Fraction, Seconds, counted, decimals, significant},
};

use crate::schedule::{LaunchCounts, TrialProgress};

/// Returns the line of a launch's start.
pub(super) fn started(folder: &str, launch: u64, counts: LaunchCounts) -> String {
    let more = if counts.is_open {
        ", then further trials that depend on their results"
    } else {
        ""
    };
    format!(
        "{folder}: launch {launch}, {} of {} to run{more}",
        counts.to_run,
        counted(counts.total, "trial")
    )
}

/// Returns text such as `, 1 failed, about 3 min 5 s left`.
pub(super) fn outlook(counts: LaunchCounts, elapsed: Duration) -> String {
    let failed = match counts.plan.failed {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    let left = counts.to_run.saturating_sub(counts.settled_here);
    if counts.settled_here == 0 || left == 0 || counts.is_over || counts.is_open {
        return failed;
    }
    let seconds = elapsed.as_secs_f64() / counts.settled_here as f64 * left as f64;
    format!("{failed}, about {} left", Seconds(seconds))
}

/// Returns the axis values of a trial: `batch_size=8, num_workers=4`.
pub(super) fn described(trial: &Trial) -> String {
    if trial.axes.is_empty() {
        return format!("seed={}", trial.train.seed);
    }
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let axes: Vec<String> = trial
        .axes
        .iter()
        .map(|(key, value)| format!("{}={value}", last(key)))
        .collect();
    axes.join(", ")
}

/// Returns the figures of a running trial: `, loss 2.1, 80 samples/s`.
pub(super) fn figures(progress: TrialProgress) -> String {
    let mut text = String::new();
    if let Some(loss) = progress.loss {
        text.push_str(&format!(", loss {}", decimals(loss, 4)));
    }
    if let Some(rate) = progress.samples_per_second {
        text.push_str(&format!(", {} samples/s", significant(rate)));
    }
    if let Some(share) = progress.data_wait_fraction {
        text.push_str(&format!(", data wait {}", Fraction(share)));
    }
    if let Some((batch, total)) = progress.evaluating {
        text.push_str(&format!(", evaluating {batch}/{total}"));
    }
    if let Some((token, total)) = progress.sampling {
        text.push_str(&format!(", writing text {token}/{total}"));
    }
    if progress.is_building {
        text.push_str(", building");
    }
    text
}

/// Returns the line of an ended attempt.
pub(super) fn ended(row: &TrialRow) -> String {
    let name = format!("trial {}", row.trial);
    let reason = row
        .reason
        .as_deref()
        .filter(|_| row.outcome != Outcome::Completed);
    if let Some(whole) = reason.filter(|reason| reason.starts_with(&name)) {
        return format!("{}: {whole}", row.outcome);
    }
    let mut text = format!("{name} {}", row.outcome);
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
    use kiln_core::plan::TrialId;

    use super::*;

    #[test]
    fn a_completed_trial_says_which_loss_it_tells() {
        let trained = TrialRow {
            trial: TrialId("t".to_owned()),
            outcome: Outcome::Completed,
            train_loss: Some(2.5),
            ..TrialRow::default()
        };
        assert_eq!(ended(&trained), "trial t completed, loss 2.5000");
        assert_eq!(
            ended(&TrialRow {
                valid_loss: Some(3.5),
                ..trained
            }),
            "trial t completed, valid loss 3.5000"
        );
    }

    #[test]
    fn the_remaining_time_is_told_only_where_it_can_be_estimated() {
        let counts = LaunchCounts {
            total: 5,
            to_run: 4,
            settled_here: 1,
            ..LaunchCounts::default()
        };
        let told = |counts| outlook(counts, Duration::from_secs(20));
        assert_eq!(told(counts), ", about 1 min 0 s left");
        for unknown in [
            LaunchCounts {
                settled_here: 0,
                ..counts
            },
            LaunchCounts {
                settled_here: 4,
                ..counts
            },
            LaunchCounts {
                is_open: true,
                ..counts
            },
            LaunchCounts {
                is_over: true,
                ..counts
            },
        ] {
            assert_eq!(told(unknown), "", "{unknown:?}");
        }
    }
}
