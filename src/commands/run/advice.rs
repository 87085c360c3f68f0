//! The advice of `kiln run` at its end: how to run the trials that are left, or to retry those that
//! failed.
//!
//! In: the command that ran, and the report of its launch. Out: notes on standard error.

use std::{collections::HashSet, path::Path, time::Duration};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::AttemptEnd,
    units::{Seconds, TimeSpan, counted, few, shell_word, without_controls},
};

use super::{
    Args,
    lacking::{Lacking, RETRIED},
};
use crate::{
    commands::{
        RESULTS,
        launch::{FRESH_RUN, nothing_to_do},
        note,
    },
    schedule::{BudgetEnd, LaunchEnd, LaunchReport},
};

/// How to make another run where a continuation has ended: a name such as `x` means this one now, which
/// `--fresh` alone would continue by no step.
const LONGER_RUN: &str = "more steps (`--set train.steps=…`) start a new run";

/// The command that ran a file, to be run again.
pub(super) struct Again<'a> {
    pub(super) file: &'a Path,
    /// The trial of `--at` by a name that stays, if there is one.
    pub(super) at: Option<&'a str>,
    pub(super) args: &'a Args,
}

/// Says how to resume what is left, or to retry what failed. A retry does not mend the `lacking` trials.
pub(super) fn say_how_to_go_on(report: &LaunchReport, again: &Again<'_>, lacking: &Lacking) {
    let args = again.args;
    let copying = args.copied().map(|(_, purpose)| purpose.option());
    if say_end_of_time(report, again, copying) {
        return;
    }
    let is_over = report.end == LaunchEnd::Finished && report.left == 0;
    let run = report.folder.path().to_string_lossy();
    let reading = lacking.advice(&again.command(), &word(&run));
    let is_new_try = args.rerun.is_empty();
    if is_over && (is_new_try || !reading.is_empty()) {
        let retry = how_to_retry(&again.command(), &report.last_attempts, &lacking.trials);
        retry
            .filter(|_| is_new_try)
            .iter()
            .chain(&reading)
            .for_each(|text| note(text));
        return;
    }
    if report.end == LaunchEnd::NothingToDo {
        let is_everything = report.left == 0;
        note(&nothing_to_do(
            is_everything,
            &report.last_attempts,
            &lacking.trials,
            match args.continued {
                Some(_) => LONGER_RUN,
                None => FRESH_RUN,
            },
        ));
        reading.iter().for_each(|text| note(text));
        return;
    }
    if let Some(text) = how_to_resume(report, args, copying) {
        note(&format!("{text}{}", again.with_at()));
    }
}

/// Says how the time of `--for` ended, if it was given; returns whether it left trials. `copying` is the
/// option that made the run as a copy.
fn say_end_of_time(report: &LaunchReport, again: &Again<'_>, copying: Option<&str>) -> bool {
    let args = again.args;
    let budget = report.budget.as_ref().zip(args.for_time);
    let Some((end, span)) = budget.filter(|_| report.end == LaunchEnd::Finished) else {
        return false;
    };
    let without = copying.or(args.launch.fresh.then_some("--fresh"));
    let resume = match (without, args.rerun.is_empty()) {
        (_, false) => only_these(&end.ids),
        (Some(option), true) => format!("the same command without `{option}` resumes"),
        (None, true) => "the same command resumes".to_owned(),
    };
    if let Some(text) = end_of_time(end, span, &resume) {
        let with = match end.left {
            0 => String::new(),
            _ => again.with_at(),
        };
        note(&format!("{text}{with}"));
    }
    end.left > 0
}

/// How to run the trials that are left; `None` if none is. `copying` as in [`say_end_of_time`].
fn how_to_resume(report: &LaunchReport, args: &Args, copying: Option<&str>) -> Option<String> {
    let without = copying.or(args.launch.fresh.then_some("--fresh"));
    Some(match (report.end, without) {
        (LaunchEnd::Interrupted, Some(option)) => {
            format!("interrupted; run the same command without `{option}` to resume")
        }
        (LaunchEnd::Interrupted, None) if !args.rerun.is_empty() => {
            "interrupted; the same command runs what is left, and may retry again what was retried \
             already; with `--only ID,…` it runs only the trials that you name"
                .to_owned()
        }
        (LaunchEnd::Interrupted, None) => "interrupted; run the same command to resume".to_owned(),
        (LaunchEnd::Finished, Some(option)) if report.left > 0 => {
            let only = if args.only.is_empty() {
                ""
            } else {
                " and `--only`"
            };
            format!(
                "some trials have no final result yet; run the same command without \
                 `{option}`{only} to run them"
            )
        }
        (LaunchEnd::Finished, None) if report.left > 0 && args.only.is_empty() => {
            "some trials have no final result yet; run the same command again to run them"
                .to_owned()
        }
        (LaunchEnd::Finished, None) if report.left > 0 => {
            "some trials have no final result yet; run the same command without `--only` to run \
             them"
                .to_owned()
        }
        (LaunchEnd::Finished | LaunchEnd::NothingToDo, _) => return None,
    })
}

