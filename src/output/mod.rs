//! The writers, one per medium: terminal, Markdown, HTML, JSON and printed CSV, tables and bars.
//!
//! In come pages of kiln's own words and values from files, children, devices and the environment;
//! out comes text in which a value is only a value. A value stays on its line: `without_controls`,
//! or a writer that takes one line or one cell. The last step cannot be left out: `terminal` alone
//! may touch the standard streams, `bars` indicatif and `table` comfy-table (`clippy.toml`).

pub mod bars;
pub mod csv;
pub mod frame;
pub mod html;
pub mod json;
pub mod markdown;
pub mod table;
pub mod terminal;
