//! `kiln run` on machines that are not there: scenarios of `tests/scenarios`, played by the fake
//! NVML under a scripted child. The tables say what the driver said, each gap has its reason, and
//! no number is invented.
//!
//! Nothing here is timed: a child waits for looks of the sampler, and a scenario changes when a
//! test or a child makes a file.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fake_nvml::{Scenario, install::install};
use kiln_hardware::{Gpu, Nvml};

use crate::scripted_child::{Ended, Place, hear, signal, wait_until};

type Row = HashMap<String, String>;

/// The first device of every scenario.
const FIRST: &str = "GPU-5ca1ab1e-0000-4000-8000-000000000001";

/// The file that makes a scenario change: it gets hot, a device is lost, a call hangs.
pub(crate) const CHANGED: &str = "changed";

const ONE_TRIAL: &str = "train: {steps: 10}\nmeasure: {sample_interval: 100ms}";

pub(crate) fn scenario(name: &str) -> Scenario {
    Scenario::read(&Path::new("tests/scenarios").join(format!("{name}.yaml"))).unwrap()
}

/// An experiment of so many trials, with batch sizes from 1 on and these keys under `run`.
pub(crate) fn sweep(keys: &str, trials: usize) -> Place {
    let batches: Vec<String> = (1..=trials).map(|batch| batch.to_string()).collect();
    Place::with(&format!(
        "{ONE_TRIAL}\nrun: {{require_idle_device: false, {keys}}}\nsweep: {{grid: \
         {{train.batch_size: [{}]}}}}",
        batches.join(", ")
    ))
}

/// `kiln run` with this driver, which has all the time to answer that a busy machine may need.
pub(crate) fn kiln_on(place: &Place, scenario: &Scenario, more: &[&str]) -> Command {
    let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
    let mut kiln = place.kiln(&[&["run", "x.yaml", "--progress", "plain"], more].concat());
    kiln.env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60");
    kiln.env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("FAKE_NVML_SCENARIO");
    kiln
}

pub(crate) fn ended(kiln: &mut Command) -> Ended {
    end_of(kiln.spawn().unwrap())
}

fn end_of(kiln: Child) -> Ended {
    let ended = Ended::of(kiln.wait_with_output().unwrap());
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

/// A run to its end, every child playing `child`.
fn run(place: &Place, scenario: &Scenario, child: &str) -> Ended {
    ended(kiln_on(place, scenario, &[]).env("SCRIPTED_CHILD", child))
}

/// A trial with a measured window of some looks at its devices.
pub(crate) struct Sampled {
    pub(crate) row: Row,
    window_seconds: f64,
    /// What the longest look took.
    slowest_seconds: f64,
}

impl Sampled {
    fn of(place: &Place, row: Row) -> Self {
        let trial = place
            .latest()
            .join("trials")
            .join(&row["trial"])
            .join(&row["attempt"])
            .join("trial.json");
        let result: serde_json::Value = serde_json::from_slice(&fs::read(trial).unwrap()).unwrap();
        let nanoseconds = |key: &str| result[key].as_u64().unwrap();
        let length =
            nanoseconds("window_ended_nanoseconds") - nanoseconds("window_started_nanoseconds");
        let samples: Vec<Row> = csv::Reader::from_path(place.latest().join("samples.csv"))
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
        let readings = samples
            .iter()
            .map(|sample| sample["reading_seconds"].parse::<f64>().unwrap());
        Self {
            row,
            window_seconds: length as f64 / 1e9,
            slowest_seconds: readings.fold(0.0, f64::max),
        }
    }

    /// The device drew so much all the time.
    pub(crate) fn drew(&self, watts: f64) {
        let found = |column| number(&self.row, column);
        assert!(
            (found("mean_power_watts") - watts).abs() < 1e-6,
            "{:?}",
            self.row
        );
        let joules = watts * self.window_seconds;
        assert!(
            (found("energy_integral_joules") / joules - 1.0).abs() < 1e-6,
            "{joules} {:?}",
            self.row
        );
        // The counter is read some time after its look has begun, at most as long as the look took;
        // it counts whole millijoules.
        let apart = (found("energy_counter_joules") - joules).abs();
        assert!(
            apart <= watts * self.slowest_seconds + 0.004,
            "{joules} {} {:?}",
            self.slowest_seconds,
            self.row
        );
    }
}

/// One trial on the first device of a scenario, which changes in the middle of the measured window.
fn sampled(name: &str) -> Sampled {
    sampled_on(&scenario(name), FIRST, "0", None)
}

/// One trial on the device of this UUID, which `run.devices` names by `device` and
/// `CUDA_VISIBLE_DEVICES` by `visible`.
pub(crate) fn sampled_on(
    scenario: &Scenario,
    uuid: &str,
    device: &str,
    visible: Option<&str>,
) -> Sampled {
    let place = sweep(&format!("devices: [{device}]"), 1);
    let mut kiln = kiln_on(&place, scenario, &[]);
    kiln.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
    let ended = ended(
        kiln.env("SCRIPTED_CHILD", "sampled")
            .env("SCRIPTED_CHILD_MAKES", place.path(CHANGED)),
    );
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let mut rows = place.rows();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0]["outcome"].as_str(), rows[0]["device_uuid"].as_str()),
        ("completed", uuid)
    );
    Sampled::of(&place, rows.remove(0))
}

pub(crate) fn number(row: &Row, column: &str) -> f64 {
    row[column]
        .parse()
        .unwrap_or_else(|_| unreachable!("`{column}` is `{}`: {}", row[column], row["notes"]))
}

