//! Gives job arrays of workers to Slurm. What is asked for is on the disk before `sbatch` is called:
//! a reply that never came is found again by the job's name.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use jiff::SignedDuration;

use kiln_core::{
    record::{
        LaunchFile, RunFolder, Submission, TicketQueue, launch_folder, run_file::EndCause,
        submission,
    },
    spec::Slurm,
    units::counted,
};

use kiln_data::source::{DATA_VARIABLE, absolute_data_folder};
use kiln_hardware::VISIBLE_DEVICES;

use super::{
    client::{Client, ClientError},
    job::JobScript,
    look::{self, Looked, Word},
    states::{self, Stage, TaskId, TaskReport},
};
use crate::schedule::{RunRequest, RunStop, clock::utc_now, disk, launch};

/// Looks for a job whose reply did not come, and the time between two.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// `sbatch` may take so long: a full queue makes it try again for two minutes.
const SUBMITTING: SignedDuration = SignedDuration::from_mins(3);
/// A node that was bad gets no workers for so long.
const BAD_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Longest part of a job's name that is the experiment's.
const MOST_OF_NAME: usize = 40;

/// A run whose workers Slurm shall start.
#[derive(Clone, Copy, Debug)]
pub struct SlurmRun<'a> {
    pub folder: &'a RunFolder,
    pub queue: &'a TicketQueue,
    /// The program of the workers.
    pub program: &'a PathBuf,
}

