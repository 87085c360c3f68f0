//! Writes `summary.csv`, a row per point, beside the `trials.csv` of a run. In: the rows as they were
//! read, and how they are read again. What an error means is left to the commands.

use std::io;

use kiln_core::{
    input,
    limits::RESULT_BYTES,
    record::{RunFolder, TrialTable},
    spec,
};

use crate::report;

/// Writes the `summary.csv` of a run; returns whether it was not up to date.
///
/// Another process may have added rows since those of `text` were read, and have written its own summary
/// before. So the rows are read again until the summary is of all of them; `None` if they cannot be
/// read now. A text and no table is taken, so that only one table is in memory.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_point_table(
    run: &RunFolder,
    mut text: String,
    objective: Option<spec::Objective>,
    read_again: &dyn Fn() -> Option<TrialTable>,
) -> io::Result<bool> {
    let path = run.summary_table();
    let is_there =
        |text: &str| input::read(&path, &RESULT_BYTES).is_ok_and(|old| old == text.as_bytes());
    let mut is_written = false;
    loop {
        if !is_there(&text) {
            run.write_among_others(&path, text.as_bytes())?;
            is_written = true;
        }
        let newer = read_again().map(|now| report::point_table(&now, objective));
        match newer.filter(|newer| *newer != text) {
            Some(newer) => text = newer,
            None => return Ok(is_written),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::{
        plan::{Outcome, TrialId},
        record::{TableRow, TrialRow},
    };

    use super::*;

    fn table(rows: u64) -> TrialTable {
        let row = |number: u64| {
            let fixed = TrialRow {
                trial: TrialId(format!("t{number}")),
                attempt: 1,
                outcome: Outcome::Completed,
                ..TrialRow::default()
            };
            TableRow::new(fixed, &[])
        };
        TrialTable {
            rows: (1..=rows).map(row).collect(),
            ..TrialTable::default()
        }
    }

    #[test]
    fn rows_that_another_launch_added_meanwhile_are_in_the_summary_that_stays() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path().canonicalize().unwrap());
        let [one, two] = [1, 2].map(|rows| report::point_table(&table(rows), None));
        assert_ne!(one, two);
        let written = || fs::read_to_string(run.summary_table()).unwrap();
        let write = |rows: u64, now: Option<u64>| {
            let text = report::point_table(&table(rows), None);
            write_point_table(&run, text, None, &|| now.map(table)).unwrap()
        };
        assert!(write(1, None));
        assert_eq!(written(), one);
        assert!(write(1, Some(2)));
        assert_eq!(written(), two);
        assert!(!write(2, Some(2)), "it is up to date");
    }
}
