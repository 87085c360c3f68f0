//! Short names: `latest`, `NAME`, `NAME~1`, or the name of a run's folder.
//!
//! `latest` is the newest run of all experiments, and `NAME` the newest run of an experiment; `~N`
//! after either is the N-th run before it.

use std::{io, path::Path};

use kiln_core::{
    input,
    record::{
        RunFolder,
        run_folder::{LATEST, experiments, leftovers},
    },
    spec::suggest::nearest,
};

use super::{
    NAME_A_RUN,
    latest_link::{above_latest, newest_of},
    leftovers::refuse_leftover,
    list::{NamedRun, newest_first, of_experiment},
    uncertain,
};
use crate::commands::{Status, Stop};

/// Most names that a message lists.
const MOST_LISTED: usize = 8;

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
pub(in crate::commands) fn find(named: &str, results: &Path) -> Result<NamedRun, Stop> {
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
pub(in crate::commands) fn find_without(
    named: &str,
    results: &Path,
    besides: &Path,
) -> Result<NamedRun, Stop> {
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
    let of_folder: Vec<&NamedRun> = all.iter().filter(is_folder).collect();
    only_one(named, &of_folder)?.cloned().ok_or_else(|| {
        if let Some(left) = leftover_by_name(named, results) {
            return refuse_leftover(&left);
        }
        if all.is_empty() && short.name == LATEST {
            return Stop::bad_input(format!(
                "{named}: there is no run under {}; {NAME_A_RUN}; `kiln ls` lists the runs",
                results.display()
            ));
        }
        let experiments = all.iter().map(|run| run.experiment.as_str());
        let latest = (!all.is_empty()).then_some(LATEST);
        let near = match experiment_in(short.name, results) {
            // Any letter is near a single one.
            name if name.chars().count() < 2 => None,
            name => nearest(name, experiments.chain(latest)),
        };
        let advice = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => NAME_A_RUN.to_owned(),
        };
        Stop::bad_input(format!(
            "{named}: there is no such file or folder; {advice}; {}",
            listed(&all, results)
        ))
    })
}

/// The experiment that a name means: of a path below the folder of the runs, its first folder.
fn experiment_in<'a>(name: &'a str, results: &Path) -> &'a str {
    let below = Path::new(name).strip_prefix(results).ok();
    let first = below.and_then(|path| path.components().next());
    let first = first.and_then(|part| part.as_os_str().to_str());
    first.unwrap_or(name)
}

/// The run whose folder has this name; `None` if there is none. A link may list one folder twice.
///
/// # Errors
/// Runs of several experiments have it.
fn only_one<'a>(named: &str, runs: &[&'a NamedRun]) -> Result<Option<&'a NamedRun>, Stop> {
    let Some((first, others)) = runs.split_first() else {
        return Ok(None);
    };
    let real = |run: &NamedRun| {
        let path = run.run.path();
        path.canonicalize().unwrap_or_else(|_| path.to_owned())
    };
    if others.iter().all(|other| real(other) == real(first)) {
        return Ok(Some(*first));
    }
    let why = format!(
        "{named}: {} runs have this folder name; name one by its path:",
        runs.len()
    );
    let paths = runs.iter().take(MOST_LISTED);
    let more = match runs.len().saturating_sub(MOST_LISTED) {
        0 => None,
        more => Some(format!("  and {more} more; `kiln ls` lists them")),
    };
    let lines = std::iter::once(why)
        .chain(paths.map(|run| format!("  {}", run.run.path().display())))
        .chain(more);
    Err(Stop::of_lines(Status::BadInput, lines))
}

/// The run that a name means which is also that of a folder without a run; `None` if there is none.
///
/// # Errors
/// A folder cannot be read, so that it is not certain which run is meant.
pub(in crate::commands) fn find_if_any(
    named: &str,
    results: &Path,
) -> Result<Option<RunFolder>, Stop> {
    match find(named, results) {
        Ok(found) => Ok(Some(found.run)),
        Err(stop) if stop.status == Status::CannotRun => Err(stop),
        Err(_) => Ok(None),
    }
}

/// The short name of the run before one that is named by a short name of its experiment; `None` if there
/// is none.
pub(in crate::commands) fn name_of_earlier(named: &str, results: &Path) -> Option<String> {
    let short = ShortName::read(named);
    let earlier = format!("{}~{}", short.name, short.before + 1);
    let is_there = short.name != LATEST && !Path::new(named).exists();
    let found = is_there.then(|| find_if_any(&earlier, results).ok().flatten());
    found.flatten().map(|_| earlier)
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

/// The first leftover that a short name, which is that of no run, may mean.
pub(in crate::commands) fn leftover_by_name(named: &str, results: &Path) -> Option<RunFolder> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::commands::runs::{newest_listed, tests::results};

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
    fn a_path_below_the_runs_has_a_near_name_too() {
        let results = results();
        fs::create_dir_all(results.path().join("wide/20260104T000000Z-x")).unwrap();
        let told = |named: &str| {
            let named = results.path().join(named);
            let stop = find(named.to_str().unwrap(), results.path()).unwrap_err();
            stop.message
        };
        assert!(told("wdie/latest").contains("did you mean `wide`?"));
        assert!(told("c/latest").contains("; name a run's folder, such as "));
    }

    #[test]
    fn the_run_before_a_named_one_has_a_name_if_it_exists() {
        let results = results();
        for (named, earlier) in [
            ("a", Some("a~1")),
            ("a~1", None),
            ("b", None),
            ("c", None),
            ("latest", None),
        ] {
            let found = name_of_earlier(named, results.path());
            assert_eq!(found.as_deref(), earlier, "{named}");
        }
    }

    #[test]
    fn a_folder_name_of_two_experiments_means_no_run() {
        let results = results();
        let (shared, own) = ("20260101T000000Z-x", "20260103T000000Z-x");
        fs::create_dir_all(results.path().join("b").join(shared)).unwrap();
        let stop = find(shared, results.path()).unwrap_err();
        assert_eq!(stop.status, Status::BadInput);
        for experiment in ["a", "b"] {
            let path = results.path().join(experiment).join(shared);
            let line = format!("\n  {}", path.display());
            assert!(stop.message.contains(&line), "{}", stop.message);
            let named = format!("{experiment}/{shared}");
            let found = find(&named, results.path()).unwrap();
            assert_eq!(found.run.path(), path);
        }
        // A second name of one experiment is no second run.
        std::os::unix::fs::symlink("a", results.path().join("c")).unwrap();
        assert_eq!(find(own, results.path()).unwrap().run.name(), own);
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
}
