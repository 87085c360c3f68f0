//! `kiln rm`: removes runs, or their checkpoints alone, after a question.

mod weights;

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    record::{
        RunFile, RunFolder,
        lock::{self, Lock},
        run_folder,
    },
    units::{clock, counted},
};

use self::weights::{DoomedWeights, KeptTrials};
use super::{
    RESULTS, Status, Stop,
    folder_size::size,
    note, print_line, rerun_folders,
    run_and_trial::refuse_trial,
    run_name::{Taken, listed_run},
    runs, tickets,
};
use crate::{git, output::terminal};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Runs: a short name (`latest`, NAME for its newest run, NAME~1 for the one before), or the
    /// path of a run's folder; or the folder of a rerun (`rerun-…`), with both of its runs.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// Remove only the checkpoints: weights and optimizer state. Tables, logs, curves and texts stay.
    #[arg(long)]
    weights: bool,
    /// Trials that keep their weights: `best` (the one that `kiln sample RUN` uses), the N with the
    /// lowest validation loss, or these ids.
    #[arg(long, value_name = "best|N|ID,…", requires = "weights", value_parser = KeptTrials::read)]
    but: Option<KeptTrials>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// Remove a run of which git tracks files too; with `--weights`, checkpoints that it tracks.
    #[arg(long)]
    force: bool,
    /// Folder of the runs, for short names.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let doomed = Doomed::of(&args)?;
    // Nothing is removed before every run was found removable.
    let mut locks: HashMap<PathBuf, Option<Lock>> = HashMap::new();
    for run in &doomed.runs {
        refuse_link(run)?;
        refuse_linked(run, &args.results)?;
        refuse_worked_on(run)?;
        let experiment = run.path().parent().unwrap_or(Path::new("")).to_owned();
        if !matches!(locks.get(&experiment), Some(Some(_))) {
            locks.insert(experiment, unused(run)?);
        }
    }
    let status = match args.weights {
        true => remove_weights(&args, &doomed.runs),
        false => remove_runs(&args, &doomed),
    };
    drop(locks);
    status
}

fn remove_runs(args: &Args, doomed: &Doomed) -> Result<Status, Stop> {
    if !args.force {
        let folders = doomed.reruns.iter().map(RunFolder::at);
        for folder in doomed.runs.iter().cloned().chain(folders) {
            refuse_tracked(&folder, &[folder.path().to_owned()], "of this run", "it")?;
        }
    }
    if !args.yes && !is_wanted(&doomed.lines(), &doomed.in_words())? {
        note("nothing was removed");
        return Ok(Status::Failed);
    }
    for run in &doomed.runs {
        // Files that it shared with a run that is removed by now are its own.
        let line = with_size(run);
        run_folder::remove(run).map_err(|error| failed(run, &error))?;
        print_line(&format!("removed {line}"))?;
    }
    for rerun in &doomed.reruns {
        remove_rerun(rerun)?;
    }
    Ok(Status::Success)
}

/// A run and its size, before it is removed.
fn with_size(run: &RunFolder) -> String {
    let size = size(run.path()).map_or_else(
        |error| format!("size unknown: {error}"),
        |size| size.to_string(),
    );
    format!("{} ({size})", shown(run))
}

/// The runs and the folders of reruns to remove.
#[derive(Default)]
struct Doomed {
    runs: Vec<RunFolder>,
    /// The folders of reruns, whose runs are among these.
    reruns: Vec<PathBuf>,
}

impl Doomed {
    /// # Errors
    /// A name does not stand for a run or a rerun, or it is not certain for which.
    fn of(args: &Args) -> Result<Self, Stop> {
        let mut doomed = Self::default();
        for named in &args.runs {
            let instead =
                "no trial is removed alone; `--weights --but ID` keeps the weights of one";
            refuse_trial("rm", named, &args.results, instead)?;
            if let Some(rerun) = rerun_folders::named(named, &args.results) {
                let unread = |error| runs::uncertain(named, &error);
                if let Some(left) = rerun_folders::leftover_in(&rerun).map_err(unread)? {
                    return Err(of_leftover(&left));
                }
                let inside = rerun_folders::runs_in(&rerun).map_err(unread)?;
                inside.into_iter().for_each(|run| doomed.add(run));
                if !doomed.reruns.contains(&rerun) {
                    doomed.reruns.push(rerun);
                }
                continue;
            }
            refuse_leftover(named, &args.results)?;
            let run = listed_run(named, &args.results, Taken::RunFolders)?;
            refuse_unordered(named, &run)?;
            doomed.add(run);
        }
        Ok(doomed)
    }

