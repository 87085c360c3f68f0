//! `kiln diff`: lists what differs between two runs.

use std::path::PathBuf;

use kiln_core::record::command_line::results_option;

use super::{
    RESULTS, Status, Stop, json_option::JsonFlag, print, print_json, run_and_trial::refuse_trial,
    sources::recorded,
};
use crate::report::RunDiff;

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's folder (its newest run), a short name (`latest`, `NAME~1`), a
    /// trials.csv, or one of these in a git revision: `HEAD~1:results/x/latest`.
    a: String,
    /// The run to set beside A.
    b: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    format: DiffFormat,
    #[command(flatten)]
    json: JsonFlag,
    /// Exit with 1 if something differs, and with 4 if nothing does but a fact is not recorded by
    /// both.
    #[arg(long)]
    exit_code: bool,
    /// Folder of the runs that short names mean.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DiffFormat {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// A line per difference, with whole values.
    Csv,
    /// For programs: one object.
    Json,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    for named in [&args.a, &args.b] {
        let results_option = results_option(&args.results);
        let instead = format!("`kiln report {named}{results_option}` shows one trial");
        refuse_trial("diff", named, &args.results, &instead)?;
    }
    let a = recorded(&args.a, &args.results)?;
    let b = recorded(&args.b, &args.results)?;
    let found = RunDiff::of(a.subject(), b.subject());
    match args.json.or(args.format, DiffFormat::Json) {
        DiffFormat::Text => print(&found.text(&a.name, &b.name)),
        DiffFormat::Markdown => print(&found.markdown(&a.name, &b.name)),
        DiffFormat::Csv => print(&found.csv()),
        DiffFormat::Json => print_json(&found.json(&a.name, &b.name)),
    }?;
    Ok(match args.exit_code {
        true if !found.is_empty() => Status::Failed,
        true if !found.unknown.is_empty() => Status::CannotTell,
        _ => Status::Success,
    })
}