/// The column is empty, and the notes say why in these words.
pub(crate) fn is_absent(row: &Row, column: &str, why: &str) {
    assert_eq!(row[column], "", "{column}");
    let note = row["notes"]
        .split("; ")
        .find(|note| note.starts_with(&format!("{column}: ")));
    assert!(
        note.is_some_and(|note| note.contains(why)),
        "{column}: {}",
        row["notes"]
    );
}

/// A reading in a wrong unit (mW for W, MiB for bytes) is found here.
#[test]
fn a_plain_gpu_fills_the_row() {
    for (name, product, watts, megabytes, others) in [
        ("h200", "NVIDIA H200", 480.0, 0, ""),
        (
            "8-h100",
            "NVIDIA H100 80GB HBM3",
            400.0,
            0,
            "1 with 2.0 GiB",
        ),
        ("geforce", "NVIDIA GeForce RTX 5077", 211.5, 819, ""),
        ("growing-list", "NVIDIA H200", 480.0, 0, "2 with 3.0 MiB"),
    ] {
        let found = sampled(name);
        let row = &found.row;
        assert_eq!(row["device_name"], product);
        found.drew(watts);
        assert!((number(row, "max_temperature_celsius") - 38.0).abs() < 1e-9);
        assert_eq!(
            row["peak_nvml_used_bytes"],
            (megabytes << 20).to_string(),
            "{name}"
        );
        assert_eq!(
            (
                row["throttle_reasons"].as_str(),
                row["throttled_fraction"].as_str()
            ),
            ("", "0.0"),
            "{name}"
        );
        assert!(
            others.is_empty() || row["foreign_processes"] == others,
            "{name}: {}",
            row["foreign_processes"]
        );
    }
}

#[test]
fn a_laptop_under_wsl_has_no_energy_counter() {
    let row = &sampled("wsl").row;
    is_absent(row, "energy_counter_joules", "not supported by this device");
    assert!((number(row, "mean_power_watts") - 61.24).abs() < 1e-6);
    assert_eq!(row["foreign_processes"], "1 with unknown memory");
}

#[test]
fn a_gpu_that_gets_hot_is_seen_to_slow_down() {
    let row = &sampled("hot").row;
    assert!((number(row, "max_temperature_celsius") - 92.0).abs() < 1e-9);
    assert_eq!(row["throttle_reasons"], "hw_slowdown hw_thermal_slowdown");
    let (throttled, watts) = (
        number(row, "throttled_fraction"),
        number(row, "mean_power_watts"),
    );
    assert!(
        throttled > 0.0 && throttled < 1.0,
        "only from the middle on: {throttled}"
    );
    assert!(watts > 350.0 && watts < 480.0, "{watts}");
}

#[test]
fn each_row_has_the_power_limit_at_its_start_and_says_if_it_changes() {
    let mut scenario = scenario("h200");
    scenario.devices[0].calls.insert(
        "nvmlDeviceGetEnforcedPowerLimit".into(),
        serde_json::json!({"once": CHANGED, "before": 700_000, "then": 500_000}),
    );
    let place = sweep("devices: [0]", 2);
    let ended = ended(
        kiln_on(&place, &scenario, &[])
            .env("SCRIPTED_CHILD", "sampled")
            .env("SCRIPTED_CHILD_MAKES", place.path(CHANGED)),
    );
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert_eq!(place.column("power_limit_watts"), ["700.0", "500.0"]);
    let notes = place.column("notes");
    let change = "power_limit_watts: the limit changed from 700 W to 500 W during the attempt";
    assert!(
        notes[0].contains(change) && !notes[1].contains("power_limit_watts"),
        "{notes:?}"
    );
}

/// Two trials, one after the other, with `run.cool_down`, on a GPU with these answers of the newer and
/// the older call of the temperature.
fn with_cool_down(newer: serde_json::Value, older: serde_json::Value) -> (Place, Ended) {
    let mut scenario = scenario("h200");
    let calls = &mut scenario.devices[0].calls;
    calls.insert("nvmlDeviceGetTemperatureV/0".into(), newer);
    calls.insert("nvmlDeviceGetTemperature/0".into(), older);
    let place = sweep(
        "devices: [0], cool_down: {below_celsius: 50, at_most: 1s}",
        2,
    );
    let ended = run(&place, &scenario, "completes");
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    (place, ended)
}

#[test]
fn a_gpu_cools_down_by_the_newer_call_of_the_temperature_too() {
    let unknown = || serde_json::json!({"return": 3});
    let notice = "`run.cool_down` cannot wait for GPU 0 (NVIDIA H200): its temperature is unknown \
                  (not supported by this device)";
    for (newer, older) in [
        (serde_json::json!(60), unknown()),
        (unknown(), serde_json::json!(60)),
    ] {
        let (place, ended) = with_cool_down(newer, older);
        assert!(!ended.stderr.contains("run.cool_down"), "{}", ended.stderr);
        let rows = place.rows();
        let pause = number(&rows[1], "run_seconds")
            - number(&rows[0], "run_seconds")
            - number(&rows[0], "trial_seconds");
        // The end is seen a moment before the rest begins.
        assert!(pause > 0.9, "{pause}");
    }
    let (_, ended) = with_cool_down(unknown(), unknown());
    assert!(ended.stderr.contains(notice), "{}", ended.stderr);
}

#[test]
fn a_counter_that_goes_back_is_no_energy() {
    let found = sampled("energy-reset");
    is_absent(
        &found.row,
        "energy_counter_joules",
        "the counter went backwards",
    );
    let joules = 480.0 * found.window_seconds;
    assert!(
        (number(&found.row, "energy_integral_joules") / joules - 1.0).abs() < 1e-6,
        "{joules} {:?}",
        found.row
    );
}

