//! Contradictions in what a child reports of its end: its `finished` message, its `trial.json` and its
//! exit status come in, and a sentence on the first that disagree goes out. Pure.

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{TrialResult, attempt::ResultError, message::exit_status},
};

use super::judge::Exit;

/// Everything that a child says of its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedEnd<'a> {
    pub(super) trial: &'a TrialId,
    pub(super) attempt: u64,
    pub(super) exit: Exit,
    /// The outcome of its last `finished` message.
    pub(super) finished: Option<Outcome>,
    /// The outcome of an earlier one that said something else.
    pub(super) finished_before: Option<Outcome>,
    pub(super) result: Result<&'a TrialResult, &'a ResultError>,
}

/// Outcomes that a child can report; the others are kiln's.
const OUTCOMES: [Outcome; 5] = [
    Outcome::Completed,
    Outcome::Diverged,
    Outcome::Oom,
    Outcome::Failed,
    Outcome::Interrupted,
];

/// Returns a predicate with the trial as its subject; `None` if everything agrees.
///
/// A child that ends by a signal, or with an exit status of its own, after a `finished` message does
/// not contradict it: libraries may crash while they clean up.
pub(super) fn contradiction(said: &ReportedEnd) -> Option<String> {
    match said.result {
        Err(error @ ResultError::Version { .. }) => {
            return Some(format!(
                "cannot be judged: {error}; build `kiln` and `kiln-trial` from the same version, or \
                 set `KILN_TRIAL` to a matching program; it ended"
            ));
        }
        Ok(result) if result.trial != *said.trial || result.attempt != said.attempt => {
            return Some(format!(
                "contradicts itself: its `trial.json` is of trial {} attempt {}, and this is attempt \
                 {}; it ended",
                result.trial, result.attempt, said.attempt
            ));
        }
        _ => {}
    }
    let finished = said.finished?;
    let against = |what: String| {
        Some(format!(
            "contradicts itself: its `finished` message says `{finished}`, and {what}; it ended"
        ))
    };
    if !OUTCOMES.contains(&finished) {
        let names = OUTCOMES.map(|outcome| format!("`{outcome}`")).join(", ");
        return Some(format!(
            "reported the outcome `{finished}`, which is not one of {names}; it ended"
        ));
    }
    if let Some(before) = said.finished_before {
        return against(format!("an earlier one says `{before}`"));
    }
    // The message comes last: the file was written, and could not be synced on a full disk.
    let is_unsynced =
        finished == Outcome::Interrupted && said.exit == Exit::Status(exit_status::DISK_FULL);
    if let Ok(result) = said.result
        && result.outcome != finished
        && !is_unsynced
    {
        return against(format!("its `trial.json` says `{}`", result.outcome));
    }
    match said.exit {
        Exit::Status(status) if !agrees(status, finished) => against(format!(
            "its exit status says {status} ({})",
            meaning(status)
        )),
        _ => None,
    }
}

/// Whether an exit status can stand beside an outcome.
fn agrees(status: i32, outcome: Outcome) -> bool {
    use Outcome::{Completed, Diverged, Failed, Interrupted, Oom};
    match status {
        exit_status::FAILED => !matches!(outcome, Completed | Diverged),
        exit_status::BAD_FILE => !matches!(outcome, Completed | Diverged | Oom),
        exit_status::NO_DEVICE | exit_status::DISK_FULL => matches!(outcome, Failed | Interrupted),
        exit_status::OOM => matches!(outcome, Oom | Interrupted),
        // 130 beside a final outcome: the signal came when the trial was already over.
        _ => true,
    }
}