    fn add(&mut self, run: RunFolder) {
        if !self.runs.contains(&run) {
            self.runs.push(run);
        }
    }

    /// Each run, then each folder of a rerun, with its size: the folder goes with everything in it.
    fn lines(&self) -> Vec<String> {
        let folders = self.reruns.iter().map(|rerun| {
            let line = with_size(&RunFolder::at(rerun));
            format!("{line} with everything in it")
        });
        self.runs.iter().map(with_size).chain(folders).collect()
    }

    /// The numbers of runs and folders of reruns, in words.
    fn in_words(&self) -> String {
        let runs = counted(self.runs.len(), "run");
        let folders = counted(self.reruns.len(), "rerun folder");
        match (self.runs.len(), self.reruns.len()) {
            (_, 0) => runs,
            (0, _) => folders,
            _ => format!("{runs} and {folders}"),
        }
    }
}

/// Removes what is left of a rerun whose runs were removed.
fn remove_rerun(rerun: &Path) -> Result<(), Stop> {
    let unread = |error| unread(rerun, &error);
    let is_gone = input::find(rerun).map_err(unread)?.is_none();
    if is_gone || !rerun_folders::runs_in(rerun).map_err(unread)?.is_empty() {
        return Ok(());
    }
    let shown = runs::below_here(rerun);
    let shown = shown.display();
    rerun_folders::remove(rerun).map_err(unread)?;
    print_line(&format!("removed {shown}"))
}

fn unread(rerun: &Path, error: &io::Error) -> Stop {
    let shown = runs::below_here(rerun);
    Stop::new(Status::Failed, format!("{}: {error}", shown.display()))
}

fn remove_weights(args: &Args, runs: &[RunFolder]) -> Result<Status, Stop> {
    if runs.len() > 1 && matches!(args.but, Some(KeptTrials::Named(_))) {
        return Err(Stop::bad_input(
            "`--but` with ids is for one run; remove the weights of each run by a command of its own",
        ));
    }
    let mut doomed = Vec::new();
    for run in runs {
        let of_run = DoomedWeights::find(run, args.but.as_ref())?;
        match of_run.is_empty() {
            true => note(&format!("{}: there are no weights to remove", shown(run))),
            false => doomed.push(of_run),
        }
    }
    if !args.force {
        for of_run in &doomed {
            refuse_tracked(
                &of_run.run,
                &of_run.folders(),
                "of these checkpoints",
                "them",
            )?;
        }
    }
    let places: BTreeSet<&Path> = doomed.iter().filter_map(DoomedWeights::results).collect();
    places.into_iter().for_each(|place| note(&looked_in(place)));
    let lines: Vec<String> = doomed.iter().map(ToString::to_string).collect();
    if !doomed.is_empty() && !args.yes && !is_wanted(&lines, "these checkpoints")? {
        note("nothing was removed");
        return Ok(Status::Failed);
    }
    for (of_run, line) in doomed.iter().zip(lines) {
        of_run
            .remove()
            .map_err(|error| failed(&of_run.run, &error))?;
        print_line(&format!("removed {line}"))?;
    }
    Ok(Status::Success)
}

/// Says that runs elsewhere may need the weights.
fn looked_in(results: &Path) -> String {
    format!(
        "no unfinished run in {} begins with these checkpoints (`--continue`); runs in other results \
         folders were not looked at",
        runs::below_here(results).display()
    )
}

fn failed(run: &RunFolder, error: &io::Error) -> Stop {
    Stop::new(Status::Failed, format!("{}: {error}", run.path().display()))
}

/// The path as short as it can be: relative to the current folder.
fn shown(run: &RunFolder) -> String {
    runs::below_here(run.path()).display().to_string()
}