/// The request that Slurm got.
#[derive(Clone, Debug, Default)]
pub struct SlurmSubmitted {
    /// The job and its number of tasks; `None` if enough workers wait or run already.
    pub job: Option<(u64, u32)>,
    /// Numbers of workers that wait or run from before.
    pub alive: usize,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// Submits as many workers as the run asks for and has tickets for, less those that wait or run
/// already.
///
/// # Errors
/// Slurm refuses, does not answer, or its programs are missing; or the folder cannot be written.
pub fn submit_workers(request: &RunRequest, run: SlurmRun<'_>) -> Result<SlurmSubmitted, RunStop> {
    let failed = disk::cannot_write(request);
    let client = Client::new();
    let slurm = request.experiment.run.slurm.clone().unwrap_or_default();
    let read = || Submission::all(run.folder).map_err(|error| disk::cannot_read(&error));
    let jobs = known_jobs(client, run.folder, read()?).map_err(|error| cannot_run(&error))?;
    if let Some(number) = on_its_way(&read()?) {
        return Err(RunStop::CannotRun(format!(
            "workers of this run were asked for a moment ago (submit/{number}), and Slurm has not \
             answered yet; try again in three minutes, or attend with `kiln wait`"
        )));
    }
    let before = alive(client, &jobs).map_err(|error| cannot_run(&error))?;
    let alive = before.len();
    let counts = run.queue.counts().map_err(&failed)?;
    let mut submitted = SlurmSubmitted {
        alive,
        ..SlurmSubmitted::default()
    };
    // Without an answer nothing is known of its limits.
    let config = client.ask("scontrol", &["show", "config"]).ok();
    let (tasks, notice) = capped(
        config.as_deref(),
        &slurm,
        counts.left(),
        &request.experiment.sweep.together,
    );
    submitted.notices.extend(notice);
    let asked = u32::try_from(tasks).ok();
    let tasks = tasks.saturating_sub(alive);
    if tasks == 0 {
        return Ok(submitted);
    }
    let (variables, missing) = variables(&slurm);
    if !missing.is_empty() {
        submitted.notices.push(format!(
            "`run.slurm.environment` names {}, which {} not set here",
            missing.join(", "),
            if missing.len() == 1 { "is" } else { "are" }
        ));
    }
    let array = WorkerArray {
        tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
        slurm,
        program: run.program.clone(),
        variables,
        kill_wait_seconds: config.as_deref().and_then(states::kill_wait),
        lost_nodes: bad_nodes(run.folder, jiff::Timestamp::now()),
        asked,
        alive_before: before.iter().map(|id| (id.job, id.task)).collect(),
        replacement: None,
    };
    if !array.lost_nodes.is_empty() {
        submitted.notices.push(format!(
            "without {}, where workers of this run could not run trials in the last day, though others \
             could",
            array.lost_nodes.join(", ")
        ));
    }
    let made = submit_array(client, run.folder, run.queue, array).map_err(|error| match error {
        SubmitError::Io(error) => failed(error),
        SubmitError::Client(error) => cannot_run(&error),
        SubmitError::IsOthers => RunStop::CannotRun(error.to_string()),
    })?;
    submitted.job = made.job.map(|job| (job, made.tasks));
    Ok(submitted)
}

/// The nodes whose newest launch ended in the last day because of its node, if another node did better:
/// else it may be the trials that are to blame.
fn bad_nodes(run: &RunFolder, now: jiff::Timestamp) -> Vec<String> {
    let launches = launch_folder::launches(run).into_iter();
    let files = launches.filter_map(|launch| LaunchFile::read(run, launch));
    let mut newest: BTreeMap<String, bool> = BTreeMap::new();
    for file in files {
        let ended = file.launch.ended.as_ref();
        let is_bad = ended.is_some_and(|ended| {
            let at = ended.utc.parse::<jiff::Timestamp>();
            let is_recent = |at: jiff::Timestamp| now.duration_since(at) < BAD_FOR;
            ended.cause == Some(EndCause::BadNode) && at.is_ok_and(is_recent)
        });
        if let Some(node) = file.process.node.filter(|_| file.launch.slurm.is_some()) {
            newest.insert(node, is_bad);
        }
    }
    match newest.values().any(|is_bad| !is_bad) {
        true => newest
            .into_iter()
            .filter_map(|(node, is_bad)| is_bad.then_some(node))
            .collect(),
        false => Vec::new(),
    }
}

/// The number of a submission that somebody else's `sbatch` is at work on.
fn on_its_way(all: &[Submission]) -> Option<u64> {
    let own = all.iter().find(|one| one.is_unanswered() && is_young(one));
    own.map(|one| one.submission)
}

fn cannot_run(error: &ClientError) -> RunStop {
    RunStop::CannotRun(format!(
        "{error}; the run and its queue are kept, and the same command goes on"
    ))
}

/// As many workers as there are tickets and as an array may have tasks, and a word if that is less
/// than what is asked for.
fn capped(
    config: Option<&str>,
    slurm: &Slurm,
    tickets: usize,
    together: &[String],
) -> (usize, Option<String>) {
    let workers = usize::try_from(slurm.workers).unwrap_or(usize::MAX);
    let tasks = workers.min(tickets);
    // A single task needs no array.
    let most = config.filter(|_| tasks > 1).and_then(states::most_tasks);
    if let Some(most) = most.and_then(|most| usize::try_from(most).ok())
        && (1..tasks).contains(&most)
    {
        let notice = format!(
            "a job array of this cluster has at most {most} tasks (MaxArraySize); asking for {most} \
             of {workers} workers"
        );
        return (most, Some(notice));
    }
    let more = match together.is_empty() {
        true => "`sweep.together`, or `train.seed` as an axis in place of repeats, make more; ",
        false => "",
    };
    let notice = || {
        format!(
            "{} for {workers} workers; {more}asking for {tickets}",
            counted(tickets, "ticket")
        )
    };
    (tasks, (tickets < workers).then(notice))
}

/// The variables that the workers get, and the names that are asked for and not set here.
pub(super) fn variables(slurm: &Slurm) -> (BTreeMap<String, String>, Vec<String>) {
    let mut variables = launch::environment();
    // Slurm sets it for each job.
    variables.remove(VISIBLE_DEVICES);
    // A path of the login node, which the nodes need not have.
    variables.remove(launch::PRELOADED);
    if let Some(data) = absolute_data_folder() {
        variables.insert(
            DATA_VARIABLE.to_owned(),
            data.to_string_lossy().into_owned(),
        );
    }
    let mut missing = Vec::new();
    for name in &slurm.environment {
        match std::env::var(name) {
            Ok(value) => drop(variables.insert(name.clone(), value)),
            Err(_) => missing.push(name.clone()),
        }
    }
    (variables, missing)
}

/// A job array to submit.
#[derive(Clone, Debug)]
pub(super) struct WorkerArray {
    pub(super) tasks: u32,
    pub(super) slurm: Slurm,
    pub(super) program: PathBuf,
    pub(super) variables: BTreeMap<String, String>,
    pub(super) kill_wait_seconds: Option<u64>,
    pub(super) lost_nodes: Vec<String>,
    /// See [`Submission::asked`] and [`Submission::alive_before`].
    pub(super) asked: Option<u32>,
    pub(super) alive_before: Vec<(u64, u32)>,
    /// Whether these workers replace others, and then its number: of two who attend, one submits them.
    pub(super) replacement: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SubmitError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("somebody else submits workers at the same time")]
    IsOthers,
}