/// Starts a run and, once `is_time`, makes its scenario change.
fn change_once(
    kiln: &mut Command,
    place: &Place,
    what: &str,
    is_time: impl FnMut() -> bool,
) -> Child {
    let kiln = kiln.spawn().unwrap();
    wait_until(what, is_time);
    fs::write(place.path(CHANGED), "").unwrap();
    kiln
}

#[test]
fn a_lost_gpu_fails_its_trial_and_ends_a_run_that_has_no_other() {
    let place = sweep("devices: [0]", 3);
    let mut kiln = kiln_on(&place, &scenario("lost"), &[]);
    kiln.env("SCRIPTED_CHILD_1", "completes")
        .env("SCRIPTED_CHILD_2", "hangs");
    let ended = end_of(change_once(
        &mut kiln,
        &place,
        "the second trial is at work",
        || place.attempts_with("at-work") == 1,
    ));
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("no other device is left for the waiting trials"),
        "{}",
        ended.stderr
    );
    assert_eq!(place.column("outcome"), ["completed", "failed"]);
    let failed = &place.rows()[1];
    assert!(
        failed["reason"].contains("GPU 0 (NVIDIA H200) was lost (NVML: the GPU is lost"),
        "{}",
        failed["reason"]
    );
    for column in [
        "mean_power_watts",
        "energy_counter_joules",
        "mean_gpu_utilization",
        "samples_per_second",
    ] {
        assert_eq!(failed[column], "", "{column}");
    }
}

#[test]
fn no_trial_starts_on_a_gpu_that_was_lost_between_two() {
    // The GPU is lost while the second trial waits for it to cool down.
    let place = sweep(
        "devices: [0], cool_down: {below_celsius: 20, at_most: 5s}",
        2,
    );
    let mut kiln = kiln_on(&place, &scenario("lost"), &[]);
    kiln.env("SCRIPTED_CHILD", "completes");
    let ended = end_of(change_once(
        &mut kiln,
        &place,
        "the first trial has a row",
        || place.lines().len() == 2,
    ));
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    let words = "GPU 0 (NVIDIA H200) was lost (NVML: the GPU is lost";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert_eq!(place.column("outcome"), ["completed"]);
}

#[test]
fn a_gpu_that_is_lost_while_a_launch_waits_for_it_is_told_of() {
    let place = Place::with(&format!("{ONE_TRIAL}\nrun: {{devices: [0], wait: 2m}}"));
    let lock = place.path("locks").join(format!("{FIRST}.lock"));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let lease = kiln_core::record::lock::lock_file(&lock, "somebody")
        .unwrap()
        .unwrap();
    let mut kiln = kiln_on(&place, &scenario("lost"), &[]).spawn().unwrap();
    hear(&mut kiln, "is leased by somebody");
    fs::write(place.path(CHANGED), "").unwrap();
    let ended = end_of(kiln);
    drop(lease);
    let words = "GPU 0 (NVIDIA H200) cannot be used: the GPU is lost";
    assert!(
        ended.status == Some(3) && ended.stderr.contains(words),
        "{ended:?}"
    );
}

#[test]
fn the_trials_of_a_lost_gpu_go_to_the_others() {
    let mut scenario = scenario("8-h100");
    scenario.devices[0]
        .lost
        .clone_from(&self::scenario("lost").devices[0].lost);
    let place = sweep("devices: [0, 1]", 3);
    let mut kiln = kiln_on(&place, &scenario, &[]);
    let kiln = change_once(
        kiln.env("SCRIPTED_CHILD", "waits"),
        &place,
        "a trial on each GPU",
        || place.attempts_with("at-work") == 2,
    );
    wait_until("the trial on the lost GPU ends", || {
        place.lines().len() == 2
    });
    // The lost GPU is free now, the other is not: the third trial waits for the other.
    place.release();
    let ended = end_of(kiln);
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("no more trials are scheduled on it"),
        "{}",
        ended.stderr
    );
    assert_eq!(
        place.column("outcome"),
        ["failed", "completed", "completed"]
    );
    assert_eq!(
        place.column("device_uuid"),
        [uuids(&[0]), uuids(&[1]), uuids(&[1])].concat()
    );
    let reason = place.column("reason").remove(0);
    let words = " lost its device: GPU 0 (NVIDIA H100 80GB HBM3) was lost (NVML: the GPU is lost: \
                 it fell off the bus or is inaccessible) after ";
    assert!(reason.contains(words), "{reason}");
    let samples = fs::read_to_string(place.latest().join("samples.csv")).unwrap();
    assert!(samples.contains("the GPU is lost"), "{samples}");
}

fn four_gpus() -> Scenario {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(4);
    scenario
}

/// The UUIDs of these GPUs of a scenario.
fn uuids(devices: &[u32]) -> Vec<String> {
    devices
        .iter()
        .map(|index| FIRST.replace("000000000001", &format!("{:012}", index + 1)))
        .collect()
}

