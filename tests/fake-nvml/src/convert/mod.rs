//! Makes scenarios of what `nvidia-smi` printed on a real machine: `-q` text, `-q -x` XML, or a full capture with both moments and
//! the `--query-gpu` table. Comes in text, goes out a scenario of calls and raw values.
//!
//! `text`, `xml` and `csv` read into one tree of labels (`page`); `invert` turns labels into calls. Neither looks at a board's name:
//! every rule follows from a label and its cell.

mod csv;
mod invert;
mod page;
mod rules;
mod text;
mod words;
mod xml;

use crate::Scenario;

pub use page::{Node, Page};

/// Which of a full capture's two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    Idle,
    #[default]
    Load,
}

/// Whose word counts where the text and the table, taken one after the other, differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    #[default]
    Text,
    Table,
}

/// Why something is no capture.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("neither `nvidia-smi -q` text nor `-q -x` XML: no line with `NVSMI LOG` and no `<nvidia_smi_log>`")]
    Unknown,
    #[error("the XML cannot be read: {0}")]
    Xml(#[from] roxmltree::Error),
    #[error("no GPU block is in it")]
    NoGpu,
}

/// A `--query-gpu` table: properties, without their units, and a row per GPU.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub properties: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The table's first line as it was printed.
    pub header: String,
}

/// The page of labels in a capture.
///
/// # Errors
/// Where the text is neither of the known forms.
pub fn page(capture: &str, moment: Moment) -> Result<Page, ConvertError> {
    let page = if let Some(start) = capture.find("<nvidia_smi_log") {
        xml::read(capture.get(start..).unwrap_or_default())?
    } else {
        text::read(text::log_of(capture, moment).ok_or(ConvertError::Unknown)?)
    };
    if page.gpus.is_empty() { Err(ConvertError::NoGpu) } else { Ok(page) }
}

/// The lines of `-q` text in a capture, from the timestamp on; `None` for XML.
#[must_use]
pub fn log(capture: &str, moment: Moment) -> Option<Vec<&str>> {
    text::log_of(capture, moment).map(|log| log.lines().collect())
}

/// The table of a full capture.
#[must_use]
pub fn table(capture: &str, moment: Moment) -> Option<Table> {
    csv::table(capture, moment)
}

/// The scenario behind a capture.
///
/// # Errors
/// As [`page`].
pub fn scenario(capture: &str, moment: Moment, prefer: Prefer) -> Result<Scenario, ConvertError> {
    let mut page = page(capture, moment)?;
    if let Some(table) = csv::table(capture, moment) {
        csv::lay_over(&mut page, &table, prefer);
    }
    Ok(invert::scenario(&page))
}
