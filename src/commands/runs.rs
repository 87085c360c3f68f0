//! Short names of runs on the command line: `latest`, `NAME`, `NAME~1`, or the name of a run's
//! folder.
//!
//! A path that exists is that path, except a folder that holds no run where a run has its name, and a
//! link `latest` that leads to an older run: the newest one is read then.
//! Otherwise `latest` is the newest run of all experiments,
//! and `NAME` the newest run of an experiment; `~N` after either is the N-th run before it.

mod latest_link;

use std::{
    borrow::Cow,
    ffi::OsStr,
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    record::{
        RunFolder,
        run_folder::{LATEST, experiments, leftovers, runs},
    },
    spec::suggest::nearest,
};

pub(super) use self::latest_link::{
    above_latest, is_own_link, newest_of, newest_past_link, tell_old_link,
};
use super::{Status, Stop};

/// The sentence on a folder that a switch to another branch has left of a run.
pub(super) const LEFTOVER: &str = "no record of a run is here, only what git ignores; the record may \
                                   be on another branch";

/// Most names that a message lists.
const MOST_LISTED: usize = 8;

/// A run, and the name of its experiment.
#[derive(Clone, Debug)]
pub(super) struct NamedRun {
    pub(super) experiment: String,
    pub(super) run: RunFolder,
}

/// The runs under a folder, newest first. The runs of one experiment keep their order; among
/// experiments the names decide, which begin with the time of the start.
///
/// # Errors
/// The folder, or that of an experiment, cannot be listed.
pub(super) fn newest_first(results: &Path) -> io::Result<Vec<NamedRun>> {
    let (all, unlisted) = newest_listed(results)?;
    unlisted.into_iter().next().map_or(Ok(all), Err)
}

/// The runs of the experiments whose folder can be listed, newest first, and the error of each other
/// folder.
///
/// # Errors
/// The folder cannot be listed.
pub(super) fn newest_listed(results: &Path) -> io::Result<(Vec<NamedRun>, Vec<io::Error>)> {
    let mut queues: Vec<(String, Vec<RunFolder>)> = Vec::new();
    let mut unlisted = Vec::new();
    for name in experiments(results)? {
        match runs(results, &name) {
            Ok(runs) => queues.push((name, runs)),
            Err(error) => unlisted.push(error),
        }
    }
    let mut all = Vec::new();
    loop {
        let next = queues
            .iter_mut()
            .filter(|(_, runs)| !runs.is_empty())
            .max_by_key(|(_, runs)| runs.last().map(RunFolder::name));
        let Some((experiment, runs)) = next else {
            return Ok((all, unlisted));
        };
        all.extend(runs.pop().map(|run| NamedRun {
            experiment: experiment.clone(),
            run,
        }));
    }
}

/// The folder of the runs that a run lies in, and the name of its experiment; `None` if its path has
/// no two folders above it.
pub(super) fn place_of(run: &RunFolder) -> Option<(&Path, Cow<'_, str>)> {
    let above = run.path().parent()?;
    Some((above.parent()?, above.file_name()?.to_string_lossy()))
}

/// The runs of one experiment, newest first; none if the text is not the name of one.
///
/// # Errors
/// Its folder cannot be listed.
pub(super) fn of_experiment(results: &Path, name: &str) -> io::Result<Vec<NamedRun>> {
    if Path::new(name).file_name() != Some(OsStr::new(name)) || name.starts_with('.') {
        return Ok(Vec::new());
    }
    let newest_first = runs(results, name)?.into_iter().rev();
    let named = newest_first.map(|run| NamedRun {
        experiment: name.to_owned(),
        run,
    });
    Ok(named.collect())
}

/// The run that a missing link `latest` would lead to.
fn without_link(path: &Path) -> io::Result<Option<NamedRun>> {
    let Some(experiment) = above_latest(path) else {
        return Ok(None);
    };
    let name = experiment.file_name().unwrap_or_default();
    let newest = newest_of(experiment)?;
    Ok(newest.map(|run| NamedRun {
        experiment: name.to_string_lossy().into_owned(),
        run,
    }))
}

/// The refusal of a name where a folder cannot be read now: another run could be taken for the one that
/// is meant.
pub(super) fn uncertain(named: impl Display, error: &io::Error) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!(
            "{named}: it is not certain which run is meant, because a folder cannot be read now: \
             {error}; try again, or name the run's own folder"
        ),
    )
}

/// The runs that a short name may mean, and how many runs before the newest of them.
struct ShortName<'a> {
    name: &'a str,
    before: usize,
}

