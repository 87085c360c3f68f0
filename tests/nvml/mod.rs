//! Devices, snapshots and samples under the fake NVML with `tests/scenarios/small.yaml`, from the
//! library to the tables.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use fake_nvml::{Scenario, install::install};
use kiln::readings::{Privacy, SampleWriter, SnapshotWriter};
use kiln_core::{
    folder::Folder,
    record::{SampleRow, SnapshotRow, Table},
};
use kiln_hardware::{GpuWatchdog, Nvml, ProcessList, Sampler, Watch, snapshot, window};

use crate::scripted_child::wait_until;

const UUID: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// The library with one device that answers little.
fn nvml() -> Nvml {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = install(
            folder.path(),
            &Scenario::read(Path::new("tests/scenarios/small.yaml")).unwrap(),
        )
        .unwrap();
        (folder, path)
    });
    Nvml::open(Some(path)).unwrap()
}

#[test]
fn devices_are_known_by_uuid_and_each_gap_has_a_reason() {
    let nvml = nvml();
    assert_eq!(
        nvml.driver_version().value().map(String::as_str),
        Some("590.48.01")
    );
    assert_eq!(
        nvml.cuda_version().value().map(String::as_str),
        Some("13.1")
    );
    assert_eq!(
        nvml.nvml_version().reason().as_deref(),
        Some("this driver does not provide it")
    );
    let devices = nvml.devices();
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    assert_eq!((device.index, device.uuid.as_str()), (0, UUID));
    assert_eq!(device.memory_total_bytes.value(), Some(&(143_771 << 20)));
    assert_eq!(device.power_limit_watts.value(), Some(&700.0));
    assert_eq!(
        device.is_mig.reason().as_deref(),
        Some("not supported by this device")
    );
    assert_eq!(nvml.utilization(UUID).value(), Some(&0.75));
    assert_eq!(
        nvml.utilization("GPU-none").reason().as_deref(),
        Some("not found")
    );
}

#[test]
fn a_process_on_the_device_is_seen_with_its_memory() {
    let ProcessList::Known(list) = nvml().compute_processes(UUID) else {
        panic!("the list is not empty, so it is known")
    };
    assert_eq!(
        (list.len(), list[0].pid, list[0].used_memory_bytes),
        (1, 1, Some(2 << 30))
    );
    assert!(matches!(
        nvml().compute_processes("GPU-none"),
        ProcessList::Unknown(_)
    ));
}

#[test]
fn a_snapshot_keeps_every_field_and_masks_what_identifies() {
    let snapshot = snapshot::device(&nvml(), UUID);
    let mut seen = HashSet::new();
    for entry in &snapshot.entries {
        assert!(
            seen.insert((entry.section, entry.field.clone())),
            "{} {} twice",
            entry.section,
            entry.field
        );
        assert!(!entry.value.reason().as_deref().is_some_and(str::is_empty));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshots.csv");
    let (mut writer, _) = SnapshotWriter::open(
        &Folder::open(path.parent().unwrap()).unwrap(),
        1,
        Privacy::Masked,
    )
    .unwrap();
    writer.write_all(&snapshot).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("1650000000001") && !text.contains("ada") && !text.contains("process_1_"),
        "{text}"
    );
    let rows: Vec<SnapshotRow> = Table::read(&path, "snapshots/2").unwrap().rows().unwrap();
    let row = |section: &str, field: &str| {
        rows.iter()
            .find(|row| row.section == section && row.field == field)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (
            row("power", "draw").value.as_deref(),
            row("power", "draw").unit.as_deref()
        ),
        (Some("500"), Some("W"))
    );
    assert_eq!(
        row("activity", "throttle_reasons").value.as_deref(),
        Some("sw_power_cap")
    );
    assert_eq!(
        row("identity", "serial_number").value.as_deref(),
        Some("masked")
    );
    let fan = row("activity", "fan_speed");
    assert_eq!(
        (fan.value, fan.reason.as_deref()),
        (None, Some("this driver does not provide it"))
    );
}

#[test]
fn samples_become_rows_and_the_window_has_its_energy() {
    // A busy machine may take its time for a look.
    let desk = GpuWatchdog::new(&nvml(), Duration::from_secs(60));
    let sampler = Sampler::with_desk(Some(desk), Duration::from_millis(5), 0);
    sampler.watch(Watch {
        trial: "t".into(),
        attempt: 1,
        pid: std::process::id(),
        without_root: false,
        device_uuid: Some(UUID.into()),
    });
    let mut rows = Vec::new();
    // Long enough for an energy.
    wait_until("ticks for more than 2 s", || {
        rows.extend(sampler.take_rows());
        let ends = rows.first().zip(rows.last());
        ends.is_some_and(|(first, last)| last.run_seconds - first.run_seconds > 2.5)
    });
    let readings = sampler.unwatch("t");
    let times: Vec<u64> = readings
        .ticks
        .iter()
        .map(|tick| tick.monotonic_nanoseconds)
        .collect();
    let (start, end) = (times[1] + 1000, times[times.len() - 2] - 1000);
    let summary = window::summarize(&readings, Some((start, end)), &[], None);
    let joules = (end - start) as f64 / 1e9 * 500.0;
    // The counter is read somewhat after the tick began, at most as long as the reading took; it
    // counts whole millijoules.
    let slowest = readings
        .ticks
        .iter()
        .map(|tick| tick.reading_seconds)
        .fold(0.0, f64::max);
    assert!(
        (summary.energy_counter_joules.unwrap() - joules).abs() <= slowest * 500.0 + 0.002,
        "{summary:?}"
    );
    assert!((summary.energy_integral_joules.unwrap() / joules - 1.0).abs() < 1e-9);
    assert_eq!(
        (
            summary.mean_gpu_utilization,
            summary.max_temperature_celsius
        ),
        (Some(0.75), Some(52.0))
    );
    assert_eq!(
        (
            summary.throttled_fraction,
            summary.throttle_reasons.as_deref()
        ),
        (Some(1.0), Some("sw_power_cap"))
    );
    assert_eq!(summary.peak_nvml_used_bytes, Some(32_362 << 20));
    check_rows(&rows);
}

fn check_rows(ticks: &[kiln_hardware::sampler::SampledTick]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.csv");
    let (mut writer, _) =
        SampleWriter::open(&Folder::open(path.parent().unwrap()).unwrap(), 1).unwrap();
    writer.append(ticks).unwrap();
    let rows: Vec<SampleRow> = Table::read(&path, "samples/2").unwrap().rows().unwrap();
    assert_eq!(rows.len(), ticks.len());
    assert!(rows.iter().all(|row| row.device == UUID
        && row.power_watts == Some(500.0)
        && row.sm_clock_megahertz == Some(1980)));
}

#[test]
fn a_library_that_is_none_is_said_in_words() {
    let absent = Nvml::open(Some(Path::new("Cargo.toml"))).unwrap_err();
    assert!(
        absent.reason.starts_with("no NVML at Cargo.toml: "),
        "{absent}"
    );
}
