//! `kiln run` on machines that are not there: scenarios of `tests/scenarios`, played by the fake NVML under a scripted child. The
//! tables say what the driver said, each gap has its reason, and no number is invented.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod scripted_child;

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fake_nvml::{Scenario, install::install};
use kiln::hardware::{Gpu, Nvml, Sampler, Watch};
use scripted_child::{Ended, Place, signal, wait_until};

/// The first device of every scenario.
const FIRST: &str = "GPU-5ca1ab1e-0000-4000-8000-000000000001";

fn scenario(name: &str) -> Scenario {
    Scenario::read(&Path::new("tests/scenarios").join(format!("{name}.yaml"))).unwrap()
}

/// A run of so many trials on these devices, each with a measured window of 0.6 s.
fn run_on(devices: &str, scenario: &Scenario, trials: usize) -> (Place, Ended) {
    let batches: Vec<String> = (1..=trials).map(|batch| batch.to_string()).collect();
    let place = Place::with(&format!(
        "train: {{steps: 10}}\nmeasure: {{sample_interval: 100ms}}\nrun: {{require_idle_device: false, devices: {devices}}}\n\
         sweep: {{grid: {{train.batch_size: [{}]}}}}",
        batches.join(", ")
    ));
    let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "plain"]);
    kiln.env("SCRIPTED_CHILD", "measures").env("KILN_NVML_LIB", library).env_remove("CUDA_VISIBLE_DEVICES").env_remove("FAKE_NVML_SCENARIO");
    let ended = Ended::of(kiln.output().unwrap());
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    (place, ended)
}

/// The same on the first device.
fn run(name: &str, trials: usize) -> (Place, Ended) {
    run_on("[0]", &scenario(name), trials)
}

fn rows(name: &str, trials: usize) -> Vec<HashMap<String, String>> {
    let (place, ended) = run(name, trials);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let rows = place.rows();
    assert_eq!(rows.len(), trials);
    for row in &rows {
        assert_eq!((row["outcome"].as_str(), row["device_uuid"].as_str()), ("completed", FIRST));
    }
    rows
}

fn number(row: &HashMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| unreachable!("`{column}` is `{}`: {}", row[column], row["notes"]))
}

/// The column is empty, and the notes say why in these words.
fn is_absent(row: &HashMap<String, String>, column: &str, why: &str) {
    assert_eq!(row[column], "", "{column}");
    let note = row["notes"].split("; ").find(|note| note.starts_with(&format!("{column}: ")));
    assert!(note.is_some_and(|note| note.contains(why)), "{column}: {}", row["notes"]);
}

#[test]
fn a_plain_gpu_fills_the_row() {
    for (name, product, watts, megabytes) in
        [("h200", "NVIDIA H200", 480.0, 0), ("8-h100", "NVIDIA H100 80GB HBM3", 400.0, 0), ("geforce", "NVIDIA GeForce RTX 5077", 211.5, 819)]
    {
        let row = &rows(name, 1)[0];
        assert_eq!(row["device_name"], product);
        assert!((number(row, "mean_power_watts") - watts).abs() < 1e-6, "{name}: {row:?}");
        // Both are the power over the window; the counter is read at its ends, up to a slow reading too late.
        assert!((number(row, "energy_counter_joules") / number(row, "energy_integral_joules") - 1.0).abs() < 0.2, "{name}: {row:?}");
        assert!((number(row, "max_temperature_celsius") - 38.0).abs() < 1e-9);
        assert_eq!(row["peak_nvml_used_bytes"], (megabytes << 20).to_string());
        assert_eq!((row["throttle_reasons"].as_str(), row["throttled_fraction"].as_str()), ("", "0.0"), "{name}");
    }
}

