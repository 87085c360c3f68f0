//! Reports: tables become a summary for people. All numbers come from tables.

mod chart;
pub mod compare;
mod findings;
mod html;
mod layout;
mod manual;
mod page;
mod points;
mod rates;
mod recommendation;
mod views;

pub mod diagnosis;
pub mod notices;
pub mod summary;

pub use diagnosis::diagnose;
pub use html::Album;
pub use layout::PageStyle;
pub use manual::manual;
pub use notices::notices;
pub use page::{Subject, json, markdown, text};
pub use recommendation::SearchScope;
pub use summary::summary;