#[test]
fn trials_on_several_gpus_are_refused_that_read_their_numbers_from_one_file() {
    let file = |path: &str| {
        Place::of_command(
            &format!(
                "  argv: [sh, -c, 'echo a,b >\"$1\"; echo $KILN_VALUE_A,1 >>\"$1\"', sh, '{path}']\n  \
                 values: {{a: 1}}\n  environment: {{A: '{{a}}'}}\n  metrics: {{a: {{csv: '{path}', \
                 column: a}}}}"
            ),
            "run: {devices: all, require_idle_device: false}\nsweep: {grid: {model.values.a: [1, 2]}}",
        )
    };
    let shared = file("log.csv");
    let ended = run(&shared, &four_gpus(), "");
    let says = "`model.metrics.a` of more than one trial is read from one file, `log.csv`, and trials run \
                on several devices at the same time, so a trial would have the numbers of another; give \
                each its own file, such as `{folder}/log.csv`, or run on one device";
    assert!(ended.stderr.contains(says), "{ended:?}");
    assert_ne!(ended.status, Some(0));
    let one = kiln_on(&shared, &four_gpus(), &["--device", "1"]).output();
    let one = Ended::of(one.unwrap());
    assert_eq!(one.status, Some(0), "{one:?}");
    assert_eq!(shared.column("metric.a"), ["1.0", "2.0"]);
    let own = file("{folder}/log.csv");
    let ended = run(&own, &four_gpus(), "");
    assert_eq!(ended.status, Some(0), "{ended:?}");
}

/// A run of four trials, each on two GPUs of this machine.
fn in_pairs(child: &str, keys: &str, scenario: &Scenario) -> (Place, Ended) {
    let place = sweep(&format!("devices_per_trial: 2, {keys}"), 4);
    let ended = run(&place, scenario, child);
    (place, ended)
}

#[test]
fn of_four_gpus_two_trials_use_two_each_at_once() {
    let (place, ended) = in_pairs("sampled", "devices: all", &four_gpus());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let pairs = [uuids(&[0, 1]).join(";"), uuids(&[2, 3]).join(";")];
    let rows = place.rows();
    assert!(
        rows.len() == 4
            && pairs
                .iter()
                .all(|pair| rows.iter().any(|row| row["device_uuid"] == *pair)),
        "{:?}",
        place.column("device_uuid")
    );
    for row in rows {
        assert!(pairs.contains(&row["device_uuid"]), "{row:?}");
        assert_eq!(
            (
                &*row["device_name"],
                &*row["devices_per_trial"],
                &*row["concurrent_trials"]
            ),
            ("NVIDIA H100 80GB HBM3", "2", "2")
        );
        let batch: u64 = row["batch_size"].parse().unwrap();
        assert_eq!(row["effective_batch_size"], (2 * batch).to_string());
        assert!(
            (number(&row, "max_temperature_celsius") - 38.0).abs() < 1e-9,
            "{row:?}"
        );
        // One takes 400 W, the next 401, and so on.
        let watts = if row["device_uuid"] == pairs[0] {
            400.0 + 401.0
        } else {
            402.0 + 403.0
        };
        Sampled::of(&place, row).drew(watts);
    }
    let samples = fs::read_to_string(place.latest().join("samples.csv")).unwrap();
    assert!(
        uuids(&[0, 1, 2, 3])
            .iter()
            .all(|uuid| samples.contains(uuid))
    );
    assert!(
        uuids(&[0, 1, 2, 3])
            .iter()
            .all(|uuid| place.path("locks").join(format!("{uuid}.lock")).exists())
    );
}

#[test]
fn a_child_sees_its_gpus_and_is_told_how_many() {
    let (place, ended) = in_pairs("environment", "devices: [3, 1]", &four_gpus());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    for attempt in place.attempts() {
        let environment = fs::read_to_string(attempt.join("environment")).unwrap();
        let visible = format!("CUDA_VISIBLE_DEVICES={}", uuids(&[3, 1]).join(","));
        assert!(
            environment.lines().any(|line| line == visible),
            "{environment}"
        );
        let told = fs::read_to_string(attempt.parent().unwrap().join("trial.yaml")).unwrap();
        assert!(
            told.contains("devices_per_trial: 2") && told.contains("device: cuda"),
            "{told}"
        );
    }
}

#[test]
fn too_few_gpus_for_one_trial_are_refused_and_a_rest_is_told_of() {
    let mut one = four_gpus();
    one.devices.truncate(1);
    for keys in ["devices: all", "devices: auto"] {
        let (place, ended) = in_pairs("completes", keys, &one);
        assert_eq!(ended.status, Some(3), "{ended:?}");
        assert!(
            ended
                .stderr
                .contains("`run.devices_per_trial` is 2, and a trial may use 1 GPU: 0 (GPU-"),
            "{}",
            ended.stderr
        );
        assert!(!place.path("results/x/latest").exists());
    }
    let mut three = four_gpus();
    three.devices.truncate(3);
    let (place, ended) = in_pairs("completes", "devices: all", &three);
    assert!(
        ended.status == Some(0)
            && ended.stderr.contains(
                "each trial uses 2 GPUs (`run.devices_per_trial`), so GPU 2 stays unused"
            ),
        "{ended:?}"
    );
    assert!(
        place
            .column("device_uuid")
            .iter()
            .all(|found| *found == uuids(&[0, 1]).join(";"))
    );
    assert!(
        !place
            .path("locks")
            .join(format!("{}.lock", uuids(&[2])[0]))
            .exists(),
        "nobody waits for it"
    );
}

