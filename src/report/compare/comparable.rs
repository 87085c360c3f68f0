//! Whether two rows may be compared at all: what has to be alike for a difference in numbers to mean something.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::record::TrialRow;

/// A fact of a row that decides its numbers beside what is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    DeviceName,
    Driver,
    Libtorch,
    Engine,
    Precision,
    EffectiveBatchSize,
    DevicesPerTrial,
    CpuThreads,
    ConcurrentTrials,
}

impl Field {
    pub const ALL: [Self; 9] = [
        Self::DeviceName,
        Self::Driver,
        Self::Libtorch,
        Self::Engine,
        Self::Precision,
        Self::EffectiveBatchSize,
        Self::DevicesPerTrial,
        Self::CpuThreads,
        Self::ConcurrentTrials,
    ];

    /// Its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceName => "device_name",
            Self::Driver => "driver",
            Self::Libtorch => "libtorch",
            Self::Engine => "engine",
            Self::Precision => "precision",
            Self::EffectiveBatchSize => "effective_batch_size",
            Self::DevicesPerTrial => "devices_per_trial",
            Self::CpuThreads => "cpu_threads",
            Self::ConcurrentTrials => "concurrent_trials",
        }
    }

    /// The value of a row, empty where it is not known.
    pub(in crate::report) fn of(self, row: &TrialRow) -> String {
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        match self {
            Self::DeviceName => row.device_name.clone().unwrap_or_default(),
            Self::Driver => row.driver.clone().unwrap_or_default(),
            Self::Libtorch => row.libtorch.clone().unwrap_or_default(),
            Self::Engine => row.engine.clone(),
            Self::Precision => row.precision.clone(),
            Self::EffectiveBatchSize => row.effective_batch_size.to_string(),
            // Tables older than the column are of trials with one device each.
            Self::DevicesPerTrial => row.devices_per_trial.unwrap_or(1).to_string(),
            Self::CpuThreads => number(row.cpu_threads),
            Self::ConcurrentTrials => row.concurrent_trials.to_string(),
        }
    }
}

/// A field in which the rows differ, with what there is of it on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unlike {
    pub field: Field,
    pub base: Vec<String>,
    pub new: Vec<String>,
}

/// The fields that are not one and the same in all rows of both sides; none where a side has no row.
pub(super) fn unlike(base: &[&TrialRow], new: &[&TrialRow]) -> Vec<Unlike> {
    if base.is_empty() || new.is_empty() {
        return Vec::new();
    }
    let values = |field: Field, rows: &[&TrialRow]| rows.iter().map(|row| field.of(row)).collect::<BTreeSet<String>>();
    let of = |field: Field| {
        let (base, new) = (values(field, base), values(field, new));
        (base != new || base.len() > 1).then(|| Unlike { field, base: base.into_iter().collect(), new: new.into_iter().collect() })
    };
    Field::ALL.into_iter().filter_map(of).collect()
}
