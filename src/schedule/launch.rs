//! Collects the facts of a launch for `run.json`: code, programs, machine and environment, without
//! private data.

use std::{collections::BTreeMap, ffi::OsString, io, path::Path};

use kiln_core::record::{
    Check, ProgramRecord,
    programs::Git,
    run_file::{Anchor, Launch, Versions},
};
use kiln_hardware::VISIBLE_DEVICES;
use serde_json::{Value, json};

use super::{instruments::Instruments, machine::machine_id};
use crate::git;

/// Environment variables that affect results. They are named one by one where others with the same
/// beginning hold a secret, an address or the name of a device of the node.
const VARIABLES: [&str; 33] = [
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    VISIBLE_DEVICES,
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    PRELOADED,
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TF_ENABLE_ONEDNN_OPTS",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "XLA_FLAGS",
];
/// Beginnings of the names of further ones: those of a library of the CPU.
const FAMILIES: [&str; 8] = [
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
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
        environment: recorded(environment()),
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
    let changes = git::stdout_but_for(results, &LIST_CHANGES);
    Some(state_of(&asked, changes))
}

/// Arguments with which git lists the changed files that it tracks.
pub(super) const LIST_CHANGES: [&str; 3] = ["status", "--porcelain", "--untracked-files=no"];

/// The state of a source tree, from the hash of its commit and the answer to [`LIST_CHANGES`]. Without
/// an answer the tree counts as dirty.
pub(super) fn state_of(commit: &[u8], changes: io::Result<Option<Vec<u8>>>) -> Git {
    Git {
        commit: String::from_utf8_lossy(commit).trim().to_owned(),
        dirty: changes
            .ok()
            .flatten()
            .is_none_or(|changes| !changes.trim_ascii().is_empty()),
    }
}

/// Says why git tells no commit of the repository around the working directory; `None` outside of
/// a repository, and in one without a commit.
pub(super) fn git_refusal() -> Option<String> {
    let here = std::env::current_dir().ok()?;
    let is_repository = |folder: &Path| folder.join(".git").exists();
    if !here.ancestors().any(is_repository) {
        return None;
    }
    let why = match git::ask(&["rev-parse", "--git-dir"]) {
        Ok(answer) if answer.is_success => return None,
        Ok(answer) => answer.stderr.lines().next().unwrap_or_default().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "no commit is recorded, because git does not tell it ({}); `git status` says what to do",
        why.trim_start_matches("fatal: ")
    ))
}

/// The commit, dirty as well where a file of a program is not in it.
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

/// The variables for a committed file: of absolute paths only the names of the files.
fn recorded(variables: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let recorded = variables.into_iter().map(|(name, value)| {
        let value = match name == PRELOADED {
            true => value.replace(' ', ":"),
            false => value,
        };
        (name, without_folders(&value))
    });
    recorded.collect()
}

fn without_folders(value: &str) -> String {
    let parts = value.split_inclusive([':', ';', ',', ' ', '=', '"', '\'']);
    let named = parts.map(|part| match part.starts_with('/') {
        true => part.rsplit('/').next().unwrap_or(part),
        false => part,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_decide_results_are_recorded_without_private_paths() {
        let set = [
            ("ATEN_CPU_CAPABILITY", "default"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ("OPENBLAS_CORETYPE", "Haswell"),
            ("MALLOC_CONF", "prof_prefix:/home/me/x,dirty_decay_ms:0"),
            (
                "LD_PRELOAD",
                "/home/me/lib/libjemalloc.so.2:/opt/libfast.so libfaketime.so",
            ),
            ("OMP_NUM_THREADS", "2"),
            ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
            (
                "XLA_FLAGS",
                "--xla_dump_to=\"/home/me/dump\" --xla_gpu_autotune_level=0",
            ),
            // Not of a family, and not for a file that others read.
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("HF_TOKEN", "secret"),
            ("NCCL_COMM_ID", "10.1.2.3:4444"),
            ("NCCL_SOCKET_IFNAME", "eth7"),
            ("PATH", "/bin"),
            ("PYTORCH_API_KEY", "secret"),
            ("TORCH_HOME", "/mnt/users/me/torch"),
            ("TORCH_HUB_TOKEN", "secret"),
        ];
        let set = set.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let recorded = recorded(telling(set.into_iter()));
        let expected = [
            ("ATEN_CPU_CAPABILITY", "default"),
            ("LD_PRELOAD", "libjemalloc.so.2:libfast.so:libfaketime.so"),
            ("MALLOC_CONF", "prof_prefix:x,dirty_decay_ms:0"),
            ("OMP_NUM_THREADS", "2"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ("OPENBLAS_CORETYPE", "Haswell"),
            ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
            (
                "XLA_FLAGS",
                "--xla_dump_to=\"dump\" --xla_gpu_autotune_level=0",
            ),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(recorded, BTreeMap::from(expected));
    }
}
