//! The step: forward, backward, accumulation, update, and the batches it takes.

mod batch;
mod learner;
mod optimizer;

pub use batch::{DeviceBatch, HostBatch};
pub use learner::Learner;
pub use optimizer::NamedValues;
