//! Slurm as one way to start workers, and as one more witness of what became of them.
//!
//! In: a run with a queue, and what its workers ask for (`run.slurm`). Out: job arrays whose tasks
//! are workers, and a [`Fate`] for each worker that ended without a last word. What a worker does is
//! the same everywhere; see [`worker`](super::worker).

mod allocation;
mod cancel;
mod client;
mod examine;
mod fleet;
mod job;
mod look;
mod probe;
mod states;
mod submit;

pub use self::{
    allocation::{Allocation, visible_in_job},
    cancel::cancel,
    examine::examine,
    probe::{ClusterProbe, ProbeStop, take_part},
    submit::{SlurmRun, SlurmSubmitted, submit_workers},
};
pub(super) use self::{
    fleet::{Fleet, RowsSeen, WorkerSeen},
    look::{SlurmSays, Word},
    states::{Fate, TaskId},
};
