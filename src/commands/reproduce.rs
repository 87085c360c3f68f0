//! `kiln reproduce`: runs a run's resolved experiment again, as it is written there, and compares.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Status, Stop,
    compare::{Asked as Comparing, compare_and_print, compare_and_tell},
    launching::{Launching, stopped},
    machine::trial_program,
    planned::plan_loaded,
    run::{Asked, dry_run, start, status},
    sources::{of_folder, table_of},
};
use crate::{
    record::RunFolder,
    schedule::{End, Style},
    spec,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, or an experiment's (its newest run).
    run: PathBuf,
    #[command(flatten)]
    comparing: Comparing,
    #[command(flatten)]
    launch: Launching,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    // `latest` will be a link to the new run.
    let table = without_links(&table_of(&args.run)?);
    let base = of_folder(&table)?;
    let folder = table.parent().map(RunFolder::at).filter(|folder| folder.experiment().is_file());
    let Some(folder) = folder else {
        return Err(Stop::bad_input(format!("{}: no `experiment.yaml` lies beside the table; name a run's folder", table.display())));
    };
    // As it was resolved then: the variables of today change nothing.
    let request = spec::Request { file: folder.experiment(), set: args.launch.settings(), variables: Vec::new() };
    let loaded = spec::load(&request).map_err(Stop::bad_input)?;
    if loaded.experiment.sweep.search.is_some() {
        let again = format!("it is the run of a search; `kiln tune {} --fresh` searches again", folder.experiment().display());
        return Err(Stop::bad_input(format!("{}: {again}", folder.path().display())));
    }
    let mut launch = args.launch;
    launch.fresh = true;
    let asked = Asked::new(plan_loaded(loaded)?, launch.dry_run)?;
    let program = trial_program()?;
    if launch.dry_run {
        return asked.request(&launch, &program, dry_run);
    }
    let report = asked.request(&launch, &program, start)?;
    if let Some(failure) = &report.failure {
        return Err(stopped(failure.clone()));
    }
    if report.end == End::Interrupted {
        let (experiment, new) = (report.folder.experiment(), report.folder.path());
        let (results, base) = (launch.results.display(), folder.path().display());
        let how =
            format!("`kiln run {} --results {results}` goes on, and then `kiln compare {base} {}` compares", experiment.display(), new.display());
        return Err(Stop::new(Status::Interrupted, format!("interrupted; {how}")));
    }
    let new = of_folder(&without_links(&report.folder.trials_table()))?;
    let compared = match launch.style() {
        Style::Json => compare_and_tell(&base, &new, &args.comparing)?,
        _ => compare_and_print(&base, &new, &args.comparing)?,
    };
    Ok(status(&report).max(compared))
}

/// The place itself, from here where it lies below.
fn without_links(path: &Path) -> PathBuf {
    let whole = |path: &Path| fs::canonicalize(path).ok();
    let Some(place) = whole(path) else { return path.to_owned() };
    let below = whole(Path::new(".")).and_then(|here| place.strip_prefix(here).map(Path::to_owned).ok());
    below.unwrap_or(place)
}
