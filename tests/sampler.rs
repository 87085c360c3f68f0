//! What a sampler reads of a device, from the library to the summary of a window, with a library
//! that plays scenarios.
//!
//! The sampler has no ticks here: it looks when it is asked to, and each look is waited for.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use kiln::readings::SampleWriter;
use kiln_core::{
    folder::Folder,
    record::{SampleRow, Table, tables::SAMPLES},
};
use kiln_hardware::{
    EVERYTHING, GpuTick, GpuWatchdog, Nvml, Patience, ProcessList, Sampler, TrialReadings, Watch,
    WindowSummary, costs, lost, power_now_watts, read_all_gpus, sampler::SampledTick, silence_of,
    window::summarize,
};

use crate::{
    hardware_scenarios::{CHANGED, wanted, with_patience},
    scripted_child::wait_until,
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
    Nvml::open(Some(
        &fake_nvml::install::install(folder.path(), &scenario).unwrap(),
    ))
    .unwrap()
}

/// Of looks at GPM: nearer than 100 ms they give nothing, and further apart they may be.
const APART: Duration = Duration::from_millis(105);

/// Time between seven looks in a window that is long enough (2 s) to have an energy.
const FAR_APART: Duration = Duration::from_millis(360);

/// What no look at a well device takes, however busy the machine.
const LONG: Duration = Duration::from_secs(60);

/// A sampler that watches this process and the scenario's first device as trial `t`.
struct Watching {
    folder: tempfile::TempDir,
    sampler: Sampler,
}

impl Watching {
    fn begin(scenario: &str, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let desk = GpuWatchdog::new(&nvml(&folder, scenario), patience);
        let sampler = Sampler::with_desk(Some(desk), Duration::from_secs(3600), 0);
        sampler.watch(Watch {
            trial: "t".into(),
            attempt: 1,
            pid: std::process::id(),
            without_root: false,
            device_uuid: Some("GPU-a".into()),
        });
        Self { folder, sampler }
    }

    /// The look that was asked for last: the first is asked for by the watch itself.
    fn row(&self) -> SampledTick {
        let mut rows = Vec::new();
        wait_until("a look at the device", || {
            rows.extend(self.sampler.take_rows());
            !rows.is_empty()
        });
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }

    /// Asks for one more look.
    fn look(&self) -> SampledTick {
        self.sampler.mark("t");
        self.row()
    }

    /// Makes the scenario's change.
    fn change(&self) {
        fs::write(self.folder.path().join(CHANGED), "").unwrap();
    }
}

/// So many looks, `apart` from each other.
fn sampled_apart(
    scenario: &str,
    count: usize,
    apart: Duration,
) -> (Vec<SampledTick>, TrialReadings) {
    let watching = Watching::begin(scenario, LONG);
    let mut rows = vec![watching.row()];
    while rows.len() < count {
        thread::sleep(apart);
        rows.push(watching.look());
    }
    (rows, watching.sampler.unwatch("t"))
}

fn sampled(scenario: &str, count: usize) -> (Vec<SampledTick>, TrialReadings) {
    sampled_apart(scenario, count, Duration::ZERO)
}

fn summary(readings: &TrialReadings) -> WindowSummary {
    let ends = |tick: Option<&kiln_hardware::Tick>| tick.unwrap().monotonic_nanoseconds;
    summarize(
        readings,
        Some((ends(readings.ticks.first()), ends(readings.ticks.last()))),
        &[],
        None,
    )
}

fn first_gpu(rows: &[SampledTick]) -> &GpuTick {
    rows.iter().find_map(|row| row.tick.gpu.as_ref()).unwrap()
}

