//! What it means: tables become a summary that people read. All numbers come from tables.

pub mod compare;
mod findings;
mod layout;
mod manual;
mod page;
mod points;
mod recommendation;

pub mod diagnosis;
pub mod notices;
pub mod summary;

pub use diagnosis::diagnose;
pub use layout::Style;
pub use manual::manual;
pub use notices::notices;
pub use page::{Subject, json, markdown, text};
pub use recommendation::Search;
pub use summary::summary;