/// A shorter time beyond the budget is not worth a line.
const WORTH_SAYING: Duration = Duration::from_secs(1);

/// Most ids that a message lists.
const MOST_IDS: usize = 5;

/// How to run the trials that `--for` left of `--rerun`: the same command would begin with those that
/// were retried already.
fn only_these(ids: &[TrialId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.0.clone()).collect();
    match ids.len() > MOST_IDS {
        true => format!(
            "the same command with `--only` and their ids runs them: {}",
            few(&ids, MOST_IDS)
        ),
        false => format!(
            "the same command with `--only {}` runs what is left",
            ids.join(",")
        ),
    }
}

/// Says of the time of `--for` how many trials are left and how to run them (`resume`), and by how much
/// the launch took longer. `None` if all is as asked.
fn end_of_time(end: &BudgetEnd, span: TimeSpan, resume: &str) -> Option<String> {
    let in_words = |time: Duration| Seconds(time.as_secs_f64());
    let is_over = end.over >= WORTH_SAYING;
    if end.left == 0 {
        return is_over.then(|| {
            format!(
                "the launch took {} longer than `--for {span}`: running trials are not stopped",
                in_words(end.over)
            )
        });
    }
    let why = match (end.rest.is_zero(), is_over) {
        (false, _) => format!(
            "no other trial or whole round fits into the {} that remain of `--for {span}`",
            in_words(end.rest)
        ),
        (true, true) => format!(
            "the time of `--for {span}` is used up, and {} more by the last trial",
            in_words(end.over)
        ),
        (true, false) => format!("the time of `--for {span}` is used up"),
    };
    let too_long = match end.too_long {
        0 => String::new(),
        count => format!("; {count} of them may take longer than the whole time"),
    };
    Some(format!(
        "{} left: {why}{too_long}; {resume}",
        counted(end.left, "trial")
    ))
}

impl Again<'_> {
    /// The command in words of a shell.
    fn command(&self) -> String {
        let args = self.args;
        let set = args.launch.settings().into_iter();
        let set = set.map(|setting| format!(" --set {}", word(&setting)));
        let at = self.at.or(args.at.as_deref());
        let at = at.map(|named| format!(" --at {}", word(named)));
        let at = at.unwrap_or_default();
        let continued = args.continued.iter();
        let continued: String = continued
            .map(|named| format!(" --continue {}", word(named)))
            .collect();
        let only = match args.only.as_slice() {
            [] => String::new(),
            only => format!(" --only {}", word(&only.join(","))),
        };
        let results = match args.launch.results.as_path() {
            usual if usual == Path::new(RESULTS) => String::new(),
            other => format!(" --results {}", word(&other.to_string_lossy())),
        };
        format!(
            "kiln run {}{at}{continued}{}{only}{results}",
            word(&self.file.to_string_lossy()),
            set.collect::<String>()
        )
    }

    /// `, with --at FOLDER:TRIAL`, where the same command has a name that may mean another trial now.
    fn with_at(&self) -> String {
        let at = self.at.filter(|at| self.args.at.as_deref() != Some(*at));
        at.map_or_else(String::new, |at| format!(", with `--at {}`", word(at)))
    }
}

/// A word of a command line in a message.
fn word(text: &str) -> String {
    shell_word(&without_controls(text))
}

