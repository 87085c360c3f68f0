//! The plan: an experiment becomes an ordered list of trials with stable ids. No clock, no disk, no
//! GPU.
//!
//! In: an [`Experiment`](crate::spec::Experiment) and the facts of its data. Out: a [`Plan`], or
//! every [`PlanProblem`] at once. If `sweep.search` defines a search, a [`search::Strategy`]
//! selects the next trial, and a [`Prober`] creates it.

mod blocks;
mod canonical;
mod condition;
mod defaults;
mod demand;
mod differing;
mod disk;
mod expand;
#[cfg(test)]
mod fixed_point_tests;
mod id;
mod length;
mod memory;
mod metric_files;
mod order;
mod origin;
mod outcome;
mod point;
mod points;
mod prober;
mod problem;
pub mod search;
mod settings;
mod tickets;
mod trial;
mod trial_file;
mod twins;

pub(crate) use canonical::canonical;
pub use demand::{DemandKind, DemandSize, MemoryDemand};
pub use differing::differs_from_defaults;
pub use disk::expected_disk_bytes;
pub use expand::{Plan, expand};
pub use length::TrainingLength;
pub use memory::{is_untold_lack_of_gpu_memory, speaks_of_memory, without_rank};
pub use metric_files::{SharedMetricFile, shared_metric_file};
pub use origin::Origin;
pub use outcome::Outcome;
pub use prober::Prober;
pub use problem::{PlanProblem, show};
pub(crate) use settings::is_changed_by;
pub use tickets::tickets;
pub use trial::{Trial, TrialId};
pub use trial_file::{ChildDevice, TRIAL_FILE, TrialFile, child_data, child_train};
