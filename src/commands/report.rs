//! `kiln report`: what a run's table means, without a run's machine: the summary, and each finding with all it rests on.

use std::path::PathBuf;

use super::{
    Status, Stop, page_style, print,
    sources::{newest, table_of},
};
use crate::{
    record::{RunFile, RunFolder, TrialTable},
    report::{self, Subject},
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's folder (its newest run), or a trials.csv; the newest run under `--results` unless told otherwise.
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For a terminal.
    Text,
    /// For a page or a pull request.
    Markdown,
    /// For programs: one object.
    Json,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let path = match &args.run {
        Some(named) => table_of(named)?,
        None => newest(&args.results)?,
    };
    let table = TrialTable::read(&path).map_err(Stop::bad_input)?;
    // A table alone does not say how many trials were planned.
    let beside = path.parent().map(|folder| RunFolder::at(folder).run_file());
    let planned = beside.and_then(|file| RunFile::read(&file).ok()).map_or(0, |file| file.plan.len());
    let name = path.display().to_string();
    let subject = Subject { table: &table, name: &name, planned };
    print(&match args.format {
        Format::Text => report::text(subject, page_style()),
        Format::Markdown => report::markdown(subject),
        Format::Json => report::json(subject),
    })?;
    Ok(Status::Success)
}