#[test]
fn a_batch_and_the_chips_counters_reach_the_row_and_the_summary() {
    let (rows, readings) = sampled_apart(HOPPER, 7, FAR_APART);
    let gpu = rows[2].tick.gpu.clone().unwrap();
    assert_eq!(
        (
            gpu.power_watts,
            gpu.power_instant_watts,
            gpu.memory_temperature_celsius
        ),
        (Some(500.0), Some(510.25), Some(60.0))
    );
    assert_eq!(
        (gpu.work.sm_active, gpu.work.nvlink_receive_bytes_per_second),
        (Some(0.955), None)
    );
    assert_eq!(
        (
            gpu.pcie_receive_bytes_per_second,
            gpu.pcie_transmit_bytes_per_second
        ),
        (Some(2_097_152.0), Some(1_048_576.0))
    );
    assert_eq!(
        (gpu.ecc_corrected_errors, gpu.ecc_uncorrected_errors),
        (Some(0), Some(0))
    );
    assert_eq!(
        first_gpu(&rows).work.sm_active,
        None,
        "one look has no look before it"
    );
    let found = summary(&readings);
    assert_eq!(
        (
            found.mean_sm_active,
            found.mean_sm_occupancy,
            found.mean_tensor_active
        ),
        (Some(0.955), Some(0.4), Some(0.3))
    );
    assert_eq!(
        (
            found.mean_dram_bandwidth_utilization,
            found.mean_sm_clock_megahertz
        ),
        (Some(0.2), Some(1980.0))
    );
    assert_eq!(
        (
            found.throttle_reasons.as_deref(),
            found.max_temperature_celsius
        ),
        (Some("sw_power_cap"), Some(52.0))
    );
    let (counted, integrated) = (
        found.energy_counter_joules.unwrap(),
        found.energy_integral_joules.unwrap(),
    );
    let slowest = readings
        .ticks
        .iter()
        .map(|tick| tick.reading_seconds)
        .fold(0.0, f64::max);
    assert!(
        (counted - integrated).abs() <= slowest * 500.0 + 0.002,
        "{counted} {integrated}"
    );
    check_table(&rows);
}

fn check_table(ticks: &[SampledTick]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.csv");
    SampleWriter::open(&Folder::open(path.parent().unwrap()).unwrap(), 1)
        .unwrap()
        .0
        .append(ticks)
        .unwrap();
    let rows: Vec<SampleRow> = Table::read(&path, SAMPLES.version).unwrap().rows().unwrap();
    assert_eq!(
        (rows.len(), rows[3].sm_active, rows[3].throttle_bits),
        (ticks.len(), Some(0.955), Some(4))
    );
}

#[test]
fn a_pcie_counter_of_32_bits_on_a_fast_link_gives_no_rate() {
    // Each look finds a million bytes more.
    let scenario = |kind: u8, generation: u8, lanes: u8| {
        let calls = format!(
            "    nvmlDeviceGetMaxPcieLinkGeneration: {generation}\n    \
             nvmlDeviceGetMaxPcieLinkWidth: {lanes}\n  fields:\n    198/0: {{type: {kind}, value: \
             {{calls: [7, 1000007, 2000007]}}}}\n"
        );
        HOPPER.replace("  fields:\n", &calls).replace(
            "nvmlGpmQueryDeviceSupport: 1",
            "nvmlGpmQueryDeviceSupport: 0",
        )
    };
    // In 105 ms the fast link carries more than 32 bits can count; the slow one needs 17 s for
    // that.
    for (kind, generation, lanes, is_told) in [(3, 5, 16, true), (1, 5, 16, false), (1, 1, 1, true)]
    {
        let (rows, _) = sampled_apart(&scenario(kind, generation, lanes), 3, APART);
        let rate = rows[2]
            .tick
            .gpu
            .as_ref()
            .unwrap()
            .pcie_receive_bytes_per_second;
        assert_eq!(
            rate.is_some(),
            is_told,
            "type {kind}, generation {generation}: {rate:?}"
        );
        // The counter is read some time after its look has begun, at most as long as the look took.
        let [before, now] = [&rows[1].tick, &rows[2].tick];
        let seconds = (now.monotonic_nanoseconds - before.monotonic_nanoseconds) as f64 / 1e9;
        let possible =
            1e6 / (seconds + now.reading_seconds)..=1e6 / (seconds - before.reading_seconds);
        assert!(
            rate.is_none_or(|rate| possible.contains(&rate)),
            "{rate:?} {possible:?}"
        );
    }
}

#[test]
fn clients_of_the_multi_process_service_compute_too() {
    let folder = tempfile::tempdir().unwrap();
    let lists = "    nvmlDeviceGetComputeRunningProcesses_v3: [{pid: 11, usedGpuMemory: 5}]\n    \
                 nvmlDeviceGetMPSComputeRunningProcesses_v3: [{pid: 12, usedGpuMemory: 7}, {pid: \
                 11, usedGpuMemory: 5}]\n  fields:\n";
    let nvml = nvml(&folder, &HOPPER.replace("  fields:\n", lists));
    let ProcessList::Known(list) = nvml.compute_processes("GPU-a") else {
        panic!("both lists are told")
    };
    let mut pids: Vec<u32> = list.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    assert_eq!(pids, [11, 12]);
}

