//! `kiln ls`: lists the runs under `results/`, newest first.

mod table;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        LaunchFile, RunFile, RunFolder, TableRow, Ticket, TicketQueue, TicketState, TrialTable,
        attempt::attempts,
        collect,
        lock::{Holder, launch_at_work},
        other_machine::rows_of_other_machine,
        run_file::Launch,
        run_folder::{LATEST, experiments, leftovers},
        tables::TRIALS,
    },
    units::{clock, counted, listed as listed_words, shell_word, without_controls},
};
use serde::Serialize;

use self::table::{has_room_for_sizes, table};
use super::{
    RESULTS, Status, Stop,
    folder_size::size,
    json_option::JsonFormat,
    note, page_style, print, print_json, print_line,
    reruns::{reruns, sides},
    runs::{LEFTOVER, NamedRun, newest_listed, of_experiment},
    sources::{objective_of, table_of},
    tickets,
};
use crate::report;

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

/// Columns of the list where standard output is not a terminal.
const WIDTH: usize = 80;

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RunState {
    Running,
    Finished,
    /// Unfinished and the newest of its experiment: `kiln run` (for a search, `kiln tune`) resumes
    /// it.
    Resumable,
    /// Unfinished, and a newer run has replaced it.
    Abandoned,
    /// Its files cannot be read.
    Unreadable,
}

