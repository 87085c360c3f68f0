//! `kiln run`: runs an experiment, or resumes its newest unfinished run.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Outcome, TrialId},
    spec::RunPlace,
    units::{Seconds, TimeSpan, counted, few, shell_word, without_controls},
};

use super::{
    Status, Stop, at, continuation,
    copied_run::{KeepArgs, refused_elsewhere, run_to_copy},
    launched::{PlannedFile, dry_run, nothing_to_do, show, start, status},
    launching::{FOR_IS_HERE, Launching, stopped},
    machine::trial_program,
    note,
    plan::known_times,
    planned::{plan_request, request},
    same_name, workers,
};
use crate::schedule::{self, Budget, BudgetEnd, CopyPurpose, LaunchEnd, LaunchReport, Selection};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files, run one after the other.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Run only these trials: `--only ID,ID`, or repeat the option. The beginning of an id is
    /// enough.
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Retry trials with these outcomes: `--rerun failed,timed-out`, or repeat the option.
    #[arg(
        long,
        value_name = "OUTCOME,…",
        value_delimiter = ',',
        value_parser = outcome,
        conflicts_with = "fresh"
    )]
    rerun: Vec<Outcome>,
    /// Go on from a checkpoint of this run, or of one trial of it: weights, optimizer and place in
    /// the data. Steps count from the beginning of that training, so ask for more of them. A run is
    /// named as in `kiln report`.
    #[arg(
        long = "continue",
        value_name = "RUN[:TRIAL]",
        conflicts_with = "rerun"
    )]
    continued: Option<String>,
    /// Run the point of one trial of this run in place of the file's sweep: each swept key has that
    /// trial's value. Without a trial: the best point of the run. A run is named as in `kiln
    /// report`.
    #[arg(long, value_name = "RUN[:TRIAL]")]
    at: Option<String>,
    /// Start a new run, and read the metrics of a command from the output that this run kept, where its
    /// program ended with status 0: for `metrics` that were corrected. The other trials run. A run is
    /// named as in `kiln report`.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["rerun", "continued", "keep"])]
    read_again: Option<String>,
    #[command(flatten)]
    keeping: KeepArgs,
    /// Begin no trial, and no round of repeats or block, that does not fit into what is left of this
    /// time: `--for 2h`. Estimates are from trials like them. Running trials are not stopped. The same
    /// command resumes.
    #[arg(long = "for", value_name = "TIME", value_parser = TimeSpan::parse)]
    for_time: Option<TimeSpan>,
    /// With `--on workers` or `--on slurm`: return once the queue is made, without attending.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    launch: Launching,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    let names: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    Outcome::ALL
        .into_iter()
        .find(|outcome| outcome.name() == text)
        .ok_or_else(|| {
            format!(
                "`{text}` is not an outcome; use one of {}",
                names.join(", ")
            )
        })
}

impl Args {
    /// The run of which the new run is to be a copy, as it is named, and the reason.
    fn copied(&self) -> Option<(&str, CopyPurpose)> {
        let again = self.read_again.as_deref();
        let kept = self.keeping.keep.as_deref();
        let again = again.map(|named| (named, CopyPurpose::ReadAgain));
        again.or_else(|| Some((kept?, self.keeping.purpose())))
    }

    /// # Errors
    /// Options that contradict each other.
    fn check_copy(&self) -> Result<(), Stop> {
        let refused = |text: String| Err(Stop::bad_input(text));
        let Some((_, purpose)) = self.copied() else {
            return Ok(());
        };
        let option = purpose.option();
        if self.files.len() > 1 {
            return refused(format!(
                "`{option}` reads one run for one experiment; name one file"
            ));
        }
        if purpose == CopyPurpose::ReadAgain {
            return Ok(());
        }
        let others = [
            (
                "--fresh",
                self.launch.fresh,
                "that starts with no trial of another run",
            ),
            (
                "--rerun",
                !self.rerun.is_empty(),
                "that retries trials of the newest run; make the new run first, then retry its trials",
            ),
            (
                "--continue",
                self.continued.is_some(),
                "that makes other trials, which no run has yet",
            ),
        ];
        match others.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((other, _, why)) => refused(format!(
                "`--keep` does not go with `{other}`: {why}; leave one of them out"
            )),
            None => Ok(()),
        }
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let begun = Instant::now();
    args.check_copy()?;
    if let Some(span) = args.for_time.filter(|_| args.launch.dry_run) {
        return Err(Stop::bad_input(format!(
            "`--for` does not go with `--dry-run`; `kiln plan FILE --for '{span}'` says how many trials fit"
        )));
    }
    // Every file is read before the first trial of the first one starts.
    let asked = args
        .files
        .iter()
        .map(|file| plan(file, &args, begun))
        .collect::<Result<Vec<_>, _>>()?;
    let program = trial_program()?;
    let mut worst = Status::Success;
    for (file, (asked, at)) in args.files.iter().zip(asked) {
        // A file that cannot run does not stop the others.
        let used = begun.elapsed();
        if let Some(span) = args.for_time.filter(|span| span.0 <= used) {
            note(&format!(
                "{}: no trial is begun, the time of `--for {span}` is used up",
                file.display()
            ));
            continue;
        }
        let again = Again {
            file,
            at: at.as_deref(),
            args: &args,
        };
        let status = run_one(asked, &again, &program).unwrap_or_else(|stop| {
            stop.print();
            stop.status
        });
        worst = worst.max(status);
        if status == Status::Interrupted {
            break;
        }
    }
    Ok(worst)
}

