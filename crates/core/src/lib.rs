//! Types shared by kiln and its trials. Data flows one way: an experiment file (`spec`) becomes
//! trials (`plan`), and their results become rows and messages (`record`). Nothing here starts a
//! process, reads a data set or accesses a device.

pub mod kinds;
pub mod plan;
pub mod record;
pub mod spec;
pub mod statistics;

pub use kiln_units as units;
