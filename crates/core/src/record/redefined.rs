//! Columns of `trials.csv` whose meaning changed with a version: a number from before the change cannot be
//! compared with one from after it.

use super::TrialRow;

/// A change of what some columns mean.
#[derive(Debug)]
pub struct Redefinition {
    pub columns: &'static [&'static str],
    /// The version of `trials.csv` whose rows all have the new meaning.
    pub since: u32,
    /// The first version that has rows of the new meaning: `since`, or an earlier one in which the
    /// meaning changed without a new version, so that its rows may have either.
    first: u32,
    /// How the numbers were made before the change, as a clause.
    pub before: &'static str,
    /// Whether the change may have altered the numbers of such a row.
    concerns: fn(&TrialRow) -> bool,
    /// The setting that alone is concerned, where a row does not tell it.
    pub setting: Option<ConcernedSetting>,
}

/// A setting of the runs that a change concerns.
#[derive(Clone, Copy, Debug)]
pub struct ConcernedSetting {
    pub key: &'static str,
    /// `None`: any value, where an experiment without the key is not concerned.
    pub value: Option<&'static str>,
}

/// All changes. A change of meaning needs a new version of the table, as a new column does.
pub const REDEFINED: [Redefinition; 9] = [
    Redefinition {
        columns: &[
            "energy_counter_joules",
            "energy_integral_joules",
            "mean_power_watts",
        ],
        since: 10,
        first: 10,
        before: "the power during evaluations and checkpoints was interpolated, up to a fifth too low",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["peak_nvml_used_bytes", "peak_nvml_process_bytes"],
        since: 10,
        first: 10,
        before: "it could be the peak of an evaluation after the window",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["allocator_retries"],
        since: 10,
        first: 10,
        before: "it was the largest number between two evaluations or checkpoints",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["data_wait_fraction"],
        since: 10,
        first: 10,
        before: "it counted every wait of the host, also while the GPU still had steps to do",
        concerns: TrialRow::is_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["transfer_fraction"],
        since: 10,
        first: 10,
        before: "the host's preparation of a copy counted too",
        concerns: TrialRow::is_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &[
            "gradient_noise_scale",
            "gradient_noise_scale_low",
            "gradient_noise_scale_high",
            "gradient_noise_loss",
        ],
        since: 10,
        first: 10,
        before: "the oldest steps of its half were left out",
        concerns: |_| true,
        setting: None,
    },
    Redefinition {
        columns: &["valid_loss", "seconds_to_target", "steps_to_target"],
        since: 10,
        first: 10,
        before: "text with `data.sampling: contiguous` was divided into as many rows as a batch has",
        concerns: |row| row.model_kind == "lstm",
        setting: Some(ConcernedSetting {
            key: "data.sampling",
            value: Some("contiguous"),
        }),
    },
    Redefinition {
        columns: &["peak_resident_bytes", "disk_read_bytes"],
        since: 7,
        first: 6,
        before: "only one process of the trial counted (in `trials/6` perhaps all of them)",
        concerns: |_| true,
        setting: None,
    },
    Redefinition {
        columns: &[
            "peak_resident_bytes",
            "disk_read_bytes",
            "min_host_memory_available_bytes",
        ],
        since: 11,
        first: 10,
        before: "what `prepare` of a command needed counted too (in `trials/10` perhaps not)",
        concerns: TrialRow::is_command,
        setting: Some(ConcernedSetting {
            key: "model.prepare",
            value: None,
        }),
    },
];

