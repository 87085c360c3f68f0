//! `kiln doctor`: finds problems that prevent trials on this machine, or make their measurements
//! unreliable; with `--on slurm` problems that prevent workers on a cluster.

use std::path::{Path, PathBuf};

use kiln_core::{
    record::{Check, CheckState},
    spec::Slurm,
};
use kiln_hardware::{Nvml, Patience};

use super::{
    Status, Stop,
    machine::{nvml_library, trial_program},
    planned::plan_file,
    print, print_json,
};
use crate::{
    output::terminal::has_color,
    preflight::{
        ASK_TIMEOUT, Diagnosis, ExamineAnswer, ExamineRequest, FactRoots, PreflightFacts, Subject,
        TextStyle, ask, diagnose, json, page,
    },
    readings::Privacy,
    schedule::{examine_cluster, needs_kiln_trial},
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment file to check the machine against: its loader workers and threads.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Set a key of the experiment: `data.num_workers=8`.
    #[arg(long, value_name = "KEY=VALUE", requires = "file")]
    set: Vec<String>,
    /// Check what Slurm says of the cluster, instead of this machine: `slurm`.
    #[arg(long, value_name = "slurm")]
    on: Option<Cluster>,
    /// Skip the matrix products, which take a few seconds per device.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Folder of the runs.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Cluster {
    Slurm,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let planned = args
        .file
        .clone()
        .map(|file| plan_file(file, &args.set))
        .transpose()?;
    if let Some(Cluster::Slurm) = args.on {
        let slurm = planned.and_then(|planned| planned.loaded.experiment.run.slurm);
        return of_cluster(&slurm.unwrap_or_default(), &args);
    }
    let library = nvml_library();
    let nvml = Nvml::open(library.as_deref());
    let needs_libtorch = planned
        .as_ref()
        .is_none_or(|planned| planned.plan.trials.iter().any(needs_kiln_trial));
    let answer = match needs_libtorch {
        true => Some(ask(
            &trial_program()?,
            ExamineRequest {
                is_quick: args.quick,
                time_limit: ASK_TIMEOUT,
            },
        )),
        false => None,
    };
    let trials = planned
        .as_ref()
        .map(|planned| planned.plan.trials.as_slice());
    let (privacy, patience) = (Privacy::Full, Patience::default());
    let sources = FactRoots {
        nvml: &nvml,
        is_system_nvml: library.is_none(),
        results: &args.results,
        trials,
        privacy,
        patience: &patience,
    };
    let mut diagnosis = diagnose(&PreflightFacts::gather(&sources, None, answer));
    if !needs_libtorch {
        let why = "no trial of this experiment is computed by `kiln-trial`";
        diagnosis.checks.push(Check::skipped("libtorch", why));
    }
    concluded(&diagnosis, args.json)
}

fn of_cluster(slurm: &Slurm, args: &Args) -> Result<Status, Stop> {
    let answer = ask(
        &trial_program()?,
        ExamineRequest {
            is_quick: true,
            time_limit: ASK_TIMEOUT,
        },
    );
    let libtorch = libtorch_folder(&answer);
    let checks = examine_cluster(slurm, &args.results, libtorch);
    let can_run = checks
        .iter()
        .all(|check| check.state != CheckState::Problem);
    let diagnosis = Diagnosis {
        checks,
        can_run,
        subject: Subject::Cluster,
    };
    concluded(&diagnosis, args.json)
}

/// The folder of the libtorch that `kiln-trial` has loaded: each node must have it.
fn libtorch_folder(answer: &ExamineAnswer) -> Option<&Path> {
    let libtorch = answer.build.as_ref()?.libtorch.as_ref()?;
    Path::new(libtorch.path.as_ref()?).parent()
}

fn concluded(diagnosis: &Diagnosis, as_json: bool) -> Result<Status, Stop> {
    show(diagnosis, as_json)?;
    Ok(if diagnosis.can_run {
        Status::Success
    } else {
        Status::CannotRun
    })
}

fn show(diagnosis: &Diagnosis, as_json: bool) -> Result<(), Stop> {
    if as_json {
        let text = serde_json::to_string_pretty(&json(diagnosis))
            .map_err(|error| Stop::new(Status::Failed, error))?;
        return print_json(&format!("{text}\n"));
    }
    let has_color = has_color();
    print(&page(diagnosis, TextStyle { has_color }))
}
