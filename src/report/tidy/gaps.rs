//! Words for the steps and evaluations of a run that its table lacks, or that are not of the last
//! attempt.

use kiln_core::{plan::TrialId, units::few};

/// Most ids that a sentence lists.
const MOST_LISTED: usize = 10;

/// The gaps in the series of a run.
#[derive(Default)]
pub(super) struct Gaps {
    /// Trials that ran.
    pub(super) count: usize,
    /// Number of trials of which no table is here.
    pub(super) missing: usize,
    /// Trials whose first row is not of the first step.
    pub(super) without_beginning: Vec<TrialId>,
    /// Trials whose last attempt ended before its first step, with the attempt that the rows are of.
    pub(super) without_step: Vec<(TrialId, u64)>,
}

impl Gaps {
    /// A sentence for each kind of gap. `file` is the name of the table, `rows` are of that kind.
    pub(super) fn in_words(&self, run: &str, file: &str, rows: &str) -> Vec<String> {
        let missing = (self.missing > 0).then(|| {
            format!(
                "{run}: `{file}` of {} of {} trials is not here, so their {rows} are not in the \
                 table; it is not committed, and a copy of a run may lack it",
                self.missing, self.count
            )
        });
        let sentences = [missing, self.beginnings(run, rows), self.last_attempts(run)];
        sentences.into_iter().flatten().collect()
    }

    fn beginnings(&self, run: &str, rows: &str) -> Option<String> {
        let without = &self.without_beginning;
        (!without.is_empty()).then(|| {
            let ids: Vec<String> = without.iter().map(ToString::to_string).collect();
            format!(
                "{run}: {} of {} trials have no {rows} from their beginning ({}): the tables of their \
                 first attempts are not here; a copy of a run may lack them",
                without.len(),
                self.count,
                few(&ids, MOST_LISTED)
            )
        })
    }

    fn last_attempts(&self, run: &str) -> Option<String> {
        match &self.without_step[..] {
            [] => None,
            [(trial, attempt)] => Some(format!(
                "{run}: the last attempt of trial {trial} ended before its first step; its rows are \
                 those of attempt {attempt}"
            )),
            several => {
                let ids = several
                    .iter()
                    .map(|(trial, attempt)| format!("{trial}: {attempt}"));
                let ids: Vec<String> = ids.collect();
                Some(format!(
                    "{run}: the last attempts of {} trials ended before their first step; their rows \
                     are those of earlier attempts ({})",
                    several.len(),
                    few(&ids, MOST_LISTED)
                ))
            }
        }
    }
}