/// Writes the script of a job array and submits it.
///
/// # Errors
/// The folder cannot be written, or Slurm refuses or does not answer; or somebody else has the number
/// of a replacement.
pub(super) fn submit_array(
    client: Client,
    run: &RunFolder,
    queue: &TicketQueue,
    array: WorkerArray,
) -> Result<Submission, SubmitError> {
    let run = run.in_experiment()?;
    let number = match array.replacement {
        Some(number) if submission::make_exactly(&run, number)? => number,
        Some(_) => return Err(SubmitError::IsOthers),
        None => submission::make(&run)?,
    };
    let mut made = Submission::new(number, job_name(&run), array.tasks, array.slurm);
    made.program = array.program;
    made.variables = array.variables;
    (made.asked, made.alive_before) = (array.asked, array.alive_before);
    made.kill_wait_seconds = array.kill_wait_seconds;
    made.lost_nodes = array.lost_nodes;
    made.is_replacement = array.replacement.is_some();
    made.submitted_utc = utc_now();
    let script = made.script(&run).display().to_string();
    made.command = vec!["sbatch".to_owned(), "--parsable".to_owned(), script];
    write_script(&run, queue, &made)?;
    made.write(&run)?;
    give_to_slurm(client, &run, made)
}

/// Writes the script of a submission's job.
fn write_script(run: &RunFolder, queue: &TicketQueue, made: &Submission) -> io::Result<()> {
    let text = |path: &Path| path.display().to_string();
    let variables: Vec<(String, String)> = made
        .variables
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let folder = match queue.submitted_from() {
        Some(folder) => folder,
        None => std::env::current_dir()?,
    };
    let job = JobScript {
        slurm: &made.slurm,
        name: &made.name,
        tasks: made.tasks,
        lost_nodes: &made.lost_nodes,
        folder: &folder,
        logs: &submission::folder(run, made.submission),
        variables: &variables,
        command: &[
            text(&made.program),
            "worker".to_owned(),
            text(run.path()),
            "--submission".to_owned(),
            made.submission.to_string(),
        ],
    };
    run.write(&made.script(run), job.text().as_bytes())
}

/// Calls `sbatch`, and notes the job, or why it was refused.
fn give_to_slurm(
    client: Client,
    run: &RunFolder,
    mut made: Submission,
) -> Result<Submission, SubmitError> {
    match client.ask("sbatch", &made.command[1..]) {
        Ok(said) => match states::of_sbatch(&said) {
            Some(job) => {
                made.job = Some(job);
                made.write(run)?;
                Ok(made)
            }
            None => found_by_name(client, run, made, &|| ClientError::Refused {
                program: "sbatch",
                said: format!("it printed no number of a job: {}", said.trim()),
            }),
        },
        Err(error) if error.may_have_been_heard() => {
            found_by_name(client, run, made, &|| error.clone())
        }
        Err(error) => {
            made.refused = Some(error.to_string());
            made.write(run)?;
            Err(error.into())
        }
    }
}

