//! `kiln run` on MIG instances: which one a trial gets, what its row says of it, and what of its
//! readings is the whole GPU's.

use std::fs;

use fake_nvml::Scenario;

use crate::{
    hardware_scenarios::{ended, is_absent, kiln_on, number, sampled_on, scenario, sweep},
    scripted_child::Place,
};

/// The GPU of the scenario, and its instances.
const BOARD: &str = "GPU-5ca1ab1e-0000-4000-8000-000000000001";
const INSTANCES: [&str; 3] = [
    "MIG-5ca1ab1e-0000-4000-8000-000000000000",
    "MIG-5ca1ab1e-0000-4000-8000-000000000001",
    "MIG-5ca1ab1e-0000-4000-8000-000000000003",
];

fn in_pieces() -> Scenario {
    scenario("h100-mig")
}

/// A run of one trial with these keys and this `CUDA_VISIBLE_DEVICES`, whose child writes its
/// environment down.
fn environment(keys: &str, visible: Option<&str>) -> (Place, String) {
    let place = sweep(keys, 1);
    let mut kiln = kiln_on(&place, &in_pieces(), &[]);
    let ended = ended(
        kiln.env("SCRIPTED_CHILD", "environment")
            .envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible))),
    );
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let environment = fs::read_to_string(place.attempts()[0].join("environment")).unwrap();
    (place, environment)
}

#[test]
fn an_instance_that_the_cluster_hands_out_is_the_trials_device() {
    for (keys, visible, instance, profile) in [
        ("devices: auto", Some(INSTANCES[1]), INSTANCES[1], "2g.20gb"),
        (
            "devices: all",
            Some("MIG-GPU-5ca1ab1e-0000-4000-8000-000000000001/9/0"),
            INSTANCES[2],
            "1g.10gb",
        ),
        (
            "devices: [MIG-5ca1ab1e-0000-4000-8000-000000000003]",
            None,
            INSTANCES[2],
            "1g.10gb",
        ),
        (
            "devices: [MIG-GPU-5ca1ab1e-0000-4000-8000-000000000001/2/0]",
            None,
            INSTANCES[1],
            "2g.20gb",
        ),
        (
            "devices: [GPU-5ca1ab1e-0000-4000-8000-000000000001]",
            None,
            INSTANCES[0],
            "3g.40gb",
        ),
        ("devices: auto", Some("0"), INSTANCES[0], "3g.40gb"),
    ] {
        let (place, environment) = environment(keys, visible);
        let line = format!("CUDA_VISIBLE_DEVICES={instance}");
        assert!(
            environment.lines().any(|found| found == line),
            "{keys} {visible:?}: {environment}"
        );
        assert!(
            place
                .path("locks")
                .join(format!("{instance}.lock"))
                .exists()
                && !place.path("locks").join(format!("{BOARD}.lock")).exists()
        );
        let row = place.rows().remove(0);
        assert_eq!(
            (row["device_uuid"].as_str(), row["mig_profile"].as_str()),
            (instance, profile),
            "{keys} {visible:?}"
        );
        assert_eq!(
            row["device_name"],
            format!("NVIDIA H100 80GB HBM3 MIG {profile}")
        );
    }
}

#[test]
fn readings_are_the_instances_own_or_absent_or_said_to_be_the_whole_gpus() {
    for (device, visible) in [
        (INSTANCES[0], None),
        (INSTANCES[0], Some(INSTANCES[0])),
        ("0", None),
    ] {
        let sampled = sampled_on(&in_pieces(), INSTANCES[0], device, visible);
        let row = &sampled.row;
        is_absent(
            row,
            "mean_gpu_utilization",
            "NVML gives no utilization while MIG is on",
        );
        // Of the whole GPU nothing is in use, of 79.6 GiB.
        assert_eq!(
            (
                row["peak_nvml_used_bytes"].as_str(),
                row["memory_limit_bytes"].as_str()
            ),
            ("16777216", "42412802048")
        );
        assert!((number(row, "max_temperature_celsius") - 38.0).abs() < 1e-9);
        sampled.drew(412.0);
        for column in [
            "mean_power_watts",
            "energy_counter_joules",
            "energy_integral_joules",
            "idle_power_watts",
        ] {
            assert!(
                row["notes"].contains(&format!("{column}: for the whole board because MIG is on")),
                "{}",
                row["notes"]
            );
        }
    }
}

#[test]
fn a_part_of_a_gpu_instance_has_no_counters_of_work_and_no_traffic() {
    let mut scenario = in_pieces();
    let instance = scenario.devices[0].mig[0].as_mut().unwrap();
    instance.calls.insert(
        "nvmlDeviceGetName".into(),
        "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb".into(),
    );
    let row = sampled_on(&scenario, INSTANCES[0], INSTANCES[0], None).row;
    assert_eq!(row["mig_profile"], "1c.3g.40gb");
    is_absent(
        &row,
        "mean_sm_active",
        "the chip counts for the whole GPU instance, and this device is only a part of it",
    );
}