impl<'a> ShortName<'a> {
    fn read(text: &'a str) -> Self {
        let split = text.rsplit_once('~');
        let counted = split.and_then(|(name, before)| Some((name, before.parse().ok()?)));
        let (name, before) = counted.unwrap_or((text, 0));
        Self { name, before }
    }

    fn means(&self, run: &NamedRun) -> bool {
        match self.name {
            LATEST => true,
            name => run.experiment == name,
        }
    }
}

/// Returns the run that a short name means, or a path to the link `latest` that is not there: git
/// does not keep it, so a fresh clone has none.
///
/// # Errors
/// There is no such run; the message lists what exists.
pub(super) fn find(named: &str, results: &Path) -> Result<NamedRun, Stop> {
    find_with(named, results, newest_first)
}

/// `list` lists the runs of all experiments, whose files the name of one does not need.
fn find_with(
    named: &str,
    results: &Path,
    list: impl FnOnce(&Path) -> io::Result<Vec<NamedRun>>,
) -> Result<NamedRun, Stop> {
    let uncertain = |error| uncertain(named, &error);
    let linked = without_link(Path::new(named)).map_err(uncertain)?;
    let own = match linked {
        Some(run) => Some(run),
        None => of_own_name(named, results).map_err(uncertain)?,
    };
    match own {
        Some(run) => Ok(run),
        None => find_among(named, results, all_of(named, results, list)?),
    }
}

/// The runs of all experiments, as `list` lists them; none if there is no such folder.
fn all_of(
    named: &str,
    results: &Path,
    list: impl FnOnce(&Path) -> io::Result<Vec<NamedRun>>,
) -> Result<Vec<NamedRun>, Stop> {
    match list(results) {
        Err(error) if input::is_absent(&error) => Ok(Vec::new()),
        listed => listed.map_err(|error| uncertain(named, &error)),
    }
}

/// The run that `NAME` or `NAME~1` means, from the folder of that experiment alone. A link may be a
/// second name of an experiment, which only the list of all tells.
fn of_own_name(named: &str, results: &Path) -> io::Result<Option<NamedRun>> {
    let short = ShortName::read(named);
    if short.name == LATEST || results.join(short.name).is_symlink() {
        return Ok(None);
    }
    let runs = of_experiment(results, short.name)?;
    Ok(runs.into_iter().nth(short.before))
}

/// [`find`] without one run: what the name meant before that run existed. `besides` is its folder,
/// without links.
///
/// # Errors
/// As [`find`].
pub(super) fn find_without(named: &str, results: &Path, besides: &Path) -> Result<NamedRun, Stop> {
    let mut all = all_of(named, results, newest_first)?;
    let is_it = |run: &NamedRun| {
        let path = run.run.path().canonicalize();
        path.is_ok_and(|path| path == besides)
    };
    all.retain(|run| !is_it(run));
    find_among(named, results, all)
}

fn find_among(named: &str, results: &Path, all: Vec<NamedRun>) -> Result<NamedRun, Stop> {
    let short = ShortName::read(named);
    let meant: Vec<&NamedRun> = all.iter().filter(|run| short.means(run)).collect();
    if let Some(run) = meant.get(short.before) {
        return Ok((*run).clone());
    }
    if !meant.is_empty() {
        let count = match meant.len() {
            1 => "there is only 1 run".to_owned(),
            count => format!("there are only {count} runs"),
        };
        let whose = match short.name {
            LATEST => format!("under {}", results.display()),
            name => format!("of `{name}`"),
        };
        return Err(Stop::bad_input(format!(
            "{named}: {count} {whose}; the oldest is `{}~{}`",
            short.name,
            meant.len() - 1
        )));
    }
    // The name of a run's folder, alone or behind its experiment.
    let is_folder = |run: &&NamedRun| {
        let name = run.run.name();
        named == name || *named == format!("{}/{name}", run.experiment)
    };
    all.iter().find(is_folder).cloned().ok_or_else(|| {
        if let Some(left) = leftover_by_name(named, results) {
            return refuse_leftover(&left);
        }
        let experiments = all.iter().map(|run| run.experiment.as_str());
        let latest = (!all.is_empty()).then_some(LATEST);
        let near = nearest(short.name, experiments.chain(latest));
        let advice = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => "name a run's folder, such as `results/NAME/latest`, or a `trials.csv`".into(),
        };
        Stop::bad_input(format!(
            "{named}: there is no such file or folder; {advice}; {}",
            listed(&all, results)
        ))
    })
}

/// The leftover of a run that a path, alone or below `results`, leads to.
pub(super) fn leftover(named: &str, results: &Path) -> Option<RunFolder> {
    let paths = [PathBuf::from(named), results.join(named)];
    let mut folders = paths
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .map(RunFolder::at);
    folders.find(RunFolder::is_leftover)
}

