//! A run as its files tell it, while it goes on: `kiln watch RUN`.
//!
//! In come the files of a run's folder, which another process, perhaps on another machine, writes. Out
//! comes the state of the run, and its page. Only what was added to a file since the last look is read,
//! nothing is written, and of a long table only a bounded part is kept. A file that is missing, torn or
//! damaged leaves out what it would tell.

mod attempt;
mod curve;
mod launch_tables;
mod life;
mod page;
mod run;
mod table;

pub use life::Life;
pub use page::{how_to_go_on, page};
pub use run::{RunFollower, RunState, RunningTrial};
