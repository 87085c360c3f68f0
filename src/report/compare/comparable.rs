//! Decides whether two rows are comparable: lists the fields that must be equal for a difference to
//! mean something.

use std::collections::BTreeSet;

use kiln_core::{
    kinds::data::Loader,
    record::{TrialRow, note::READ_AGAIN, trials::host_id_kind},
};
use serde::Serialize;

/// A field of a row that affects its numbers, besides the compared settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowFact {
    DeviceName,
    /// Model of the processor, for a trial on the CPU. For a trial on a GPU a different processor
    /// is reported with the records.
    Processor,
    PowerLimitWatts,
    MigProfile,
    EccMode,
    HostId,
    Driver,
    Libtorch,
    Engine,
    Precision,
    EffectiveBatchSize,
    DevicesPerTrial,
    CpuThreads,
    ConcurrentTrials,
    CopiedFrom,
}

impl RowFact {
    pub const ALL: [Self; 15] = [
        Self::DeviceName,
        Self::Processor,
        Self::PowerLimitWatts,
        Self::MigProfile,
        Self::EccMode,
        Self::HostId,
        Self::Driver,
        Self::Libtorch,
        Self::Engine,
        Self::Precision,
        Self::EffectiveBatchSize,
        Self::DevicesPerTrial,
        Self::CpuThreads,
        Self::ConcurrentTrials,
        Self::CopiedFrom,
    ];

    /// Name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceName => "device_name",
            Self::Processor => "processor",
            Self::PowerLimitWatts => "power_limit_watts",
            Self::MigProfile => "mig_profile",
            Self::EccMode => "ecc_mode",
            Self::HostId => "host_id",
            Self::Driver => "driver",
            Self::Libtorch => "libtorch",
            Self::Engine => "engine",
            Self::Precision => "precision",
            Self::EffectiveBatchSize => "effective_batch_size",
            Self::DevicesPerTrial => "devices_per_trial",
            Self::CpuThreads => "cpu_threads",
            Self::ConcurrentTrials => "concurrent_trials",
            Self::CopiedFrom => "copied_from",
        }
    }

    /// Settings that decide it.
    pub(in crate::report) fn settings(self) -> &'static [&'static str] {
        match self {
            // The other engine has no libtorch.
            Self::Engine | Self::Libtorch => &["run.engine"],
            Self::Precision => &["train.precision", "model.values.precision"],
            Self::EffectiveBatchSize => &[
                "train.batch_size",
                "train.grad_accumulation",
                "model.values.batch_size",
                "model.values.grad_accumulation",
                "run.devices_per_trial",
            ],
            Self::DevicesPerTrial => &["run.devices_per_trial"],
            Self::CpuThreads => &["train.cpu_threads", "model.values.cpu_threads"],
            Self::ConcurrentTrials => &["run.devices"],
            Self::CopiedFrom => &[Loader::PIN_MEMORY],
            _ => &[],
        }
    }

    /// Whether older tables lack the column. An unknown value does not count as a different one.
    fn may_be_unknown(self) -> bool {
        matches!(
            self,
            Self::Processor
                | Self::PowerLimitWatts
                | Self::MigProfile
                | Self::EccMode
                | Self::HostId
                | Self::CopiedFrom
        )
    }

    /// The value of a row, empty where it is not known.
    pub(in crate::report) fn of(self, row: &TrialRow) -> String {
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        match self {
            Self::DeviceName => row.device_name.clone().unwrap_or_default(),
            Self::Processor => row
                .processor
                .clone()
                .filter(|_| !row.is_on_gpu())
                .unwrap_or_default(),
            Self::PowerLimitWatts => row
                .power_limit_watts
                .map(|watts| watts.round().to_string())
                .unwrap_or_default(),
            Self::MigProfile => row.mig_profile.clone().unwrap_or_default(),
            Self::EccMode => row.ecc_mode.clone().unwrap_or_default(),
            Self::HostId => row.host_id.clone().unwrap_or_default(),
            Self::Driver => row.driver.clone().unwrap_or_default(),
            Self::Libtorch => row.libtorch.clone().unwrap_or_default(),
            Self::Engine => row.engine.clone(),
            Self::Precision => row.precision.clone(),
            Self::EffectiveBatchSize => row.effective_batch_size.to_string(),
            // Tables older than the column are of trials with one device each.
            Self::DevicesPerTrial => row.devices_per_trial.unwrap_or(1).to_string(),
            Self::CpuThreads => number(row.cpu_threads),
            Self::ConcurrentTrials => row.concurrent_trials.to_string(),
            Self::CopiedFrom => row.copied_from.clone().unwrap_or_default(),
        }
    }
}