#[test]
fn counters_of_work_are_the_instances_and_traffic_of_the_whole_gpu_is_not() {
    let place = sweep("devices: [0]", 1);
    let done = ended(
        kiln_on(&place, &in_pieces(), &[])
            .env("SCRIPTED_CHILD", "sampled")
            .env("SCRIPTED_CHILD_MAKES", place.path("changed")),
    );
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let mut samples = csv::Reader::from_path(place.latest().join("samples.csv")).unwrap();
    let headers = samples.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let traffic = [
        "pcie_receive_bytes_per_second",
        "pcie_transmit_bytes_per_second",
        "nvlink_receive_bytes_per_second",
    ]
    .map(column);
    let (device, memory, active) = (
        column("device"),
        column("memory_used_bytes"),
        column("sm_active"),
    );
    let rows: Vec<csv::StringRecord> = samples
        .records()
        .map(Result::unwrap)
        .filter(|row| &row[device] == INSTANCES[0])
        .collect();
    assert!(
        rows.len() > 2 && rows.iter().all(|row| &row[memory] == "16777216"),
        "{rows:?}"
    );
    assert!(
        rows.iter()
            .all(|row| traffic.iter().all(|at| row[*at].is_empty())),
        "{rows:?}"
    );
    // A mean since the look before: the first look has none. That of the whole GPU would be 0.7425.
    let work: Vec<&str> = rows
        .iter()
        .map(|row| &row[active])
        .filter(|cell| !cell.is_empty())
        .collect();
    assert!(
        !work.is_empty() && work.iter().all(|cell| *cell == "0.615"),
        "{work:?}"
    );
}

#[test]
fn all_runs_a_trial_on_each_instance_at_once() {
    let place = sweep("devices: all", 3);
    let done = ended(kiln_on(&place, &in_pieces(), &[]).env("SCRIPTED_CHILD", "completes"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let mut used = place.column("device_uuid");
    used.sort();
    used.dedup();
    assert!(
        used.iter().all(|uuid| INSTANCES.contains(&uuid.as_str())),
        "{used:?}"
    );
    assert!(
        INSTANCES
            .iter()
            .all(|uuid| place.path("locks").join(format!("{uuid}.lock")).exists())
    );
    // What the launch recorded of the machine says of which GPU they are parts; its snapshots are
    // of that GPU.
    let devices = &place.run_file()["launches"][0]["devices"];
    assert_eq!(
        (
            &devices[2]["uuid"],
            &devices[2]["board_uuid"],
            &devices[2]["gpu_instance"]
        ),
        (&INSTANCES[2].into(), &BOARD.into(), &9.into())
    );
    let mut snapshots = csv::Reader::from_path(place.latest().join("snapshots.csv")).unwrap();
    let mut of: Vec<String> = snapshots
        .records()
        .map(|row| row.unwrap()[5].to_owned())
        .collect();
    of.sort();
    of.dedup();
    assert_eq!(of, [BOARD, "host"]);
}

#[test]
fn what_is_not_there_is_refused_with_what_is() {
    let place = sweep("devices: [MIG-77]", 1);
    let refused = ended(&mut kiln_on(&place, &in_pieces(), &[]));
    assert_eq!(refused.status, Some(3), "{refused:?}");
    let words = format!(
        "`run.devices` names MIG-77: there are 0 ({}), 0 ({}), 0 ({})",
        INSTANCES[0], INSTANCES[1], INSTANCES[2]
    );
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
    let place = sweep("devices: auto", 1);
    let refused = ended(kiln_on(&place, &in_pieces(), &[]).env("CUDA_VISIBLE_DEVICES", "MIG-77"));
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("no GPU here has the MIG instance MIG-77")
            && refused.stderr.contains(INSTANCES[2]),
        "{}",
        refused.stderr
    );
    let place = sweep("devices: all, devices_per_trial: 2", 2);
    let refused = ended(&mut kiln_on(&place, &in_pieces(), &[]));
    assert!(
        refused.status == Some(3)
            && refused
                .stderr
                .contains("only one MIG instance to a process"),
        "{refused:?}"
    );
}

#[test]
fn a_gpu_in_mig_mode_without_an_instance_cannot_be_used() {
    let mut scenario = in_pieces();
    scenario.devices[0].mig.clear();
    for keys in ["devices: auto", "devices: [0]"] {
        let refused = ended(&mut kiln_on(&sweep(keys, 1), &scenario, &[]));
        assert_eq!(refused.status, Some(3), "{refused:?}");
        assert!(
            refused.stderr.contains("MIG is on and no instance exists"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn a_gpu_whose_instances_cannot_be_read_is_not_taken_whole() {
    let with = |code: u32| {
        let mut scenario = in_pieces();
        scenario.devices[0].calls.insert(
            "nvmlDeviceGetMaxMigDeviceCount".into(),
            serde_json::json!({"return": code}),
        );
        ended(&mut kiln_on(&sweep("devices: [0]", 1), &scenario, &[]))
    };
    let refused = with(999);
    assert!(
        refused.status == Some(3)
            && refused
                .stderr
                .contains("MIG is on, and its instances cannot be read: unknown error"),
        "{refused:?}"
    );
    // Where this user may not see them, CUDA may know one all the same.
    let hidden = with(4);
    assert_eq!(hidden.status, Some(0), "{hidden:?}");
}
