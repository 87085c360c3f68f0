//! Collects the facts of a launch for `run.json`: code, programs, machine and environment, without
//! private data.

use std::{collections::BTreeMap, io, path::Path};

use kiln_core::record::{
    Check, ProgramRecord,
    programs::Git,
    run_file::{Anchor, Launch, Versions},
};
use serde_json::{Value, json};

use super::{instruments::Instruments, machine::machine_id};
use crate::git;

/// Environment variables that affect results; none holds a secret or a path.
const VARIABLES: [&str; 14] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
];

/// Collects the facts of a launch. `anchor` is the current time; `run_anchor_nanoseconds` is the
/// run's start on this boot's clock.
pub(super) fn gather(
    launch: u64,
    anchor: Anchor,
    run_anchor_nanoseconds: i64,
    sources: &FactSources,
) -> Launch {
    Launch {
        launch,
        anchor,
        run_anchor_nanoseconds,
        pid: std::process::id(),
        node: None,
        clock_ahead_seconds: None,
        slurm: None,
        command_line: sources.command_line.to_vec(),
        machine: sources.instruments.machine(),
        machine_id: machine_id(),
        host_id: sources.instruments.host_id(),
        devices: devices(sources.instruments),
        driver: sources.instruments.driver(),
        versions: versions(sources.trial_program, sources.sha256),
        libraries: BTreeMap::new(),
        flags: BTreeMap::new(),
        git: sources.git.clone(),
        programs: sources.programs.clone(),
        environment: environment(),
        data_sha256: sources.data.clone(),
        changed: BTreeMap::new(),
        preflight: sources.preflight.to_vec(),
        ended: None,
    }
}

/// Sources of a launch's facts.
pub(super) struct FactSources<'a> {
    pub(super) command_line: &'a [String],
    pub(super) data: &'a BTreeMap<String, String>,
    pub(super) trial_program: &'a Path,
    /// SHA-256 of a file, as hex.
    pub(super) sha256: fn(&Path) -> io::Result<String>,
    pub(super) git: &'a Option<Git>,
    /// The programs that are not kiln's own.
    pub(super) programs: &'a BTreeMap<String, ProgramRecord>,
    pub(super) instruments: &'a Instruments,
    /// The checks before this launch.
    pub(super) preflight: &'a [Check],
}

/// The commit of kiln's working directory; `None` outside a repository or without git. Files of
/// runs under `results` do not make the tree dirty.
pub(super) fn git(results: &Path) -> Option<Git> {
    let asked = git::stdout(&["rev-parse", "HEAD"]).ok()??;
    let all = ["status", "--porcelain", "--untracked-files=no", "--", ":/"];
    let but_results = format!(":(exclude){}", results.display());
    let changes = match git::stdout(&[all.as_slice(), &[&but_results]].concat()) {
        // A folder outside the repository cannot be named to git.
        Ok(None) => git::stdout(&all),
        // One that gives no answer is not asked again.
        answered => answered,
    };
    Some(Git {
        commit: String::from_utf8_lossy(&asked).trim().to_owned(),
        dirty: changes
            .ok()
            .flatten()
            .is_none_or(|changes| !changes.trim_ascii().is_empty()),
    })
}

fn devices(instruments: &Instruments) -> Value {
    match instruments.absence() {
        Some(absence) => json!({"none": absence}),
        None => {
            let unusable = instruments
                .unusable()
                .iter()
                .map(|(index, why)| json!({"index": index, "unusable": why}));
            instruments
                .devices()
                .iter()
                .map(|device| json!(device))
                .chain(unusable)
                .collect()
        }
    }
}

/// The programs here, with their hashes.
pub(super) fn versions(trial_program: &Path, sha256: fn(&Path) -> io::Result<String>) -> Versions {
    let own = std::env::current_exe().ok();
    Versions {
        kiln: env!("CARGO_PKG_VERSION").to_owned(),
        kiln_sha256: own.and_then(|path| sha256(&path).ok()),
        trial_program: trial_program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        trial_program_sha256: sha256(trial_program).ok(),
    }
}

/// The variables that affect results, as they are set here.
pub(super) fn environment() -> BTreeMap<String, String> {
    VARIABLES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}