/// The refusal of a leftover.
pub(super) fn refuse_leftover(left: &RunFolder) -> Stop {
    let path = below_here(left.path());
    Stop::bad_input(format!("{}: {LEFTOVER}", path.display()))
}

/// The first leftover that a short name, which is that of no run, may mean.
pub(super) fn leftover_by_name(named: &str, results: &Path) -> Option<RunFolder> {
    let short = ShortName::read(named);
    let is_meant = |experiment: &str, run: &RunFolder| {
        let name = run.name();
        short.name == LATEST
            || short.name == experiment
            || named == name
            || *named == format!("{experiment}/{name}")
    };
    let experiments = experiments(results).ok()?;
    experiments.iter().find_map(|experiment| {
        let mut left = leftovers(results, experiment).ok()?.into_iter();
        left.find(|run| is_meant(experiment, run))
    })
}

/// The short names of the runs that exist, in words.
fn listed(all: &[NamedRun], results: &Path) -> String {
    let mut names: Vec<&str> = Vec::new();
    for run in all {
        if !names.contains(&run.experiment.as_str()) {
            names.push(&run.experiment);
        }
    }
    if names.is_empty() {
        return format!("there are no runs under {}", results.display());
    }
    let shown: Vec<String> = names
        .iter()
        .take(MOST_LISTED)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = match names.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more; `kiln ls` lists them"),
    };
    format!(
        "short names under {}: `{LATEST}`, {}{more}",
        results.display(),
        shown.join(", ")
    )
}

/// The run in a folder, or the newest one of an experiment's folder; `None` if there is none.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn run_in(folder: &Path) -> io::Result<Option<RunFolder>> {
    let own = RunFolder::at(folder);
    for path in [own.run_file(), own.trials_table()] {
        if input::find(&path)?.is_some_and(|found| found.is_file()) {
            return Ok(Some(own));
        }
    }
    newest_of(folder)
}

/// The run that a name means which is also that of a folder without a run; `None` if there is none.
///
/// # Errors
/// A folder cannot be read, so that it is not certain which run is meant.
pub(super) fn find_if_any(named: &str, results: &Path) -> Result<Option<RunFolder>, Stop> {
    match find(named, results) {
        Ok(found) => Ok(Some(found.run)),
        Err(stop) if stop.status == Status::CannotRun => Err(stop),
        Err(_) => Ok(None),
    }
}

/// Returns the folder of one run: by its path, also through the link `latest`, or by a short name.
///
/// # Errors
/// It is not a run, or not one of its own experiment's folder.
pub(super) fn run_folder(named: &str, results: &Path) -> Result<RunFolder, Stop> {
    let path = Path::new(named);
    let unread = |error| uncertain(named, &error);
    let by_name = match path.symlink_metadata() {
        Err(_) => Some(find(named, results)?.run),
        // A folder of data may have the name of the experiment that reads it.
        Ok(found) if found.is_dir() => match run_in(path).map_err(unread)? {
            Some(_) => None,
            None => find_if_any(named, results)?,
        },
        Ok(_) => None,
    };
    if let Some(run) = by_name {
        let real = run.path().canonicalize();
        return real
            .map(RunFolder::at)
            .map_err(|error| Stop::bad_input(format!("{named}: {error}")));
    }
    let refuse = |what: &str| Stop::bad_input(format!("{named}: {what}"));
    let cannot = |error: io::Error| refuse(&format!("{error}"));
    let real = path.canonicalize().map_err(cannot)?;
    let (Some(above), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(refuse("this is not a run's folder"));
    };
    let experiment = above.file_name().map(|name| name.to_string_lossy());
    let siblings = match (above.parent(), experiment) {
        (Some(results), Some(experiment)) => runs(results, &experiment).map_err(unread)?,
        _ => Vec::new(),
    };
    let Some(run) = siblings.iter().find(|run| run.path() == real) else {
        return Err(refuse(
            "this is not a run's folder; name one, such as `results/NAME/latest`, or by its short \
             name, such as `NAME` or `NAME~1`",
        ));
    };
    // Through a link, only a run beside that link is meant.
    let is_link = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_symlink());
    let beside = path
        .parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => parent.to_owned(),
        });
    let beside = beside.and_then(|parent| parent.canonicalize().ok());
    if is_link && beside.as_deref() != Some(above) {
        return Err(refuse(&format!(
            "this link leads to another folder, {}; name that run itself",
            above.join(name).display()
        )));
    }
    if let Some(newest) = newest_past_link(path).map_err(unread)? {
        tell_old_link(path, &newest, false);
    }
    Ok(run.clone())
}