#[test]
fn a_lost_gpu_takes_its_fellow_along_and_auto_makes_another_pair() {
    let mut scenario = four_gpus();
    scenario.devices[0]
        .lost
        .clone_from(&self::scenario("lost").devices[0].lost);
    let place = sweep("devices_per_trial: 2, devices: auto", 3);
    let mut kiln = kiln_on(&place, &scenario, &[]);
    // A child that ends in good order when it is told to has lost its device all the same.
    let ended = end_of(change_once(
        kiln.env("SCRIPTED_CHILD_1", "obeys_term"),
        &place,
        "the first trial is at work",
        || place.attempts_with("at-work") == 1,
    ));
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    let rows = place.rows();
    assert_eq!(
        place.column("outcome"),
        ["failed", "completed", "completed"]
    );
    assert!(
        rows[0]["reason"].contains("GPU 0 (NVIDIA H100 80GB HBM3) was lost"),
        "{rows:?}"
    );
    let (before, after) = (uuids(&[0, 1]).join(";"), uuids(&[1, 2]).join(";"));
    assert_eq!(
        place.column("device_uuid"),
        [before, after.clone(), after],
        "{}",
        ended.stderr
    );
    assert!(
        ended
            .stderr
            .contains("continuing on GPU 1 (NVIDIA H100 80GB HBM3) and GPU 2"),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_old_library_and_one_that_refuses_leave_gaps_with_their_reasons() {
    let old = &sampled("half-symbols").row;
    is_absent(
        old,
        "energy_counter_joules",
        "this driver does not provide it",
    );
    assert!((number(old, "mean_power_watts") - 480.0).abs() < 1e-6);
    let refused = &sampled("no-permission").row;
    for column in [
        "mean_power_watts",
        "energy_counter_joules",
        "mean_gpu_utilization",
        "max_temperature_celsius",
        "peak_nvml_used_bytes",
    ] {
        is_absent(refused, column, "this user may not read it");
    }
}

#[test]
fn a_driver_that_is_not_loaded_is_said() {
    let ended = run(
        &sweep("devices: [0]", 1),
        &scenario("driver-not-loaded"),
        "completes",
    );
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("installed but not loaded"),
        "{}",
        ended.stderr
    );
}

/// The tables name every gap of every scenario; nothing unknown is 0.
#[test]
fn every_field_of_every_scenario_is_a_value_or_a_reason() {
    for name in [
        "h200",
        "h100-mig",
        "8-h100",
        "geforce",
        "wsl",
        "half-symbols",
        "no-permission",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = scenario(name);
        let nvml = Nvml::open(Some(&install(folder.path(), &scenario).unwrap())).unwrap();
        let found = Gpu::read_all(&nvml);
        assert_eq!(found.len(), scenario.devices.len());
        let entries = kiln_hardware::snapshot::gpu(&found[0]).entries;
        assert!(entries.len() > 100, "{name}: {}", entries.len());
        assert!(
            entries
                .iter()
                .all(|entry| !entry.value.reason().is_some_and(|reason| reason.is_empty())),
            "{name}"
        );
        // The same device without one of its calls has a gap there, and not a zero.
        scenario.devices[0]
            .calls
            .remove("nvmlDeviceGetMemoryInfo_v2");
        let poorer = tempfile::tempdir().unwrap();
        let nvml = Nvml::open(Some(&install(poorer.path(), &scenario).unwrap())).unwrap();
        let entries = kiln_hardware::snapshot::gpu(&Gpu::read_all(&nvml)[0]).entries;
        let memory = entries.iter().filter(|entry| {
            entry.section == "memory" && ["total", "used", "free"].contains(&entry.field.as_str())
        });
        assert!(
            memory.clone().count() > 0 && memory.clone().all(|entry| entry.value.value().is_none()),
            "{name}"
        );
    }
}

/// Two GPUs of which the first hangs at this call.
fn first_hangs(call: &str) -> Scenario {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(2);
    scenario.devices[0]
        .calls
        .insert(call.into(), serde_json::json!({"hang": true}));
    scenario.devices[1].calls.insert(
        "nvmlDeviceGetComputeRunningProcesses_v3".into(),
        serde_json::json!([]),
    );
    scenario.devices[1].calls.insert(
        "nvmlDeviceGetUtilizationRates".into(),
        serde_json::json!({"gpu": 0, "memory": 0}),
    );
    scenario
}

/// Makes an attempt with more and more patience with a driver, in seconds, until it finds what it
/// wants. What hangs is found at once; what does not may be too slow for the first patience where
/// the machine is busy.
pub(crate) fn with_patience(mut attempt: impl FnMut(&str) -> Result<(), String>) {
    let mut missed = String::new();
    for seconds in ["0.3", "3", "30"] {
        match attempt(seconds) {
            Ok(()) => return,
            Err(why) => missed = why,
        }
    }
    panic!("{missed}");
}

/// For attempts: what was found, if it is not what is wanted.
pub(crate) fn wanted(is_found: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if is_found { Ok(()) } else { Err(found()) }
}

#[test]
fn a_gpu_that_hangs_is_passed_over_and_its_fellows_are_read() {
    for call in ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetName"] {
        with_patience(|seconds| {
            let silence = format!("the driver has not answered for {seconds} s");
            let place = Place::with(ONE_TRIAL);
            let ended =
                ended(kiln_on(&place, &first_hangs(call), &[]).env("KILN_NVML_PATIENCE", seconds));
            wanted(ended.status == Some(0), || format!("{call}: {ended:?}"))?;
            let used = place.column("device_uuid").remove(0);
            wanted(used == uuids(&[1])[0], || format!("{call}: {used}"))?;
            let snapshots = fs::read_to_string(place.latest().join("snapshots.csv")).unwrap();
            let has = |uuid: &str, words: &str| {
                snapshots
                    .lines()
                    .any(|line| line.contains(uuid) && line.contains(words))
            };
            wanted(
                has(FIRST, &silence) && has("000000000002", "NVIDIA H100 80GB HBM3"),
                || format!("{call}: {snapshots}"),
            )?;
            let devices = place.run_file()["launches"][0]["devices"].clone();
            let is_told = devices
                .as_array()
                .unwrap()
                .iter()
                .any(|device| device["unusable"] == silence.as_str());
            wanted(is_told == (call == "nvmlDeviceGetName"), || {
                format!("{call}: {devices}")
            })?;
            let page = fs::read_to_string(place.latest().join("snapshot-1.txt")).unwrap();
            wanted(
                page.contains(&format!("GPU 0 was not read: {silence}."))
                    && page.contains("NVIDIA H100"),
                || format!("{call}: {page}"),
            )
        });
    }
}