#[test]
fn a_used_gpu_says_by_whom() {
    assert_eq!(rows("8-h100", 1)[0]["foreign_processes"], "1 with 2.0 GiB");
    assert_eq!(rows("wsl", 1)[0]["foreign_processes"], "1 with unknown memory");
    assert_eq!(rows("growing-list", 1)[0]["foreign_processes"], "2 with 3.0 MiB");
}

#[test]
fn a_gpu_in_pieces_has_no_utilization() {
    let row = &rows("h100-mig", 1)[0];
    is_absent(row, "mean_gpu_utilization", "NVML gives no utilization while MIG is on");
    assert!((number(row, "mean_power_watts") - 412.0).abs() < 1e-6);
}

#[test]
fn a_laptop_under_wsl_has_no_energy_counter() {
    let row = &rows("wsl", 1)[0];
    is_absent(row, "energy_counter_joules", "not supported by this device");
    assert!((number(row, "mean_power_watts") - 61.24).abs() < 1e-6);
}

#[test]
fn a_gpu_that_gets_hot_is_seen_to_slow_down() {
    let rows = rows("hot", 2);
    let last = &rows[1];
    assert!((number(last, "max_temperature_celsius") - 92.0).abs() < 1e-9);
    assert_eq!((last["throttle_reasons"].as_str(), last["throttled_fraction"].as_str()), ("hw_slowdown hw_thermal_slowdown", "1.0"));
    assert!((number(last, "mean_power_watts") - 350.0).abs() < 1e-6);
}

#[test]
fn a_counter_that_goes_back_is_no_energy() {
    let row = &rows("energy-reset", 1)[0];
    is_absent(row, "energy_counter_joules", "the counter went back");
    assert!((number(row, "energy_integral_joules") - number(row, "mean_power_watts") * 0.6).abs() < 0.2 * 480.0 * 0.6);
}

#[test]
fn a_lost_gpu_fails_its_trial_and_ends_a_run_that_has_no_other() {
    let (place, ended) = run("lost", 3);
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("no other device is left for the trials that wait"), "{}", ended.stderr);
    assert_eq!(place.column("outcome"), ["completed", "failed"]);
    let failed = &place.rows()[1];
    assert!(failed["reason"].contains("GPU 0 (NVIDIA H200) was lost (NVML: the GPU is lost"), "{}", failed["reason"]);
    for column in ["mean_power_watts", "energy_counter_joules", "mean_gpu_utilization", "samples_per_second"] {
        assert_eq!(failed[column], "", "{column}");
    }
}

#[test]
fn the_trials_of_a_lost_gpu_go_to_the_others() {
    let mut scenario = scenario("8-h100");
    scenario.devices[0].lost.clone_from(&self::scenario("lost").devices[0].lost);
    let (place, ended) = run_on("[0, 1]", &scenario, 5);
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("no further trial is given to it"), "{}", ended.stderr);
    let rows = place.rows();
    let (failed, completed): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["outcome"] == "failed");
    assert_eq!((failed.len(), completed.len()), (1, 4), "{}", ended.stderr);
    assert_eq!(failed[0]["device_uuid"], FIRST);
    assert!(rows.last().unwrap()["device_uuid"] != FIRST && completed.iter().filter(|row| row["device_uuid"] == FIRST).count() <= 1);
}

/// `kiln run` on four GPUs of which each trial uses two; their children play `child`.
fn two_of_four(child: &str, keys: &str, scenario: &Scenario) -> (Place, Ended) {
    let place = Place::with(&format!(
        "train: {{steps: 10}}\nmeasure: {{sample_interval: 100ms}}\nrun: {{require_idle_device: false, devices_per_trial: 2, {keys}}}\n\
         sweep: {{grid: {{train.batch_size: [1, 2, 3, 4]}}}}"
    ));
    let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "plain"]);
    kiln.env("SCRIPTED_CHILD", child).env("KILN_NVML_LIB", library).env_remove("CUDA_VISIBLE_DEVICES").env_remove("FAKE_NVML_SCENARIO");
    let ended = Ended::of(kiln.output().unwrap());
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    (place, ended)
}

