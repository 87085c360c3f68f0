//! What a sampler reads of a device, from the library to the summary of a window, with a library that plays scenarios.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kiln::{
    hardware::{
        Nvml, ProcessList, Sampler, TrialReadings, Watch, WindowSummary, costs, lost, power_now_watts,
        sampler::{EVERYTHING, GpuTick, SampledTick},
        window::summarize,
    },
    record::{SampleRow, SampleWriter, Table, columns::SAMPLES},
};

/// An invented board of the Hopper kind: a batch of fields, GPM, counters that count.
const HOPPER: &str = "
calls: {nvmlSystemGetDriverVersion: 590.48.01}
devices:
- calls:
    nvmlDeviceGetUUID: GPU-a
    nvmlDeviceGetName: Invented
    nvmlDeviceGetUtilizationRates: {gpu: 75, memory: 7}
    nvmlDeviceGetMemoryInfo_v2: {total: 1000, reserved: 100, used: 300, free: 600}
    nvmlDeviceGetTemperatureV/0: 52
    nvmlDeviceGetTemperature/0: 52
    nvmlDeviceGetClockInfo/1: 1980
    nvmlDeviceGetClockInfo/2: 3201
    nvmlDeviceGetCurrentClocksEventReasons: 4
    nvmlDeviceGetPerformanceState: 0
    nvmlGpmQueryDeviceSupport: 1
    nvmlGpmMetricsGet/2: 95.5
    nvmlGpmMetricsGet/3: 40.0
    nvmlGpmMetricsGet/5: 30.0
    nvmlGpmMetricsGet/10: 20.0
    nvmlGpmMetricsGet/20: 1.0
    nvmlGpmMetricsGet/21: 2.0
    nvmlGpmMetricsGet/60: {return: 3}
    nvmlGpmMetricsGet/61: {return: 3}
  fields:
    83/0: {type: 3, value: {counter: {start: 7000, rate: 500000}}}
    185/0: {type: 1, value: 500000}
    186/0: {type: 1, value: 510250}
    82/0: {type: 1, value: 60}
    3/0: {type: 3, value: 9}
    4/0: {type: 3, value: 0}
";

fn nvml(folder: &tempfile::TempDir, scenario: &str) -> Nvml {
    let scenario: fake_nvml::Scenario = serde_yaml::from_str(scenario).unwrap();
    Nvml::open(Some(&fake_nvml::install::install(folder.path(), &scenario).unwrap())).unwrap()
}

/// Samples this process and the scenario's first device every 120 ms until there are so many rows.
fn sampled(scenario: &str, count: usize) -> (Vec<SampledTick>, TrialReadings) {
    let folder = tempfile::tempdir().unwrap();
    let sampler = Sampler::start(Some(Arc::new(nvml(&folder, scenario))), Duration::from_millis(120), 0);
    sampler.watch(Watch { trial: "t".into(), attempt: 1, pid: std::process::id(), device_uuid: Some("GPU-a".into()) });
    let began = Instant::now();
    let mut rows = Vec::new();
    while rows.len() < count && began.elapsed() < Duration::from_secs(30) {
        rows.extend(sampler.take_rows());
        std::thread::sleep(Duration::from_millis(5));
    }
    (rows, sampler.unwatch("t"))
}

fn summary(readings: &TrialReadings) -> WindowSummary {
    let ends = |tick: Option<&kiln::hardware::Tick>| tick.unwrap().monotonic_nanoseconds;
    summarize(readings, Some((ends(readings.ticks.first()), ends(readings.ticks.last()))), &[], None)
}

fn first_gpu(rows: &[SampledTick]) -> &GpuTick {
    rows.iter().find_map(|row| row.tick.gpu.as_ref()).unwrap()
}

#[test]
fn a_batch_and_the_chips_counters_reach_the_row_and_the_summary() {
    let (rows, readings) = sampled(HOPPER, 9);
    let gpu = rows[2].tick.gpu.clone().unwrap();
    assert_eq!((gpu.power_watts, gpu.power_instant_watts, gpu.memory_temperature_celsius), (Some(500.0), Some(510.25), Some(60.0)));
    assert_eq!((gpu.work.sm_active, gpu.work.nvlink_receive_bytes_per_second), (Some(0.955), None));
    assert_eq!((gpu.pcie_receive_bytes_per_second, gpu.pcie_transmit_bytes_per_second), (Some(2_097_152.0), Some(1_048_576.0)));
    assert_eq!((gpu.ecc_corrected_errors, gpu.ecc_uncorrected_errors), (Some(0), Some(0)));
    assert_eq!(first_gpu(&rows).work.sm_active, None, "one look has no look before it");
    let found = summary(&readings);
    assert_eq!((found.mean_sm_active, found.mean_sm_occupancy, found.mean_tensor_active), (Some(0.955), Some(0.4), Some(0.3)));
    assert_eq!((found.mean_dram_bandwidth_utilization, found.mean_sm_clock_megahertz), (Some(0.2), Some(1980.0)));
    assert_eq!((found.throttle_reasons.as_deref(), found.max_temperature_celsius), (Some("sw_power_cap"), Some(52.0)));
    let (counted, integrated) = (found.energy_counter_joules.unwrap(), found.energy_integral_joules.unwrap());
    let slowest = readings.ticks.iter().map(|tick| tick.reading_seconds).fold(0.0, f64::max);
    assert!((counted - integrated).abs() <= slowest * 500.0 + 0.002, "{counted} {integrated}");
    check_table(&rows);
}