/// Refuses what a switch to another branch has left of a run: git does not say here that it tracks
/// the run, and the weights may be the only ones.
fn refuse_leftover(named: &str, results: &Path) -> Result<(), Stop> {
    match runs::leftover(named, results) {
        None => Ok(()),
        Some(run) => Err(of_leftover(&run)),
    }
}

fn of_leftover(run: &RunFolder) -> Stop {
    Stop::bad_input(format!(
        "{}: {}; if it is not, delete the folder yourself",
        shown(run),
        runs::LEFTOVER
    ))
}

/// Refuses a short name where the record of this run or of a newer one cannot be read: the order of
/// the runs, and with it the run that is meant, is then not certain.
fn refuse_unordered(named: &str, run: &RunFolder) -> Result<(), Stop> {
    let is_path = Path::new(named)
        .canonicalize()
        .is_ok_and(|path| path == run.path());
    if is_path || named.ends_with(&run.name()) {
        return Ok(());
    }
    let Some((results, experiment)) = run.place() else {
        return Ok(());
    };
    let all =
        run_folder::runs(results, &experiment).map_err(|error| runs::uncertain(named, &error))?;
    if all.len() == 1 {
        return Ok(());
    }
    let from = all.iter().position(|other| other == run).unwrap_or(0);
    match all[from..].iter().find_map(|other| other.number().err()) {
        None => Ok(()),
        Some(why) => Err(Stop::bad_input(format!(
            "{named}: it is not certain which run is meant, because the number of one cannot be \
             read: {why}; name the run's folder, such as `{}`",
            shown(run)
        ))),
    }
}

/// Refuses a link in place of a run's folder: what it leads to may belong to somebody else.
fn refuse_link(run: &RunFolder) -> Result<(), Stop> {
    match run.path().read_link() {
        Ok(target) => Err(Stop::bad_input(format!(
            "{}: it is a link to {}, and kiln removes nothing behind a link; delete that folder and \
             the link yourself",
            shown(run),
            target.display()
        ))),
        Err(_) => Ok(()),
    }
}

/// Refuses the folder that a link in place of a run leads to: without it the link would be a run that
/// cannot be read.
fn refuse_linked(run: &RunFolder, results: &Path) -> Result<(), Stop> {
    // A run without its record has no name by which a link to it could be looked for.
    let Ok(file) = RunFile::read(&run.run_file()) else {
        return Ok(());
    };
    let all = run_folder::runs(results, &file.experiment)
        .map_err(|error| runs::uncertain(shown(run), &error))?;
    let leads_here = |other: &&RunFolder| {
        let place = other.path().canonicalize();
        other.path().is_symlink() && place.is_ok_and(|place| place == run.path())
    };
    match all.iter().find(leads_here) {
        None => Ok(()),
        Some(link) => Err(Stop::bad_input(format!(
            "{}: {} is a link to this folder, and kiln removes nothing behind a link; delete the folder \
             and the link yourself",
            shown(run),
            shown(link)
        ))),
    }
}

/// Refuses a run of which workers have tickets: they hold no lock.
fn refuse_worked_on(run: &RunFolder) -> Result<(), Stop> {
    match tickets::taken(run)? {
        0 => Ok(()),
        _ => Err(Stop::bad_input(format!(
            "{}: workers have tickets of this run; `kiln stop RUN --now` stops them, and `kiln \
             wait RUN` takes back what dead ones have",
            shown(run)
        ))),
    }
}

/// Refuses a run that is running. The lock keeps it from being resumed meanwhile; an older run than
/// the newest cannot be resumed, and needs none.
fn unused(run: &RunFolder) -> Result<Option<Lock>, Stop> {
    let refuse = |what: String| Stop::bad_input(format!("{}: {what}", shown(run)));
    let Some((results, experiment)) = run.place() else {
        return Ok(None);
    };
    let now = clock::utc_now().to_string();
    let lock = lock::lock_to_remove(results, &experiment, std::process::id(), &now)
        .map_err(|error| refuse(error.to_string()))?;
    match lock {
        Ok(lock) => Ok(Some(lock)),
        Err(holder) => {
            let is_newest = run
                .is_newest()
                .map_err(|error| runs::uncertain(shown(run), &error))?;
            match (is_newest, holder.is_launch()) {
                (true, false) => Err(refuse(format!(
                    "another command removes runs of this experiment ({}); wait for it",
                    holder.0
                ))),
                (true, true) => Err(refuse(format!(
                    "this run is running ({}); stop it first",
                    holder.0
                ))),
                (false, _) => Ok(None),
            }
        }
    }
}

