//! `samples.csv`: one row per running trial and tick.

use std::{collections::HashSet, path::Path};

use kiln_core::folder::Folder;
use kiln_core::plan::TrialId;
use kiln_core::record::{
    SampleRow,
    table::{Table, TableError, TableWriter, cells_of},
    tables::SAMPLES,
};
use kiln_hardware::sampler::{SampledTick, THROTTLED, throttle_names};

/// Whether the device of a row was throttled; `None` if it was not read.
pub fn is_throttled(row: &SampleRow) -> Option<bool> {
    row.throttle_bits.map(|bits| bits & THROTTLED != 0)
}

/// The row of one trial and tick.
pub(super) fn sample_row(launch: u64, sampled: &SampledTick) -> SampleRow {
    let tick = &sampled.tick;
    let gpu = tick.gpu.clone().unwrap_or_default();
    let work = gpu.work;
    let share = |fraction: f64| rounded(fraction, 1e4);
    SampleRow {
        kiln_table: SAMPLES.version.to_owned(),
        launch,
        run_seconds: rounded(sampled.run_seconds, 1e6),
        trial: sampled.trial.clone(),
        attempt: sampled.attempt,
        device: sampled
            .device_uuid
            .clone()
            .unwrap_or_else(|| "cpu".to_owned()),
        gpu_utilization: gpu.utilization,
        memory_utilization: gpu.memory_utilization,
        memory_used_bytes: gpu.memory_used_bytes,
        power_watts: gpu.power_watts,
        temperature_celsius: gpu.temperature_celsius,
        sm_clock_megahertz: gpu.sm_clock_megahertz,
        memory_clock_megahertz: gpu.memory_clock_megahertz,
        performance_state: gpu.performance_state,
        throttle_reasons: gpu
            .throttle_bits
            .filter(|bits| *bits != 0)
            .map(|bits| throttle_names(bits).join(" ")),
        energy_counter_joules: gpu.energy_joules,
        resident_bytes: tick.child.as_ref().and_then(|child| child.resident_bytes),
        cpu_cores: tick
            .child
            .as_ref()
            .and_then(|child| child.cpu_cores)
            .map(|cores| rounded(cores, 1e3)),
        host_cpu_fraction: tick
            .host
            .cpu_fraction
            .map(|fraction| rounded(fraction, 1e4)),
        host_memory_available_bytes: tick.host.memory_available_bytes,
        host_load: tick.host.load_1_minute,
        reading_seconds: rounded(tick.reading_seconds, 1e6),
        sm_active: work.sm_active.map(share),
        sm_occupancy: work.sm_occupancy.map(share),
        tensor_active: work.tensor_active.map(share),
        dram_bandwidth_utilization: work.dram_bandwidth_utilization.map(share),
        pcie_receive_bytes_per_second: gpu.pcie_receive_bytes_per_second.map(f64::round),
        pcie_transmit_bytes_per_second: gpu.pcie_transmit_bytes_per_second.map(f64::round),
        nvlink_receive_bytes_per_second: work.nvlink_receive_bytes_per_second.map(f64::round),
        nvlink_transmit_bytes_per_second: work.nvlink_transmit_bytes_per_second.map(f64::round),
        power_instant_watts: gpu.power_instant_watts,
        memory_temperature_celsius: gpu.memory_temperature_celsius,
        throttle_bits: gpu.throttle_bits,
        encoder_utilization: gpu.encoder_utilization,
        decoder_utilization: gpu.decoder_utilization,
        ecc_corrected_errors: gpu.ecc_corrected_errors,
        ecc_uncorrected_errors: gpu.ecc_uncorrected_errors,
        process_memory_bytes: gpu.process_memory_bytes,
        disk_read_bytes: tick.child.as_ref().and_then(|child| child.disk_read_bytes),
        disk_busy_fraction: tick.host.disk_busy_fraction.map(share),
        device_absence: tick.gpu_absence.clone(),
    }
}

