//! Rows of several programs in one table: a run kept trials of another run, and its own ran with
//! another program (`kiln run --keep RUN --across programs`). In: a table and `run.json`. Out: a
//! sentence.

use std::{collections::BTreeMap, fmt};

use super::{RunFile, TrialTable, run_file::Launch};
use crate::{
    plan::Outcome,
    units::{listed, short_hash},
};

/// Most files that are named.
const MOST_FILES: usize = 3;

/// Completed rows of launches with other files of a program than later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsOfSeveralPrograms {
    /// Number of completed rows before the first launch with the programs of now, and from it on.
    pub rows: [usize; 2],
    /// That launch.
    pub launch: u64,
    /// The files that differ, each with its hashes before and after.
    pub files: Vec<String>,
}

impl fmt::Display for RowsOfSeveralPrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows: [before, after],
            launch,
            files,
        } = self;
        let of = match files.as_slice() {
            [] => String::new(),
            files => format!(" ({})", listed(files, "; ")),
        };
        write!(
            formatter,
            "completed rows are of several programs{of}: {before} of the launches before {launch}, \
             {after} from it on; differences between them may come from the program; `kiln run FILE \
             --fresh` runs all trials with one"
        )
    }
}

/// The completed rows of several programs; `None` if all are of one.
pub fn rows_of_several_programs(
    table: &TrialTable,
    run: &RunFile,
) -> Option<RowsOfSeveralPrograms> {
    let launch = run.kept_from.as_ref()?.programs_from?;
    let completed = || {
        let rows = table.last_attempts().into_iter();
        rows.filter(|row| row.fixed.outcome == Outcome::Completed)
    };
    let before = completed().filter(|row| row.fixed.launch < launch).count();
    let after = completed().count() - before;
    (before > 0 && after > 0).then(|| RowsOfSeveralPrograms {
        rows: [before, after],
        launch,
        files: other_files(&run.launches, launch),
    })
}

/// The files whose content has changed with this launch.
fn other_files(launches: &[Launch], first: u64) -> Vec<String> {
    let (after, before): (Vec<&Launch>, Vec<&Launch>) =
        launches.iter().partition(|launch| launch.launch >= first);
    let (before, after) = (files_of(&before), files_of(&after));
    let differing = before.iter().filter_map(|(path, then)| {
        let now = after.get(path).filter(|now| *now != then)?;
        Some(format!(
            "`{path}`: {}, then {}",
            short_hash(then),
            short_hash(now)
        ))
    });
    differing.take(MOST_FILES).collect()
}

/// The files of the programs of launches; of several launches the last one counts.
fn files_of<'a>(launches: &[&'a Launch]) -> BTreeMap<&'a str, &'a str> {
    let programs = launches.iter().flat_map(|launch| launch.programs.values());
    let files = programs.flat_map(|program| &program.files);
    files
        .map(|(path, sha256)| (path.as_str(), sha256.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::{TableRow, TrialRow};

    fn run(programs_from: Option<u64>) -> RunFile {
        let launch = |number: u64, sum: &str| {
            json!({
                "launch": number, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
                "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": null,
                "devices": null, "environment": {},
                "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                             "trial_program_sha256": null},
                "programs": {"model": {"program": ["train.py"], "files": {"train.py": sum}}},
            })
        };
        let sums = ["5c".repeat(32), "91".repeat(32)];
        let whole = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [],
            "kept_from": {"run": "x/before", "trials": 1, "programs_from": programs_from},
            "launches": [launch(1, &sums[0]), launch(2, &sums[1])],
        });
        serde_json::from_value(whole).unwrap()
    }

    /// Rows of these launches.
    fn table(launches: &[(u64, Outcome)]) -> TrialTable {
        let rows = launches.iter().enumerate().map(|(at, (launch, outcome))| {
            let row = TrialRow {
                trial: crate::plan::TrialId(format!("t{at}")),
                attempt: 1,
                launch: *launch,
                outcome: *outcome,
                ..TrialRow::default()
            };
            TableRow::new(row, &[])
        });
        TrialTable {
            rows: rows.collect(),
            ..TrialTable::default()
        }
    }

    #[test]
    fn rows_of_two_programs_are_told_with_the_files_that_changed() {
        let both = table(&[
            (1, Outcome::Completed),
            (1, Outcome::Completed),
            (2, Outcome::Completed),
        ]);
        let found = rows_of_several_programs(&both, &run(Some(2))).unwrap();
        assert_eq!((found.rows, found.launch), ([2, 1], 2));
        let told = found.to_string();
        assert!(told.contains("`train.py`: 5c5c5c5c5c5c"), "{told}");
        assert!(told.contains("then 919191919191"), "{told}");
        assert_eq!(rows_of_several_programs(&both, &run(None)), None);
        let old = table(&[(1, Outcome::Completed), (2, Outcome::Failed)]);
        assert_eq!(rows_of_several_programs(&old, &run(Some(2))), None);
    }
}
