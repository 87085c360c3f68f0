//! A notice on commands that have no measured window.

use kiln_core::{
    record::{TrialRow, note::MISSING_WINDOW},
    units::counted,
};

use crate::report::points::Point;

/// Trials that completed although a line that begins or ends their window never came: nothing is
/// averaged over it.
pub(super) fn without_window(points: &[Point<'_>]) -> Option<String> {
    let rows = points.iter().flat_map(|point| point.rows.iter().copied());
    let all = rows.clone().count();
    let noted: Vec<(&TrialRow, &str)> = rows
        .filter_map(|row| Some((row, row.note(MISSING_WINDOW)?)))
        .collect();
    let (first, why) = noted.first()?;
    Some(format!(
        "{} of {} had no measured window (first: trial {}, {why}): their columns of the window, \
         such as `window_seconds` and the means of the hardware, are empty; only a new run with a \
         corrected `model.window` measures them",
        noted.len(),
        counted(all, "trial"),
        first.trial
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::{
        points,
        tests::{row, table},
    };

    #[test]
    fn trials_without_a_window_are_counted_with_the_reason_of_the_first() {
        let why = "`window.to` never came: 'end' matched none of 3 lines";
        let lacking = TrialRow {
            notes: Some(format!("mfu: no peak; window: {why}")),
            ..row(2, 10.0)
        };
        let said = |rows| without_window(&points(&table(&["model.values.n"], rows)));
        let measured = (row(1, 10.0), &["1"][..]);
        assert_eq!(said(vec![measured.clone()]), None);
        let told = said(vec![measured, (lacking, &["2"][..])]).unwrap();
        let beginning = "1 of 2 trials had no measured window (first: trial 0000000002, ";
        assert!(told.starts_with(&format!("{beginning}{why}): ")), "{told}");
    }
}
