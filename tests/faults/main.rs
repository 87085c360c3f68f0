//! The fault suite: kiln under failing calls, kills, power cuts, full disks, signals, files that
//! others replace, hostile children and wrong clocks. `make test-faults` runs it.
//!
//! Every case ends with the same conditions (`ends`): no finished row is lost, doubled or changed;
//! the same command resumes the run to its end; losses are those of an undisturbed run, to the bit;
//! nothing is left behind or touched outside the run; the exit status is true.
//!
//! The short form takes at most five minutes on two cores. `KILN_FAULTS=long` runs every case and
//! takes hours. `KILN_FAULTS_ONLY=TEXT` runs only the cases whose name contains the text, and
//! `KILN_FAULTS_KEEP=1` keeps the folder of a case that failed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the figures of a test that passes are for the one who runs it"
)]

mod ends;
mod figures;
mod form;
mod interposer;
mod listing;
mod pool;
mod rows;
mod scene;
mod undisturbed;

mod calls;
mod clocks;
mod disks;
mod hostile;
mod kept;
mod kills;
mod links;
mod many;
mod power;
mod replaced;
mod signals;
mod soak;
