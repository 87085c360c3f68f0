//! Recorded command lines: the experiment file, and the command that resumes a run.

use std::{collections::BTreeSet, fs, path::Path};

use super::{
    RunFile, RunFolder,
    command_options::CommandOption,
    run_file::Launch,
    run_folder::{LATEST, runs},
};
use crate::{
    input,
    limits::{EXPERIMENT_BYTES, RESOLVED_BYTES},
    spec::{expand_home, is_experiment_key},
    units::shell_word,
};

/// The commands that begin a run or go on with it.
const STARTING: [&str; 3] = ["run", "tune", "reproduce"];
/// The usual folder of the runs.
const RESULTS: &str = "results";

/// How an unfinished run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The command; `None` if no recorded command line tells one that leads to the run from the
    /// current folder.
    pub command: Option<String>,
    /// The `KILN_…` variables that set keys of its experiment.
    pub variables: Vec<String>,
}

/// How a run is resumed; `None` if a newer run of the experiment is there.
pub fn resuming(file: &RunFile, folder: &RunFolder) -> Option<Resume> {
    let folder = folder.in_experiment().ok()?;
    if !folder.is_newest().ok()? {
        return None;
    }
    let resolved = input::read_text(&folder.experiment(), &RESOLVED_BYTES).unwrap_or_default();
    let command = own_words(file).and_then(|words| command(words, file, &folder, &resolved));
    Some(Resume {
        command,
        variables: variables(&resolved),
    })
}

/// The launches of the run itself, without those copied from a run whose trials it took over.
fn own_launches(file: &RunFile) -> impl DoubleEndedIterator<Item = &Launch> {
    let is_copying = |launch: &Launch| {
        let mut words = launch.command_line.iter();
        words.any(|word| CommandOption::of(word).is_some_and(|option| option.is_copying))
    };
    let last_kept = file.kept_from.as_ref().and_then(|kept| kept.last_launch);
    // The first own launch has no such option where kiln was killed before it recorded the one that
    // made the run.
    let first = match (last_kept, file.launches.iter().rposition(is_copying)) {
        (Some(last), _) => {
            let kept = file.launches.iter().filter(|launch| launch.launch <= last);
            kept.count()
        }
        (None, Some(first)) => first,
        (None, None) if file.kept_from.is_some() => file.launches.len(),
        (None, None) => 0,
    };
    file.launches.iter().skip(first)
}

/// The run from which the trials of this launch were taken over; `None` if the run itself ran them.
pub fn kept_from(file: &RunFile, launch: u64) -> Option<&str> {
    let kept = file.kept_from.as_ref()?;
    let own = own_launches(file).next();
    let is_kept = own.is_none_or(|own| launch < own.launch);
    is_kept.then_some(kept.run.as_str())
}

/// The command line of the newest launch of the run's own that is not one of a worker.
fn own_words(file: &RunFile) -> Option<&[String]> {
    let own = own_launches(file).rev();
    let mut words = own.map(|launch| launch.command_line.as_slice());
    words.find(|words| STARTING.contains(&verb(words)))
}

fn verb(words: &[String]) -> &str {
    words.get(1).map_or("", String::as_str)
}

