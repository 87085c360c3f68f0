//! `kiln report`: explains runs from their tables: the summary, and each finding with its evidence,
//! as text or as a page with plots; or one trial of a run.

mod trial;

use std::{
    collections::HashSet,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use kiln_core::{
    folder::{is_full, write_among_others},
    plan::TrialId,
    record::{RunFolder, TrialTable},
    units::{counted, few, shell_word, without_controls},
};

use super::{
    RESULTS, Status, Stop,
    gates::UndecidedGate,
    json_option::JsonFlag,
    note,
    own_file::{OwnMark, is_own, refuse_foreign},
    page_style, print, print_json, print_line,
    runs::without_links,
    sources::{TableSource, newest, of_folder, source_in},
    summary_table::write_point_table,
    written,
};
use crate::{
    follow::{RunFollower, how_to_go_on},
    output::terminal,
    report::{self, Album, Bounds, GateCondition, RowKind, Subject, TidyError, TidyTable},
};

/// Options that do not go with a table of all runs.
const NOT_WITH_CSV: [&str; 6] = ["format", "json", "html", "svg", "write", "fail_on"];

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's folder (its newest run), a trials.csv, or one of these in a
    /// git revision: `HEAD~1:results/x/latest`; several are shown side by side. `RUN:TRIAL` is one
    /// trial of a run. Default: the newest run under `--results`.
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Output format. Default: text, or nothing if a page or plots are written.
    #[arg(long, value_enum)]
    format: Option<ReportFormat>,
    #[command(flatten)]
    json: JsonFlag,
    /// Write one self-contained HTML page with tables and plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot into this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write `summary.csv`, the narrow table with a row per point, beside each `trials.csv`.
    #[arg(long)]
    write: bool,
    /// Print one table of all runs as CSV, for figures of your own: in each row its run, its axes and
    /// its seed.
    #[arg(
        long,
        value_enum,
        value_name = "ROWS",
        conflicts_with_all = NOT_WITH_CSV
    )]
    csv: Option<RowKind>,
    /// Columns of `--csv` behind the axes, separated by commas. Default: all.
    #[arg(
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        requires = "csv",
        conflicts_with_all = NOT_WITH_CSV
    )]
    columns: Vec<String>,
    /// Exit with 1 if a number of a point is beyond a bound, and with 4 if its runs cannot decide it:
    /// `--fail-on "valid_loss>2.6,samples_per_second<1000"`. The word `not-completed`: exit with 1 if
    /// a planned trial did not complete.
    #[arg(
        long,
        value_name = "CONDITION,…",
        value_delimiter = ',',
        value_parser = GateCondition::read
    )]
    fail_on: Vec<GateCondition>,
    /// Exit status if the runs do not decide a condition of `--fail-on`.
    #[arg(long, value_enum, default_value_t = UndecidedGate::Exit4, value_name = "WHAT")]
    cannot_tell: UndecidedGate,
    /// Judge the numbers of `--fail-on` only at the point that the summary marks as the best.
    #[arg(long, requires = "fail_on")]
    best: bool,
    /// Folder of the runs.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

impl Args {
    fn format(&self) -> Option<ReportFormat> {
        self.json.or(self.format, Some(ReportFormat::Json))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// For programs: one object, or a list of objects for several runs.
    Json,
}

const OWN_PAGE: OwnMark = OwnMark {
    text: "<meta name=\"generator\" content=\"kiln ",
    maker: "kiln report",
    example: "report.html",
};
const OWN_PICTURE: OwnMark = OwnMark {
    text: "<svg role=\"img\" data-by=\"kiln\"",
    ..OWN_PAGE
};

/// Pictures of an earlier report that are named.
const MOST_NAMED: usize = 3;

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    refuse_output("--html", args.html.as_deref())?;
    refuse_output("--svg", args.svg.as_deref())?;
    if let Some(status) = trial::show_if_any(&args)? {
        return Ok(status);
    }
    if let Some(file) = &args.html {
        refuse_foreign(file, OWN_PAGE)?;
    }
    let sources: Vec<TableSource> = match args.runs.is_empty() {
        true => vec![of_folder(&newest(&args.results)?)?],
        false => args
            .runs
            .iter()
            .map(|named| source_in(named, &args.results))
            .collect::<Result<_, _>>()?,
    };
    let subjects: Vec<Subject<'_>> = sources.iter().map(TableSource::subject).collect();
    if let Some(rows) = args.csv {
        print_tidy(&subjects, rows, &args.columns)?;
        return Ok(Status::Success);
    }
    let bounds = match &args.fail_on[..] {
        [] => None,
        conditions => Some(Bounds::of(&subjects, conditions, args.best).map_err(Stop::bad_input)?),
    };
    let is_written = args.html.is_some() || args.svg.is_some() || args.write;
    if let Some(format) = args
        .format()
        .or((!is_written).then_some(ReportFormat::Text))
    {
        show(&subjects, format, bounds.as_ref())?;
        if format == ReportFormat::Text {
            print(&sources.iter().filter_map(short_table).collect::<String>())?;
            print(&sources.iter().filter_map(rest).collect::<String>())?;
        }
    }
    if args.write {
        sources
            .iter()
            .try_for_each(|source| write_summary(source, &args))?;
    }
    if args.html.is_some() || args.svg.is_some() {
        write(&Album::of(&subjects), &args)?;
    }
    let gates = bounds.map_or_else(Vec::new, |bounds| bounds.gates());
    let gates = gates
        .iter()
        .map(|one| (one.condition.as_str(), &one.gate, one.sentence()));
    Ok(args.cannot_tell.conclude(gates))
}

