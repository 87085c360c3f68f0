//! `kiln ls`: lists the runs under `results/`, newest first.

mod run_line;
mod table;
mod work;

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    record::{
        RunFolder, TrialTable,
        run_folder::{LATEST, experiments, leftovers},
    },
    units::{counted, shell_word, without_controls},
};

use self::{
    run_line::{lines, measure_sizes},
    table::{has_room_for_sizes, table},
};
use super::{
    RESULTS, Status, Stop,
    json_option::JsonFormat,
    note, page_style, print, print_json, print_line,
    rerun_folders::{reruns, sides},
    run_name::Taken,
    runs::{LEFTOVER, NamedRun, newest_listed, of_experiment},
    sources::table_of,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the runs, `results` by default, or an experiment there.
    #[arg(value_name = "DIR|NAME")]
    folder: Option<PathBuf>,
    /// The same, as other commands have it.
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    results: Option<PathBuf>,
    /// List only this many, the newest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print short names of runs, one a line, for the completions of a shell.
    #[arg(long, hide = true, conflicts_with = "json")]
    names: bool,
    /// Print the ids of a run's trials, one a line, for the completions of a shell.
    #[arg(long, hide = true, value_name = "RUN", conflicts_with_all = ["json", "names"])]
    trials: Option<String>,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: JsonFormat,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let named = args.folder.as_deref().or(args.results.as_deref());
    let results = named.unwrap_or(Path::new(RESULTS));
    if let Some(run) = &args.trials {
        return print(&trial_ids(run, results)?).map(|()| Status::Success);
    }
    let Listing {
        results,
        experiment,
        mut runs,
    } = listing(&args, results)?;
    let hidden = args
        .limit
        .map_or(0, |limit| runs.len().saturating_sub(limit as usize));
    runs.truncate(runs.len() - hidden);
    if args.names {
        return print(&short_names(&runs)).map(|()| Status::Success);
    }
    tell_leftovers(&results, experiment.as_deref());
    if experiment.is_none() {
        tell_reruns(&results);
    }
    let mut lines = lines(&results, &runs);
    if args.json || args.format.is_json() {
        measure_sizes(&mut lines, &runs);
        let text = serde_json::to_string_pretty(&lines)
            .map_err(|error| Stop::new(Status::Failed, error))?;
        return print_json(&format!("{text}\n")).map(|()| Status::Success);
    }
    if lines.is_empty() {
        print_line(&nothing_listed(&results))?;
        return Ok(Status::Success);
    }
    let width = page_style().width.map_or(usize::MAX, usize::from);
    if has_room_for_sizes(&lines, width) {
        measure_sizes(&mut lines, &runs);
    }
    let more = match hidden {
        0 => String::new(),
        hidden => format!(
            "and {}; `--limit` hides them\n",
            counted(hidden, "older run")
        ),
    };
    print(&format!("{}{more}", table(&lines, width)))?;
    Ok(Status::Success)
}

/// Why there are no runs to list in a folder, and what to do.
fn nothing_listed(results: &Path) -> String {
    let place = results.display();
    let word = |path: &Path| shell_word(&path.display().to_string());
    if RunFolder::at(results).run_file().is_file() {
        return format!(
            "{place} is a run itself; `kiln report {}` shows it",
            word(results)
        );
    }
    let sides: Vec<String> = sides(results)
        .iter()
        .map(|side| format!("`kiln ls {}`", word(side)))
        .collect();
    match sides.is_empty() {
        true => format!("no runs under {place}; `kiln run FILE` creates one"),
        false => format!(
            "{place} has the runs of `kiln compare --rerun`; to list those of a side: {}",
            sides.join(", ")
        ),
    }
}

/// The runs to list, newest first.
struct Listing {
    results: PathBuf,
    /// The experiment whose runs alone are listed.
    experiment: Option<String>,
    runs: Vec<NamedRun>,
}