fn four_gpus() -> Scenario {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(4);
    scenario
}

/// The UUIDs of these GPUs of a scenario.
fn uuids(devices: &[u32]) -> Vec<String> {
    devices.iter().map(|index| FIRST.replace("000000000001", &format!("{:012}", index + 1))).collect()
}

#[test]
fn of_four_gpus_two_trials_use_two_each_at_once() {
    let (place, ended) = two_of_four("measures", "devices: all", &four_gpus());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let pairs = [uuids(&[0, 1]).join(";"), uuids(&[2, 3]).join(";")];
    let rows = place.rows();
    assert!(rows.len() == 4 && pairs.iter().all(|pair| rows.iter().any(|row| row["device_uuid"] == *pair)), "{:?}", place.column("device_uuid"));
    for row in &rows {
        assert!(pairs.contains(&row["device_uuid"]), "{row:?}");
        assert_eq!((&*row["device_name"], &*row["devices_per_trial"], &*row["concurrent_trials"]), ("NVIDIA H100 80GB HBM3", "2", "2"));
        let batch: u64 = row["batch_size"].parse().unwrap();
        assert_eq!(row["effective_batch_size"], (2 * batch).to_string());
        // One takes 400 W, the next 401, and so on.
        let watts = if row["device_uuid"] == pairs[0] { 400.0 + 401.0 } else { 402.0 + 403.0 };
        assert!((number(row, "mean_power_watts") - watts).abs() < 1e-6, "{row:?}");
        assert!((number(row, "max_temperature_celsius") - 38.0).abs() < 1e-9 && number(row, "energy_integral_joules") > 0.8 * watts * 0.6, "{row:?}");
    }
    let samples = std::fs::read_to_string(place.latest().join("samples.csv")).unwrap();
    assert!(uuids(&[0, 1, 2, 3]).iter().all(|uuid| samples.contains(uuid)));
    assert!(uuids(&[0, 1, 2, 3]).iter().all(|uuid| place.path("locks").join(format!("{uuid}.lock")).exists()));
}

#[test]
fn a_child_sees_its_gpus_and_is_told_how_many() {
    let (place, ended) = two_of_four("environment", "devices: [3, 1]", &four_gpus());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    for attempt in place.attempts() {
        let environment = std::fs::read_to_string(attempt.join("environment")).unwrap();
        let visible = format!("CUDA_VISIBLE_DEVICES={}", uuids(&[3, 1]).join(","));
        assert!(environment.lines().any(|line| line == visible), "{environment}");
        let told = std::fs::read_to_string(attempt.parent().unwrap().join("trial.yaml")).unwrap();
        assert!(told.contains("devices_per_trial: 2") && told.contains("device: cuda"), "{told}");
    }
}

#[test]
fn too_few_gpus_for_one_trial_are_refused_and_a_rest_is_told_of() {
    let mut one = four_gpus();
    one.devices.truncate(1);
    for keys in ["devices: all", "devices: auto"] {
        let (place, ended) = two_of_four("completes", keys, &one);
        assert_eq!(ended.status, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("`run.devices_per_trial` is 2, and a trial may use 1 GPU: 0 (GPU-"), "{}", ended.stderr);
        assert!(!place.path("results/x/latest").exists());
    }
    let mut three = four_gpus();
    three.devices.truncate(3);
    let (place, ended) = two_of_four("completes", "devices: all", &three);
    assert!(ended.status == Some(0) && ended.stderr.contains("each trial uses 2 GPUs (`run.devices_per_trial`), so GPU 2 stays unused"), "{ended:?}");
    assert!(place.column("device_uuid").iter().all(|found| *found == uuids(&[0, 1]).join(";")));
    assert!(!place.path("locks").join(format!("{}.lock", uuids(&[2])[0])).exists(), "nobody waits for it");
}