/// Host ids that were made in different ways cannot be compared.
fn is_of_two_kinds(field: RowFact, base: &BTreeSet<String>, new: &BTreeSet<String>) -> bool {
    let kinds = |ids: &BTreeSet<String>| {
        ids.iter()
            .map(|id| host_id_kind(id).to_owned())
            .collect::<BTreeSet<String>>()
    };
    field == RowFact::HostId && kinds(base).is_disjoint(&kinds(new))
}

/// A field in which the rows differ, with its values on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unlike {
    pub field: RowFact,
    pub base: Vec<String>,
    pub new: Vec<String>,
}

/// Whether two rows are of one run and not of a repeat: one row twice, or one attempt read twice.
pub(super) fn is_same_run(one: &TrialRow, other: &TrialRow) -> bool {
    is_same_row(one, other) || (one.started_utc.is_some() && is_read_twice(one, other))
}

/// Whether two rows are one. A run that kept it from another run (`kiln run --keep`) gives its trial
/// another place in its plan.
pub(super) fn is_same_row(one: &TrialRow, other: &TrialRow) -> bool {
    let without_place = |row: &TrialRow| TrialRow {
        number: 0,
        block: None,
        round: None,
        fallback_of: None,
        ..row.clone()
    };
    let is_told = one.started_utc.is_some() && one.started_utc == other.started_utc;
    is_told && (one == other || without_place(one) == without_place(other))
}

/// Whether two rows are of one attempt whose output was read again for one of them.
pub(super) fn is_read_twice(one: &TrialRow, other: &TrialRow) -> bool {
    let is_one_attempt = one.trial == other.trial
        && one.attempt == other.attempt
        && one.started_utc == other.started_utc
        && one.trial_seconds == other.trial_seconds;
    is_one_attempt
        && [one, other]
            .iter()
            .any(|row| row.note(READ_AGAIN).is_some())
}

/// Returns the UUIDs of the GPUs of both sides, where the sides ran on different GPUs; `None` on
/// the CPU. GPUs that differ in name, power limit or MIG profile are refused as such ([`unlike`]):
/// the GPUs returned here differ only in their UUID.
pub(super) fn boards(base: &[&TrialRow], new: &[&TrialRow]) -> Option<[Vec<String>; 2]> {
    let of = |rows: &[&TrialRow]| {
        rows.iter()
            .flat_map(|row| row.device_uuids())
            .map(str::to_owned)
            .collect::<BTreeSet<String>>()
    };
    let names = |rows: &[&TrialRow]| {
        rows.iter()
            .map(|row| RowFact::DeviceName.of(row))
            .collect::<BTreeSet<String>>()
    };
    let is_one_model = names(base) == names(new);
    let (base, new) = (of(base), of(new));
    (is_one_model && !base.is_empty() && !new.is_empty() && base != new)
        .then(|| [base, new].map(|uuids| uuids.into_iter().collect()))
}

/// The fields that are not one and the same in all rows of both sides; none where a side has no
/// row.
pub(super) fn unlike(base: &[&TrialRow], new: &[&TrialRow]) -> Vec<Unlike> {
    if base.is_empty() || new.is_empty() {
        return Vec::new();
    }
    let values = |field: RowFact, rows: &[&TrialRow]| {
        rows.iter()
            .map(|row| field.of(row))
            .collect::<BTreeSet<String>>()
    };
    let of = |field: RowFact| {
        let (mut base, mut new) = (values(field, base), values(field, new));
        if field.may_be_unknown() {
            [&mut base, &mut new]
                .into_iter()
                .for_each(|known| known.retain(|value| !value.is_empty()));
            let is_told = base.len().max(new.len()) > 1
                || (!base.is_empty() && !new.is_empty() && !is_of_two_kinds(field, &base, &new));
            if !is_told {
                return None;
            }
        }
        (base != new || base.len() > 1).then(|| Unlike {
            field,
            base: base.into_iter().collect(),
            new: new.into_iter().collect(),
        })
    };
    RowFact::ALL.into_iter().filter_map(of).collect()
}