/// A path below the current folder, relative to it; any other path as it is.
pub(super) fn below_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let below = here
        .ok()
        .and_then(|here| path.strip_prefix(here).map(Path::to_owned).ok());
    match below {
        Some(here) if here.as_os_str().is_empty() => PathBuf::from("."),
        below => below.unwrap_or_else(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    pub(super) fn results() -> tempfile::TempDir {
        let results = tempfile::tempdir().unwrap();
        for run in [
            "a/20260101T000000Z-x",
            "a/20260103T000000Z-x",
            "b/20260102T000000Z-y",
        ] {
            fs::create_dir_all(results.path().join(run)).unwrap();
        }
        results
    }

    #[test]
    fn short_names_count_back_from_the_newest_run() {
        let results = results();
        let found = |named: &str| {
            find(named, results.path())
                .map(|found| format!("{}/{}", found.experiment, &found.run.name()[6..8]))
                .map_err(|stop| stop.message)
        };
        let cases = [
            ("latest", "a/03"),
            ("latest~1", "b/02"),
            ("latest~2", "a/01"),
            ("a", "a/03"),
            ("a~0", "a/03"),
            ("a~1", "a/01"),
            ("b", "b/02"),
            ("20260101T000000Z-x", "a/01"),
            ("b/20260102T000000Z-y", "b/02"),
        ];
        for (named, expected) in cases {
            assert_eq!(found(named).as_deref(), Ok(expected), "{named}");
        }
        let too_far = found("a~2").unwrap_err();
        assert!(too_far.contains("only 2 runs of `a`") && too_far.contains("`a~1`"));
        let unknown = found("c").unwrap_err();
        assert!(unknown.contains("`latest`, `a`, `b`"), "{unknown}");
        let slip = found("lates~1").unwrap_err();
        assert!(slip.contains("did you mean `latest`?"), "{slip}");
    }

    #[test]
    fn no_other_run_is_taken_for_one_that_cannot_be_listed() {
        let results = results();
        // Whether this folder is a run cannot be told.
        let own = results.path().join("c/own");
        fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::symlink("run.json", own.join("run.json")).unwrap();
        for named in ["latest", "latest~1", "c", "20260101T000000Z-x"] {
            let stop = find(named, results.path()).unwrap_err();
            assert_eq!(stop.status, Status::CannotRun, "{named}");
            assert!(
                stop.message.contains("c/own/run.json: "),
                "{}",
                stop.message
            );
        }
        assert!(find("a", results.path()).is_ok());
        assert!(newest_first(results.path()).is_err());
        let (all, unlisted) = newest_listed(results.path()).unwrap();
        assert_eq!((all.len(), unlisted.len()), (3, 1));
    }

    #[test]
    fn a_name_of_an_experiment_needs_no_list_of_all() {
        let results = results();
        let found = |named: &str| {
            let list = |_: &Path| Err(io::Error::other("all are listed"));
            let found = find_with(named, results.path(), list);
            found.map(|found| found.run.name()[6..8].to_owned()).ok()
        };
        let cases = [("a", "03"), ("a~1", "01"), ("b", "02")];
        for (named, expected) in cases {
            assert_eq!(found(named).as_deref(), Some(expected), "{named}");
        }
        std::os::unix::fs::symlink("a", results.path().join("c")).unwrap();
        for named in ["latest", "a~2", "c", "../a", "20260101T000000Z-x"] {
            assert_eq!(found(named), None, "{named}");
        }
    }

    #[test]
    fn a_path_to_a_missing_link_is_the_newest_run() {
        let results = results();
        let named = results.path().join("a/latest");
        let found = find(named.to_str().unwrap(), results.path()).unwrap();
        assert_eq!(
            (found.experiment.as_str(), &found.run.name()[6..8]),
            ("a", "03")
        );
        let nowhere = results.path().join("c/latest");
        assert!(find(nowhere.to_str().unwrap(), results.path()).is_err());
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_refused() {
        let results = results();
        let run = results.path().join("a/20260101T000000Z-x");
        let link = |at: &str| {
            let link = results.path().join(at);
            std::os::unix::fs::symlink(&run, &link).unwrap();
            run_folder(link.to_str().unwrap(), results.path())
        };
        assert_eq!(
            link("a/latest").unwrap().path(),
            run.canonicalize().unwrap()
        );
        assert!(
            link("b/latest")
                .unwrap_err()
                .message
                .contains("another folder")
        );
        let folder = results.path().join("a");
        assert!(run_folder(folder.to_str().unwrap(), results.path()).is_err());
    }
}
