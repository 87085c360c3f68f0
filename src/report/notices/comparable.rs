//! Whether the times of a run compare: the devices and the settings of its trials.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{record::TrialRow, units::counted};

use crate::report::{
    compare::RowFact,
    points::{Point, sweeps_devices},
};

/// Facts of a device that may differ between devices of one name.
const OF_DEVICE: [RowFact; 4] = [
    RowFact::Processor,
    RowFact::PowerLimitWatts,
    RowFact::MigProfile,
    RowFact::EccMode,
];

/// Timings compare only where the facts of the rows are equal, unless an axis varies them on purpose.
pub(super) fn not_comparable(rows: &[&TrialRow], axes: &[String]) -> Option<String> {
    let of_run = RowFact::ALL
        .into_iter()
        .filter(|fact| !OF_DEVICE.contains(fact) && !is_on_purpose(*fact, axes))
        .filter_map(|fact| difference(fact, rows));
    let differing: Vec<String> = devices(rows, axes).into_iter().chain(of_run).collect();
    (!differing.is_empty()).then(|| {
        format!(
            "timings are not comparable across all rows: they differ in {}",
            differing.join(", ")
        )
    })
}

/// The same for trials that tell no rate, as commands: their seconds depend on the device alone.
pub(super) fn other_devices(points: &[Point<'_>], axes: &[String]) -> Option<String> {
    let rows = points.iter().flat_map(|point| point.rows.iter().copied());
    let completed: Vec<&TrialRow> = rows
        .filter(|row| row.is_completed() && row.trial_seconds.is_some())
        .collect();
    let differing = devices(&completed, axes);
    (!differing.is_empty()).then(|| {
        format!(
            "seconds are not comparable across all rows: they differ in {}",
            differing.join(", ")
        )
    })
}

/// The differences of the devices; none if an axis chooses them.
fn devices(rows: &[&TrialRow], axes: &[String]) -> Vec<String> {
    if sweeps_devices(axes) {
        return Vec::new();
    }
    let mut differing = Vec::from_iter(different_devices(rows));
    // Devices of several names differ in these anyway.
    if values(RowFact::DeviceName, rows).len() <= 1 {
        let facts = OF_DEVICE.into_iter();
        differing.extend(facts.filter_map(|fact| difference(fact, rows)));
    }
    differing
}

fn is_on_purpose(fact: RowFact, axes: &[String]) -> bool {
    let is_of_axis = |axis: &String| fact.settings().contains(&axis.as_str());
    axes.iter().any(is_of_axis) || (fact == RowFact::ConcurrentTrials && sweeps_devices(axes))
}

/// A fact in which the rows differ, with its values.
fn difference(fact: RowFact, rows: &[&TrialRow]) -> Option<String> {
    let name = words(fact)?;
    let values = Vec::from_iter(values(fact, rows));
    (values.len() > 1).then(|| format!("{name} ({})", values.join(", ")))
}

/// The known values of the rows.
fn values(fact: RowFact, rows: &[&TrialRow]) -> BTreeSet<String> {
    rows.iter()
        .map(|row| fact.of(row))
        .filter(|value| !value.is_empty())
        .collect()
}

/// The name of a fact on the page; `None` for those that [`different_devices`] tells, and for the batch,
/// of which the page shows rates.
fn words(fact: RowFact) -> Option<&'static str> {
    Some(match fact {
        RowFact::DeviceName | RowFact::HostId | RowFact::EffectiveBatchSize => return None,
        RowFact::Processor => "processor",
        RowFact::PowerLimitWatts => "power limit in W",
        RowFact::MigProfile => "MIG profile",
        RowFact::EccMode => "ECC mode",
        RowFact::Driver => "driver",
        RowFact::Libtorch => "libtorch",
        RowFact::Engine => "engine",
        RowFact::Precision => "precision",
        RowFact::DevicesPerTrial => "devices per trial",
        RowFact::CpuThreads => "threads",
        RowFact::ConcurrentTrials => "number of concurrent trials",
        RowFact::CopiedFrom => "host memory that batches are copied from",
    })
}

/// The kinds of devices with their numbers of rows; of one kind its boards, or the hosts of its
/// processors.
fn different_devices(rows: &[&TrialRow]) -> Option<String> {
    let counts = |cell: fn(&TrialRow) -> Option<&String>| {
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        for value in rows.iter().filter_map(|row| cell(row)) {
            *counts.entry(value).or_default() += 1;
        }
        counts
    };
    let kinds = counts(|row| row.device_name.as_ref());
    if kinds.len() > 1 {
        let each: Vec<String> = kinds
            .iter()
            .map(|(name, count)| format!("{} on {name}", counted(*count, "row")))
            .collect();
        return Some(format!("device ({})", each.join(", ")));
    }
    let boards = counts(|row| row.device_uuid.as_ref());
    if boards.len() > 1 {
        let boards: Vec<&str> = boards.keys().map(|board| board.as_str()).collect();
        return Some(format!("device ({})", boards.join(", ")));
    }
    let hosts = counts(|row| row.host_id.as_ref());
    (hosts.len() > 1).then(|| format!("host ({} of them)", hosts.len()))
}

/// Says that no trial ran on a GPU.
pub(super) fn cpu_only(rows: &[&TrialRow]) -> Option<String> {
    let on_cpu = !rows.is_empty() && rows.iter().all(|row| !row.is_on_gpu());
    let name = |row: &&TrialRow| row.device_name.clone().unwrap_or("the CPU".to_owned());
    let names: Vec<String> = rows
        .iter()
        .map(name)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    on_cpu.then(|| {
        format!(
            "everything ran on the CPU ({}); columns of a GPU are empty",
            names.join(", ")
        )
    })
}
