//! `kiln run`: runs an experiment, or resumes its newest unfinished run.

mod advice;
mod lacking;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use kiln_core::{plan::Outcome, spec::RunPlace, units::TimeSpan};

use self::{
    advice::{Again, say_how_to_go_on},
    lacking::Lacking,
};
use super::{
    Status, Stop,
    continuation::{self, NewestRun},
    copied_run::{CONTINUED_IS_NOT_KEPT, KeepArgs, refused_beside, refused_elsewhere, run_to_copy},
    experiment_plan::{plan_request, request},
    launch::{PlannedFile, dry_run, start, status},
    launch_options::{FOR_IS_HERE, LaunchOptions, stopped},
    launch_page::show,
    machine::trial_program,
    note,
    plan::known_times,
    recorded_trial, same_name, workers,
};
use crate::schedule::{self, Budget, CopyPurpose, Selection};

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
    #[arg(long = "continue", value_name = "RUN[:TRIAL]")]
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
    launch: LaunchOptions,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    let names: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    Outcome::named(text).ok_or_else(|| {
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

    /// Whether this launch resumes the newest run, retries its trials, or starts another run.
    fn newest_run(&self) -> NewestRun {
        match (self.launch.fresh, self.rerun.is_empty()) {
            (true, _) => NewestRun::Left,
            (false, true) => NewestRun::Resumed,
            (false, false) => NewestRun::Retried,
        }
    }

    /// # Errors
    /// Options that contradict each other.
    fn check_copy(&self) -> Result<(), Stop> {
        let Some((_, purpose)) = self.copied() else {
            return Ok(());
        };
        let option = purpose.option();
        if self.files.len() > 1 {
            return Err(Stop::bad_input(format!(
                "`{option}` reads one run for one experiment; name one file"
            )));
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
                CONTINUED_IS_NOT_KEPT,
            ),
        ];
        match others.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((other, _, why)) => Err(refused_beside(other, why)),
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

/// Plans a file. With it comes the name of the trial of `--at` that stays ([`recorded_trial::fixed`]).
fn plan(file: &Path, args: &Args, begun: Instant) -> Result<(PlannedFile, Option<String>), Stop> {
    let results = &args.launch.results;
    let mut request = request(file.to_owned(), &args.launch.settings());
    let mut at = None;
    if let Some(named) = &args.at {
        (request, at) = recorded_trial::fixed(request, named, results, !args.launch.quiet)?;
    }
    let mut planned = plan_request(&request)?;
    if let Some(named) = &args.continued {
        let notes = continuation::continue_run(&mut planned, named, results, args.newest_run())?;
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
    let experiment = asked.into_experiment();
    let lacking = launched.table.as_ref().map(|table| {
        let command = experiment.model.command();
        Lacking::of(table, &report.last_attempts, &report.folder, command)
    });
    let lacking = lacking.unwrap_or_default();
    let shown = show(launched, &args.launch, &experiment);
    if let Some(failure) = &report.failure {
        return Err(stopped(failure.clone()));
    }
    if !args.launch.quiet {
        say_how_to_go_on(&report, again, &lacking);
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
