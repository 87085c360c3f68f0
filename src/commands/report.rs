//! `kiln report`: what runs mean, without their machine: the summary and each finding with all it rests on, as text or as a page with pictures.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use super::{
    Status, Stop, page_style, print,
    sources::{Source, newest, of_folder, source},
};
use crate::{
    record::run_file::write_whole,
    report::{self, Album, Subject},
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's (its newest run), a trials.csv, or one of these in a git revision: `HEAD~1:results/x/latest`; several stand
    /// side by side. The newest run under `--results` unless told otherwise.
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// How to print it; text unless told otherwise, and nothing where a page or pictures are written.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write one page that opens anywhere, with tables and pictures.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each picture into this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// For programs: one object, of several runs a list of them.
    Json,
}

/// What a page made by kiln says of itself; nothing else is written over.
const OWN: &str = "<meta name=\"generator\" content=\"kiln ";

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    if let Some(file) = &args.html {
        refuse_foreign(file)?;
    }
    let sources: Vec<Source> = match args.runs.is_empty() {
        true => vec![of_folder(&newest(&args.results)?)?],
        false => args.runs.iter().map(|named| source(named)).collect::<Result<_, _>>()?,
    };
    let subjects: Vec<Subject<'_>> = sources.iter().map(Source::subject).collect();
    let is_written = args.html.is_some() || args.svg.is_some();
    if let Some(format) = args.format.or((!is_written).then_some(Format::Text)) {
        print(&printed(&subjects, format))?;
    }
    if is_written {
        write(&Album::of(&subjects), &args)?;
    }
    Ok(Status::Success)
}

fn printed(subjects: &[Subject<'_>], format: Format) -> String {
    let all = |of: &dyn Fn(Subject<'_>) -> String| subjects.iter().map(|subject| of(*subject)).collect::<Vec<_>>();
    match format {
        Format::Text => all(&|subject| report::text(subject, page_style())).join("\n"),
        Format::Markdown => all(&report::markdown).join("\n"),
        Format::Json => match &all(&report::json)[..] {
            [one] => one.clone(),
            several => format!("[{}]\n", several.join(",")),
        },
    }
}

fn write(album: &Album<'_>, args: &Args) -> Result<(), Stop> {
    let failed = |path: &Path, error: std::io::Error| {
        Stop::new(Status::Failed, format!("{}: {error}; name another place, or free some space", path.display()))
    };
    for fault in album.faults() {
        let _ = writeln!(std::io::stderr(), "not shown: {fault}");
    }
    if let Some(file) = &args.html {
        write_whole(file, album.html().as_bytes()).map_err(|error| failed(file, error))?;
        print(&format!("wrote {}\n", file.display()))?;
    }
    if let Some(folder) = &args.svg {
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let pictures = album.pictures();
        for (name, svg) in &pictures {
            let file = folder.join(name);
            write_whole(&file, svg.as_bytes()).map_err(|error| failed(&file, error))?;
        }
        print(&format!("wrote {} into {}\n", crate::units::counted(pictures.len(), "picture"), folder.display()))?;
    }
    Ok(())
}

/// A slip of the keyboard must not cost a table or an experiment.
fn refuse_foreign(file: &Path) -> Result<(), Stop> {
    let refuse = |what: &str| Err(Stop::bad_input(format!("{}: {what}; name a new file, such as `report.html`", file.display())));
    match std::fs::read(file) {
        _ if file.is_dir() => refuse("it is a folder"),
        Ok(bytes) if !bytes.is_empty() && !String::from_utf8_lossy(&bytes).contains(OWN) => refuse("it is there already and no page of kiln's"),
        _ => Ok(()),
    }
}
