//! What kiln and its trials agree on. Data flows one way: an experiment file (`spec`) becomes trials (`plan`), and what each left becomes rows and
//! messages (`record`). Nothing here starts a process, reads a data set or asks a device.

pub mod kinds;
pub mod plan;
pub mod record;
pub mod spec;
pub mod statistics;

pub use kiln_units as units;
