//! Makes a run whose trials workers take: its folder, and the programs that they start from.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kiln_core::{
    folder::write_whole,
    plan::Outcome,
    record::{RunFile, RunFolder, TicketQueue, run_file::Versions, run_folder::repair_latest},
    spec::RunPlace,
};
use sha2::{Digest, Sha256};

use super::requested_trials::RequestedTrials;
use crate::readings::{Paths, Privacy};
use crate::schedule::{
    Instruments, RunRequest, RunStop,
    content::{changed_programs, other_programs},
    disk,
    existing_run::{self, ExistingRun},
    launch, leftovers,
    machine::MachineIdentity,
    open, programs,
    remaining::{History, unsettled},
    sweep,
    tickets::TakingBack,
};

/// The folder of copied programs under `results/`, and the programs in it.
const PROGRAMS: &str = ".programs";
const KILN: &str = "kiln";
const KILN_TRIAL: &str = "kiln-trial";

/// A run that waits for workers, or on which some work.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub folder: RunFolder,
    pub queue: TicketQueue,
    /// The program to start on each node: a copy of this one, which a rebuild does not touch.
    pub program: PathBuf,
    /// Numbers of tickets that are not done, and of all.
    pub waiting: usize,
    pub tickets: usize,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// Makes a run with a queue, or gives the newest unfinished run one; starts no trial. `None` if