/// The runs under `results`. If there are none, the folder that is named may be an experiment.
fn listing(args: &Args, results: &Path) -> Result<Listing, Stop> {
    let is_named = args.folder.is_some() || args.results.is_some();
    let all = listed(results, is_named);
    let one = match &all {
        Ok(runs) if !runs.is_empty() => None,
        _ => args.folder.as_deref().and_then(listing_of_experiment),
    };
    match one {
        Some(one) => Ok(one),
        None => Ok(Listing {
            results: results.to_owned(),
            experiment: None,
            runs: all?,
        }),
    }
}

/// The runs of an experiment: by its name, as other commands take it, or by its folder.
fn listing_of_experiment(named: &Path) -> Option<Listing> {
    let name = named.file_name()?.to_str()?;
    let above = named.parent()?;
    let places = match above.as_os_str().is_empty() {
        true => vec![Path::new("."), Path::new(RESULTS)],
        false => vec![above],
    };
    places.into_iter().find_map(|results| {
        let runs = of_experiment(results, name).unwrap_or_else(|error| {
            tell_unlisted(&error);
            Vec::new()
        });
        (!runs.is_empty()).then(|| Listing {
            results: results.to_owned(),
            experiment: Some(name.to_owned()),
            runs,
        })
    })
}

/// Names the folder of an experiment whose runs cannot be listed.
fn tell_unlisted(error: &io::Error) {
    note(&without_controls(&format!(
        "{error}; the runs in this folder are not listed"
    )));
}

/// Names what a switch to another branch has left of runs, which are not listed: of all
/// experiments, or of one.
fn tell_leftovers(results: &Path, experiment: Option<&str>) {
    let mut experiments = experiments(results).unwrap_or_default();
    experiments.retain(|name| experiment.is_none_or(|only| name == only));
    // A folder that cannot be listed was named already.
    let left = experiments
        .iter()
        .flat_map(|name| leftovers(results, name).unwrap_or_default());
    let left: Vec<RunFolder> = left.collect();
    let Some(first) = left.first() else {
        return;
    };
    let more = match left.len() - 1 {
        0 => String::new(),
        more => format!(" and {}", counted(more, "other folder")),
    };
    note(&without_controls(&format!(
        "{}{more}: {LEFTOVER}",
        first.path().display()
    )));
}

/// Says that there are runs of `kiln compare --rerun`, which are not listed.
fn tell_reruns(results: &Path) {
    let reruns = reruns(results);
    let Some(newest) = reruns.first() else {
        return;
    };
    let newest = shell_word(&newest.display().to_string());
    let text = match reruns.len() {
        1 => format!("1 folder of `kiln compare --rerun` is not listed: {newest}"),
        count => format!(
            "{count} folders of `kiln compare --rerun` are not listed; the newest: {newest}"
        ),
    };
    note(&without_controls(&text));
}

/// Returns the runs under a folder, newest first; the default folder may be absent.
fn listed(results: &Path, is_named: bool) -> Result<Vec<NamedRun>, Stop> {
    match newest_listed(results) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Stop::bad_input(format!(
            "{}: there is no such folder; name the folder of the runs, such as `results`, or \
                 an experiment that has runs under `results`",
            results.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(Stop::bad_input(format!(
                "{}: this is not a folder; name the folder of the runs, such as `results`",
                results.display()
            )))
        }
        Err(error) => Err(Stop::bad_input(format!("{}: {error}", results.display()))),
        Ok((runs, unlisted)) => {
            unlisted.iter().for_each(tell_unlisted);
            Ok(runs)
        }
    }
}

/// `latest`, the experiments and the folders, one a line. A shell reads them, so a name with a
/// letter that means something to a shell is left out.
fn short_names(runs: &[NamedRun]) -> String {
    let is_plain = |name: &String| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        name.chars().all(is_plain)
    };
    let mut names: Vec<String> = Vec::new();
    if !runs.is_empty() {
        names.push(LATEST.to_owned());
    }
    let experiments = runs.iter().map(|run| run.experiment.clone());
    for name in experiments.chain(runs.iter().map(|run| run.run.name())) {
        if is_plain(&name) && !names.contains(&name) {
            names.push(name);
        }
    }
    names.iter().map(|name| format!("{name}\n")).collect()
}

