//! Rows of several programs in one table: a run kept trials of another run, and its own ran with
//! another program (`kiln run --keep RUN --across programs`). In: a table and `run.json`. Out: a
//! sentence.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{RunFile, TrialTable, run_file::Launch};
use crate::units::{listed, short_hash};

/// Most files that are named.
const MOST_FILES: usize = 3;
/// Most contents of one file that are named.
const MOST_CONTENTS: usize = 3;

/// Completed rows of launches with other files of a program than later ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsOfSeveralPrograms {
    /// Number of completed rows before a launch with other programs, and from it on.
    pub rows: [usize; 2],
    /// The first launch with the present programs, if it or a later one has a completed row.
    pub launch: u64,
    /// The files that differ, each with its hashes in the order of the launches that have these rows.
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
    let programs_from = run.kept_from.as_ref()?.programs_from?;
    let rows = table.last_attempts().into_iter();
    let completed = rows.filter(|row| row.fixed.is_completed());
    let of_rows: Vec<u64> = completed.map(|row| row.fixed.launch).collect();
    let with_rows: BTreeSet<u64> = of_rows.iter().copied().collect();
    let launches = run.launches.iter();
    let launches: Vec<&Launch> = launches
        .filter(|launch| with_rows.contains(&launch.launch))
        .collect();
    let counts = |first: u64| {
        let before = of_rows.iter().filter(|launch| **launch < first).count();
        [before, of_rows.len() - before]
    };
    let is_between = |first: &u64| counts(*first).iter().all(|rows| *rows > 0);
    let launch = Some(programs_from).filter(is_between);
    let launch = launch.or_else(|| first_other(&launches))?;
    Some(RowsOfSeveralPrograms {
        rows: counts(launch),
        launch,
        files: other_files(&launches),
    })
}

/// The first launch in which the content of a file is not that of the launches before.
fn first_other(launches: &[&Launch]) -> Option<u64> {
    let is_other = |count: &usize| !other_files(&launches[..*count]).is_empty();
    let count = (1..=launches.len()).find(is_other)?;
    Some(launches[count - 1].launch)
}

/// The files with several contents in these launches.
fn other_files(launches: &[&Launch]) -> Vec<String> {
    let mut contents: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let programs = launches.iter().flat_map(|launch| launch.programs.values());
    for (path, sha256) in programs.flat_map(|program| &program.files) {
        let (known, hash) = (
            contents.entry(path.as_str()).or_default(),
            short_hash(sha256),
        );
        if !known.contains(&hash) {
            known.push(hash);
        }
    }
    let differing = contents.iter().filter(|(_, hashes)| hashes.len() > 1);
    let files = differing.map(|(path, hashes)| {
        let named = &hashes[..hashes.len().min(MOST_CONTENTS)];
        let more = match hashes.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("`{path}`: {}{more}", named.join(", then "))
    });
    files.take(MOST_FILES).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        plan::Outcome,
        record::{TableRow, TrialRow},
    };

    fn run(programs_from: Option<u64>) -> RunFile {
        run_of(programs_from, &["5c", "91"])
    }

    /// A run whose launches had these contents of one file.
    fn run_of(programs_from: Option<u64>, contents: &[&str]) -> RunFile {
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
        let launches = (1_u64..).zip(contents);
        let launches = launches.map(|(number, content)| launch(number, &content.repeat(32)));
        let launches: Vec<_> = launches.collect();
        let whole = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [],
            "kept_from": {"run": "x/before", "trials": 1, "programs_from": programs_from},
            "launches": launches,
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

    #[test]
    fn every_program_of_a_row_is_named_and_none_that_no_row_ran_with() {
        let run = run_of(Some(4), &["5c", "91", "b0", "c4", "d3", "e2"]);
        let files = |launches: &[u64]| {
            let rows: Vec<(u64, Outcome)> = launches
                .iter()
                .map(|launch| (*launch, Outcome::Completed))
                .collect();
            let found = rows_of_several_programs(&table(&rows), &run)?;
            Some((found.launch, found.files.concat()))
        };
        let named = |hashes: &[&str]| {
            let hashes = hashes.iter().map(|hash| format!("{}…", hash.repeat(6)));
            format!("`train.py`: {}", hashes.collect::<Vec<_>>().join(", then "))
        };
        let three = named(&["5c", "91", "c4"]);
        assert_eq!(files(&[1, 2, 4]), Some((4, three.clone())));
        assert_eq!(files(&[1, 2]), Some((2, named(&["5c", "91"]))));
        assert_eq!(files(&[2]), None);
        assert_eq!(
            files(&[1, 2, 4, 5, 6]),
            Some((4, format!("{three} and 2 more")))
        );
    }
}