impl Redefinition {
    /// The changes of a column.
    pub fn of_column(name: &str) -> impl Iterator<Item = &'static Self> {
        REDEFINED
            .iter()
            .filter(move |change| change.columns.contains(&name))
    }

    /// Whether rows are known to have one meaning: all are of one version, or older than the change.
    pub fn is_one_meaning<'a>(&self, mut rows: impl Iterator<Item = &'a TrialRow>) -> bool {
        let Some(version) = rows.next().map(TrialRow::table_version) else {
            return true;
        };
        let is_old = |version: Option<u32>| version.is_some_and(|version| version < self.first);
        rows.all(|row| {
            let other = row.table_version();
            other == version || (is_old(other) && is_old(version))
        })
    }

    /// Whether a row is of a table that may have the old meaning.
    fn is_before(&self, row: &TrialRow) -> bool {
        row.table_version()
            .is_some_and(|version| version < self.since)
    }

    /// Whether every row that it concerns has the old meaning for certain.
    pub fn is_certain(&self) -> bool {
        self.first == self.since && self.setting.is_none()
    }

    /// Whether a row has the old meaning, and the change may have altered its numbers.
    pub fn concerns(&self, row: &TrialRow) -> bool {
        (self.concerns)(row) && self.is_before(row)
    }
}

/// On a GPU, and its window may have been interrupted by evaluations or checkpoints.
fn is_cut_on_gpu(row: &TrialRow) -> bool {
    let interruptions = [row.evaluation_seconds, row.checkpoint_seconds];
    row.is_on_gpu() && interruptions.iter().any(Option::is_some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kinds::command::COMMAND, record::trial_row::TRIALS};

    #[test]
    fn each_redefined_column_exists_and_its_version_is_one_of_the_table() {
        let newest = TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            ..TrialRow::default()
        };
        let names = TRIALS.names();
        for change in &REDEFINED {
            assert!(Some(change.since) <= newest.table_version(), "{change:?}");
            assert!(change.first <= change.since, "{change:?}");
            for column in change.columns {
                assert!(names.contains(column), "{column}");
            }
            assert!(!change.is_before(&newest) && !change.concerns(&newest));
        }
    }

    #[test]
    fn a_row_of_the_version_before_is_concerned_only_where_its_number_may_differ() {
        let old = TrialRow {
            kiln_table: "trials/9".into(),
            ..TrialRow::default()
        };
        let concerns = |column: &str, row: &TrialRow| {
            Redefinition::of_column(column).any(|change| change.concerns(row))
        };
        assert!(!concerns("data_wait_fraction", &old));
        assert!(concerns("gradient_noise_scale", &old));
        assert!(!concerns("samples_per_second", &old));
        let on_gpu = TrialRow {
            device_uuid: Some("GPU-1".into()),
            ..old
        };
        assert!(concerns("data_wait_fraction", &on_gpu));
        assert!(!concerns("energy_counter_joules", &on_gpu));
        let cut = TrialRow {
            evaluation_seconds: Some(0.5),
            ..on_gpu
        };
        assert!(concerns("energy_counter_joules", &cut));
    }
    #[test]
    fn a_version_of_both_meanings_has_one_meaning_with_itself_alone() {
        let of = |versions: [u32; 2]| {
            let rows = versions.map(|version| TrialRow {
                kiln_table: format!("trials/{version}"),
                ..TrialRow::default()
            });
            let mut changes = Redefinition::of_column("disk_read_bytes");
            let change = changes.find(|change| change.since == 7).unwrap();
            change.is_one_meaning(rows.iter())
        };
        assert!(of([5, 5]) && of([4, 5]) && of([6, 6]));
        assert!(!of([5, 6]) && !of([6, 7]) && !of([5, 7]));
    }

    #[test]
    fn what_prepare_needed_counted_in_rows_of_commands() {
        let of = |kind: &str| TrialRow {
            kiln_table: "trials/9".into(),
            model_kind: kind.into(),
            ..TrialRow::default()
        };
        let concerns = |row: &TrialRow| {
            let mut changes = Redefinition::of_column("peak_resident_bytes");
            changes.any(|change| change.concerns(row))
        };
        assert!(concerns(&of(COMMAND)));
        assert!(!concerns(&of("mlp")), "all its processes counted");
    }
}
