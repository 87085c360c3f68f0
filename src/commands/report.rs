//! `kiln report`: what a run's table means, without a run's machine: the summary, and each finding with all it rests on.

use std::path::{Path, PathBuf};

use super::{Status, Stop, page_style, print};
use crate::{
    record::{
        RunFile, RunFolder, TrialTable,
        run_folder::{experiments, runs},
    },
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

/// The `trials.csv` that is meant: the file itself, that of a run's folder, or that of an experiment's newest run.
fn table_of(named: &Path) -> Result<PathBuf, Stop> {
    if named.is_file() {
        return Ok(named.to_owned());
    }
    let refuse =
        |what: &str| Stop::bad_input(format!("{}: {what}; name a run's folder, such as `results/NAME/latest`, or a `trials.csv`", named.display()));
    if !named.is_dir() {
        return Err(refuse("there is no such file or folder"));
    }
    let own = RunFolder::at(named).trials_table();
    if own.is_file() {
        return Ok(own);
    }
    let newest = named.file_name().and_then(|name| runs(named.parent().unwrap_or(Path::new("")), &name.to_string_lossy()).pop());
    newest.map(|run| run.trials_table()).filter(|table| table.is_file()).ok_or_else(|| refuse("holds no `trials.csv`"))
}

/// The table of the run that started last, of all experiments.
fn newest(results: &Path) -> Result<PathBuf, Stop> {
    let names = experiments(results)
        .map_err(|error| Stop::bad_input(format!("{}: {error}; `--results` names the folder that holds runs", results.display())))?;
    let all = names.iter().flat_map(|name| runs(results, name)).filter(|run| run.trials_table().is_file());
    // A run's name begins with the time of its start.
    let newest = all.max_by_key(RunFolder::name);
    newest
        .map(|run| run.trials_table())
        .ok_or_else(|| Stop::bad_input(format!("no run with a `trials.csv` under {}; `kiln run FILE` makes one", results.display())))
}