/// The ids of the trials of a run that have ended, one a line.
fn trial_ids(run: &str, results: &Path) -> Result<String, Stop> {
    let table = table_of(run, results, Taken::Tables)?;
    let table = TrialTable::read(&table).map_err(Stop::bad_input)?;
    let rows = table.last_attempts().into_iter();
    Ok(rows.map(|row| format!("{}\n", row.fixed.trial)).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::folder::Folder;

    use super::{run_line::RunLine, *};

    /// One run with a file of 2 KiB.
    fn results() -> tempfile::TempDir {
        let results = tempfile::tempdir().unwrap();
        let run = results.path().join("a/20260101T000000Z-x");
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("trials.csv"), [b' '; 2048]).unwrap();
        results
    }

    #[test]
    fn sizes_are_measured_only_where_their_column_is_shown() {
        let results = results();
        let (runs, _) = newest_listed(results.path()).unwrap();
        let mut lines = lines(results.path(), &runs);
        assert_eq!((lines.len(), lines[0].size_bytes), (1, None));
        assert!(has_room_for_sizes(&lines, 80) && !has_room_for_sizes(&lines, 40));
        assert!(!columns(&lines, 40).contains("size"));
        measure_sizes(&mut lines, &runs);
        assert_eq!(lines[0].size_bytes, Some(2048));
        assert!(columns(&lines, 80).contains("size") && table(&lines, 80).contains("2.0 KiB"));
    }

    #[test]
    fn a_size_that_cannot_be_measured_is_unknown_and_never_less() {
        let results = results();
        let (runs, _) = newest_listed(results.path()).unwrap();
        let mut lines = lines(results.path(), &runs);
        // Below so many folders the path is too long for the system.
        let mut folder = Folder::open(runs[0].run.path()).unwrap();
        for _ in 0..20 {
            folder = folder.make_folder(Path::new(&"d".repeat(250))).unwrap();
        }
        measure_sizes(&mut lines, &runs);
        assert_eq!(lines[0].size_bytes, None);
        assert!(table(&lines, 80).contains("unknown"));
    }

    #[test]
    fn failures_stand_beside_done_and_a_narrow_list_names_what_it_hides() {
        let results = results();
        let (runs, _) = newest_listed(results.path()).unwrap();
        let mut lines = lines(results.path(), &runs);
        lines[0].note = None;
        lines[0].best = Some("12.5 samples/s".to_owned());
        lines[0].age_seconds = Some(60.0);
        (lines[0].trials, lines[0].done) = (Some(6), Some(6));
        let done = |lines: &[RunLine]| table(lines, usize::MAX);
        assert!(done(&lines).contains("6/6  "), "{}", done(&lines));
        lines[0].failed = Some(2);
        assert!(done(&lines).contains("6/6, 2 failed"), "{}", done(&lines));
        let head = columns(&lines, usize::MAX);
        assert!(!head.contains("failed") && head.contains("best"), "{head}");
        let hidden = |width| table(&lines, width).lines().nth(2).map(str::to_owned);
        assert_eq!(hidden(usize::MAX), None);
        let widest = table(&lines, usize::MAX);
        let widest = widest.lines().map(|line| line.chars().count()).max();
        let hides = |text: &str| Some(format!("hidden for width: {text}"));
        assert_eq!(hidden(widest.unwrap() - 1), hides("size"));
        assert_eq!(hidden(60), hides("size, age, best"));
    }

    fn columns(lines: &[RunLine], width: usize) -> String {
        let table = table(lines, width);
        table.lines().next().unwrap_or_default().to_owned()
    }
}
