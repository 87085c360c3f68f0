//! Whether the times of a run compare: the devices and the settings of its trials.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{plan::Outcome, record::TrialRow, units::counted};

use crate::report::points::{DEVICES, Point, sweeps_devices};

/// Timings compare only where all of these are equal, unless an axis varies them on purpose.
pub(super) fn not_comparable(rows: &[&TrialRow], axes: &[String]) -> Option<String> {
    type Cell = fn(&TrialRow) -> Option<String>;
    const EQUAL: [(&str, &[&str], Cell); 6] = [
        ("driver", &[], |row| row.driver.clone()),
        ("libtorch", &["run.engine"], |row| row.libtorch.clone()),
        ("engine", &["run.engine"], |row| Some(row.engine.clone())),
        ("precision", &["train.precision"], |row| {
            Some(row.precision.clone())
        }),
        ("number of concurrent trials", DEVICES, |row| {
            Some(row.concurrent_trials.to_string())
        }),
        ("threads", &["train.cpu_threads"], |row| {
            row.cpu_threads.map(|threads| threads.to_string())
        }),
    ];
    let varies_on_purpose =
        |its_axes: &[&str]| axes.iter().any(|axis| its_axes.contains(&axis.as_str()));
    let mut differing: Vec<String> = Vec::new();
    if !sweeps_devices(axes) {
        differing.extend(different_devices(rows));
    }
    for (name, its_axes, cell) in EQUAL {
        let values: BTreeSet<String> = rows.iter().filter_map(|row| cell(row)).collect();
        if values.len() > 1 && !varies_on_purpose(its_axes) {
            let values: Vec<String> = values.into_iter().collect();
            differing.push(format!("{name} ({})", values.join(", ")));
        }
    }
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
        .filter(|row| row.outcome == Outcome::Completed && row.trial_seconds.is_some())
        .collect();
    let differing = different_devices(&completed).filter(|_| !sweeps_devices(axes))?;
    Some(format!(
        "seconds are not comparable across all rows: they differ in {differing}"
    ))
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
    let on_cpu = !rows.is_empty() && rows.iter().all(|row| row.device_uuid.is_none());
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