/// How to retry the trials that ended without a result; `None` if a retry mends none.
fn how_to_retry(command: &str, ends: &[AttemptEnd], lacking: &HashSet<TrialId>) -> Option<String> {
    let of = |outcome: Outcome| ends.iter().filter(move |end| end.outcome == outcome);
    let mut names: Vec<&str> = Vec::new();
    let mut all = 0;
    for outcome in RETRIED {
        if of(outcome).any(|end| !lacking.contains(&end.trial)) {
            names.push(outcome.name());
            all += of(outcome).count();
        }
    }
    (all > 0).then(|| {
        format!(
            "`{command} --rerun {}` retries {}, as long as the experiment and its program are unchanged",
            names.join(","),
            counted(all, "trial")
        )
    })
}

#[cfg(test)]
mod tests {
    use kiln_core::record::{TableRow, TrialRow};

    use super::*;

    #[test]
    fn the_end_of_the_time_says_what_is_left_and_by_how_much_it_was_exceeded() {
        let said = |end: &BudgetEnd, resume| end_of_time(end, TimeSpan::from_secs(7200), resume);
        let seconds = Duration::from_secs;
        let end = BudgetEnd {
            left: 3,
            rest: seconds(40),
            ..BudgetEnd::default()
        };
        assert_eq!(
            said(&end, "the same command resumes").unwrap(),
            "3 trials left: no other trial or whole round fits into the 40 s that remain of `--for 2h`; \
             the same command resumes"
        );
        let over = BudgetEnd {
            rest: Duration::ZERO,
            over: seconds(90),
            too_long: 1,
            ..end.clone()
        };
        assert_eq!(
            said(&over, "the same command without `--fresh` resumes").unwrap(),
            "3 trials left: the time of `--for 2h` is used up, and 1 min 30 s more by the last trial; 1 \
             of them may take longer than the whole time; the same command without `--fresh` resumes"
        );
        let all_ran = BudgetEnd { left: 0, ..over };
        let longer = said(&all_ran, "").unwrap();
        assert!(longer.starts_with("the launch took 1 min 30 s longer than `--for 2h`: "));
        assert_eq!(said(&BudgetEnd { left: 0, ..end }, ""), None);
    }

    #[test]
    fn the_trials_that_a_retry_left_are_named() {
        let left = |count: usize| {
            let ids: Vec<TrialId> = (1..=count).map(|id| TrialId(format!("t{id}"))).collect();
            only_these(&ids)
        };
        assert_eq!(
            left(5),
            "the same command with `--only t1,t2,t3,t4,t5` runs what is left"
        );
        assert_eq!(
            left(7),
            "the same command with `--only` and their ids runs them: t1, t2, t3, t4, t5 and 2 more"
        );
    }

    #[test]
    fn the_retry_names_the_outcomes_that_are_there() {
        use Outcome::{Completed, Failed, Oom, TimedOut};
        let end = |(place, outcome): (usize, &Outcome)| {
            AttemptEnd::of(&TableRow {
                fixed: Box::new(TrialRow {
                    trial: TrialId(format!("t{place}")),
                    outcome: *outcome,
                    ..TrialRow::default()
                }),
                axes: Vec::new(),
            })
        };
        let retry_of = |outcomes: &[Outcome], lacking: &[&str]| {
            let ends: Vec<AttemptEnd> = outcomes.iter().enumerate().map(end).collect();
            let ids = lacking.iter().map(|id| TrialId((*id).to_owned()));
            let lacking: HashSet<TrialId> = ids.collect();
            how_to_retry("kiln run x.yaml", &ends, &lacking)
        };
        let retry = |ends: &[Outcome]| retry_of(ends, &[]);
        assert_eq!(retry(&[Completed, Oom]), None);
        let both = retry(&[TimedOut, Completed, Failed, Failed]).unwrap();
        assert!(
            both.starts_with("`kiln run x.yaml --rerun failed,timed-out` retries 3 trials, "),
            "{both}"
        );
        let one = retry(&[Failed, Completed]).unwrap();
        assert!(one.contains(" --rerun failed` retries 1 trial, "), "{one}");
        // A retry does not mend a trial that lacks a metric, and runs it with others of its outcome.
        assert_eq!(retry_of(&[Failed, Completed], &["t0"]), None);
        let late = retry_of(&[Failed, TimedOut, TimedOut], &["t0"]).unwrap();
        assert!(
            late.contains(" --rerun timed-out` retries 2 trials, "),
            "{late}"
        );
        let others = retry_of(&[Failed, Failed], &["t0"]).unwrap();
        assert!(
            others.contains(" --rerun failed` retries 2 trials, "),
            "{others}"
        );
    }
}
