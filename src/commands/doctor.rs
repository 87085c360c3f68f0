//! `kiln doctor`: finds problems that prevent trials on this machine, or make their measurements
//! unreliable; with `--on slurm` problems that prevent workers on a cluster.

use std::path::{Path, PathBuf};

use kiln_core::{
    record::{Check, CheckState},
    spec::Slurm,
};
use kiln_hardware::{Patience, read_all_gpus};

use super::{
    RESULTS, Status, Stop,
    experiment_plan::{Planned, plan_file},
    json_option::JsonFormat,
    launch_options::hash_of,
    machine::{nvml_library, open_nvml, trial_program},
    note, print, print_json, stop_flag,
};
use crate::{
    output::terminal::has_color,
    preflight::{
        ASK_TIMEOUT, Diagnosis, ExamineAnswer, ExamineRequest, FactRoots, PreflightFacts,
        PreflightPlace, TextStyle, ask, diagnose, json, page,
    },
    readings::Privacy,
    schedule::{
        ClusterProbe, ProbeStop, copy_programs, examine_cluster, needs_kiln_trial, take_part,
    },
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
    /// Run two small jobs on two nodes, which try the shared folder against each other.
    #[arg(long, requires = "on")]
    probe: bool,
    /// The folder of a part of a probe; its job gives it.
    #[arg(long, hide = true, value_name = "DIR")]
    probe_part: Option<PathBuf>,
    /// Skip the matrix products, which take a few seconds per device.
    #[arg(long)]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: JsonFormat,
    /// Folder of the runs.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

impl Args {
    fn is_json(&self) -> bool {
        self.json || self.format.is_json()
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Cluster {
    Slurm,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    if let Some(own) = &args.probe_part {
        let diagnosis = of_machine(None, &args)?;
        let failed = |error| Stop::new(Status::Failed, format!("{}: {error}", own.display()));
        take_part(own, diagnosis.checks).map_err(failed)?;
        return Ok(Status::Success);
    }
    let planned = args
        .file
        .clone()
        .map(|file| plan_file(file, &args.set))
        .transpose()?;
    if let Some(Cluster::Slurm) = args.on {
        let slurm = planned.and_then(|planned| planned.loaded.experiment.run.slurm);
        return of_cluster(&slurm.unwrap_or_default(), &args);
    }
    concluded(&of_machine(planned.as_ref(), &args)?, args.is_json())
}

fn of_machine(planned: Option<&Planned>, args: &Args) -> Result<Diagnosis, Stop> {
    let nvml = open_nvml();
    let needs_libtorch =
        planned.is_none_or(|planned| planned.plan.trials.iter().any(needs_kiln_trial));
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
    // The same holds for what `kiln run` examines before its trials.
    let is_foreign = std::env::var_os("KILN_TRIAL").is_some()
        && answer
            .as_ref()
            .is_some_and(ExamineAnswer::is_of_a_foreign_program);
    let answer = answer.filter(|_| !is_foreign);
    let trials = planned.map(|planned| planned.plan.trials.iter().collect::<Vec<_>>());
    let (privacy, patience) = (Privacy::Full, Patience::default());
    let gpus = nvml
        .as_ref()
        .map(|nvml| read_all_gpus(*nvml, &patience))
        .unwrap_or_default();
    let sources = FactRoots {
        nvml: &nvml,
        is_system_nvml: nvml_library().is_none(),
        gpus: &gpus,
        results: &args.results,
        trials: trials.as_deref(),
        privacy,
        patience: &patience,
    };
    let mut diagnosis = diagnose(&PreflightFacts::gather(&sources, None, answer));
    if !needs_libtorch {
        let why = "no trial of this experiment is computed by `kiln-trial`";
        diagnosis.checks.push(Check::skipped("libtorch", why));
    }
    if is_foreign {
        let why = "the program that `KILN_TRIAL` names does not know `--examine`; only its trials \
                   show whether it works";
        diagnosis.checks.push(Check::skipped("libtorch", why));
    }
    Ok(diagnosis)
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
    let mut checks = examine_cluster(slurm, &args.results, libtorch);
    let probed = match args.probe {
        true => probed(slurm, &checks, args),
        false => Ok(Vec::new()),
    };
    let stopped = probed.map(|found| checks.extend(found)).err();
    let can_run = checks
        .iter()
        .all(|check| check.state != CheckState::Problem);
    let diagnosis = Diagnosis {
        checks,
        can_run,
        subject: PreflightPlace::Cluster,
    };
    // The findings are shown, also if the probe was stopped.
    let status = concluded(&diagnosis, args.is_json())?;
    stopped.map_or(Ok(status), Err)
}

/// Submits the two jobs of a probe and returns their checks; skipped if Slurm would take no job.
fn probed(slurm: &Slurm, before: &[Check], args: &Args) -> Result<Vec<Check>, Stop> {
    let is_slurms = |check: &&Check| check.name.starts_with("slurm-");
    let mut slurms = before.iter().filter(is_slurms);
    if slurms.any(|check| check.state == CheckState::Problem) {
        let why = "Slurm would take no job; see the problems above";
        return Ok(vec![Check::skipped("probe-nodes", why)]);
    }
    let failed = |error: &dyn std::fmt::Display| Stop::new(Status::CannotRun, error.to_string());
    let program = copy_programs(&args.results, &trial_program()?, hash_of)
        .map_err(|error| failed(&format!("{}: {error}", args.results.display())))?;
    let is_stopped = stop_flag().map_err(|error| failed(&error))?;
    let probe = ClusterProbe {
        slurm,
        results: &args.results,
        program: &program,
        is_stopped: &is_stopped,
    };
    probe
        .run(&mut |text| note(text))
        .map_err(|stop| match stop {
            ProbeStop::Stopped => Stop::new(Status::Interrupted, stop),
            stop => failed(&stop),
        })
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
