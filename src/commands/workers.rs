//! Runs that several launches work on: `kiln run --on workers` and `--on slurm`, `kiln worker`,
//! `kiln wait` and `kiln stop`.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    limits::RESOLVED_BYTES,
    record::{RunFolder, StopAsked, TicketQueue, collect, run_file::EndCause},
    spec::{self, Experiment, ExperimentRequest, RunPlace},
    units::{counted, shell_word, without_controls},
};

use super::{
    RESULTS, Status, Stop,
    experiment_plan::plan_loaded,
    launch::{FRESH_RUN, Launched, PlannedFile, instruments_for, nothing_to_do, status},
    launch_options::{LaunchOptions, ProgressOption, stopped},
    launch_page::show,
    local_run::{self, LocalRun},
    machine::trial_program,
    note, print, print_line,
    run_name::{Taken, listed_run},
    runs,
    sources::table_of_run,
    summary_table::write_point_table,
    tickets::{are, held, later, queue_in},
};
use crate::{
    report,
    schedule::{
        self, Allocation, Attendance, LaunchEnd, LaunchReport, RunRequest, SlurmRun, Submitted,
    },
};

#[derive(clap::Args)]
pub(super) struct WorkerArgs {
    /// A run with a queue: a short name (`latest`, NAME), or the path of its folder.
    run: String,
    /// The number of the submission to Slurm whose task this is; job scripts give it.
    #[arg(long, hide = true, value_name = "N")]
    submission: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(super) struct WaitArgs {
    /// A run with a queue, or one that goes on: a short name (`latest`, NAME), or the path of its
    /// folder.
    #[arg(default_value = "latest")]
    run: String,
    /// Collect the tables once, and return.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(super) struct StopArgs {
    /// A run with a queue: a short name (`latest`, NAME), or the path of its folder.
    run: String,
    /// Stop the running trials too; without it they finish.
    #[arg(long)]
    now: bool,
    /// Folder of the runs, for short names.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

#[derive(clap::Args)]
struct OutputArgs {
    /// Print only the result; with `--progress json`, only the events.
    #[arg(long)]
    quiet: bool,
    /// How to report progress.
    #[arg(long, value_enum, default_value_t = ProgressOption::Plain)]
    progress: ProgressOption,
    /// Folder of the runs, for short names.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

/// The folder of a run and the queue in it.
fn queue_of(named: &str, results: &Path) -> Result<(RunFolder, TicketQueue), Stop> {
    let run = listed_run(named, results, Taken::Runs)?;
    match queue_in(&run)? {
        Some(queue) => Ok((run, queue)),
        None => Err(without_queue(&run, LocalRun::of(&run).as_ref())),
    }
}

/// The refusal of a run without a queue, which may go on in another process.
fn without_queue(run: &RunFolder, going: Option<&LocalRun>) -> Stop {
    let advice = match going {
        Some(going) => going.how_to_stop(),
        None => "`kiln run FILE --on workers` makes one".to_owned(),
    };
    Stop::bad_input(format!(
        "{}: this run has no queue for workers; {advice}",
        run.path().display()
    ))
}

/// The refusal of a run without a queue that has ended; `what` was asked for.
fn not_running(run: &RunFolder, what: &str) -> Stop {
    Stop::bad_input(format!(
        "{}: this run is not running, so there is nothing to {what}; `kiln report {}` shows its results",
        run.path().display(),
        quoted(run.path())
    ))
}

/// The experiment of a run, as its folder has it; variables have no effect.
fn planned(run: &RunFolder, launch: &LaunchOptions) -> Result<PlannedFile, Stop> {
    let file = run.experiment();
    let text = input::read_text(&file, &RESOLVED_BYTES)
        .map_err(|error| Stop::bad_input(format!("{}: {error}", file.display())))?;
    let request = ExperimentRequest::of_run(file, text, Vec::new());
    PlannedFile::new(
        plan_loaded(spec::load(&request).map_err(Stop::bad_input)?)?,
        launch,
    )
}

/// The folder of the runs that a run lies in.
fn results_of(run: &RunFolder) -> PathBuf {
    let above = run.path().parent().and_then(Path::parent);
    above.unwrap_or(Path::new("")).to_owned()
}

pub(super) fn work(args: WorkerArgs) -> Result<Status, Stop> {
    let (run, queue) = queue_of(&args.run, &args.output.results)?;
    // Paths of the experiment are relative to the folder that it was submitted from.
    if let Some(folder) = queue.submitted_from() {
        std::env::set_current_dir(&folder).map_err(|error| {
            Stop::new(
                Status::CannotRun,
                format!(
                    "{}: {error}; the run was made in this folder, which every node must see",
                    folder.display()
                ),
            )
        })?;
    }
    let OutputArgs {
        quiet, progress, ..
    } = args.output;
    let mut launch = LaunchOptions::of_worker(results_of(&run), quiet, progress);
    launch.visible = schedule::visible_in_job(&|name| std::env::var(name).ok());
    let allocation = Allocation::here(&run, args.submission);
    let planned = planned(&run, &launch)?;
    let program = trial_program()?;
    let report = planned
        .request(&launch, &program, |request| {
            schedule::work(
                request,
                &run,
                queue.clone(),
                instruments_for(request.trials),
                allocation.as_ref(),
            )
        })
        .map_err(stopped)?;
    collected(&run, &planned.into_experiment(), quiet)?;
    if let Some(failure) = report.failure {
        return Err(stopped(failure));
    }
    match &allocation {
        Some(allocation) if report.cause == Some(EndCause::OutOfTime) => requeue(allocation, quiet),
        _ if quiet => {}
        _ => tell_rest(&queue, report.end),
    }
    Ok(match report.end {
        LaunchEnd::Interrupted => Status::Interrupted,
        _ => Status::Success,
    })
}

/// Asks for another start of this worker's job, as its last act.
fn requeue(allocation: &Allocation, quiet: bool) {
    let asked = match allocation.may_requeue() {
        true => allocation.requeue(),
        false => Err("`run.slurm.resubmissions` is used up".to_owned()),
    };
    let notice = match asked {
        Ok(()) => "tickets are left: Slurm starts this job again".to_owned(),
        Err(why) => format!("tickets are left, and this job is not started again: {why}"),
    };
    if !quiet {
        note(&notice);
    }
}

/// Says why a worker ends although tickets are left.
fn tell_rest(queue: &TicketQueue, end: LaunchEnd) {
    let counts = queue.counts().unwrap_or_default();
    match (queue.stop_asked(), counts.open, counts.taken) {
        (Some(_), 1.., _) => note(
            "the workers of this run were asked to stop (`kiln stop`); `kiln run FILE --on workers` \
             goes on",
        ),
        (_, _, taken @ 1..) => note(&format!(
            "nothing is left to take; other launches have {}, and `kiln wait` takes back what dead \
             ones have",
            counted(taken, "ticket")
        )),
        _ if counts.open == 0 && counts.held + counts.later > 0 => {
            let kept = [held(counts), later(counts)].into_iter().flatten();
            note(&format!(
                "nothing is left to take; {}",
                kept.collect::<Vec<_>>().join("; ")
            ));
        }
        _ if end == LaunchEnd::NothingToDo => note("nothing is left to take"),
        _ => {}
    }
}

/// Collects the tables of a run and writes its `summary.csv`.
fn collected(run: &RunFolder, experiment: &Experiment, quiet: bool) -> Result<(), Stop> {
    let failed =
        |error: &dyn std::fmt::Display| Stop::new(Status::Failed, format!("collecting: {error}"));
    let edited = collect::collect(run)
        .map_err(|error| failed(&error))?
        .edited;
    if let Some(edited) = edited.filter(|_| !quiet) {
        note(&edited.to_string());
    }
    let table = table_of_run(run).map_err(|error| failed(&error))?;
    if table.rows.is_empty() {
        return Ok(());
    }
    let objective = experiment.ranking_objective();
    let text = report::point_table(&table, objective);
    drop(table);
    let read_again = || table_of_run(run).ok();
    write_point_table(run, text, objective, &read_again)
        .map(drop)
        .map_err(|error| failed(&error))
}

/// Makes or finds the run of a file for workers, and attends it.
pub(super) fn run_on_workers(
    asked: PlannedFile,
    launch: &LaunchOptions,
    program: &Path,
    detach: bool,
) -> Result<Status, Stop> {
    let submitted = asked
        .request(launch, program, |request| {
            schedule::submit(request, &instruments_for(request.trials))
        })
        .map_err(stopped)?;
    let Some(submitted) = submitted else {
        note(&nothing_to_do(
            asked.asks_for_all(),
            &[],
            &HashSet::new(),
            FRESH_RUN,
        ));
        return Ok(Status::Success);
    };
    if !launch.quiet {
        submitted.notices.iter().for_each(|text| note(text));
        let (folder, waiting) = (submitted.folder.path().display(), submitted.waiting);
        note(&format!(
            "{folder}: {waiting} of {} for workers",
            counted(submitted.tickets, "ticket")
        ));
    }
    let folder = submitted
        .folder
        .path()
        .canonicalize()
        .unwrap_or_else(|_| submitted.folder.path().to_owned());
    let on = asked.place();
    match on {
        RunPlace::Slurm => submit_to_slurm(&asked, launch, program, &submitted)?,
        _ => print_line(&format!(
            "start on each node that sees this folder: {} worker {}",
            quoted(&submitted.program),
            quoted(&folder)
        ))?,
    }
    if detach {
        return Ok(Status::Success);
    }
    if !launch.quiet && on != RunPlace::Slurm {
        note(
            "attending: Ctrl-C leaves the workers at work, `kiln wait` comes back, `kiln stop` ends \
             them",
        );
    }
    attended(
        asked,
        launch,
        program,
        (&submitted.folder, &submitted.queue),
        Attendance::AsAsked,
    )
}

/// Asks Slurm for the workers of a run, and says what was asked for.
fn submit_to_slurm(
    asked: &PlannedFile,
    launch: &LaunchOptions,
    program: &Path,
    submitted: &Submitted,
) -> Result<(), Stop> {
    let run = SlurmRun {
        folder: &submitted.folder,
        queue: &submitted.queue,
        program: &submitted.program,
    };
    let asked_for = asked
        .request(launch, program, |request| {
            schedule::submit_workers(request, run)
        })
        .map_err(stopped)?;
    if !launch.quiet {
        asked_for.notices.iter().for_each(|text| note(text));
    }
    let folder = quoted(submitted.folder.path());
    print_line(&match asked_for.job {
        Some((job, tasks)) => {
            let what = asked.slurm_in_words();
            format!(
                "job {job}: {}{what}; Ctrl-C leaves it running, `kiln wait {folder}` comes back, \
                 `kiln stop {folder}` ends it",
                counted(tasks as usize, "task")
            )
        }
        None => format!(
            "{} in Slurm already; no more are asked for",
            match asked_for.alive {
                1 => "1 worker waits or runs".to_owned(),
                alive => format!("{alive} workers wait or run"),
            }
        ),
    })
}

/// A path for a shell.
fn quoted(path: &Path) -> String {
    shell_word(&without_controls(&path.display().to_string()))
}

pub(super) fn wait(args: WaitArgs) -> Result<Status, Stop> {
    let run = listed_run(&args.run, &args.output.results, Taken::Runs)?;
    match queue_in(&run)? {
        Some(queue) => wait_for_queue(&run, &queue, &args),
        None => match LocalRun::of(&run) {
            Some(going) => wait_for_local(&run, going, &args),
            None => Err(not_running(&run, "wait for")),
        },
    }
}

fn wait_for_queue(run: &RunFolder, queue: &TicketQueue, args: &WaitArgs) -> Result<Status, Stop> {
    let OutputArgs {
        quiet, progress, ..
    } = args.output;
    let launch = LaunchOptions::of_worker(results_of(run), quiet, progress);
    let planned = planned(run, &launch)?;
    let attendance = match args.once {
        true => Attendance::Once,
        false => Attendance::UntilDone,
    };
    attended(
        planned,
        &launch,
        &trial_program()?,
        (run, queue),
        attendance,
    )
}

/// Waits for the end of a run that goes on without a queue, or of the new run that its launch begins;
/// with `--once` looks at it once.
fn wait_for_local(run: &RunFolder, going: LocalRun, args: &WaitArgs) -> Result<Status, Stop> {
    let mut ended = run.clone();
    if !args.once {
        if !args.output.quiet {
            note(&going.in_words());
        }
        let newer = going
            .wait()
            .map_err(|error| runs::uncertain(run.path().display(), &error))?;
        if let Some(newer) = newer {
            if !args.output.quiet {
                let new = runs::below_here(newer.path());
                note(&format!("the launch began a new run, {}", new.display()));
            }
            if let Some(queue) = queue_in(&newer)? {
                return wait_for_queue(&newer, &queue, args);
            }
            if let Some(going) = LocalRun::of(&newer) {
                return wait_for_local(&newer, going, args);
            }
            ended = newer;
        }
    }
    local_run::result(&ended, args.output.progress != ProgressOption::Json)
}

fn attended(
    planned: PlannedFile,
    launch: &LaunchOptions,
    program: &Path,
    (run, queue): (&RunFolder, &TicketQueue),
    attendance: Attendance,
) -> Result<Status, Stop> {
    let attend = |request: &RunRequest| {
        let instruments = instruments_for(request.trials);
        schedule::attend(request, run, queue.clone(), &instruments, attendance)
    };
    let report: LaunchReport = planned.request(launch, program, attend).map_err(stopped)?;
    let experiment = planned.into_experiment();
    collected(run, &experiment, launch.quiet)?;
    let (end, failure) = (report.end, report.failure.clone());
    let table = table_of_run(run).map_err(|error| Stop::new(Status::Failed, error));
    let launched = Launched { report, table };
    // Also after `kiln stop`, and of one look while the workers go on.
    let status = match status(&launched.report) {
        Status::Success if launched.report.asked_left > 0 => Status::Failed,
        status => status,
    };
    show(launched, launch, &experiment)?;
    if let Some(failure) = failure {
        return Err(stopped(failure));
    }
    if end == LaunchEnd::Interrupted {
        note("left; the workers go on, and `kiln wait` comes back");
    }
    Ok(status)
}

pub(super) fn stop(args: StopArgs) -> Result<Status, Stop> {
    let run = listed_run(&args.run, &args.results, Taken::Runs)?;
    let Some(queue) = queue_in(&run)? else {
        return Err(match LocalRun::of(&run) {
            Some(going) => without_queue(&run, Some(&going)),
            None => not_running(&run, "stop"),
        });
    };
    let asked = match args.now {
        true => StopAsked::Now,
        false => StopAsked::Drain,
    };
    let failed = |error: std::io::Error| Stop::new(Status::Failed, error);
    queue.ask_to_stop(asked).map_err(failed)?;
    let jobs = schedule::cancel_workers(&run, args.now).map_err(|why| {
        Stop::new(
            Status::CannotRun,
            format!("the workers are asked to stop, but {why}"),
        )
    })?;
    let on = match jobs {
        0 => RunPlace::Workers.name(),
        _ => RunPlace::Slurm.name(),
    };
    let counts = queue.counts().map_err(failed)?;
    if counts.left() + counts.held + counts.later == 0 {
        print(&format!("{}: every ticket is done\n", run.path().display()))?;
        return Ok(Status::Success);
    }
    let taken = counts.taken;
    let what = match (taken, args.now) {
        (0, _) => "no ticket is taken".to_owned(),
        (taken, true) => format!("{} given back within about a minute", are(taken)),
        (taken, false) => format!(
            "the running trials of {} finish first",
            counted(taken, "ticket")
        ),
    };
    print(&format!(
        "{}: the workers start no more trials; {what}; `kiln run FILE --on {on}` goes on\n",
        run.path().display()
    ))?;
    Ok(Status::Success)
}