/// Refuses what git tracks: it may be the only copy of what was committed with changes. `paths` are the
/// run's folder or folders in it; `of_what` and `them` name them in the message.
fn refuse_tracked(
    run: &RunFolder,
    paths: &[PathBuf],
    of_what: &str,
    them: &str,
) -> Result<(), Stop> {
    let path = run.path();
    if !path.ancestors().any(may_be_repository) {
        return Ok(());
    }
    let refuse = |what: String| {
        Err(Stop::bad_input(format!(
            "{}: {what}; `--force` removes {them} all the same",
            shown(run)
        )))
    };
    let (Some(above), Some(_)) = (path.parent().and_then(Path::to_str), path.file_name()) else {
        return refuse("git cannot be asked about this path".to_owned());
    };
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.strip_prefix(above).unwrap_or(path))
        .map(|below| format!("./{}", below.to_string_lossy()))
        .collect();
    let mut asked = vec!["-C", above, "ls-files", "-z", "--"];
    asked.extend(names.iter().map(String::as_str));
    match git::ask(&asked) {
        Ok(answer) if answer.is_success && answer.stdout.is_empty() => Ok(()),
        Ok(answer) if answer.is_success => {
            let files = answer.stdout.iter().filter(|byte| **byte == 0).count();
            refuse(format!("git tracks {} {of_what}", counted(files, "file")))
        }
        Ok(answer) => {
            let why = answer.stderr.lines().next().unwrap_or_default().to_owned();
            refuse(format!(
                "git does not say whether it tracks this run ({why})"
            ))
        }
        Err(error) => refuse(format!(
            "git does not say whether it tracks this run ({error})"
        )),
    }
}

/// Whether a folder may be that of a git repository; git is asked where this cannot be told.
fn may_be_repository(folder: &Path) -> bool {
    !matches!(input::find(&folder.join(".git")), Ok(None))
}

/// Shows the lines and asks on the terminal whether `what` goes.
fn is_wanted(lines: &[String], what: &str) -> Result<bool, Stop> {
    if !io::stdin().is_terminal() || !terminal::stderr_is_terminal() {
        for line in lines {
            note(&format!("would remove {line}"));
        }
        return Err(Stop::bad_input(
            "this is not a terminal, so nobody can be asked; add `--yes` to remove without a \
             question",
        ));
    }
    lines.iter().for_each(|line| note(line));
    terminal::note_page(&format!("Remove {what} for good? [y/N] "));
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Stop::new(Status::Failed, error))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_repository_that_cannot_be_looked_at_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!may_be_repository(folder.path()));
        let git = folder.path().join(".git");
        symlink(".git", &git).unwrap();
        assert!(may_be_repository(folder.path()), "a link to itself");
        fs::remove_file(&git).unwrap();
        fs::create_dir(&git).unwrap();
        assert!(may_be_repository(folder.path()));
    }

    #[test]
    fn the_question_tells_a_rerun_without_runs_too() {
        let place = tempfile::tempdir().unwrap();
        let rerun = place.path().join("rerun-20261123T160618Z");
        fs::create_dir_all(rerun.join("base")).unwrap();
        fs::write(rerun.join("base/notes"), [b' '; 1024]).unwrap();
        let mut doomed = Doomed {
            runs: Vec::new(),
            reruns: vec![rerun],
        };
        let lines = doomed.lines();
        assert!(
            lines.len() == 1
                && lines[0].ends_with("rerun-20261123T160618Z (1.0 KiB) with everything in it"),
            "{lines:?}"
        );
        assert_eq!(doomed.in_words(), "1 rerun folder");
        doomed.add(RunFolder::at(place.path().join("x/20261123T160618Z-x")));
        assert_eq!(doomed.in_words(), "1 run and 1 rerun folder");
        assert_eq!(doomed.lines().len(), 2);
    }
}
