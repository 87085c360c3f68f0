//! The advice of `kiln run` at its end: how to run the trials that are left, or to retry those that
//! failed.
//!
//! In: the command that ran, and the report of its launch. Out: notes on standard error.

use std::{collections::HashSet, path::Path, time::Duration};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{AttemptEnd, TrialTable, metric_reason},
    units::{Seconds, TimeSpan, counted, few, shell_word, without_controls},
};

use super::Args;
use crate::{
    commands::{RESULTS, launched::nothing_to_do, note},
    schedule::{BudgetEnd, LaunchEnd, LaunchReport},
};

/// The command that ran a file, to be run again.
pub(super) struct Again<'a> {
    pub(super) file: &'a Path,
    /// The trial of `--at` by a name that stays, if there is one.
    pub(super) at: Option<&'a str>,
    pub(super) args: &'a Args,
}

/// Outcomes that a retry may mend.
const RETRIED: [Outcome; 2] = [Outcome::Failed, Outcome::TimedOut];

/// Whether all trials of `ends` that a retry would run lack a metric although their program ended well.
pub(super) fn lack_metrics(table: &TrialTable, ends: &[AttemptEnd]) -> bool {
    let rows = table.last_attempts().into_iter();
    let lacking: HashSet<&TrialId> = rows
        .filter(|row| {
            let reason = row.fixed.reason.as_deref();
            reason.is_some_and(metric_reason::is_of_metric)
        })
        .map(|row| &row.fixed.trial)
        .collect();
    let mut retried = ends
        .iter()
        .filter(|end| RETRIED.contains(&end.outcome))
        .peekable();
    retried.peek().is_some() && retried.all(|end| lacking.contains(&end.trial))
}

/// Says how to resume what is left, or to retry what failed. `lack_metrics`: see [`lack_metrics`].
pub(super) fn say_how_to_go_on(report: &LaunchReport, again: &Again<'_>, lack_metrics: bool) {
    let args = again.args;
    let copying = args.copied().map(|(_, purpose)| purpose.option());
    if let Some((end, span)) = report.budget.as_ref().zip(args.for_time)
        && report.end == LaunchEnd::Finished
    {
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
        if end.left > 0 {
            return;
        }
    }
    let is_over = report.end == LaunchEnd::Finished && report.left == 0;
    let reading = lack_metrics.then(|| {
        let run = report.folder.path().to_string_lossy();
        how_to_read_again(&again.command(), &word(&run))
    });
    if let Some(text) = reading.as_ref().filter(|_| is_over) {
        note(text);
        return;
    }
    let is_new_try = args.rerun.is_empty() && args.continued.is_none();
    if is_over && is_new_try {
        let ends = report.last_attempts.iter();
        let outcomes: Vec<Outcome> = ends.map(|end| end.outcome).collect();
        if let Some(text) = how_to_retry(&again.command(), &outcomes) {
            note(&text);
        }
        return;
    }
    if report.end == LaunchEnd::NothingToDo {
        note(&nothing_to_do(report.left == 0, &report.last_attempts));
        reading.iter().for_each(|text| note(text));
        return;
    }
    let text = match (report.end, copying) {
        (LaunchEnd::Interrupted, _) if args.launch.fresh => {
            "interrupted; run the same command without `--fresh` to resume".to_owned()
        }
        (LaunchEnd::Interrupted, Some(option)) => {
            format!("interrupted; run the same command without `{option}` to resume")
        }
        (LaunchEnd::Interrupted, None) if !args.rerun.is_empty() => {
            "interrupted; the same command runs what is left, and may retry again what was retried \
             already; with `--only ID,…` it runs only the trials that you name"
                .to_owned()
        }
        (LaunchEnd::Interrupted, None) => "interrupted; run the same command to resume".to_owned(),
        (LaunchEnd::Finished, Some(option)) if report.left > 0 => format!(
            "some trials have no final result yet; run the same command without `{option}` and \
             `--only` to run them"
        ),
        (LaunchEnd::Finished, None) if report.left > 0 && args.only.is_empty() => {
            "some trials have no final result yet; run the same command again to run them"
                .to_owned()
        }
        (LaunchEnd::Finished, None) if report.left > 0 => {
            "some trials have no final result yet; run the same command without `--only` to run \
             them"
                .to_owned()
        }
        (LaunchEnd::Finished | LaunchEnd::NothingToDo, _) => return,
    };
    note(&format!("{text}{}", again.with_at()));
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
        let only = match args.only.as_slice() {
            [] => String::new(),
            only => format!(" --only {}", word(&only.join(","))),
        };
        let results = match args.launch.results.as_path() {
            usual if usual == Path::new(RESULTS) => String::new(),
            other => format!(" --results {}", word(&other.to_string_lossy())),
        };
        format!(
            "kiln run {}{at}{}{only}{results}",
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

/// How to complete trials of `run` that lack a metric although their program ended well.
fn how_to_read_again(command: &str, run: &str) -> String {
    format!(
        "a retry does not mend a missing metric: correct `model.metrics`, then `{command} --read-again \
         {run}` reads it from the output that these trials left, without running them"
    )
}

/// How to retry the trials that ended without a result; `None` if each has one.
fn how_to_retry(command: &str, ends: &[Outcome]) -> Option<String> {
    let count = |outcome: Outcome| ends.iter().filter(|end| **end == outcome).count();
    let mut names: Vec<&str> = Vec::new();
    let mut all = 0;
    for outcome in RETRIED {
        if count(outcome) > 0 {
            names.push(outcome.name());
            all += count(outcome);
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
    fn trials_lack_metrics_only_if_all_that_a_retry_would_run_do() {
        let row = |trial: &str, outcome, reason: Option<&str>| TableRow {
            fixed: Box::new(TrialRow {
                trial: TrialId(trial.to_owned()),
                outcome,
                reason: reason.map(str::to_owned),
                ..TrialRow::default()
            }),
            axes: Vec::new(),
        };
        let lack = |rows: Vec<TableRow>| {
            let ends: Vec<AttemptEnd> = rows.iter().map(AttemptEnd::of).collect();
            let table = TrialTable {
                rows,
                ..TrialTable::default()
            };
            lack_metrics(&table, &ends)
        };
        let reason = metric_reason::of_program("sh", "`loss` never came");
        let lacking = |trial| row(trial, Outcome::Failed, Some(&reason));
        let completed = || row("t1", Outcome::Completed, None);
        assert!(lack(vec![completed(), lacking("t2"), lacking("t3")]));
        assert!(!lack(vec![completed()]));
        let late = row("t3", Outcome::TimedOut, Some("no message for 10 s"));
        assert!(!lack(vec![completed(), lacking("t2"), late]));
    }

    #[test]
    fn the_retry_names_the_outcomes_that_are_there() {
        use Outcome::{Completed, Failed, Oom, TimedOut};
        let retry = |ends: &[Outcome]| how_to_retry("kiln run x.yaml", ends);
        assert_eq!(retry(&[Completed, Oom]), None);
        let both = retry(&[TimedOut, Completed, Failed, Failed]).unwrap();
        assert!(
            both.starts_with("`kiln run x.yaml --rerun failed,timed-out` retries 3 trials, "),
            "{both}"
        );
        let one = retry(&[Failed, Completed]).unwrap();
        assert!(one.contains(" --rerun failed` retries 1 trial, "), "{one}");
    }
}
