//! What it means: tables become a summary that people read. All numbers come from tables.

mod points;

pub mod notices;
pub mod summary;

pub use notices::notices;
pub use summary::{Style, summary};
