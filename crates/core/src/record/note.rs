//! Notes: why a cell is empty or in doubt. Those that reports read again are types, each written
//! and read in its file alone, so that no rule depends on the words of another file.

mod checkpoint;
mod cuda_graph;
mod data;
mod model;
mod resume;
mod training;
mod window;

use std::collections::BTreeMap;

pub use self::{
    checkpoint::{ContinuedFrom, UnwrittenCheckpoint},
    cuda_graph::ReplayedSteps,
    data::UnknownTokens,
    model::OtherModel,
    resume::{OutOfJobTime, ResumedCommand},
    training::{LossRose, StoppedEarly},
    window::{BusyHost, MemoryGrowth},
};
use super::TrialRow;

impl TrialRow {
    /// The note on a column.
    pub fn note(&self, column: &str) -> Option<&str> {
        self.notes
            .as_deref()?
            .split("; ")
            .find_map(|note| note.strip_prefix(column)?.strip_prefix(": "))
    }
}

/// The name of the note of a row that `kiln run --read-again` made of the output of an earlier attempt.
pub const READ_AGAIN: &str = "read_again";

/// The name of the note of a completed trial that has no measured window, because a line of
/// `model.window` never came.
pub const MISSING_WINDOW: &str = "window";

/// The cell `notes`: `column: reason; …`, or empty. A `;` inside a reason becomes a comma, so that
/// the cell can be split.
pub fn notes_cell(notes: &BTreeMap<String, String>) -> Option<String> {
    let each = notes
        .iter()
        .map(|(column, reason)| format!("{column}: {}", reason.replace(';', ",")));
    (!notes.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
}

/// A row of which only its notes matter.
#[cfg(test)]
fn noted(notes: &[(&str, &str)]) -> TrialRow {
    let notes = notes
        .iter()
        .map(|(column, note)| ((*column).to_owned(), (*note).to_owned()))
        .collect();
    TrialRow {
        notes: notes_cell(&notes),
        ..TrialRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_can_be_split_again() {
        let row = noted(&[
            ("mfu", "no peak; run `kiln calibrate`"),
            ("steps", "killed"),
        ]);
        let text = "mfu: no peak, run `kiln calibrate`; steps: killed";
        assert_eq!(row.notes.as_deref(), Some(text));
        assert_eq!(
            (row.note("steps"), row.note("step")),
            (Some("killed"), None)
        );
        assert_eq!(notes_cell(&BTreeMap::new()), None);
    }
}