#[test]
fn a_lost_gpu_takes_its_fellow_along_and_auto_makes_another_pair() {
    let mut scenario = four_gpus();
    scenario.devices[0].lost.clone_from(&self::scenario("lost").devices[0].lost);
    let (place, ended) = two_of_four("measures", "devices: auto", &scenario);
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    let rows = place.rows();
    let failed: Vec<_> = rows.iter().filter(|row| row["outcome"] == "failed").collect();
    assert!(failed.len() == 1 && failed[0]["reason"].contains("GPU 0 (NVIDIA H100 80GB HBM3) was lost"), "{rows:?}");
    assert_eq!(failed[0]["device_uuid"], uuids(&[0, 1]).join(";"));
    assert_eq!(rows.last().unwrap()["device_uuid"], uuids(&[1, 2]).join(";"), "{}", ended.stderr);
    assert!(ended.stderr.contains("going on with GPU 1 (NVIDIA H100 80GB HBM3) and GPU 2"), "{}", ended.stderr);
}

#[test]
fn an_old_library_and_one_that_refuses_leave_gaps_with_their_reasons() {
    let old = &rows("half-symbols", 1)[0];
    is_absent(old, "energy_counter_joules", "this driver does not offer it");
    assert!((number(old, "mean_power_watts") - 480.0).abs() < 1e-6);
    let refused = &rows("no-permission", 1)[0];
    for column in ["mean_power_watts", "energy_counter_joules", "mean_gpu_utilization", "max_temperature_celsius", "peak_nvml_used_bytes"] {
        is_absent(refused, column, "this user may not read it");
    }
}

#[test]
fn a_driver_that_is_not_loaded_is_said() {
    let (_, ended) = run("driver-not-loaded", 1);
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("installed but not loaded"), "{}", ended.stderr);
}

/// The tables name every gap of every scenario; nothing unknown is 0.
#[test]
fn every_field_of_every_scenario_is_a_value_or_a_reason() {
    for name in ["h200", "h100-mig", "8-h100", "geforce", "wsl", "half-symbols", "no-permission"] {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = scenario(name);
        let nvml = Nvml::open(Some(&install(folder.path(), &scenario).unwrap())).unwrap();
        let found = Gpu::read_all(&nvml);
        assert_eq!(found.len(), scenario.devices.len());
        let entries = kiln::hardware::snapshot::gpu(&found[0]).entries;
        assert!(entries.len() > 100, "{name}: {}", entries.len());
        assert!(entries.iter().all(|entry| !entry.value.reason().is_some_and(|reason| reason.is_empty())), "{name}");
        // The same device without one of its calls has a gap there, and not a zero.
        scenario.devices[0].calls.remove("nvmlDeviceGetMemoryInfo_v2");
        let poorer = tempfile::tempdir().unwrap();
        let nvml = Nvml::open(Some(&install(poorer.path(), &scenario).unwrap())).unwrap();
        let entries = kiln::hardware::snapshot::gpu(&Gpu::read_all(&nvml)[0]).entries;
        let memory = entries.iter().filter(|entry| entry.section == "memory" && ["total", "used", "free"].contains(&entry.field.as_str()));
        assert!(memory.clone().count() > 0 && memory.clone().all(|entry| entry.value.value().is_none()), "{name}");
    }
}

/// The 8 GPUs of a machine whose first one hangs at this call.
fn first_hangs(call: &str) -> Scenario {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(2);
    scenario.devices[0].calls.insert(call.into(), serde_json::json!({"hang": true}));
    scenario.devices[1].calls.insert("nvmlDeviceGetComputeRunningProcesses_v3".into(), serde_json::json!([]));
    scenario.devices[1].calls.insert("nvmlDeviceGetUtilizationRates".into(), serde_json::json!({"gpu": 0, "memory": 0}));
    scenario
}