fn check_table(ticks: &[SampledTick]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.csv");
    SampleWriter::open(&path, 1).unwrap().0.append(ticks).unwrap();
    let rows: Vec<SampleRow> = Table::read(&path, SAMPLES.version).unwrap().rows().unwrap();
    assert_eq!((rows.len(), rows[3].sm_active, rows[3].throttle_bits), (ticks.len(), Some(0.955), Some(4)));
}

#[test]
fn a_pcie_counter_of_32_bits_on_a_fast_link_gives_no_rate() {
    let scenario = |kind: u8, generation: u8| {
        let calls = format!(
            "    nvmlDeviceGetMaxPcieLinkGeneration: {generation}\n    nvmlDeviceGetMaxPcieLinkWidth: 16\n  fields:\n    198/0: {{type: {kind}, value: {{counter: {{start: 7, rate: 1000000}}}}}}\n"
        );
        HOPPER.replace("  fields:\n", &calls).replace("nvmlGpmQueryDeviceSupport: 1", "nvmlGpmQueryDeviceSupport: 0")
    };
    for (kind, generation, is_told) in [(3, 5, true), (1, 5, false), (1, 1, true)] {
        let (rows, _) = sampled(&scenario(kind, generation), 3);
        let rate = rows[2].tick.gpu.as_ref().unwrap().pcie_receive_bytes_per_second;
        assert_eq!(rate.is_some(), is_told, "type {kind}, generation {generation}: {rate:?}");
        assert!(rate.is_none_or(|rate| (rate / 1e6 - 1.0).abs() < 0.2), "{rate:?}");
    }
}

#[test]
fn clients_of_the_multi_process_service_compute_too() {
    let folder = tempfile::tempdir().unwrap();
    let lists = "    nvmlDeviceGetComputeRunningProcesses_v3: [{pid: 11, usedGpuMemory: 5}]\n    nvmlDeviceGetMPSComputeRunningProcesses_v3: [{pid: 12, usedGpuMemory: 7}, {pid: 11, usedGpuMemory: 5}]\n  fields:\n";
    let nvml = nvml(&folder, &HOPPER.replace("  fields:\n", lists));
    let ProcessList::Known(list) = nvml.compute_processes("GPU-a") else { panic!("both lists are told") };
    let mut pids: Vec<u32> = list.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    assert_eq!(pids, [11, 12]);
}

#[test]
fn a_performance_state_that_the_driver_does_not_know_is_absent() {
    let state = |code: u32| {
        let (rows, readings) = sampled(&HOPPER.replace("nvmlDeviceGetPerformanceState: 0", &format!("nvmlDeviceGetPerformanceState: {code}")), 1);
        (first_gpu(&rows).performance_state, readings.absent.get("performance_state").cloned())
    };
    assert_eq!(state(8), (Some(8), None));
    assert_eq!(state(32), (None, Some("the driver does not know it".to_owned())));
}

#[test]
fn a_driver_without_gpm_or_without_its_free_gives_reasons_and_does_not_abort() {
    for (missing, has_gpm) in [("[nvmlGpm*]", false), ("[nvmlGpmSampleFree]", true)] {
        let (_, readings) = sampled(&format!("missing: {missing}\n{HOPPER}"), 7);
        let found = summary(&readings);
        assert_eq!(found.mean_sm_active.is_some(), has_gpm, "{missing}");
        assert_eq!(found.notes.contains_key("mean_sm_active"), !has_gpm, "{:?}", found.notes);
    }
}

