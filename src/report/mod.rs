//! What it means: tables become a summary that people read. All numbers come from tables.

mod findings;
mod manual;
mod page;
mod points;

pub mod diagnosis;
pub mod notices;
pub mod summary;

pub use diagnosis::diagnose;
pub use manual::manual;
pub use notices::notices;
pub use page::{Subject, json, markdown, text};
pub use summary::{Style, summary};