/// `kiln run` of one trial on a machine of its own, not yet started.
fn one_trial(scenario: &Scenario, more: &[&str]) -> (Place, std::process::Command) {
    let place = Place::with("train: {steps: 10}\nmeasure: {sample_interval: 100ms}");
    let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
    let mut kiln = place.kiln(&[&["run", "x.yaml", "--progress", "plain"], more].concat());
    kiln.env("SCRIPTED_CHILD", "completes").env("KILN_NVML_LIB", library).env_remove("CUDA_VISIBLE_DEVICES").env_remove("FAKE_NVML_SCENARIO");
    (place, kiln)
}

#[test]
fn a_gpu_that_hangs_is_passed_over_and_its_fellows_are_read() {
    for call in ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetName"] {
        let began = Instant::now();
        let (place, mut kiln) = one_trial(&first_hangs(call), &[]);
        let ended = Ended::of(kiln.output().unwrap());
        assert!(ended.status == Some(0) && began.elapsed() < Duration::from_secs(90), "{call}: {ended:?}");
        assert!(place.rows()[0]["device_uuid"].ends_with("2"), "{call}: {:?}", place.rows()[0]["device_uuid"]);
        let snapshots = std::fs::read_to_string(place.latest().join("snapshots.csv")).unwrap();
        let of = |uuid: &str, words: &str| snapshots.lines().any(|line| line.contains(uuid) && line.contains(words));
        assert!(of(FIRST, "the driver has not answered for 5 s") && of("000000000002", "NVIDIA H100 80GB HBM3"), "{call}");
        let devices = place.run_file()["launches"][0]["devices"].clone();
        let is_told = devices.as_array().unwrap().iter().any(|device| device["unusable"] == "the driver has not answered for 5 s");
        assert_eq!(is_told, call == "nvmlDeviceGetName", "{devices}");
        let page = std::fs::read_to_string(place.latest().join("snapshot-1.txt")).unwrap();
        assert!(page.contains("GPU 0 was not read: the driver has not answered for 5 s.") && page.contains("NVIDIA H100"), "{page}");
    }
}

#[test]
fn trials_on_the_cpu_do_not_need_the_driver() {
    let began = Instant::now();
    let mut scenario = scenario("h200");
    scenario.calls.insert("nvmlInit_v2".into(), serde_json::json!({"hang": true}));
    let (place, mut kiln) = one_trial(&scenario, &["--device", "cpu"]);
    let ended = Ended::of(kiln.output().unwrap());
    assert!(ended.status == Some(0) && began.elapsed() < Duration::from_secs(60), "{ended:?}");
    assert_eq!(place.column("device_uuid"), [""]);
}

#[test]
fn a_signal_is_heeded_while_the_driver_hangs() {
    let mut scenario = first_hangs("nvmlDeviceGetUtilizationRates");
    scenario.devices.truncate(1);
    for name in ["INT", "TERM"] {
        let (place, mut kiln) = one_trial(&scenario, &[]);
        let mut kiln = kiln.spawn().unwrap();
        wait_until("the device is looked at", || place.path("locks").join(format!("{FIRST}.lock")).exists());
        let began = Instant::now();
        signal(&kiln, name);
        let status = kiln.wait().unwrap();
        assert!(status.code() == Some(130) && began.elapsed() < Duration::from_secs(3), "{name}: {status} after {:?}", began.elapsed());
    }
}

#[test]
fn a_snapshot_is_of_the_gpus_that_answer() {
    let folder = tempfile::tempdir().unwrap();
    let library = install(folder.path(), &first_hangs("nvmlDeviceGetUtilizationRates")).unwrap();
    for arguments in [&[][..], &["--csv"], &["--json"], &["--words"], &["--query", "index,name,utilization.gpu"]] {
        let mut kiln = std::process::Command::new(env!("CARGO_BIN_EXE_kiln"));
        kiln.arg("snapshot").args(arguments).env("KILN_NVML_LIB", &library).env_remove("FAKE_NVML_SCENARIO");
        let ended = Ended::of(kiln.output().unwrap());
        assert_eq!((ended.status, ended.stderr.as_str()), (Some(1), "GPU 0 was not read: the driver has not answered for 5 s\n"), "{arguments:?}");
        assert!(ended.stdout.contains("NVIDIA H100 80GB HBM3"), "{arguments:?}: {}", ended.stdout);
    }
}