/// The name of an option, without a value behind `=`.
fn option(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// The command by the words of a launch, if it leads to the run from the current folder.
fn command(words: &[String], file: &RunFile, folder: &RunFolder, resolved: &str) -> Option<String> {
    let given = value_of(words, "--results");
    let runs = Path::new(given.unwrap_or(RESULTS)).join(&file.experiment);
    let found = fs::canonicalize(expand_home(&runs.to_string_lossy())).ok()?;
    if Some(found.as_path()) != folder.path().parent() {
        return None;
    }
    if verb(words) == "reproduce" {
        let experiment = runs.join(folder.name()).join("experiment.yaml");
        let results = given.map(|given| format!(" --results {}", typed(given)));
        let results = results.unwrap_or_default();
        let experiment = typed(&experiment.to_string_lossy());
        // Trials that continued others are in no plan of the file alone.
        let is_whole = file.continues.is_empty();
        return is_whole.then(|| format!("kiln run {experiment}{results}"));
    }
    let path = expand_home(experiment_file(words)?);
    let sets_name = words.iter().any(|word| {
        let setting = word.strip_prefix("--set=").unwrap_or(word);
        setting.starts_with("name=")
    });
    let is_its_file = may_have_name(&path, &file.experiment) || sets_name && path.is_file();
    if !is_its_file {
        return None;
    }
    let point = point(resolved);
    if point.is_some_and(counts_back) {
        return None;
    }
    same_command(words, point.and_then(lasting).as_deref())
}

/// Whether the run of `RUN:TRIAL` is named as `NAME~N`: once there is a newer run it is another.
fn counts_back(point: &str) -> bool {
    let run = point.rsplit_once(':').map_or(point, |(run, _)| run);
    let number = run.rsplit_once('~').map(|(_, number)| number);
    number.is_some_and(|number| number.parse::<u64>().is_ok()) && !Path::new(run).exists()
}

/// `RUN:TRIAL` by a name that means the same run once there is a newer one: a short name does, since
/// the trial tells the run, and so does a run's own folder.
fn lasting(point: &str) -> Option<String> {
    let (run, trial) = point.rsplit_once(':')?;
    let path = Path::new(run);
    let above = match path.ends_with(LATEST) {
        true => path.parent()?,
        false => path,
    };
    if !path.exists() || RunFolder::at(above).run_file().is_file() {
        return Some(point.to_owned());
    }
    let experiment = above.file_name()?.to_string_lossy();
    let has_it = |run: &RunFolder| {
        let file = RunFile::read(&run.run_file());
        file.is_ok_and(|file| file.plan.iter().any(|id| id.0 == trial))
    };
    let found = runs(above.parent()?, &experiment).ok()?;
    let found = found.into_iter().rfind(has_it)?;
    Some(format!("{}:{trial}", found.path().display()))
}

/// Whether a file is there that gives its experiment this name, or leaves the name to a file that it
/// extends.
fn may_have_name(path: &Path, name: &str) -> bool {
    if !path.is_file() {
        return false;
    }
    let text = input::read_text(path, &EXPERIMENT_BYTES).unwrap_or_default();
    let mut names = text.lines().filter_map(|line| line.strip_prefix("name:"));
    names.next().is_none_or(|given| {
        let given = given.split(" #").next().unwrap_or_default();
        given.trim().trim_matches(['"', '\'']) == name
    })
}

/// The value of an option that takes one; the last one counts.
fn value_of<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().rposition(|word| option(word) == name)?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => words.get(at + 1).map(String::as_str),
    }
}

/// The sources of the values of a resolved experiment, as its comments tell them.
fn sources(resolved: &str) -> impl Iterator<Item = &str> {
    let lines = resolved.lines();
    lines.filter_map(|line| line.rsplit_once("  # ").map(|(_, source)| source))
}

/// `RUN:TRIAL` of `--at`.
fn point(resolved: &str) -> Option<&str> {
    sources(resolved).find_map(|source| source.strip_prefix("--at "))
}

fn variables(resolved: &str) -> Vec<String> {
    let names = sources(resolved).filter(|source| is_variable(source));
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Whether an environment variable of this name sets a key of an experiment.
pub fn is_variable(name: &str) -> bool {
    is_experiment_key(name) && !name.contains(' ')
}

/// Says behind a command which variables it needs; empty for none.
pub fn with_variables(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!(" with the same value of `{one}`"),
        several => format!(" with the same values of `{}`", several.join("`, `")),
    }
}

/// ` --results DIR` behind a command; empty for the usual folder.
pub fn results_option(results: &Path) -> String {
    match results == Path::new(RESULTS) {
        true => String::new(),
        false => format!(" --results {}", shell_word(&results.to_string_lossy())),
    }
}

/// The words of a command without the options that one launch alone has. The trial of `--at` gets the name that `point`
/// has: the typed one may mean another trial by now.
fn same_command(words: &[String], point: Option<&str>) -> Option<String> {
    experiment_file(words)?;
    let is_at = words.iter().any(|word| option(word) == "--at");
    if !matches!(verb(words), "run" | "tune") || is_at && point.is_none() {
        return None;
    }
    let point = point.filter(|_| is_at);
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match CommandOption::of(word) {
            Some(option) if option.is_left_out_of_resume => {
                if option.takes_value && word == option.name {
                    words.next();
                }
            }
            _ => kept.push(typed(word)),
        }
    }
    if let Some(point) = point {
        kept.extend(["--at".to_owned(), typed(point)]);
    }
    Some(kept.join(" "))
}