#[test]
fn a_gpu_that_hangs_is_told_of_once_and_its_trials_go_on() {
    with_patience(|seconds| {
        let place = sweep("devices: [0]", 3);
        let scenario = first_hangs("nvmlDeviceGetUtilizationRates");
        let ended = ended(kiln_on(&place, &scenario, &[]).env("KILN_NVML_PATIENCE", seconds));
        let notice = format!(
            "GPU 0 (NVIDIA H100 80GB HBM3): the driver has not answered for {seconds} s; its trials \
             go on"
        );
        wanted(
            ended.status == Some(0) && ended.stderr.matches(&notice).count() == 1,
            || format!("{ended:?}"),
        )?;
        let outcomes = place.column("outcome");
        wanted(outcomes == ["completed"; 3], || format!("{outcomes:?}"))
    });
}

#[test]
fn trials_on_the_cpu_do_not_need_the_driver() {
    let mut scenario = scenario("h200");
    scenario
        .calls
        .insert("nvmlInit_v2".into(), serde_json::json!({"hang": true}));
    let place = Place::with(ONE_TRIAL);
    let ended =
        ended(kiln_on(&place, &scenario, &["--device", "cpu"]).env("KILN_NVML_PATIENCE", "0.3"));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("device_uuid"), [""]);
    let page = fs::read_to_string(place.latest().join("snapshot-1.txt")).unwrap();
    assert!(
        page.contains("No GPU can be read: the driver has not answered for 0.3 s."),
        "{page}"
    );
}

#[test]
fn a_driver_that_is_slow_to_start_is_waited_for_and_told_of() {
    let mut scenario = scenario("h200");
    scenario.calls.insert(
        "nvmlInit_v2".into(),
        serde_json::json!({"sleep_milliseconds": 5500, "then": 0}),
    );
    let folder = tempfile::tempdir().unwrap();
    let library = install(folder.path(), &scenario).unwrap();
    let ended = ended(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["snapshot", "--query", "index"])
            .env("KILN_NVML_LIB", &library)
            .env("KILN_NVML_PATIENCE", "60")
            .env_remove("FAKE_NVML_SCENARIO")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let told = "waiting up to 60 s for the NVIDIA driver to start; `sudo nvidia-smi -pm 1` keeps it \
                started\n";
    assert_eq!((ended.status, ended.stderr.as_str()), (Some(0), told));
    assert!(ended.stdout.starts_with("index\n0\n"), "{ended:?}");
}

#[test]
fn a_signal_is_heeded_while_the_driver_hangs() {
    let mut scenario = first_hangs("nvmlDeviceGetUtilizationRates");
    scenario.devices.truncate(1);
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let place = Place::with(ONE_TRIAL);
        let mut kiln = kiln_on(&place, &scenario, &[])
            .env("KILN_NVML_PATIENCE", "600")
            .spawn()
            .unwrap();
        // A question to the driver has a thread; one that hangs stays, and nothing else has begun yet.
        let process = PathBuf::from(format!("/proc/{}", kiln.id()));
        let tasks = process.join("task");
        let heeds = || {
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            caught.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
        };
        let (mut asking, mut looks) = (Vec::new(), 0);
        wait_until("the device is looked at", || {
            let threads = fs::read_dir(&tasks).into_iter().flatten().flatten();
            let mut now: Vec<_> = threads.map(|thread| thread.file_name()).collect();
            now.sort();
            looks = if now == asking { looks + 1 } else { 0 };
            asking = now;
            asking.len() > 1 && looks > 50 && heeds()
        });
        let began = Instant::now();
        signal(&kiln, name);
        let status = kiln.wait().unwrap();
        // Far less than the patience, which a signal that is not heeded would take.
        assert!(
            status.code() == Some(130) && began.elapsed() < Duration::from_secs(60),
            "{name}: {status} after {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn the_devices_of_a_launch_are_looked_at_at_the_same_time() {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(3);
    for device in &mut scenario.devices {
        device.calls.insert(
            "nvmlDeviceGetUtilizationRates".into(),
            serde_json::json!({"hang": true}),
        );
    }
    let place = Place::with(&format!("{ONE_TRIAL}\nrun: {{devices: all}}"));
    let mut kiln = kiln_on(&place, &scenario, &[])
        .env("KILN_NVML_PATIENCE", "600")
        .spawn()
        .unwrap();
    let tasks = PathBuf::from(format!("/proc/{}/task", kiln.id()));
    let is_call = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "driver call")
    };
    // The calls of the list of GPUs are in parallel too, but they end.
    let mut looks = 0;
    wait_until("a call hangs on each GPU", || {
        let threads = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let calls = threads.filter(is_call).count();
        looks = if calls == 3 { looks + 1 } else { 0 };
        looks > 50
    });
    kiln.kill().unwrap();
    kiln.wait().unwrap();
}

