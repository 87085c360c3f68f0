//! Columns of `trials.csv` whose meaning changed with a version: a number from before the change cannot be
//! compared with one from after it.

use super::TrialRow;

/// A change of what some columns mean.
#[derive(Debug)]
pub struct Redefinition {
    columns: &'static [&'static str],
    /// The version of `trials.csv` that has the new meaning, older ones the old meaning.
    pub since: u32,
    /// How the numbers were made before the change, as a clause.
    pub before: &'static str,
    /// Whether the change may have altered the numbers of such a row.
    concerns: fn(&TrialRow) -> bool,
    /// The key and the value of it that alone are concerned, where a row does not tell it.
    pub setting: Option<(&'static str, &'static str)>,
}

/// All changes. A change of meaning needs a new version of the table, as a new column does.
pub const REDEFINED: [Redefinition; 7] = [
    Redefinition {
        columns: &[
            "energy_counter_joules",
            "energy_integral_joules",
            "mean_power_watts",
        ],
        since: 10,
        before: "the power during evaluations and checkpoints was interpolated, up to a fifth too low",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["peak_nvml_used_bytes", "peak_nvml_process_bytes"],
        since: 10,
        before: "it could be the peak of an evaluation after the window",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["allocator_retries"],
        since: 10,
        before: "it was the largest number between two evaluations or checkpoints",
        concerns: is_cut_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["data_wait_fraction"],
        since: 10,
        before: "it counted every wait of the host, also while the GPU still had steps to do",
        concerns: is_on_gpu,
        setting: None,
    },
    Redefinition {
        columns: &["transfer_fraction"],
        since: 10,
        before: "the host's preparation of a copy counted too",
        concerns: is_on_gpu,
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
        before: "the oldest steps of its half were left out",
        concerns: |_| true,
        setting: None,
    },
    Redefinition {
        columns: &["valid_loss", "seconds_to_target", "steps_to_target"],
        since: 10,
        before: "text with `data.sampling: contiguous` was divided into as many rows as a batch has",
        concerns: |row| row.model_kind == "lstm",
        setting: Some(("data.sampling", "contiguous")),
    },
];

impl Redefinition {
    /// The newest change of a column.
    pub fn of_column(name: &str) -> Option<&'static Self> {
        REDEFINED
            .iter()
            .filter(|change| change.columns.contains(&name))
            .max_by_key(|change| change.since)
    }

    /// Whether a row is of a table with the old meaning.
    pub fn is_before(&self, row: &TrialRow) -> bool {
        row.table_version()
            .is_some_and(|version| version < self.since)
    }

    /// Whether a row has the old meaning, and the change may have altered its numbers.
    pub fn concerns(&self, row: &TrialRow) -> bool {
        (self.concerns)(row) && self.is_before(row)
    }
}

fn is_on_gpu(row: &TrialRow) -> bool {
    row.device_uuid.is_some()
}

/// On a GPU, and its window may have been interrupted by evaluations or checkpoints.
fn is_cut_on_gpu(row: &TrialRow) -> bool {
    let interruptions = [row.evaluation_seconds, row.checkpoint_seconds];
    is_on_gpu(row) && interruptions.iter().any(Option::is_some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::trial_row::TRIALS;

    #[test]
    fn each_redefined_column_exists_and_its_version_is_one_of_the_table() {
        let newest = TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            ..TrialRow::default()
        };
        let names = TRIALS.names();
        for change in &REDEFINED {
            assert!(Some(change.since) <= newest.table_version(), "{change:?}");
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
            Redefinition::of_column(column).is_some_and(|change| change.concerns(row))
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
}
