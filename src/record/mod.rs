//! What is kept: a struct is a table or a file, a field is a column or a key. Writing, reading and versions live here.

pub mod attempt;
pub mod message;
pub mod run_file;
pub mod run_folder;
pub mod run_folder_table;
pub mod trial_result;
pub mod trials;

pub use attempt::AttemptFile;
pub use message::Message;
pub use run_file::RunFile;
pub use run_folder::RunFolder;
pub use run_folder_table::{TableRow, TrialsTable};
pub use trial_result::TrialResult;
pub use trials::TrialRow;
