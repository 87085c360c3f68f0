//! Hardware readings on disk: `samples.csv`, `snapshots.csv`, the table of `kiln watch`, and the
//! masking of identities.

pub mod identity;
pub mod samples;
pub mod snapshots;
pub mod watch;

pub use identity::{Paths, Privacy};
pub use samples::SampleWriter;
pub use snapshots::SnapshotWriter;
