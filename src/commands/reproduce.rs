//! `kiln reproduce`: runs a run's resolved experiment again and compares. The exit status says
//! whether the losses are the same.

use std::{collections::HashSet, path::Path};

use kiln_core::{
    plan::{Trial, TrialId},
    record::command_line::results_option,
    spec::{self, RunPlace},
    units::without_controls,
};

use super::{
    Status, Stop,
    compare::{CompareOptions as Comparing, compare_and_conclude},
    continuation,
    experiment_plan::plan_loaded,
    gates::surer,
    launch::{Launched, PlannedFile, dry_run, instruments_for, start_with, status},
    launch_options::{LaunchOptions, stopped},
    machine::trial_program,
    note,
    run_and_trial::refuse_trial,
    run_name::{Taken, is_of_revision},
    runs::without_links,
    sources::{TableSource, of_folder, source, table_of},
};
use crate::{
    output::terminal::note_page,
    progress::ProgressMode,
    report::compare::{facts, has_data_by_name, now_different, reproduced},
    schedule::{self, Instruments, LaunchEnd, LaunchReport, RunRequest},
};

#[derive(clap::Args)]
// A run is always a new one.
#[command(mut_arg("fresh", |fresh| fresh.hide(true)))]
pub(super) struct Args {
    /// A run's folder, an experiment's folder (its newest run), a short name (`latest`, `NAME~1`),
    /// or a folder in a git revision: `HEAD~1:results/x/latest`.
    run: String,
    #[command(flatten)]
    comparing: Comparing,
    #[command(flatten)]
    launch: LaunchOptions,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let base = base(&args.run, &args.launch.results)?;
    let loaded = experiment_of(&base, &args.launch)?;
    refuse_elsewhere(&loaded, &base)?;
    let mut launch = args.launch;
    launch.fresh = true;
    let mut planned = plan_loaded(loaded)?;
    if let Some(record) = &base.run {
        continuation::continue_as_recorded(&mut planned, record)?;
    }
    let asked = PlannedFile::new(planned, &launch)?;
    let program = trial_program()?;
    let begin = |request: &RunRequest| {
        refuse_without_match(&base, request.trials, &args.comparing)?;
        let instruments = instruments_for(request.trials);
        if !launch.quiet {
            tell_what_differs(&base, request, &instruments);
        }
        Ok(instruments)
    };
    if launch.dry_run {
        let style = match args.comparing.is_json() {
            true => ProgressMode::Json,
            false => launch.style(),
        };
        return asked.request(&launch, &program, |request| {
            begin(request).and_then(|_| dry_run(request, style))
        });
    }
    let Launched { report, .. } = asked.request(&launch, &program, |request| {
        start_with(request, begin(request)?)
    })?;
    if let Some(failure) = &report.failure {
        return Err(stopped(failure.clone()));
    }
    if report.end == LaunchEnd::Interrupted {
        return Err(interrupted(&report, &launch, &base));
    }
    let new = of_folder(&without_links(&report.folder.trials_table()))?;
    let is_event = launch.style() == ProgressMode::Json;
    let compared = compare_and_conclude(&base, &new, &args.comparing, reproduced, is_event)?;
    Ok(surer(status(&report), compared))
}

/// The experiment of a recorded run, as it was resolved then: today's environment variables have no
/// effect.
fn experiment_of(base: &TableSource, launch: &LaunchOptions) -> Result<spec::Loaded, Stop> {
    let Some(text) = base.experiment.clone() else {
        return Err(base.without_experiment("name a run's folder"));
    };
    let file = base.experiment_file();
    if let Some(why) = base.changed_experiment() {
        return Err(Stop::bad_input(format!(
            "{0}: {why}, so it does not say what ran; restore the file, or run it as it is now with \
             `kiln run {0} --fresh` and compare the two runs with `kiln compare`",
            file.display()
        )));
    }
    let request = spec::ExperimentRequest::of_run(file.clone(), text, launch.settings());
    let loaded = spec::load(&request).map_err(Stop::bad_input)?;
    if loaded.experiment.sweep.search.is_some() {
        let again = "this is a search run, which cannot be reproduced; run `kiln tune FILE \
                     --fresh` to search again";
        return Err(Stop::bad_input(format!("{}: {again}", file.display())));
    }
    Ok(loaded)
}

/// The trials are compared when they have ended, in this process.
fn refuse_elsewhere(loaded: &spec::Loaded, base: &TableSource) -> Result<(), Stop> {
    let place = loaded.experiment.run.on;
    if place == RunPlace::Here {
        return Ok(());
    }
    Err(Stop::bad_input(format!(
        "`kiln reproduce` runs on this machine, and `run.on` is `{0}`; give `--on here`, also in a job \
         of Slurm, or run it with `kiln run {1} --on {0} --fresh` and compare the two runs with \
         `kiln compare`",
        place.name(),
        base.experiment_file().display()
    )))
}

fn interrupted(report: &LaunchReport, launch: &LaunchOptions, base: &TableSource) -> Stop {
    let (experiment, new) = (report.folder.experiment(), report.folder.path());
    let (results, base) = (launch.results.display(), &base.name);
    let how = format!(
        "`kiln run {} --results {results}` resumes it; then run `kiln compare {base} {}`",
        experiment.display(),
        new.display()
    );
    Stop::new(Status::Interrupted, format!("interrupted; {how}"))
}

fn base(named: &str, results: &Path) -> Result<TableSource, Stop> {
    let results_option = results_option(results);
    let instead = format!(
        "`kiln run FILE --at {named} --fresh{results_option}` runs its point again, with every repeat"
    );
    refuse_trial("reproduce", named, results, &instead)?;
    if is_of_revision(named) {
        return source(named);
    }
    // Links are resolved now, because `latest` will point to the new run.
    of_folder(&without_links(&table_of(named, results, Taken::Tables)?))
}

/// Stops before a long run if no trial of it could be compared.
fn refuse_without_match(
    base: &TableSource,
    trials: &[Trial],
    comparing: &Comparing,
) -> Result<(), Stop> {
    let there: HashSet<&TrialId> = base.table.rows.iter().map(|row| &row.fixed.trial).collect();
    if !comparing.matches_by_id()
        || there.is_empty()
        || trials.iter().any(|trial| there.contains(&trial.id))
    {
        return Ok(());
    }
    let why = "no trial id would match: a setting differs in all trials; match rows by values with \
               `--by train.batch_size`";
    Err(Stop::bad_input(format!("{}: {why}", base.name)))
}

/// Prints the differences before the first trial, so that the user can stop.
fn tell_what_differs(base: &TableSource, request: &RunRequest, instruments: &Instruments) {
    let Some(recorded) = &base.run else {
        let there_is_none = || format!("{}: there is no `run.json` beside the table", base.name);
        return note(&format!(
            "{}; differences in code, machine and data are unknown",
            base.run_fault.clone().unwrap_or_else(there_is_none)
        ));
    };
    let (now, packages) = schedule::record_now(request, instruments);
    let experiments = [
        base.experiment_value(),
        spec::read_yaml(request.resolved).ok(),
    ];
    note_page(&format!(
        "{}: {}\n",
        without_controls(&base.name),
        now_different(
            &facts(
                [Some(recorded), Some(&now)],
                experiments,
                [base.packages.as_deref(), packages.as_deref()]
            ),
            has_data_by_name(&now)
        )
    ));
}
