//! `trials.csv`: one row per ended attempt; a struct is the table, a field is a column.

use serde::{Deserialize, Serialize};

use crate::plan::{Outcome, TrialId};

/// Version of the table, in every row.
pub const TRIALS_TABLE: &str = "trials/1";

/// The fixed columns, in this order; the axes follow, one column each, named by their dotted keys. An unknown value is an
/// empty cell. Units are in the names; fractions are of 1; `docs/tables.md` says what each means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRow {
    pub kiln_table: String,
    pub trial: TrialId,
    pub attempt: u64,
    pub launch: u64,
    pub number: u64,
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub started_utc: Option<String>,
    pub trial_seconds: Option<f64>,
    pub model_kind: String,
    pub data_kind: String,
    pub engine: String,
    pub device_name: Option<String>,
    pub device_uuid: Option<String>,
    pub driver: Option<String>,
    pub libtorch: Option<String>,
    pub precision: String,
    pub batch_size: u64,
    pub grad_accumulation: u64,
    pub effective_batch_size: u64,
    pub num_workers: Option<u64>,
    pub seed: u64,
    pub parameters: Option<u64>,
    pub flops_per_sample: Option<u64>,
    pub steps: Option<u64>,
    pub window_seconds: Option<f64>,
    pub left_out_steps: Option<u64>,
    pub samples_per_second: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub median_step_seconds: Option<f64>,
    pub epoch_seconds: Option<f64>,
    pub data_wait_fraction: Option<f64>,
    pub load_seconds: Option<f64>,
    pub transfer_fraction: Option<f64>,
    pub evaluation_seconds: Option<f64>,
    pub checkpoint_seconds: Option<f64>,
    pub train_loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub seconds_to_target: Option<f64>,
    pub mfu: Option<f64>,
    pub peak_flops: Option<f64>,
    pub peak_source: Option<String>,
    pub peak_allocated_bytes: Option<u64>,
    pub peak_reserved_bytes: Option<u64>,
    pub peak_nvml_used_bytes: Option<u64>,
    pub peak_resident_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub mean_gpu_utilization: Option<f64>,
    pub mean_sm_active: Option<f64>,
    pub mean_power_watts: Option<f64>,
    pub energy_counter_joules: Option<f64>,
    pub energy_integral_joules: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    pub throttled_fraction: Option<f64>,
    pub throttle_reasons: Option<String>,
    pub foreign_processes: Option<String>,
    pub concurrent_trials: u64,
    pub cpu_threads: Option<u64>,
    pub resumed_at_step: Option<u64>,
    pub fallback_of: Option<TrialId>,
    /// `column: reason; …` for empty cells a reader would ask about.
    pub notes: Option<String>,
}