#[test]
fn a_machine_that_cannot_run_a_trial_leaves_it_to_the_next_launch() {
    let mut scenario = scenario("h200");
    scenario.devices[0].calls.insert("nvmlDeviceGetUtilizationRates".into(), serde_json::json!({"gpu": 0, "memory": 0}));
    let (place, mut kiln) = one_trial(&scenario, &[]);
    place.write("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let ended = Ended::of(kiln.env("SCRIPTED_CHILD", "says_no_device").output().unwrap());
    assert_eq!((ended.status, place.column("outcome")), (Some(3), vec!["interrupted".to_owned()]), "{ended:?}");
    assert!(ended.stdout.contains("1 of 2 trials: 1 interrupted, 1 not run"), "{ended:?}");
    assert_eq!(ended.stderr.matches("CUDA is not usable here").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("`--device cpu`") && !ended.stderr.contains(" left"), "{}", ended.stderr);
    // No number was made anywhere: where the trials run may still be changed.
    let on_the_cpu = place.run("completes", &["--device", "cpu"]);
    assert_eq!((on_the_cpu.status, place.runs()), (Some(0), 1), "{on_the_cpu:?}");
    assert_eq!(place.column("outcome"), ["interrupted", "completed", "completed"]);
    assert_eq!(place.run_file()["launches"][1]["changed"]["run.devices"], "cpu");
    let gone_on = place.run("completes", &["--device", "cpu", "--rerun", "completed"]);
    assert_eq!((gone_on.status, place.runs()), (Some(0), 1), "{gone_on:?}");
    let elsewhere = place.run("completes", &["--device", "auto"]);
    assert_eq!((elsewhere.status, place.runs()), (Some(0), 2), "a finished run is of the device it ran on: {elsewhere:?}");
}

#[test]
fn a_variable_that_names_no_gpu_is_not_taken_for_the_wish_to_have_none() {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(2);
    let (place, mut kiln) = one_trial(&scenario, &[]);
    let ended = Ended::of(kiln.env("CUDA_VISIBLE_DEVICES", "5").output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("`CUDA_VISIBLE_DEVICES=5`: there is no GPU 5; the last one is GPU 1"), "{}", ended.stderr);
    assert!(ended.stderr.contains("`--device cpu`") && !place.path("results/x/latest").exists(), "{}", ended.stderr);
    let (_place, mut hidden) = one_trial(&scenario, &[]);
    assert_eq!(hidden.env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap().status.code(), Some(0));
}

#[test]
fn a_lost_gpu_that_is_named_is_said_to_be_lost() {
    let (_, ended) = run_on("[2]", &scenario("snapshot"), 1);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("`run.devices` names GPU 2, which cannot be used: the GPU is lost"), "{}", ended.stderr);
}

#[test]
fn a_driver_that_hangs_does_not_hold_the_sampler() {
    let folder = tempfile::tempdir().unwrap();
    let nvml = Nvml::open(Some(&install(folder.path(), &scenario("hang")).unwrap())).unwrap();
    let sampler = Sampler::start(Some(Arc::new(nvml)), Duration::from_millis(20), 0);
    sampler.watch(Watch { trial: "t".into(), attempt: 1, pid: std::process::id(), device_uuid: Some(FIRST.into()) });
    wait_until("a first tick", || !sampler.take_rows().is_empty());
    std::thread::sleep(Duration::from_millis(400));
    let began = Instant::now();
    let readings = sampler.unwatch("t");
    drop(sampler);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(readings.ticks.iter().any(|tick| tick.gpu.is_some()));
}
