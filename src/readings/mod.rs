//! Hardware readings on disk: `samples.csv`, `snapshots.csv`, the state that `kiln watch` reads, and what of a person or a board is left out of them.

pub mod identity;
pub mod samples;
pub mod snapshots;
pub mod watch;

pub use identity::{Paths, Privacy};
pub use samples::{SampleRow, SampleWriter};
pub use snapshots::{Moment, SnapshotRow, SnapshotWriter};