fn meaning(status: i32) -> &'static str {
    match status {
        exit_status::FAILED => "it failed",
        exit_status::BAD_FILE => "its file could not be read",
        exit_status::NO_DEVICE => "there is no engine or device",
        exit_status::OOM => "memory ran out",
        _ => "the disk is full",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn judged(
        result: Result<(Outcome, &str, u64), ResultError>,
        finished: Option<Outcome>,
        exit: Exit,
    ) -> String {
        let trial = TrialId("4f0c1a2b3d".to_owned());
        let result = result.map(|(outcome, id, attempt)| TrialResult {
            outcome,
            ..TrialResult::empty(TrialId(id.to_owned()), attempt)
        });
        contradiction(&ReportedEnd {
            trial: &trial,
            attempt: 2,
            exit,
            finished,
            finished_before: None,
            result: result.as_ref(),
        })
        .unwrap_or_default()
    }

    #[test]
    fn a_child_that_agrees_with_itself_is_believed() {
        use Outcome::{Completed, Diverged, Failed, Interrupted, Oom};
        let own = "4f0c1a2b3d";
        for (outcome, exit) in [
            (Completed, Exit::Status(0)),
            (Completed, Exit::Signal(11)),
            (Completed, Exit::Status(101)),
            (Completed, Exit::Status(130)),
            (Diverged, Exit::Status(0)),
            (Oom, Exit::Status(4)),
            (Oom, Exit::Status(1)),
            (Failed, Exit::Status(0)),
            (Failed, Exit::Status(1)),
            (Failed, Exit::Status(2)),
            (Failed, Exit::Status(3)),
            (Interrupted, Exit::Status(130)),
            (Interrupted, Exit::Status(5)),
        ] {
            let words = judged(Ok((outcome, own, 2)), Some(outcome), exit);
            assert_eq!(words, "", "{outcome} {exit:?}");
        }
        let unsynced = judged(Ok((Completed, own, 2)), Some(Interrupted), Exit::Status(5));
        assert_eq!(unsynced, "", "the result could not be synced");
        let missing = || Err(ResultError::Unreadable("trial.json: not found".to_owned()));
        assert_eq!(judged(missing(), Some(Failed), Exit::Status(1)), "");
        assert_eq!(judged(missing(), None, Exit::Signal(9)), "");
    }

    #[test]
    fn each_contradiction_names_both_sides() {
        use Outcome::{Completed, Diverged, Failed, Interrupted, Skipped};
        let own = "4f0c1a2b3d";
        let done = Exit::Status(0);
        let version = ResultError::Version {
            path: PathBuf::from("trial.json"),
            found: 2,
        };
        for (result, finished, exit, words) in [
            (
                Err(version),
                Completed,
                done,
                vec!["`kiln_trial_result` is 2", "format 1"],
            ),
            (
                Ok((Completed, "deadbeef00", 2)),
                Completed,
                done,
                vec!["trial deadbeef00 attempt 2"],
            ),
            (
                Ok((Completed, own, 1)),
                Completed,
                done,
                vec!["attempt 1", "this is attempt 2"],
            ),
            (
                Ok((Failed, own, 2)),
                Completed,
                done,
                vec!["says `completed`", "`trial.json` says `failed`"],
            ),
            (
                Ok((Completed, own, 2)),
                Interrupted,
                done,
                vec!["says `interrupted`", "says `completed`"],
            ),
            (
                Ok((Completed, own, 2)),
                Completed,
                Exit::Status(1),
                vec!["says `completed`", "says 1 (it failed)"],
            ),
            (
                Ok((Diverged, own, 2)),
                Diverged,
                Exit::Status(4),
                vec!["says `diverged`", "says 4 (memory ran out)"],
            ),
            (
                Ok((Failed, own, 2)),
                Failed,
                Exit::Status(4),
                vec!["says `failed`", "says 4"],
            ),
            (
                Ok((Skipped, own, 2)),
                Skipped,
                done,
                vec!["`skipped`, which is not one of `completed`"],
            ),
        ] {
            let found = judged(result, Some(finished), exit);
            assert!(
                words.iter().all(|word| found.contains(word)),
                "{words:?}: {found}"
            );
        }
    }
}
