//! The stored records: a struct is a table or a file, a field is a column or a key. Writing,
//! reading and versions.

pub mod attempt;
pub mod checkpoint;
pub mod collect;
pub mod columns;
pub mod command_line;
pub mod command_options;
pub mod continuation;
pub mod course;
mod datasheet;
pub mod difference;
pub mod disturbance;
pub mod epochs;
pub mod examination;
mod fixed_setting;
pub mod launch_folder;
pub mod layers;
pub mod libraries;
pub mod lock;
pub mod machine_traces;
pub mod message;
pub mod metric_reason;
pub mod model_use;
pub mod nodes;
pub mod note;
pub mod other_machine;
pub mod peaks;
mod planned_values;
pub mod preflight;
pub mod programs;
pub mod redefined;
pub mod run_file;
pub mod run_folder;
pub mod samples;
pub mod several_programs;
pub mod snapshots;
pub mod steps;
pub mod submission;
pub mod table;
pub mod tables;
pub mod tickets;
pub mod trial_file;
pub mod trial_reason;
pub mod trial_result;
pub mod trial_row;
pub mod trial_store;
pub mod trials;
pub mod unplanned;

pub use attempt::AttemptFile;
pub use checkpoint::Checkpoints;
pub use collect::CollectedRows;
pub use continuation::{ContinuedSettings, TrainingSettings};
pub use course::Course;
pub use epochs::EpochRow;
pub use examination::Finding;
pub use launch_folder::{Heartbeat, LaunchFile, LaunchProcess};
pub use layers::LayerRow;
pub use message::Message;
pub use planned_values::PlannedValues;
pub use preflight::{Check, CheckState};
pub use programs::{Interpreter, PackageList, ProgramRecord};
pub use run_file::RunFile;
pub use run_folder::{BETWEEN_TEXTS, RESPONSES, RunFolder, SAMPLE_TEXTS};
pub use samples::SampleRow;
pub use snapshots::{GONE, SnapshotMoment, SnapshotRow, at_last_launch};
pub use steps::StepRow;
pub use submission::Submission;
pub use table::{Table, TableError, TableWriter, TornLine};
pub use tickets::{
    NewTicket, StopAsked, Ticket, TicketContent, TicketCounts, TicketEntry, TicketQueue,
    TicketState,
};
pub use trial_result::{TrialResult, impossible_in};
pub use trial_row::{TrialFacts, TrialFigures, TrialRow};
pub use trial_store::{AttemptEnd, CutOff, StoreError, TableChange, TrialStore};
pub use trials::{DEVICE_SEPARATOR, TableRow, TrialTable, TrialWriter};