#[test]
fn a_snapshot_is_of_the_gpus_that_answer() {
    let folder = tempfile::tempdir().unwrap();
    let library = install(folder.path(), &first_hangs("nvmlDeviceGetUtilizationRates")).unwrap();
    let start = |arguments: &[&str], seconds: &str| {
        let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
        kiln.arg("snapshot")
            .args(arguments)
            .env("KILN_NVML_LIB", &library)
            .env("KILN_NVML_PATIENCE", seconds);
        kiln.env_remove("FAKE_NVML_SCENARIO")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    with_patience(|seconds| {
        let forms = [
            &[][..],
            &["--csv"],
            &["--json"],
            &["--words"],
            &["--query", "index,name,utilization.gpu"],
        ];
        // All at once: each waits for the silent GPU.
        let started: Vec<Child> = forms
            .iter()
            .map(|arguments| start(arguments, seconds))
            .collect();
        let ended: Vec<Ended> = started.into_iter().map(end_of).collect();
        let silence = format!("GPU 0 was not read: the driver has not answered for {seconds} s\n");
        let is_right = |ended: &Ended| {
            ended.status == Some(1)
                && ended.stderr == silence
                && ended.stdout.contains("NVIDIA H100 80GB HBM3")
        };
        wanted(ended.iter().all(is_right), || {
            format!("{forms:?}: {ended:?}")
        })
    });
}

#[test]
fn a_machine_that_cannot_run_a_trial_leaves_it_to_the_next_launch() {
    let mut scenario = scenario("h200");
    scenario.devices[0].calls.insert(
        "nvmlDeviceGetUtilizationRates".into(),
        serde_json::json!({"gpu": 0, "memory": 0}),
    );
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let mut kiln = kiln_on(&place, &scenario, &[]);
    let ended = Ended::of(
        kiln.env("SCRIPTED_CHILD", "says_no_device")
            .output()
            .unwrap(),
    );
    assert_eq!(
        (ended.status, place.column("outcome")),
        (Some(3), vec!["interrupted".to_owned()]),
        "{ended:?}"
    );
    assert!(
        ended
            .stdout
            .contains("1 of 2 trials: 1 interrupted, 1 not run"),
        "{ended:?}"
    );
    assert_eq!(
        ended.stderr.matches("CUDA is not usable here").count(),
        1,
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("`--device cpu`") && !ended.stderr.contains(" left"),
        "{}",
        ended.stderr
    );
    // No number was made anywhere: where the trials run may still be changed.
    let on_the_cpu = place.run("completes", &["--device", "cpu"]);
    assert_eq!(
        (on_the_cpu.status, place.runs()),
        (Some(0), 1),
        "{on_the_cpu:?}"
    );
    assert_eq!(
        place.column("outcome"),
        ["interrupted", "completed", "completed"]
    );
    assert_eq!(
        place.run_file()["launches"][1]["changed"]["run.devices"],
        "cpu"
    );
    let gone_on = place.run("completes", &["--device", "cpu", "--rerun", "completed"]);
    assert_eq!((gone_on.status, place.runs()), (Some(0), 1), "{gone_on:?}");
    let elsewhere = place.run("completes", &["--device", "auto"]);
    assert_eq!(
        (elsewhere.status, place.runs()),
        (Some(0), 2),
        "a finished run is of the device it ran on: {elsewhere:?}"
    );
}

#[test]
fn a_run_stays_on_the_kind_of_device_that_it_began_on() {
    let mut scenario = scenario("h200");
    scenario.devices[0].calls.insert(
        "nvmlDeviceGetUtilizationRates".into(),
        serde_json::json!({"gpu": 0, "memory": 0}),
    );
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let begun = ended(kiln_on(&place, &scenario, &[]).env("SCRIPTED_CHILD", "completes"));
    assert_eq!(place.column("outcome"), ["completed"; 2], "{begun:?}");
    let hidden = |more: &[&str]| {
        let mut kiln = kiln_on(&place, &scenario, more);
        ended(
            kiln.env("CUDA_VISIBLE_DEVICES", "")
                .env("SCRIPTED_CHILD", "completes"),
        )
    };
    let refused = hidden(&["--rerun", "completed"]);
    assert!(
        refused.status == Some(3)
            && refused
                .stderr
                .contains("trials of this run ran on a GPU (GPU-")
            && refused
                .stderr
                .contains("`CUDA_VISIBLE_DEVICES` hides every GPU")
            && refused.stderr.contains("`--fresh --device cpu`"),
        "{refused:?}"
    );
    assert_eq!(place.column("outcome"), ["completed"; 2]);
    let anew = hidden(&["--fresh", "--device", "cpu"]);
    assert_eq!((anew.status, place.runs()), (Some(0), 2), "{anew:?}");

    // Nor does one that was begun on the CPU go on on a GPU that has appeared.
    let on_cpu = hidden(&["--fresh"]);
    assert_eq!((on_cpu.status, place.runs()), (Some(0), 3), "{on_cpu:?}");
    let with_a_gpu =
        |more: &[&str]| ended(kiln_on(&place, &scenario, more).env("SCRIPTED_CHILD", "completes"));
    let refused = with_a_gpu(&["--rerun", "completed"]);
    assert!(
        refused.status == Some(3)
            && refused.stderr.contains("were completed on the CPU")
            && refused.stderr.contains("`--fresh` starts a new run"),
        "{refused:?}"
    );
    assert_eq!(place.column("device_uuid"), [""; 2], "{refused:?}");
    let gone_on = hidden(&["--rerun", "completed"]);
    assert_eq!((gone_on.status, place.runs()), (Some(0), 3), "{gone_on:?}");
    assert_eq!(place.column("attempt"), ["1", "1", "2", "2"]);
    let anew = with_a_gpu(&["--fresh"]);
    assert_eq!((anew.status, place.runs()), (Some(0), 4), "{anew:?}");
    assert!(
        place
            .column("device_uuid")
            .iter()
            .all(|uuid| uuid.starts_with("GPU-"))
    );

    // Nor does a worker take its tickets elsewhere.
    let queued = |more: &[&str]| {
        let on_workers = ["--on", "workers", "--detach"];
        ended(&mut kiln_on(
            &place,
            &scenario,
            &[&on_workers, more].concat(),
        ))
    };
    let worker = |visible: Option<&str>| {
        let mut kiln = kiln_on(&place, &scenario, &[]);
        let variables: Vec<_> = kiln
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        kiln = place.kiln(&["worker", "x"]);
        kiln.envs(variables).env("SCRIPTED_CHILD", "completes");
        kiln.env_remove("CUDA_VISIBLE_DEVICES");
        kiln.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
        ended(&mut kiln)
    };
    queued(&["--fresh"]);
    let on_a_gpu = worker(None);
    assert_eq!(place.column("outcome"), ["completed"; 2], "{on_a_gpu:?}");
    queued(&["--rerun", "completed"]);
    let refused = worker(Some(""));
    assert!(
        refused.status == Some(3)
            && refused.stderr.contains("trials of this run ran on a GPU")
            && !refused.stderr.contains("--fresh"),
        "{refused:?}"
    );
}

#[test]
fn a_launch_reads_all_of_a_gpu_once() {
    let mut scenario = scenario("h200");
    scenario.devices[0].calls.insert(
        "nvmlDeviceGetVbiosVersion".into(),
        serde_json::json!({"calls": ["first", "second"]}),
    );
    let place = sweep("devices: [0]", 1);
    let ended = run(&place, &scenario, "completes");
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let rows: Vec<Row> = csv::Reader::from_path(place.latest().join("snapshots.csv"))
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect();
    let of_launch = |row: &&Row| row["moment"] == "launch" && row["field"] == "vbios_version";
    let row = rows.iter().find(of_launch).unwrap();
    assert_eq!(row["value"], "first");
}

#[test]
fn a_device_in_use_is_told_with_what_would_help() {
    let scenario = scenario("8-h100");
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let mut one = scenario.clone();
    one.devices.truncate(1);
    let lock = place.path("locks").join(format!("{}.lock", FIRST));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let lease = kiln_core::record::lock::lock_file(&lock, "somebody")
        .unwrap()
        .unwrap();
    let told = ended(&mut kiln_on(&place, &one, &[])).stderr;
    assert!(
        told.contains(
            "is leased by somebody; wait with `--set run.wait=10m`, or name another with `--device`"
        ) && !told.contains("require_idle_device"),
        "a lease is no other process on the device: {told}"
    );
    drop(lease);
}

#[test]
fn a_variable_that_names_no_gpu_is_not_taken_for_the_wish_to_have_none() {
    let mut scenario = scenario("8-h100");
    scenario.devices.truncate(2);
    let place = Place::with(ONE_TRIAL);
    let ended = ended(kiln_on(&place, &scenario, &[]).env("CUDA_VISIBLE_DEVICES", "5"));
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("`CUDA_VISIBLE_DEVICES=5`: there is no GPU 5; the last one is GPU 1"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("`--device cpu`") && !place.path("results/x/latest").exists(),
        "{}",
        ended.stderr
    );
    assert_eq!(
        self::ended(kiln_on(&place, &scenario, &[]).env("CUDA_VISIBLE_DEVICES", "-1")).status,
        Some(0)
    );
}

#[test]
fn a_lost_gpu_that_is_named_is_said_to_be_lost() {
    let ended = run(
        &sweep("devices: [2]", 1),
        &scenario("snapshot"),
        "completes",
    );
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("`run.devices` names GPU 2, which cannot be used: the GPU is lost"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_variable_that_names_only_a_lost_gpu_is_refused() {
    let place = sweep("devices: auto", 1);
    let mut kiln = kiln_on(&place, &scenario("lost"), &[]);
    fs::write(place.path(CHANGED), "").unwrap();
    let refused = ended(kiln.env("CUDA_VISIBLE_DEVICES", "0"));
    let words =
        "`CUDA_VISIBLE_DEVICES=0` names only GPUs that cannot be used (GPU 0: the GPU is lost";
    assert!(
        refused.status == Some(3) && refused.stderr.contains(words),
        "{refused:?}"
    );
}

#[test]
fn a_gpu_that_was_lost_before_the_start_is_told_of() {
    let place = sweep("devices: all", 1);
    let mut kiln = kiln_on(&place, &scenario("lost"), &[]);
    fs::write(place.path(CHANGED), "").unwrap();
    let run = ended(kiln.env("SCRIPTED_CHILD_1", "completes"));
    assert_eq!(run.status, Some(0), "{run:?}");
    let told = "`run.devices: all` leaves out GPU 0: the GPU is lost";
    assert!(run.stderr.contains(told), "{run:?}");

    let watch = |scenario: &Scenario| {
        let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
        let mut kiln = place.kiln(&["watch", "--count", "1"]);
        ended(kiln.env("KILN_NVML_LIB", library))
    };
    let one = watch(&scenario("lost"));
    assert!(
        one.status == Some(0)
            && one
                .stderr
                .contains("GPU 0 cannot be watched: the GPU is lost")
            && one.stdout.contains("NVIDIA H200"),
        "{one:?}"
    );
    let mut alone = scenario("lost");
    alone.devices.truncate(1);
    let none = watch(&alone);
    assert!(
        none.status == Some(3)
            && none
                .stderr
                .contains("GPU 0 cannot be watched: the GPU is lost")
            && !none.stderr.contains("reports no GPU"),
        "{none:?}"
    );
}
