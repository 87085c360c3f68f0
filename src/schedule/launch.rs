//! Collects the facts of a launch for `run.json`: code, programs, machine and environment, without
//! private data.

use std::{collections::BTreeMap, ffi::OsString, io, path::Path};

use kiln_core::record::{
    Check, ProgramRecord,
    programs::Git,
    run_file::{Anchor, Launch, Versions},
};
use serde_json::{Value, json};

use super::{instruments::Instruments, machine::machine_id};
use crate::{
    git,
    readings::{Paths, Privacy},
};

/// Environment variables that affect results; none holds a secret.
const VARIABLES: [&str; 9] = [
    "ATEN_CPU_CAPABILITY",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    PRELOADED,
    "NVIDIA_TF32_OVERRIDE",
    "XLA_FLAGS",
];
/// Beginnings of the names of further ones: those of a library or of an allocator.
const FAMILIES: [&str; 13] = [
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH_",
];
/// The libraries that every program loads first.
pub(super) const PRELOADED: &str = "LD_PRELOAD";

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
        environment: recorded(environment(), &Paths::here(sources.privacy)),
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
    pub(super) privacy: Privacy,
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

/// The same, dirty as well where a file of a program is not in the commit.
pub(super) fn with_programs(
    git: Option<Git>,
    programs: &BTreeMap<String, ProgramRecord>,
) -> Option<Git> {
    let git = git?;
    let mut repositories = programs
        .values()
        .flat_map(|program| program.repositories.values());
    let dirty = git.dirty || repositories.any(|one| one.dirty && one.commit == git.commit);
    Some(Git { dirty, ..git })
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
    telling(std::env::vars_os())
}

fn telling(set: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let is_telling = |name: &str| {
        VARIABLES.contains(&name) || FAMILIES.iter().any(|begin| name.starts_with(begin))
    };
    set.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| is_telling(name))
        .collect()
}

/// The variables for a committed file: without the user's folders, and of preloaded libraries only
/// the names.
fn recorded(variables: BTreeMap<String, String>, paths: &Paths) -> BTreeMap<String, String> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let mut recorded = BTreeMap::new();
    for (name, value) in variables {
        let shown = if name == PRELOADED {
            let libraries = value.split([':', ' ']).filter(|path| !path.is_empty());
            libraries.map(file_name).collect::<Vec<_>>().join(":")
        } else {
            paths.hide(&value)
        };
        recorded.insert(name, shown);
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_decide_results_are_recorded_without_private_paths() {
        let home = std::env::var("HOME").unwrap_or_default();
        let log = format!("{home}/nccl.log");
        let set = [
            ("ATEN_CPU_CAPABILITY", "default"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ("OPENBLAS_CORETYPE", "Haswell"),
            ("MALLOC_ARENA_MAX", "1"),
            ("NCCL_DEBUG_FILE", log.as_str()),
            (
                "LD_PRELOAD",
                "/home/me/lib/libjemalloc.so.2:/opt/libfast.so libfaketime.so",
            ),
            ("OMP_NUM_THREADS", "2"),
            // Not of a family, and not for a file that others read.
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("HF_TOKEN", "secret"),
            ("PATH", "/bin"),
        ];
        let set = set.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let paths = Paths::here(Privacy::Masked);
        let recorded = recorded(telling(set.into_iter()), &paths);
        let expected = [
            ("ATEN_CPU_CAPABILITY", "default".to_owned()),
            (
                "LD_PRELOAD",
                "libjemalloc.so.2:libfast.so:libfaketime.so".to_owned(),
            ),
            ("MALLOC_ARENA_MAX", "1".to_owned()),
            ("NCCL_DEBUG_FILE", paths.hide(&log)),
            ("OMP_NUM_THREADS", "2".to_owned()),
            ("ONEDNN_MAX_CPU_ISA", "AVX2".to_owned()),
            ("OPENBLAS_CORETYPE", "Haswell".to_owned()),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(recorded, BTreeMap::from(expected));
    }
}
