//! Hardware readings on disk: `samples.csv`, `snapshots.csv`, the table of `kiln watch`, and the
//! masking of identities.

pub mod identity;
mod low_utilization;
pub mod samples;
pub mod snapshots;
pub mod watch;

pub use identity::{MASKED, Paths, Privacy};
pub use low_utilization::low_utilization;
pub use samples::SampleWriter;
pub use snapshots::SnapshotWriter;
