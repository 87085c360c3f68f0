//! `trial.yaml`: the complete input of a child. The parent writes it, the child reads it; besides
//! it only messages pass between them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Origin, TrialId};
use crate::{
    kinds::{Data, Model, data::NumWorkers},
    spec::{CpuThreads, Engine, Measure, Train, expand_home},
};

/// Version of the file.
pub const TRIAL_FILE: u32 = 1;

/// The input of a child: `trial.yaml`, with every default filled in and every `auto` resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialFile {
    /// Format version, [`TRIAL_FILE`].
    pub kiln_trial: u32,
    pub trial: TrialId,
    pub attempt: u64,
    pub model: Model,
    /// `num_workers` is a number here; paths are absolute or absent.
    pub data: Data,
    /// `cpu_threads` is a number here; the path of `initial_weights` is absolute.
    pub train: Train,
    pub measure: Measure,
    pub engine: Engine,
    pub device: ChildDevice,
    /// Devices that share each step's batch; each processes `batch_size` examples at a time.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub devices_per_trial: u64,
    /// `$KILN_DATA`, absolute, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_folder: Option<PathBuf>,
    /// The attempt's folder, absolute: the trial's tables and trial.json are written here.
    pub folder: PathBuf,
    /// Folder of the trial's checkpoints, absolute; the trial resumes from the newest one in it.
    /// Present if `train.checkpoint` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_folder: Option<PathBuf>,
    /// The checkpoint of another trial that the training begins with where it has none of its own;
    /// its run's folder is absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The run's start mark on CLOCK_MONOTONIC of this boot, in nanoseconds; may be negative for a
    /// run resumed after a reboot.
    pub run_anchor_nanoseconds: i64,
}

impl TrialFile {
    /// Batches in one optimizer step: batch × accumulation × devices examples.
    pub fn batches_per_step(&self) -> u64 {
        self.train
            .grad_accumulation
            .saturating_mul(self.devices_per_trial)
    }
}

fn one() -> u64 {
    1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(count: &u64) -> bool {
    *count == 1
}

/// The `data` section for a child: the number of workers resolved for this many cores, relative
/// paths resolved against `directory`.
pub fn child_data(data: &Data, cores: u64, directory: &Path) -> Data {
    let mut data = data.clone();
    if let Some(loader) = data.loader_mut() {
        loader.num_workers = NumWorkers::Count(loader.num_workers.resolve(cores));
    }
    for path in data.paths_mut() {
        *path = directory
            .join(expand_home(path))
            .to_string_lossy()
            .into_owned();
    }
    data
}

/// The `train` section for a child: the number of threads resolved for this many cores, a relative
/// path resolved against `directory`, and the checkpoint that is kept decided.
pub fn child_train(train: &Train, data: &Data, cores: u64, directory: &Path) -> Train {
    let mut train = train.clone();
    if let Some(checkpoint) = &mut train.checkpoint {
        checkpoint.after = checkpoint
            .after
            .resolved(data.without_validation().is_none());
    }
    train.cpu_threads = CpuThreads::Count(train.cpu_threads.resolve(cores));
    train.cuda_graph = train.cuda_graph.resolved();
    if let Some(weights) = &mut train.initial_weights {
        weights.path = directory
            .join(expand_home(&weights.path))
            .to_string_lossy()
            .into_owned();
    }
    train
}

/// The compute device of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChildDevice {
    Cpu,
    /// The CUDA devices that `CUDA_VISIBLE_DEVICES` leaves visible: as many as share a step's
    /// batch.
    Cuda,
}