#[test]
fn a_performance_state_that_the_driver_does_not_know_is_absent() {
    let state = |code: u32| {
        let (rows, readings) = sampled(
            &HOPPER.replace(
                "nvmlDeviceGetPerformanceState: 0",
                &format!("nvmlDeviceGetPerformanceState: {code}"),
            ),
            1,
        );
        (
            first_gpu(&rows).performance_state,
            readings.absent.get("performance_state").cloned(),
        )
    };
    assert_eq!(state(8), (Some(8), None));
    assert_eq!(
        state(32),
        (
            None,
            Some("the driver does not know the performance state".to_owned())
        )
    );
}

#[test]
fn a_field_that_fails_once_is_read_again_also_where_it_says_not_supported() {
    for code in [3, 4, 999] {
        let rates = format!(
            "{{calls: [{{gpu: 75, memory: 7}}, {{return: {code}}}, {{gpu: 80, memory: 7}}]}}"
        );
        let (rows, _) = sampled(&HOPPER.replace("{gpu: 75, memory: 7}", &rates), 3);
        let found: Vec<Option<f64>> = rows
            .iter()
            .map(|row| row.tick.gpu.as_ref().unwrap().utilization)
            .collect();
        assert_eq!(found, [Some(0.75), None, Some(0.8)], "code {code}");
    }
}

#[test]
fn a_driver_without_gpm_or_without_its_free_gives_reasons_and_does_not_abort() {
    for (missing, has_gpm) in [("[nvmlGpm*]", false), ("[nvmlGpmSampleFree]", true)] {
        let (_, readings) = sampled_apart(&format!("missing: {missing}\n{HOPPER}"), 7, APART);
        let found = summary(&readings);
        assert_eq!(found.mean_sm_active.is_some(), has_gpm, "{missing}");
        assert_eq!(
            found.notes.contains_key("mean_sm_active"),
            !has_gpm,
            "{:?}",
            found.notes
        );
    }
}

#[test]
fn an_old_driver_is_read_through_the_older_calls() {
    let missing = "missing: [nvmlDeviceGetTemperatureV, nvmlDeviceGetCurrentClocksEventReasons, \
                   nvmlDeviceGetFieldValues]";
    let old = "    nvmlDeviceGetCurrentClocksThrottleReasons: 8\n    nvmlDeviceGetPowerUsage: \
               500000\n    nvmlDeviceGetTotalEnergyConsumption: {counter: {start: 1, rate: \
               500000}}\n    nvmlGpmQuery";
    let (rows, _) = sampled(
        &format!("{missing}\n{}", HOPPER.replace("    nvmlGpmQuery", old)),
        2,
    );
    let gpu = first_gpu(&rows);
    assert_eq!(
        (gpu.temperature_celsius, gpu.throttle_bits, gpu.power_watts),
        (Some(52.0), Some(8), Some(500.0))
    );
    assert!(gpu.energy_joules.is_some() && gpu.power_instant_watts.is_none());
}

#[test]
fn a_counter_that_is_reset_gives_no_energy_and_says_why() {
    let counter = "{once: changed, before: {counter: {start: 9000000, rate: 500000}}, then: \
                   {counter: {start: 0, rate: 500000}}}";
    let watching = Watching::begin(
        &HOPPER.replace("{counter: {start: 7000, rate: 500000}}", counter),
        LONG,
    );
    watching.row();
    thread::sleep(3 * FAR_APART);
    watching.look();
    watching.change();
    thread::sleep(3 * FAR_APART);
    watching.look();
    let found = summary(&watching.sampler.unwatch("t"));
    assert_eq!(found.energy_counter_joules, None);
    assert!(
        found.notes["energy_counter_joules"].starts_with("the counter went backwards"),
        "{:?}",
        found.notes
    );
    assert!(found.energy_integral_joules.is_some());
}

#[test]
fn under_mig_the_row_says_what_is_hidden_and_what_is_the_boards() {
    let mig = "    nvmlDeviceGetMigMode: [1, 1]\n    nvmlGpmQuery";
    let found = summary(&sampled_apart(&HOPPER.replace("    nvmlGpmQuery", mig), 7, FAR_APART).1);
    assert_eq!(
        found.notes["mean_gpu_utilization"],
        "NVML gives no utilization while MIG is on"
    );
    assert_eq!(
        found.notes["mean_power_watts"],
        "for the whole board because MIG is on"
    );
    assert!(found.mean_sm_active.is_some() && found.mean_power_watts.is_some());
}