/// Refuses `-`, which stands for standard output in other programs.
fn refuse_output(option: &str, place: Option<&Path>) -> Result<(), Stop> {
    match place.is_some_and(|place| place.as_os_str() == "-") {
        true => Err(Stop::bad_input(format!(
            "`{option} -`: it is not written to standard output; name a place for it, or `./-` for one \
             of that name"
        ))),
        false => Ok(()),
    }
}

fn show(
    subjects: &[Subject<'_>],
    format: ReportFormat,
    bounds: Option<&Bounds<'_>>,
) -> Result<(), Stop> {
    let all = |of: &dyn Fn(Subject<'_>) -> String| {
        subjects
            .iter()
            .map(|subject| of(*subject))
            .collect::<Vec<_>>()
    };
    match format {
        ReportFormat::Text => {
            print(&all(&|subject| report::text(subject, page_style())).join("\n"))
        }
        ReportFormat::Markdown => print(&all(&report::markdown).join("\n")),
        ReportFormat::Json => {
            let page = |(run, subject): (usize, &Subject<'_>)| {
                report::json_with_gates(*subject, bounds.map(|bounds| bounds.json(run)))
            };
            match &subjects.iter().enumerate().map(page).collect::<Vec<_>>()[..] {
                [one] => print_json(one),
                several => print_json(&format!("[{}]\n", several.join(","))),
            }
        }
    }
}

/// Prints one table of all runs, then what it lacks.
fn print_tidy(subjects: &[Subject<'_>], rows: RowKind, columns: &[String]) -> Result<(), Stop> {
    let table = TidyTable::of(subjects, rows, columns).map_err(Stop::bad_input)?;
    match table.write(&mut terminal::print_content) {
        Ok(lacks) => lacks.iter().for_each(|lack| note(&format!("note: {lack}"))),
        Err(TidyError::Output(error)) => written(Err(error)).map(drop)?,
        Err(error) => return Err(Stop::bad_input(error)),
    }
    Ok(())
}

/// Where the table is that people commit, or what writes it. A table of a commit has neither.
fn short_table(source: &TableSource) -> Option<String> {
    let folder = source
        .folder
        .as_ref()
        .filter(|_| !source.table.rows.is_empty())?;
    let shown = |path: &Path| without_controls(&path.display().to_string());
    Some(match source.summary_table() {
        Some(table) => format!("\nA row per point, to commit: {}\n", shown(&table)),
        None => format!(
            "\n`kiln report --write {}` writes summary.csv, a row per point\n",
            shown(folder.path())
        ),
    })
}

/// Says how an unfinished run goes on, or where it is shown.
fn rest(source: &TableSource) -> Option<String> {
    let (folder, run) = (source.folder.as_ref()?, source.run.as_ref()?);
    let ended = source.table.last_attempts();
    let ended = ended.iter().filter(|row| row.fixed.outcome.is_final());
    let ended: HashSet<&TrialId> = ended.map(|row| &row.fixed.trial).collect();
    let left = run.plan.iter().filter(|trial| !ended.contains(trial));
    let left = left.count();
    if left == 0 && !run.is_searching {
        return None;
    }
    let state = RunFollower::new(folder.clone()).look();
    let line = match state.life.goes_on() {
        true => Some(format!(
            "{left} of {} left; it goes on: `kiln watch {}` shows it",
            counted(run.plan.len(), "trial"),
            shell_word(&folder.path().to_string_lossy())
        )),
        false => how_to_go_on(&state),
    };
    line.map(|line| format!("\n{}\n", without_controls(&line)))
}

fn write(album: &Album<'_>, args: &Args) -> Result<(), Stop> {
    for fault in album.faults() {
        note(&format!("not shown: {fault}"));
    }
    let tell = |text: String| tell(&text, args);
    if let Some(file) = &args.html {
        write_among_others(file, album.html().as_bytes()).map_err(|error| failed(file, &error))?;
        tell(format!("wrote {}", file.display()))?;
    }
    if let Some(folder) = &args.svg {
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let pictures: Vec<(PathBuf, String)> = album
            .pictures()
            .into_iter()
            .map(|(name, svg)| (folder.join(name), svg))
            .collect();
        pictures
            .iter()
            .try_for_each(|(file, _)| refuse_foreign(file, OWN_PICTURE))?;
        for (file, svg) in &pictures {
            write_among_others(file, svg.as_bytes()).map_err(|error| failed(file, &error))?;
        }
        tell(format!(
            "wrote {} into {}",
            counted(pictures.len(), "picture"),
            folder.display()
        ))?;
        if let Some(line) = earlier_pictures(folder, &pictures) {
            note(&line);
        }
    }
    Ok(())
}

/// Names the pictures of earlier reports that stay in a folder. They may be of another run, and
/// their owner may want them.
fn earlier_pictures(folder: &Path, written: &[(PathBuf, String)]) -> Option<String> {
    let files = std::fs::read_dir(folder).ok()?.flatten();
    let is_earlier = |file: &PathBuf| {
        let is_picture = file.extension().is_some_and(|extension| extension == "svg");
        is_picture && written.iter().all(|(own, _)| own != file) && is_own(file, OWN_PICTURE)
    };
    let names = files
        .map(|entry| entry.path())
        .filter(is_earlier)
        .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    (!names.is_empty()).then(|| {
        format!(
            "note: {} also has {} of an earlier report, which may show another run: {}",
            folder.display(),
            counted(names.len(), "picture"),
            few(&names, MOST_NAMED)
        )
    })
}

/// Says what was written. Standard output may be read by a program.
fn tell(text: &str, args: &Args) -> Result<(), Stop> {
    match args.format() {
        Some(_) => {
            note(text);
            Ok(())
        }
        None => print_line(text),
    }
}

fn write_summary(source: &TableSource, args: &Args) -> Result<(), Stop> {
    let Some(folder) = &source.folder else {
        return Err(Stop::bad_input(format!(
            "{}: this table is in no folder to write beside; name a run's folder",
            source.name
        )));
    };
    // The name may be a link to the folder, such as `latest`; a file of a run is written past none.
    let folder = RunFolder::at(without_links(folder.path()));
    let read_again = || {
        let mut now = TrialTable::read(Path::new(&source.name)).ok()?;
        source.unify(&mut now);
        Some(now)
    };
    let path = folder.summary_table();
    let objective = source.subject().objective();
    let text = report::point_table(&source.table, objective);
    let is_new = write_point_table(&folder, text, objective, &read_again);
    let is_new = is_new.map_err(|error| {
        let elsewhere = "copy the run's folder and name the copy";
        cannot_write(&path, &error, elsewhere)
    })?;
    let told = match is_new {
        true => format!("wrote {}", path.display()),
        false => format!("{} is up to date", path.display()),
    };
    tell(&told, args)
}

fn failed(path: &Path, error: &std::io::Error) -> Stop {
    cannot_write(path, error, "name another place")
}

/// `elsewhere` is what to try where nothing may be written.
fn cannot_write(path: &Path, error: &std::io::Error, elsewhere: &str) -> Stop {
    let has_folder = path
        .parent()
        .is_none_or(|folder| folder == Path::new("") || folder.is_dir());
    let hint = match error.kind() {
        ErrorKind::FileTooLarge => {
            "raise the limit on the size of files (`ulimit -f`), or name another place".to_owned()
        }
        _ if is_full(error) => "free some space".to_owned(),
        ErrorKind::NotFound if !has_folder => {
            "its folder does not exist; create it first".to_owned()
        }
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("no file can be written there; {elsewhere}")
        }
        _ => "choose another path".to_owned(),
    };
    // The error may name the file already, also as `./FILE`.
    let (path, text) = (path.display().to_string(), error.to_string());
    let cause = text.split_once(&format!("{path}: "));
    let cause = cause.map_or(text.as_str(), |(_, cause)| cause);
    Stop::new(Status::Failed, format!("{path}: {cause}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named_once_with_what_to_do() {
        let told = |kind: ErrorKind, text: &str| {
            let error = std::io::Error::new(kind, text.to_owned());
            cannot_write(Path::new("x.html"), &error, "name another place").message
        };
        assert_eq!(
            told(ErrorKind::FileTooLarge, "./x.html: File too large"),
            "x.html: File too large; raise the limit on the size of files (`ulimit -f`), or name \
             another place"
        );
        assert_eq!(
            told(ErrorKind::StorageFull, "No space left on device"),
            "x.html: No space left on device; free some space"
        );
    }
}