/// nothing is left to do.
///
/// # Errors
/// See [`RunStop`].
pub fn submit(
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<Option<Submitted>, RunStop> {
    refuse(request)?;
    if request.trials.iter().any(programs::needs_kiln_trial) {
        sweep::without_program(request.trial_program)?;
    }
    programs::check(&request.wanted(), request.trials.iter())?;
    let _lock = sweep::take_lock_if_any(request)?;
    let failed = disk::cannot_write(request);
    let here = launch::versions(request.trial_program, request.sha256);
    let Some((folder, mut notices)) = run_folder(request, instruments, &here)? else {
        return Ok(None);
    };
    let asked = RequestedTrials::of(request, &folder)?;
    let found = TicketQueue::of(&folder).map_err(|error| disk::cannot_read(&error))?;
    let queue = match found {
        Some(queue) => queue,
        None => asked.begin_queue()?,
    };
    let judging = TakingBack {
        run: &folder,
        queue: &queue,
        request,
        devices: &[],
    };
    notices.extend(open_what_is_asked(&asked, &judging).map_err(&failed)?);
    let counts = queue.counts().map_err(&failed)?;
    if counts.left() == 0 {
        return match asked.is_left() {
            false => Ok(None),
            true => Err(none_can_go_on(&judging, counts.held > 0).unwrap_or_else(&failed)),
        };
    }
    Ok(Some(Submitted {
        program: copied_programs(request.results, request.trial_program, &here).map_err(&failed)?,
        folder: RunFolder::at(
            request
                .results
                .join(&request.experiment.name)
                .join(folder.name()),
        ),
        queue,
        waiting: counts.left(),
        tickets: counts.all(),
        notices,
    }))
}

/// The folder of the newest unfinished run, or of a new one, with notices for the user. `None` if nothing
/// is left to do in a run that has no queue yet.
fn run_folder(
    request: &RunRequest,
    instruments: &Instruments,
    here: &Versions,
) -> Result<Option<(RunFolder, Vec<String>)>, RunStop> {
    let listed = sweep::collect_newest(request)?;
    let machine = || MachineIdentity::of(instruments);
    let found = existing_run::find_among(&request.wanted(), listed, &machine)?;
    let queue = match &found {
        ExistingRun::Old(old) => {
            TicketQueue::of(&old.folder).map_err(|error| disk::cannot_read(&error))?
        }
        ExistingRun::New { .. } => None,
    };
    match found {
        ExistingRun::Old(mut old) if queue.is_some() => {
            repair_latest(&old.folder).map_err(disk::cannot_write(request))?;
            same_programs(request, &old.file, here)?;
            let paths = Paths::here(Privacy::of(request.experiment));
            let programs = old.programs.as_mut();
            match programs.and_then(|programs| changed_programs(programs, &old.file, &paths)) {
                Some(why) => Err(RunStop::Refused(why)),
                None => Ok(Some((old.folder, Vec::new()))),
            }
        }
        ExistingRun::Old(old) if is_settled(request, &old.history) => Ok(None),
        found => {
            leftovers::refuse_living(&found, request)?;
            let mut open = open::open(request, found, instruments, &[])?;
            // A run of one launch so far may have lost attempts.
            leftovers::adopt(&mut open, request, instruments)?;
            let notices = std::mem::take(&mut open.notices);
            Ok(Some((open.folder.clone(), notices)))
        }
    }
}

/// Whether every trial that the command asks for has a final result, and it names none to run again.
fn is_settled(request: &RunRequest, history: &History) -> bool {
    let RunRequest {
        trials,
        selection,
        experiment,
        ..
    } = request;
    let mut left = unsettled(trials, history, selection, experiment.run.retries);
    selection.rerun.is_empty() && left.next().is_none()
}

/// Opens the tickets of the trials that the command asks for; returns notices for the user.
fn open_what_is_asked(
    asked: &RequestedTrials<'_>,
    judging: &TakingBack<'_>,
) -> io::Result<Vec<String>> {
    let queue = judging.queue;
    asked.ask_again(queue)?;
    let mut notices = judging.judge_again()?;
    notices.extend(asked.open_tickets(queue)?);
    queue.go_on()?;
    // Paths of the experiment stay relative to the folder in which the run was made.
    if queue.submitted_from().is_none() {
        queue.submit_from(&std::env::current_dir()?)?;
    }
    Ok(notices)
}

/// Why no worker can go on, although trials are left.
fn none_can_go_on(judging: &TakingBack<'_>, are_held: bool) -> io::Result<RunStop> {
    let run = judging.run.path().display();
    Ok(RunStop::CannotRun(match are_held {
        true => format!(
            "{run}: no worker can go on: {}",
            judging.tell_held()?.join("; ")
        ),
        false => format!(
            "{run}: the tickets of these trials could not be divided, because another `kiln run` was \
             cut off as it did that; the command that made the run opens them whole, without `--only`"
        ),
    }))
}

fn refuse(request: &RunRequest) -> Result<(), RunStop> {
    let on = match request.experiment.run.on {
        RunPlace::Slurm => RunPlace::Slurm.name(),
        _ => RunPlace::Workers.name(),
    };
    if request.trials.is_empty() {
        return Err(RunStop::Refused(format!(
            "experiment `{}` has no trials to run",
            request.experiment.name
        )));
    }
    if request.search.is_some() {
        return Err(RunStop::Refused(format!(
            "a search runs on one machine: its next trials depend on the results of the ones \
                 before; leave out `run.on: {on}`"
        )));
    }
    if request.selection.rerun.contains(&Outcome::Skipped) {
        return Err(RunStop::Refused(
            "`--rerun skipped` does not go with a run for workers, who would skip them again; set \
             `run.on_oom: record` and start a new run with `--fresh`"
                .to_owned(),
        ));
    }
    Ok(())
}

/// # Errors
/// If the run began with other programs than these: its workers would refuse them.
fn same_programs(request: &RunRequest, file: &RunFile, here: &Versions) -> Result<(), RunStop> {
    let first = file.launches.first().map(|launch| &launch.versions);
    let Some(first) = first.filter(|first| !other_programs(first, here).is_empty()) else {
        return Ok(());
    };
    let copy = request
        .results
        .join(PROGRAMS)
        .join(copy_name(first))
        .join(KILN);
    let how = match copy.is_file() {
        true => format!("use the copy that it began with, {}", copy.display()),
        false => "use the program that it began with".to_owned(),
    };
    Err(RunStop::CannotRun(format!(
        "the run began with another build of kiln or kiln-trial, and its workers take no other; \
         {how}, or start a new run with `--fresh`"
    )))
}

/// Copies this program and that of the trials to where workers start them; returns the path of this
/// program there.
///
/// # Errors
/// They cannot be read, or the folder of the runs cannot be written.
pub fn copy_programs(
    results: &Path,
    trial_program: &Path,
    sha256: fn(&Path) -> io::Result<String>,
) -> io::Result<PathBuf> {
    copied_programs(
        results,
        trial_program,
        &launch::versions(trial_program, sha256),
    )
}

/// The name of the folder of copies of these programs: the first digits of a hash of their hashes.
fn copy_name(versions: &Versions) -> String {
    let hashes = [&versions.kiln_sha256, &versions.trial_program_sha256];
    let hashes: String = hashes.into_iter().flatten().map(String::as_str).collect();
    hex::encode(Sha256::digest(hashes))[..12].to_owned()
}

/// Copies this program and that of the trials to a folder named after their content, so that a
/// rebuild while workers wait does not leak into them. Returns the path of this program there.
fn copied_programs(results: &Path, trial_program: &Path, here: &Versions) -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    fs::create_dir_all(results)?;
    let folder = fs::canonicalize(results)?
        .join(PROGRAMS)
        .join(copy_name(here));
    fs::create_dir_all(&folder)?;
    // Nothing of it is committed, also under a `.gitignore` of an older kiln.
    write_whole(&folder.with_file_name(".gitignore"), b"*\n")?;
    for (from, name) in [(own.as_path(), KILN), (trial_program, KILN_TRIAL)] {
        let to = folder.join(name);
        // Commands need no `kiln-trial`.
        if to.exists() || !from.is_file() {
            continue;
        }
        let draft = to.with_extension(format!("{:08x}.new", fastrand::u32(..)));
        fs::copy(from, &draft)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
        fs::rename(&draft, &to)?;
    }
    Ok(folder.join(KILN))
}