#[test]
fn an_old_driver_is_read_through_the_older_calls() {
    let missing = "missing: [nvmlDeviceGetTemperatureV, nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetFieldValues]";
    let old = "    nvmlDeviceGetCurrentClocksThrottleReasons: 8\n    nvmlDeviceGetPowerUsage: 500000\n    nvmlDeviceGetTotalEnergyConsumption: {counter: {start: 1, rate: 500000}}\n    nvmlGpmQuery";
    let (rows, _) = sampled(&format!("{missing}\n{}", HOPPER.replace("    nvmlGpmQuery", old)), 2);
    let gpu = first_gpu(&rows);
    assert_eq!((gpu.temperature_celsius, gpu.throttle_bits, gpu.power_watts), (Some(52.0), Some(8), Some(500.0)));
    assert!(gpu.energy_joules.is_some() && gpu.power_instant_watts.is_none());
}

#[test]
fn a_counter_that_is_reset_gives_no_energy_and_says_why() {
    let (_, readings) = sampled(&HOPPER.replace("start: 7000,", "start: 9000000, reset_at: 0.5,"), 9);
    let found = summary(&readings);
    assert_eq!(found.energy_counter_joules, None);
    assert!(found.notes["energy_counter_joules"].starts_with("the counter went back"), "{:?}", found.notes);
    assert!(found.energy_integral_joules.is_some());
}

#[test]
fn under_mig_the_row_says_what_is_hidden_and_what_is_the_boards() {
    let mig = "    nvmlDeviceGetMigMode: [1, 1]\n    nvmlGpmQuery";
    let found = summary(&sampled(&HOPPER.replace("    nvmlGpmQuery", mig), 7).1);
    assert_eq!(found.notes["mean_gpu_utilization"], "NVML gives no utilization while MIG is on");
    assert_eq!(found.notes["mean_power_watts"], "of the whole board: MIG is on");
    assert!(found.mean_sm_active.is_some() && found.mean_power_watts.is_some());
}

#[test]
fn a_device_that_falls_off_the_bus_ends_its_series_with_nvmls_words() {
    let (rows, readings) = sampled(&HOPPER.replace("- calls:", "- lost: {after_seconds: 0.6}\n  calls:"), 9);
    assert!(rows[0].tick.gpu.is_some(), "{:?}", rows[0]);
    let last = &rows.last().unwrap().tick;
    assert!(last.gpu.is_none() && last.child.is_some());
    assert_eq!(last.gpu_absence.as_deref(), Some("the GPU is lost: it fell off the bus or is inaccessible"));
    assert_eq!((readings.lost.as_ref(), readings.absent.get(EVERYTHING)), (last.gpu_absence.as_ref(), last.gpu_absence.as_ref()));
}

#[test]
fn a_call_that_hangs_leaves_the_ticks_of_the_host_and_the_process() {
    let began = Instant::now();
    let (rows, readings) = sampled(&HOPPER.replace("nvmlDeviceGetPerformanceState: 0", "nvmlDeviceGetPerformanceState: {hang: true}"), 12);
    assert_eq!(rows.len(), 12);
    assert!(rows.iter().all(|row| row.tick.gpu.is_none() && row.tick.child.is_some() && row.tick.host.memory_available_bytes.is_some()));
    let seconds: Vec<f64> = readings.ticks.iter().map(|tick| tick.reading_seconds).collect();
    assert!(seconds[1..].iter().all(|seconds| *seconds < 0.4), "only the first tick waits: {seconds:?}");
    assert!(readings.silent_seconds > 1.0 && began.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_device_is_asked_whether_it_is_lost_and_what_it_draws() {
    let folder = tempfile::tempdir().unwrap();
    let well = nvml(&folder, HOPPER);
    assert_eq!((lost(&well, "GPU-a"), power_now_watts(&well, "GPU-a"), power_now_watts(&well, "GPU-b")), (None, Some(510.25), None));
    let other = tempfile::tempdir().unwrap();
    let gone = nvml(&other, &HOPPER.replace("- calls:", "- lost: {after_calls: 0}\n  calls:"));
    assert_eq!(lost(&gone, "GPU-a").as_deref(), Some("the GPU is lost: it fell off the bus or is inaccessible"));
}

#[test]
fn each_group_of_fields_has_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    let nvml = nvml(&folder, &format!("latency_microseconds: 1000\n{HOPPER}"));
    let found = costs(&nvml, "GPU-a", 2).unwrap();
    let names: Vec<&str> = found.iter().map(|cost| cost.group).collect();
    assert!(names.contains(&"batched_fields") && names.contains(&"gpm") && names.contains(&"process_list"), "{names:?}");
    let batch = found.iter().find(|cost| cost.group == "batched_fields").unwrap();
    assert!(batch.seconds.iter().all(|seconds| *seconds >= 0.001) && batch.seconds.len() == 2, "{batch:?}");
}
