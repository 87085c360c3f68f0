//! What will run: an experiment becomes an ordered list of trials with stable ids. No clock, no disk, no GPU.

mod outcome;
mod trial;
mod trial_file;

pub use outcome::Outcome;
pub use trial::{Trial, TrialId};
pub use trial_file::{ChildDevice, TRIAL_FILE, TrialFile, child_data};
