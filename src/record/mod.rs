//! What is kept: a struct is a table or a file, a field is a column or a key. Writing, reading and versions live here.

pub mod message;
pub mod peaks;
pub mod trial_result;
pub mod trials;

pub use message::Message;
pub use trial_result::TrialResult;
pub use trials::TrialRow;