/// Rounds to the resolution of the clock or the kernel's counters, so that a long table stays
/// small.
fn rounded(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

/// Gives the rows of these trials one after another, in the order of the file; skips the rest of a
/// long table.
///
/// # Errors
/// When the file cannot be read or is not a `samples.csv` of this version or an older one; some rows
/// may have been given before.
pub fn each_sample(
    path: &Path,
    trials: &HashSet<&TrialId>,
    each: &mut dyn FnMut(SampleRow),
) -> Result<(), TableError> {
    let names: HashSet<&str> = trials.iter().map(|trial| trial.0.as_str()).collect();
    let is_wanted = |cell: &str| names.contains(cell);
    Table::each_of(path, SAMPLES.version, "trial", &is_wanted, each)
}

/// Writes `samples.csv`.
#[derive(Debug)]
pub struct SampleWriter {
    table: TableWriter,
    launch: u64,
}

impl SampleWriter {
    /// Opens or creates the table in the folder of a run, for one launch. A torn last line is cut; a
    /// damaged table is moved aside, and its new name returned.
    ///
    /// # Errors
    /// When the file cannot be read or written, or has other columns.
    pub fn open(folder: &Folder, launch: u64) -> Result<(Self, Option<String>), TableError> {
        let (table, aside) = TableWriter::open_side(folder, SAMPLES.file, &SAMPLES.spec(&[]))?;
        Ok((Self { table, launch }, aside))
    }

    /// Appends the ticks in one write.
    ///
    /// # Errors
    /// When the write fails; the file then ends with the rows before.
    pub fn append(&mut self, ticks: &[SampledTick]) -> Result<(), TableError> {
        let rows: Result<Vec<Vec<String>>, String> = ticks
            .iter()
            .map(|tick| cells_of(&sample_row(self.launch, tick)))
            .collect();
        let rows = rows.map_err(|problem| TableError::Row {
            path: self.table.path().to_owned(),
            problem,
        })?;
        self.table.append_all(rows.iter().map(Vec::as_slice))
    }

    /// Waits until the rows are on the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn sync(&mut self) -> Result<(), TableError> {
        self.table.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_hardware::{GpuTick, Tick};

    fn samples_of(path: &Path, trials: &HashSet<&TrialId>) -> Result<Vec<SampleRow>, TableError> {
        let mut rows = Vec::new();
        each_sample(path, trials, &mut |row| rows.push(row))?;
        Ok(rows)
    }

    #[test]
    fn a_tick_becomes_a_row_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.csv");
        let gpu = GpuTick {
            utilization: Some(0.25),
            throttle_bits: Some(0x4),
            ..GpuTick::default()
        };
        let tick = Tick {
            gpu: Some(gpu),
            ..Tick::default()
        };
        let on_gpu = SampledTick {
            trial: "t".into(),
            attempt: 1,
            device_uuid: Some("GPU-1".into()),
            run_seconds: 1.5,
            tick,
        };
        let on_cpu = SampledTick {
            device_uuid: None,
            tick: Tick::default(),
            run_seconds: 2.0,
            ..on_gpu.clone()
        };
        let (mut writer, _) =
            SampleWriter::open(&Folder::open(path.parent().unwrap()).unwrap(), 3).unwrap();
        writer.append(&[on_gpu, on_cpu]).unwrap();
        let rows: Vec<SampleRow> = Table::read(&path, SAMPLES.version).unwrap().rows().unwrap();
        assert_eq!(
            (
                rows[0].launch,
                rows[0].device.as_str(),
                rows[0].gpu_utilization
            ),
            (3, "GPU-1", Some(0.25))
        );
        assert_eq!(rows[0].throttle_reasons.as_deref(), Some("sw_power_cap"));
        assert_eq!(
            (
                rows[1].device.as_str(),
                rows[1].gpu_utilization,
                rows[1].run_seconds
            ),
            ("cpu", None, 2.0)
        );
    }

    #[test]
    fn of_a_long_table_only_the_trials_asked_for_are_read_and_a_bad_row_keeps_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.csv");
        let tick = |trial: &str, bits| {
            let gpu = GpuTick {
                throttle_bits: bits,
                ..GpuTick::default()
            };
            SampledTick {
                trial: trial.into(),
                attempt: 1,
                device_uuid: None,
                run_seconds: 1.0,
                tick: Tick {
                    gpu: Some(gpu),
                    ..Tick::default()
                },
            }
        };
        let (mut writer, _) =
            SampleWriter::open(&Folder::open(path.parent().unwrap()).unwrap(), 1).unwrap();
        writer
            .append(&[
                tick("a", Some(0x4)),
                tick("b", None),
                tick("a", Some(0x40)),
                tick("c", Some(1)),
            ])
            .unwrap();
        let wanted = TrialId("a".into());
        let rows = samples_of(&path, &HashSet::from([&wanted])).unwrap();
        assert_eq!(
            rows.iter().map(is_throttled).collect::<Vec<_>>(),
            [Some(true), Some(true)]
        );
        let of_c = samples_of(&path, &HashSet::from([&TrialId("c".into())])).unwrap();
        assert_eq!((of_c.len(), is_throttled(&of_c[0])), (1, Some(false)));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            text.replace("samples/2,1,1.0,c", "samples/2,1,often,c"),
        )
        .unwrap();
        let refused = samples_of(&path, &HashSet::from([&TrialId("c".into())]))
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(":5") && refused.contains("run_seconds"),
            "{refused}"
        );
        assert_eq!(
            samples_of(&path, &HashSet::from([&wanted])).unwrap().len(),
            2
        );
    }

    #[test]
    fn the_struct_is_the_table() {
        let fields = serde_json::to_value(SampleRow::default()).unwrap();
        let fields: Vec<&str> = fields
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(
            fields,
            SAMPLES
                .columns
                .iter()
                .map(|column| column.name)
                .collect::<Vec<_>>()
        );
    }
}
