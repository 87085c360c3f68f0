//! What is kept: a struct is a table or a file, a field is a column or a key. Writing, reading and versions live here.

pub mod epochs;
pub mod message;
pub mod peaks;
pub mod steps;
pub mod trial_result;
pub mod trials;

pub use epochs::EpochRow;
pub use message::Message;
pub use steps::StepRow;
pub use trial_result::TrialResult;
pub use trials::TrialRow;
