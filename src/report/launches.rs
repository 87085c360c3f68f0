//! Tells the launches of rows apart. Rows of several runs that somebody joined to one table have launches
//! of one number, and runs that began at different times.

use kiln_core::record::TrialRow;

/// Most time between the starts of one run as its rows tell them, in s: its clock may be corrected.
const CORRECTED_SECONDS: f64 = 60.0;

/// The runs that rows are of.
#[derive(Debug)]
pub(super) struct Launches {
    /// When each run but the first one began, in s since 1970.
    later: Vec<f64>,
}

impl Launches {
    pub(super) fn of<'a>(rows: impl IntoIterator<Item = &'a TrialRow>) -> Self {
        let mut starts: Vec<f64> = rows.into_iter().filter_map(start_of_run).collect();
        starts.sort_by(f64::total_cmp);
        let is_apart = |pair: &&[f64]| pair[1] - pair[0] > CORRECTED_SECONDS;
        let later = starts.windows(2).filter(is_apart).map(|pair| pair[1]);
        Self {
            later: later.collect(),
        }
    }

    /// A number for the launch of a row, that of the launch itself in the first run. A run has fewer than
    /// 65536 launches.
    pub(super) fn number(&self, row: &TrialRow) -> u64 {
        let run = start_of_run(row).map_or(0, |start| {
            self.later.partition_point(|later| *later <= start)
        });
        row.launch ^ ((run as u64) << 16)
    }
}

/// When the run of a row began, in s since 1970; `None` if the row does not tell.
fn start_of_run(row: &TrialRow) -> Option<f64> {
    let start = row.started_seconds()? - row.run_seconds?;
    start.is_finite().then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of a launch that started so many seconds after midnight, and after its run.
    fn row(launch: u64, started: u64, run_seconds: f64) -> TrialRow {
        let (minutes, seconds) = (started / 60, started % 60);
        TrialRow {
            launch,
            started_utc: Some(format!("2026-07-01T00:{minutes:02}:{seconds:02}Z")),
            run_seconds: Some(run_seconds),
            ..TrialRow::default()
        }
    }

    #[test]
    fn a_launch_is_that_of_its_run() {
        let rows = [
            row(1, 40, 10.4),
            row(1, 90, 59.6),
            row(2, 300, 270.0),
            row(1, 1810, 10.0),
            row(1, 1900, 100.0),
            TrialRow {
                launch: 1,
                ..TrialRow::default()
            },
        ];
        let launches = Launches::of(&rows);
        let numbers: Vec<u64> = rows.iter().map(|row| launches.number(row)).collect();
        // The two starts of the first run, 29.6 and 30.4 s after midnight, are of different minutes when
        // rounded.
        assert_eq!(numbers[..3], [1, 1, 2]);
        assert_eq!(numbers[3], numbers[4]);
        assert!(!numbers[..3].contains(&numbers[3]));
        assert_eq!(numbers[5], 1, "a row without times is of the first run");
    }
}