/// Looks for the job of a submission whose reply did not come; `otherwise` is the error if there is
/// none yet. A controller that is busy may make it a little later: then who comes next finds it.
fn found_by_name(
    client: Client,
    run: &RunFolder,
    mut made: Submission,
    otherwise: &dyn Fn() -> ClientError,
) -> Result<Submission, SubmitError> {
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        if let Ok(Some(job)) = job_of_name(client, &made.name) {
            made.job = Some(job);
            made.write(run)?;
            return Ok(made);
        }
    }
    made.given_up = true;
    made.write(run)?;
    Err(otherwise().into())
}

/// The number of the job of a name that no other job has.
fn job_of_name(client: Client, name: &str) -> Result<Option<u64>, ClientError> {
    let first = |tasks: Vec<TaskReport>| tasks.first().map(|task| task.id.job);
    if let Some(job) = first(look::listed(client, ["-n", name])?) {
        return Ok(Some(job));
    }
    let accounted = look::accounted(client, ["--name", name])?;
    Ok(accounted.and_then(first))
}

/// Whether `sbatch` may still be at work on it.
fn is_young(submission: &Submission) -> bool {
    let submitted = submission.submitted_utc.parse::<jiff::Timestamp>();
    !submission.given_up
        && submitted.is_ok_and(|at| jiff::Timestamp::now().duration_since(at) < SUBMITTING)
}

/// A submission without an answer, as it is by now: with the job of its name, or refused if there is
/// none and `sbatch` is no longer at work on it.
///
/// # Errors
/// Slurm does not answer.
pub(super) fn looked_up(
    client: Client,
    run: &RunFolder,
    mut one: Submission,
) -> Result<Submission, ClientError> {
    let found = job_of_name(client, &one.name)?;
    // Who submits it may have had an answer meanwhile.
    let now = Submission::read(run, one.submission);
    if let Some(now) = now.filter(|now| !now.is_unanswered()) {
        return Ok(now);
    }
    if found.is_some() || !is_young(&one) {
        let none = || "no job of this name was found".to_owned();
        (one.job, one.refused) = (found, found.is_none().then(none));
        // It is looked up again by who comes next.
        let _ = one.write(run);
    }
    Ok(one)
}

/// The jobs of these submissions of a run with their numbers of tasks. A reply that never came is
/// looked up: a job that is not found by its name was never made.
///
/// # Errors
/// Slurm does not answer.
pub(super) fn known_jobs(
    client: Client,
    run: &RunFolder,
    submissions: Vec<Submission>,
) -> Result<Vec<(u64, u32)>, ClientError> {
    let mut jobs = Vec::new();
    for mut one in submissions {
        if one.is_unanswered() {
            one = looked_up(client, run, one)?;
        }
        jobs.extend(one.job.map(|job| (job, one.tasks)));
    }
    Ok(jobs)
}

/// The tasks of these jobs that wait or run, or may do so.
fn alive(client: Client, jobs: &[(u64, u32)]) -> Result<Vec<TaskId>, ClientError> {
    let mut looked = Looked::default();
    looked.ask(client, jobs)?;
    let is_alive = |word: &Word| match word {
        Word::Said(report) => {
            report.stage() != Stage::Over && report.state != "COMPLETING" && !report.is_worn_out()
        }
        Word::Forgotten => false,
    };
    let alive = looked.words.iter().filter(|(_, word)| is_alive(word));
    let mut alive: Vec<TaskId> = alive.map(|(id, _)| *id).collect();
    alive.sort_unstable();
    Ok(alive)
}

/// `kiln-gpt-width-1a2b3c4d`
fn job_name(run: &RunFolder) -> String {
    let experiment = run.experiment_name();
    let experiment: String = experiment.chars().take(MOST_OF_NAME).collect();
    format!("kiln-{experiment}-{:08x}", fastrand::u32(..))
}