#[test]
fn a_device_that_falls_off_the_bus_ends_its_series_with_nvmls_words() {
    let watching = Watching::begin(
        &HOPPER.replace("- calls:", "- lost: {once: changed}\n  calls:"),
        LONG,
    );
    let first = watching.row().tick;
    assert!(first.gpu.is_some(), "{first:?}");
    watching.change();
    let last = watching.look().tick;
    let readings = watching.sampler.unwatch("t");
    assert!(last.gpu.is_none() && last.child.is_some());
    assert_eq!(
        last.gpu_absence.as_deref(),
        Some("the GPU is lost: it fell off the bus or is inaccessible")
    );
    assert_eq!(
        (readings.lost.as_ref(), readings.absent.get(EVERYTHING)),
        (last.gpu_absence.as_ref(), last.gpu_absence.as_ref())
    );
}

#[test]
fn a_call_that_hangs_leaves_the_ticks_of_the_host_and_the_process() {
    let scenario = HOPPER.replace(
        "nvmlDeviceGetPerformanceState: 0",
        "nvmlDeviceGetPerformanceState: {once: changed, before: 0, then: {hang: true}}",
    );
    with_patience(|patience| {
        let seconds: f64 = patience.parse().unwrap();
        let watching = Watching::begin(&scenario, Duration::from_secs_f64(seconds));
        let first = watching.row().tick;
        wanted(first.gpu.is_some(), || format!("{first:?}"))?;
        watching.change();
        let rows: Vec<_> = (0..6).map(|_| watching.look().tick).collect();
        assert!(rows.iter().all(|tick| tick.gpu.is_none()
            && tick.child.is_some()
            && tick.host.memory_available_bytes.is_some()));
        let of_later = rows[1..]
            .iter()
            .map(|tick| tick.reading_seconds)
            .reduce(f64::min)
            .unwrap();
        assert!(
            rows[0].reading_seconds >= seconds && of_later < seconds,
            "only the first look waits: {rows:?}"
        );
        let readings = watching.sampler.unwatch("t");
        assert!(
            readings.silent_seconds >= seconds
                && readings
                    .ticks
                    .iter()
                    .filter(|tick| tick.gpu.is_some())
                    .count()
                    == 1
        );
        Ok(())
    });
}

#[test]
fn a_device_is_asked_whether_it_is_lost_and_what_it_draws() {
    let folder = tempfile::tempdir().unwrap();
    let well = nvml(&folder, HOPPER);
    assert_eq!(
        (
            lost(&well, "GPU-a"),
            power_now_watts(&well, "GPU-a"),
            power_now_watts(&well, "GPU-b")
        ),
        (None, Some(510.25), None)
    );
    let unpowered = tempfile::tempdir().unwrap();
    let draws_none = HOPPER.replace("value: 510250", "value: 0");
    assert_eq!(
        power_now_watts(&nvml(&unpowered, &draws_none), "GPU-a"),
        None
    );
    let other = tempfile::tempdir().unwrap();
    let gone = nvml(
        &other,
        &HOPPER.replace("- calls:", "- lost: {after_calls: 0}\n  calls:"),
    );
    assert_eq!(
        lost(&gone, "GPU-a").as_deref(),
        Some("the GPU is lost: it fell off the bus or is inaccessible")
    );
}

#[test]
fn a_driver_that_answers_slowly_does_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let nvml = nvml(&folder, &format!("latency_microseconds: 20000\n{HOPPER}"));
    let patience = Patience::of(Duration::from_millis(1500));
    let begun = Instant::now();
    let gpus = read_all_gpus(nvml, &patience);
    assert!(
        begun.elapsed() > patience.limit(),
        "the driver is too quick"
    );
    assert_eq!(silence_of(&gpus[0]), None);
}

#[test]
fn each_group_of_fields_has_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    let nvml = nvml(&folder, &format!("latency_microseconds: 1000\n{HOPPER}"));
    let found = costs(&nvml, "GPU-a", 2).unwrap();
    let names: Vec<&str> = found.iter().map(|cost| cost.group).collect();
    assert!(
        names.contains(&"batched_fields")
            && names.contains(&"gpm")
            && names.contains(&"process_list"),
        "{names:?}"
    );
    let batch = found
        .iter()
        .find(|cost| cost.group == "batched_fields")
        .unwrap();
    assert!(
        batch.seconds.iter().all(|seconds| *seconds >= 0.001) && batch.seconds.len() == 2,
        "{batch:?}"
    );
}
