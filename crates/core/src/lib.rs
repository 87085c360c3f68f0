//! Types shared by kiln and its trials. Data flows one way: an experiment file (`spec`) becomes
//! trials (`plan`), and their results become rows and messages (`record`). Nothing here starts a
//! process, reads a data set or accesses a device. `folder` is how files of a run are written.

pub mod folder;

pub mod input;
pub mod kinds;
pub mod limits;
pub mod patience;
pub mod plan;
pub mod pretrained;
pub mod record;
pub mod spec;
pub mod statistics;

pub use kiln_units as units;