/// A word for a shell; a path below the home folder is recorded with `~`, which the shell replaces.
fn typed(word: &str) -> String {
    match word.strip_prefix("~/") {
        Some(rest) if shell_word(rest) == rest => word.to_owned(),
        _ => shell_word(word),
    }
}

/// The one experiment file that a command line names; `None` if it names none or several.
pub fn experiment_file(words: &[String]) -> Option<&str> {
    let is_file = |word: &&str| {
        let is_yaml = word.ends_with(".yaml") || word.ends_with(".yml");
        is_yaml && !word.starts_with('-') && !word.contains('=')
    };
    let mut files = words.iter().map(String::as_str).filter(is_file);
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TrialId;

    #[test]
    fn one_file_is_found_and_a_set_value_is_not_a_file() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            experiment_file(&words).map(str::to_owned)
        };
        let one = of("kiln run --set model.values.config=c.yaml a/x.yaml --fresh");
        assert_eq!(one.as_deref(), Some("a/x.yaml"));
        assert_eq!(of("kiln run x.yaml y.yaml"), None);
        assert_eq!(of("kiln reproduce latest"), None);
    }

    #[test]
    fn options_of_one_launch_are_left_out_of_a_resume() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            same_command(&words, None)
        };
        for (line, resume) in [
            ("kiln run x.yaml --fresh --quiet", "kiln run x.yaml"),
            (
                "kiln run --only t1 ~/x.yaml --progress=json --set train.steps=3",
                "kiln run ~/x.yaml --set train.steps=3",
            ),
            ("kiln tune x.yaml --progress plain", "kiln tune x.yaml"),
        ] {
            assert_eq!(of(line).as_deref(), Some(resume), "{line}");
        }
        for other in ["kiln run x.yaml --at y", "kiln reproduce x", "kiln run"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    /// A run of the experiment `x` below the folder, with launches of these words.
    fn run_below(root: &Path, launches: &[&str], kept: bool) -> (RunFile, RunFolder) {
        let run = root.join("results/x/20261122T140609Z-458db1c");
        fs::create_dir_all(&run).unwrap();
        let launch = |line: &&str| {
            let line = line.replace("ROOT", &root.to_string_lossy());
            let words: Vec<&str> = line.split(' ').collect();
            serde_json::json!({
                "launch": 1, "started_utc": "", "boot_id": "", "monotonic_nanoseconds": 0,
                "run_anchor_nanoseconds": 0, "pid": 1, "command_line": words, "machine": null,
                "devices": null, "environment": {},
                "versions": {
                    "kiln": "0", "kiln_sha256": null, "trial_program": "x",
                    "trial_program_sha256": null,
                },
            })
        };
        let launches: Vec<serde_json::Value> = launches.iter().map(launch).collect();
        let mut record = serde_json::json!({
            "kiln_run": 1, "experiment": "x", "number": 1, "tables": {}, "plan": [],
            "launches": launches,
        });
        if kept {
            record["kept_from"] = serde_json::json!({"run": "x/before", "trials": 1});
        }
        let file: RunFile = serde_json::from_value(record).unwrap();
        let folder = RunFolder::at(run);
        file.write(&folder).unwrap();
        (file, folder)
    }

    #[test]
    fn the_newest_own_launch_tells_the_command_if_its_file_leads_to_the_run() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::write(root.join("x.yaml"), "kiln: 1\nname: x  # short\n").unwrap();
        fs::write(root.join("y.yaml"), "kiln: 1\nname: y\n").unwrap();
        let of = |launches: &[&str], kept: bool| {
            let (file, folder) = run_below(&root, launches, kept);
            resuming(&file, &folder).unwrap().command
        };
        let own = "kiln run ROOT/x.yaml --results ROOT/results";
        let command = own.replace("ROOT", &root.to_string_lossy());
        let keeping = format!("{own} --keep x");
        assert_eq!(of(&[own, "kiln worker x"], false), Some(command.clone()));
        let before = "kiln run ROOT/y.yaml --results ROOT/results";
        assert_eq!(of(&[before, keeping.as_str()], true), Some(command));
        for (launches, kept) in [
            // The copied launches are not the run's own.
            (&[own][..], true),
            // An own launch that tells no command is not left out for an older one.
            (
                &[own, "kiln run a.yaml b.yaml --results ROOT/results"][..],
                false,
            ),
            (&[before][..], false),
            (&["kiln run ROOT/x.yaml --results ROOT/other"][..], false),
            (
                &["kiln run ROOT/gone.yaml --results ROOT/results"][..],
                false,
            ),
        ] {
            assert_eq!(of(launches, kept), None, "{launches:?}");
        }
    }

    #[test]
    fn the_launches_after_those_taken_over_are_the_runs_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::write(root.join("x.yaml"), "name: x\n").unwrap();
        let own = "kiln run ROOT/x.yaml --results ROOT/results";
        let keeping = format!("{own} --keep x");
        // The run was resumed without `--keep`, after kiln was killed as it had made it.
        let launches = [keeping.as_str(), "kiln run ROOT/gone.yaml", own];
        let (mut file, folder) = run_below(&root, &launches, true);
        for (number, launch) in (1..).zip(&mut file.launches) {
            launch.launch = number;
        }
        if let Some(kept) = &mut file.kept_from {
            kept.last_launch = Some(2);
        }
        let from = |launch| kept_from(&file, launch);
        assert_eq!(
            [1, 2, 3].map(from),
            [Some("x/before"), Some("x/before"), None]
        );
        let command = own.replace("ROOT", &root.to_string_lossy());
        assert_eq!(resuming(&file, &folder).unwrap().command, Some(command));
        file.launches.pop();
        assert_eq!(resuming(&file, &folder).unwrap().command, None);
    }

    #[test]
    fn a_run_that_was_moved_behind_a_link_has_its_command() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::write(root.join("x.yaml"), "name: x\n").unwrap();
        let own = "kiln run ROOT/x.yaml --results ROOT/results";
        let (file, folder) = run_below(&root, &[own], false);
        file.write(&folder).unwrap();
        let elsewhere = root.join("elsewhere");
        fs::rename(folder.path(), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path()).unwrap();
        let command = own.replace("ROOT", &root.to_string_lossy());
        assert_eq!(resuming(&file, &folder).unwrap().command, Some(command));
    }

    #[test]
    fn a_trial_of_at_a_reproduction_and_variables_are_told_by_the_record() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::write(root.join("x.yaml"), "name: x\n").unwrap();
        let line = "kiln run ROOT/x.yaml --at latest --results=ROOT/results";
        let (file, folder) = run_below(&root, &[line], false);
        let resolved = "name: x  # x.yaml:1\ntrain:\n  seed: 5   # KILN_TRAIN__SEED\n  steps: 3  # \
                        --at latest:t4f\n# train.clip_norm: null  # KILN_TRAIN__CLIP_NORM\n";
        fs::write(folder.experiment(), resolved).unwrap();
        let resume = resuming(&file, &folder).unwrap();
        let place = root.display();
        let at = format!("kiln run {place}/x.yaml --results={place}/results --at latest:t4f");
        assert_eq!(resume.command, Some(at));
        assert_eq!(
            resume.variables,
            ["KILN_TRAIN__CLIP_NORM", "KILN_TRAIN__SEED"]
        );
        // The link means another run by now, the folder of a run and a short name do not.
        let mut older = file;
        older.plan = vec![TrialId("t4f".to_owned())];
        older.write(&folder).unwrap();
        let (link, run) = (root.join("results/x/latest"), folder.path().display());
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let of_link = lasting(&format!("{}:t4f", link.display()));
        assert_eq!(of_link, Some(format!("{run}:t4f")));
        assert_eq!(lasting(&format!("{}:t5", link.display())), None);
        let of_run = format!("{run}:t5");
        assert_eq!(lasting(&of_run), Some(of_run));
        let line = "kiln reproduce x --results ROOT/results";
        let (file, folder) = run_below(&root, &[line], false);
        let again = format!(
            "kiln run {}/experiment.yaml --results {place}/results",
            folder.path().display()
        );
        assert_eq!(resuming(&file, &folder).unwrap().command, Some(again));
    }
}
