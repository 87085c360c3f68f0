//! `kiln check`: every problem of every file at once.

use std::{ffi::OsString, io::Write, path::PathBuf};

use super::{Status, Stop, print};
use crate::spec::{self, Loaded, Problems, Request};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files; a file in a folder named `base` is checked as a fragment that others extend.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Set a key, such as train.batch_size=8; the value is YAML. May be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let variables = variables();
    let mut status = Status::Success;
    for file in args.files {
        let request = Request { file, set: args.set.clone(), variables: variables.clone() };
        match check(&request) {
            Ok(verdict) => print(&format!("{}: ok, {verdict}\n", request.file.display()))?,
            Err(problems) => {
                let _ = writeln!(std::io::stderr(), "{problems}");
                status = Status::BadInput;
            }
        }
    }
    Ok(status)
}

/// The environment, as a [`Request`] takes it.
pub(super) fn variables() -> Vec<(String, String)> {
    let readable = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned()));
    std::env::vars_os().filter_map(readable).collect()
}

fn check(request: &Request) -> Result<String, Problems> {
    let in_base = request.file.parent().and_then(|folder| folder.file_name()).is_some_and(|name| name == "base");
    if in_base && request.set.is_empty() {
        return spec::check_fragment(request).map(|()| "a fragment for other files to extend".to_owned());
    }
    spec::load(request).map(|loaded| describe(&loaded))
}

/// What the file asks for, in few words.
fn describe(loaded: &Loaded) -> String {
    let experiment = &loaded.experiment;
    let (grid, zip) = (&experiment.sweep.grid, &experiment.sweep.zip);
    let kinds = format!("{} on {}", experiment.model.kind(), experiment.data.kind());
    let axes: Vec<String> = grid.iter().chain(zip).map(|(key, values)| format!("{key} ({})", values.as_array().map_or(1, Vec::len))).collect();
    match axes.len() {
        0 => kinds,
        count => format!("{kinds}, {count} {} {}", if count == 1 { "axis:" } else { "axes:" }, axes.join(", ")),
    }
}
