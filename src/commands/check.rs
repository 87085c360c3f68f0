//! `kiln check`: lists every problem of every file at once.

use std::path::{Path, PathBuf};

use kiln_core::{
    spec::{self, SearchedKeys},
    units::counted,
};

use super::{
    Status, Stop,
    planned::{FactFinder, Planned, load_file, plan_loaded, prober, request},
    print_line,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files; a file in a folder named `base` is checked as a fragment that others
    /// extend.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Set a key of the experiment: `train.batch_size=8`. The value is YAML. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut status = Status::Success;
    for file in args.files {
        match check(&file, &args.set) {
            Ok(verdict) => print_line(&format!("{}: ok, {verdict}", file.display()))?,
            Err(stop) => {
                stop.print();
                status = stop.status;
            }
        }
    }
    Ok(status)
}

fn check(file: &Path, set: &[String]) -> Result<String, Stop> {
    let in_base = file
        .parent()
        .and_then(|folder| folder.file_name())
        .is_some_and(|name| name == "base");
    if in_base && set.is_empty() {
        let checked = spec::check_fragment(&request(file.to_owned(), set)).map_err(Stop::problems);
        return checked.map(|()| "a fragment for other files to extend".to_owned());
    }
    let loaded = load_file(file.to_owned(), set)?;
    if let Some(search) = &loaded.experiment.sweep.search {
        // The machine does not matter here: it only limits how far a search may go.
        let finder = FactFinder::from_environment();
        prober(&loaded, &finder, &|data| finder.find(data), 1, 1)?;
        let experiment = &loaded.experiment;
        let keys = SearchedKeys::of(&experiment.model);
        let keys = search.keys(&keys).join(", ");
        return Ok(format!(
            "a search for `kiln tune`: {} of {} on {}, over {keys}",
            search.kind(),
            experiment.model.kind(),
            experiment.data.kind()
        ));
    }
    let planned = plan_loaded(loaded)?;
    planned.warn();
    Ok(describe(&planned))
}

/// A short summary of the experiment.
fn describe(planned: &Planned) -> String {
    let experiment = &planned.loaded.experiment;
    let (grid, zip) = (&experiment.sweep.grid, &experiment.sweep.zip);
    let axes: Vec<String> = grid
        .iter()
        .chain(zip)
        .map(|(key, values)| format!("{key} ({})", values.as_array().map_or(1, Vec::len)))
        .collect();
    let points = match (planned.plan.points, planned.plan.repeats) {
        (1, 1) => "1 trial".to_owned(),
        (points, 1) => counted(points as usize, "point"),
        (points, repeats) => format!("{} × {repeats} repeats", counted(points as usize, "point")),
    };
    let kinds = format!(
        "{points}: {} on {}",
        experiment.model.kind(),
        experiment.data.kind()
    );
    if axes.is_empty() {
        kinds
    } else {
        format!("{kinds}, over {}", axes.join(", "))
    }
}