impl RunState {
    fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Resumable => "resumable",
            Self::Abandoned => "abandoned",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One run of the list.
#[derive(Debug, Serialize)]
struct RunLine {
    experiment: String,
    run: String,
    /// The path of its folder.
    folder: String,
    state: RunState,
    /// Numbers of planned trials, of trials with a final row, and of those without a result; `None` if the
    /// run cannot be read.
    trials: Option<usize>,
    /// Whether a search may plan more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_searching: bool,
    done: Option<usize>,
    failed: Option<usize>,
    /// The best value of the run's objective, in words.
    best: Option<String>,
    /// The column of the objective, and that value.
    objective: Option<&'static str>,
    value: Option<f64>,
    age_seconds: Option<f64>,
    /// `None` until it is measured, which takes a look at each file of the run.
    size_bytes: Option<u64>,
    /// Whether the size could not be measured.
    #[serde(skip)]
    is_size_unknown: bool,
    /// The launch or the workers that run it, or the reason why it cannot be read.
    note: Option<String>,
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
    let width = page_style().width.map_or(WIDTH, usize::from);
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
    let side = |side: &str| shell_word(&newest.join(side).display().to_string());
    note(&without_controls(&format!(
        "{} of `kiln compare --rerun` not listed: of the newest, `kiln ls {}` and `kiln ls {}` list \
         the runs, and `kiln rm {}` removes them",
        counted(reruns.len(), "folder"),
        side("base"),
        side("new"),
        shell_word(&newest.display().to_string())
    )));
}

/// ` on gpu017, gpu018`: the nodes of the launches that have tickets.
fn nodes(run: &RunFolder, queue: &TicketQueue) -> String {
    let node = |ticket: Ticket| match ticket.state {
        TicketState::Taken(launch) => LaunchFile::read(run, launch)?.process.node,
        _ => None,
    };
    let tickets = queue.list().unwrap_or_default().into_iter();
    let nodes: BTreeSet<String> = tickets.filter_map(node).collect();
    let nodes: Vec<String> = nodes.into_iter().collect();
    match nodes.is_empty() {
        true => String::new(),
        false => format!(" on {}", without_controls(&listed_words(&nodes, ", "))),
    }
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
    let table = TrialTable::read(&table_of(run, results)?).map_err(Stop::bad_input)?;
    let rows = table.last_attempts().into_iter();
    Ok(rows.map(|row| format!("{}\n", row.fixed.trial)).collect())
}

/// The lines of runs, which are newest first.
fn lines(results: &Path, runs: &[NamedRun]) -> Vec<RunLine> {
    let mut holders: HashMap<&str, Option<Holder>> = HashMap::new();
    let mut lines = Vec::new();
    for NamedRun { experiment, run } in runs {
        // The first run of an experiment is its newest.
        let is_newest = !holders.contains_key(experiment.as_str());
        let holder = holders
            .entry(experiment)
            .or_insert_with(|| launch_at_work(results, experiment));
        lines.push(line(experiment, run, is_newest, holder.as_ref()));
    }
    lines
}

/// The line of a run of which only the folder is known.
fn unread_line(experiment: &str, run: &RunFolder) -> RunLine {
    RunLine {
        experiment: experiment.to_owned(),
        run: run.name(),
        folder: run.path().to_string_lossy().into_owned(),
        state: RunState::Unreadable,
        trials: None,
        is_searching: false,
        done: None,
        failed: None,
        best: None,
        objective: None,
        value: None,
        age_seconds: None,
        size_bytes: None,
        is_size_unknown: false,
        note: None,
    }
}

fn line(experiment: &str, run: &RunFolder, is_newest: bool, holder: Option<&Holder>) -> RunLine {
    let line = unread_line(experiment, run);
    let read = RunFile::read(&run.run_file()).and_then(|file| {
        let table = TrialTable::read_of(run).map_err(|error| error.to_string())?;
        Ok((file, table))
    });
    let (file, table) = match read {
        Ok(read) => read,
        Err(why) => {
            return RunLine {
                note: Some(why),
                ..line
            };
        }
    };
    let ends = outcomes(&file, &table.rows);
    let (trials, done) = (file.plan.len(), ends.len());
    let started = file.launches.last().map(|last| &last.anchor.started_utc);
    let work = Work::of(run, holder.filter(|_| is_newest), done == trials);
    let is_at_work = file.is_searching || work.is_running || work.is_open;
    // Lists the folder of each trial, so it is the last to be asked.
    let was_killed = || is_newest && was_killed_in_a_rerun(run, &file, &table);
    let is_complete = done == trials && !is_at_work && !was_killed();
    let state = match (is_newest, work.is_running, is_complete) {
        (_, true, _) => RunState::Running,
        (_, _, true) => RunState::Finished,
        (true, ..) => RunState::Resumable,
        (false, ..) => RunState::Abandoned,
    };
    let of_version = other_version(&table).filter(|_| state == RunState::Resumable);
    let of_other_machine = rows_of_other_machine(&table, &file).map(|found| found.to_string());
    let best = report::best_value(&table, objective_of(run));
    RunLine {
        state,
        trials: Some(trials),
        is_searching: file.is_searching,
        done: Some(done),
        failed: Some(ends.iter().filter(|outcome| !outcome.is_result()).count()),
        objective: best.as_ref().map(|best| best.objective),
        value: best.as_ref().map(|best| best.value),
        best: best.map(|best| best.words),
        age_seconds: started.and_then(|started| age_seconds(started)),
        note: joined(
            work.note
                .into_iter()
                .chain(of_version)
                .chain(of_other_machine),
        ),
        ..line
    }
}

/// Who works on a run.
struct Work {
    is_running: bool,
    /// Whether tickets wait for a worker.
    is_open: bool,
    note: Option<String>,
}

impl Work {
    /// `holder` holds the run; `is_done` if each planned trial has its final row.
    fn of(run: &RunFolder, holder: Option<&Holder>, is_done: bool) -> Self {
        let unread = |error: io::Error| Self {
            is_running: holder.is_some(),
            is_open: false,
            note: Some(format!("its tickets cannot be read: {error}")),
        };
        let queue = match TicketQueue::of(run) {
            Ok(Some(queue)) => queue,
            Ok(None) => {
                return Self {
                    is_running: holder.is_some(),
                    is_open: false,
                    note: holder.map(|holder| holder.0.clone()),
                };
            }
            Err(error) => return unread(error),
        };
        let counts = match queue.counts() {
            Ok(counts) => counts,
            Err(error) => return unread(error),
        };
        let uncollected = || collect::uncollected(run).unwrap_or_default();
        let notes = [
            (counts.taken > 0).then(|| {
                let tickets = counted(counts.taken, "ticket");
                format!("workers have {tickets}{}", nodes(run, &queue))
            }),
            tickets::uncollected(if is_done { 0 } else { uncollected() }),
            tickets::held(counts),
            tickets::later(counts),
        ];
        Self {
            is_running: counts.taken > 0,
            is_open: counts.open > 0,
            note: joined(notes.into_iter().flatten()),
        }
    }
}

/// Several notes as one; `None` for none.
fn joined(notes: impl Iterator<Item = String>) -> Option<String> {
    let notes: Vec<String> = notes.collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Says that this kiln cannot resume the run of a table, because another version began it.
fn other_version(table: &TrialTable) -> Option<String> {
    let mut versions = table.rows.iter().map(|row| &row.fixed.kiln_table);
    let version = versions.find(|version| *version != TRIALS.version)?;
    Some(format!(
        "its table is `{version}`, which only the kiln that began it resumes; `--fresh` starts a \
         new run"
    ))
}

/// Whether the last launch was killed while it ran a trial with a result again, which `kiln run` resumes.
fn was_killed_in_a_rerun(run: &RunFolder, file: &RunFile, table: &TrialTable) -> bool {
    let is_killed = |launch: &Launch| launch.ended.is_none();
    let is_lost = |row: &TableRow| {
        let attempts = attempts(run, &row.fixed.trial);
        attempts
            .last()
            .is_some_and(|last| *last > row.fixed.attempt)
    };
    file.launches.last().is_some_and(is_killed)
        && matches!(TicketQueue::of(run), Ok(None))
        && table.last_attempts().into_iter().any(is_lost)
}

/// The final outcomes of the planned trials.
fn outcomes(file: &RunFile, rows: &[TableRow]) -> Vec<Outcome> {
    let last: HashMap<&TrialId, Outcome> = rows
        .iter()
        .map(|row| (&row.fixed.trial, row.fixed.outcome))
        .collect();
    let planned = file.plan.iter();
    planned
        .filter_map(|trial| last.get(trial).copied())
        .filter(|outcome| outcome.is_final())
        .collect()
}

/// Time since the start of the last launch; `None` if it lies in the future, because a clock was
/// wrong then or is wrong now.
fn age_seconds(started_utc: &str) -> Option<f64> {
    let started: jiff::Timestamp = started_utc.parse().ok()?;
    let seconds = clock::utc_now().duration_since(started).as_secs_f64();
    (seconds >= 0.0).then_some(seconds)
}

/// Measures the runs of the lines.
fn measure_sizes(lines: &mut [RunLine], runs: &[NamedRun]) {
    for (line, run) in lines.iter_mut().zip(runs) {
        line.size_bytes = size(run.run.path()).ok().map(|size| size.all);
        line.is_size_unknown = line.size_bytes.is_none();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::folder::Folder;

    use super::*;

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

    fn columns(lines: &[RunLine], width: usize) -> String {
        let table = table(lines, width);
        table.lines().next().unwrap_or_default().to_owned()
    }
}