/// Plans a file. With it comes the name of the trial of `--at` that stays ([`at::fixed`]).
fn plan(file: &Path, args: &Args, begun: Instant) -> Result<(PlannedFile, Option<String>), Stop> {
    let Launching { results, fresh, .. } = &args.launch;
    let mut request = request(file.to_owned(), &args.launch.settings());
    let mut at = None;
    if let Some(named) = &args.at {
        (request, at) = at::fixed(request, named, results, !args.launch.quiet)?;
    }
    let mut planned = plan_request(&request)?;
    if let Some(named) = &args.continued {
        let notes = continuation::continue_run(&mut planned, named, results, *fresh)?;
        if !args.launch.quiet {
            notes.iter().for_each(|line| note(line));
        }
    }
    if !args.launch.quiet {
        planned.warn();
        let name = &planned.loaded.experiment.name;
        if let Some(line) = same_name::notice(file, name) {
            note(&line);
        }
    }
    let only = schedule::find_ids(&planned.plan.trials, &args.only)
        .map_err(|what| Stop::bad_input(format!("{}: {what}", file.display())))?;
    let budget = args.for_time.map(|span| Budget {
        span,
        begun,
        known: known_times(&planned.plan, &planned.loaded.experiment.name, results),
    });
    let mut asked = PlannedFile::new(planned, &args.launch)?;
    asked.select(Selection {
        only,
        rerun: args.rerun.clone(),
    });
    if let Some((named, purpose)) = args.copied() {
        let run = run_to_copy(named, purpose, &args.launch.results)?;
        asked.copy_of(run, purpose);
    }
    if budget.is_some() && asked.place() != RunPlace::Here {
        return Err(Stop::bad_input(FOR_IS_HERE.to_owned()));
    }
    asked.limit(budget);
    Ok((asked, at))
}

fn run_one(asked: PlannedFile, again: &Again<'_>, program: &Path) -> Result<Status, Stop> {
    let args = again.args;
    let copied = args.copied();
    if let Some(why) = copied.and_then(|(_, purpose)| refused_elsewhere(asked.place(), purpose)) {
        return Err(Stop::bad_input(why));
    }
    if args.launch.dry_run {
        let style = args.launch.style();
        return asked.request(&args.launch, program, |request| dry_run(request, style));
    }
    if asked.place() != RunPlace::Here {
        return workers::run_on_workers(asked, &args.launch, program, args.detach);
    }
    if args.detach {
        return Err(Stop::bad_input(
            "`--detach` goes with `--on workers` or `--on slurm`: without one the trials run in this \
             command; to leave it, start it with `nohup` or in `tmux`"
                .to_owned(),
        ));
    }
    let launched = asked.request(&args.launch, program, start)?;
    let (status, report) = (status(&launched.report), launched.report.clone());
    let is_unread = launched.table.is_err();
    let shown = show(launched, &args.launch, &asked.into_experiment());
    if let Some(failure) = &report.failure {
        return Err(stopped(failure.clone()));
    }
    if !args.launch.quiet {
        say_how_to_go_on(&report, again);
    }
    // A terminal that was closed can show nothing, but the interruption is what counts.
    match shown {
        Err(stop) if status < stop.status => Err(stop),
        Err(stop) if is_unread => {
            stop.print();
            Ok(status)
        }
        _ => Ok(status),
    }
}

/// The command that ran a file, to be run again.
struct Again<'a> {
    file: &'a Path,
    /// The trial of `--at` by a name that stays, if there is one.
    at: Option<&'a str>,
    args: &'a Args,
}

fn say_how_to_go_on(report: &LaunchReport, again: &Again<'_>) {
    let args = again.args;
    if let Some((end, span)) = report.budget.as_ref().zip(args.for_time)
        && report.end == LaunchEnd::Finished
    {
        let copying = args.copied().map(|(_, purpose)| purpose.option());
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
    let is_new_try = args.rerun.is_empty() && args.continued.is_none();
    if report.end == LaunchEnd::Finished && report.left == 0 && is_new_try {
        let ends = report.last_attempts.iter();
        let outcomes: Vec<Outcome> = ends.map(|end| end.outcome).collect();
        if let Some(text) = how_to_retry(&again.command(), &outcomes) {
            note(&text);
        }
        return;
    }
    let copying = args.copied().map(|(_, purpose)| purpose.option());
    if report.end == LaunchEnd::NothingToDo {
        note(&nothing_to_do(report.left == 0, &report.last_attempts));
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
            usual if usual == Path::new("results") => String::new(),
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

/// How to retry the trials that ended without a result; `None` if each has one.
fn how_to_retry(command: &str, ends: &[Outcome]) -> Option<String> {
    let count = |outcome: Outcome| ends.iter().filter(|end| **end == outcome).count();
    let mut names: Vec<&str> = Vec::new();
    let mut all = 0;
    for outcome in [Outcome::Failed, Outcome::TimedOut] {
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
