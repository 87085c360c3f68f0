//! Decides whether a run was made on this machine, from the records of its launches; returns the
//! difference as text.

use std::fs;

pub(super) use kiln_core::record::machine_traces::cpu_model;
use kiln_core::record::{machine_traces::MachineTraces, run_file::Launch};
use kiln_hardware::host;
use sha2::{Digest, Sha256};

use super::Instruments;

/// File with the installation's id, of systemd and D-Bus.
const MACHINE_ID: &str = "/etc/machine-id";
/// Number of hex digits of its hash that are stored: enough to distinguish machines, too few to
/// identify one.
const DIGITS: usize = 12;

/// Facts that distinguish this machine from others; `None` if unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineIdentity {
    pub(super) machine_id: Option<String>,
    pub(super) host_id: Option<String>,
    pub(super) boot_id: Option<String>,
    pub(super) cpu_model: Option<String>,
    /// UUIDs of the GPUs. A MIG instance gets a new UUID when it is recreated, so its GPU's UUID is
    /// used.
    pub(super) gpus: Vec<String>,
}

impl MachineIdentity {
    pub(super) fn of(instruments: &Instruments) -> Self {
        Self {
            machine_id: machine_id(),
            host_id: instruments.host_id(),
            boot_id: host::boot_id().into_value(),
            cpu_model: instruments.cpu_name(),
            gpus: instruments
                .devices()
                .iter()
                .map(|device| device.board_uuid().to_owned())
                .collect(),
        }
    }

    fn traces(&self) -> MachineTraces<'_> {
        MachineTraces {
            boot_id: self.boot_id.as_deref(),
            host_id: self.host_id.as_deref(),
            machine_id: self.machine_id.as_deref(),
            cpu_model: self.cpu_model.as_deref(),
        }
    }
}

/// The first digits of the machine id's SHA-256; `None` if the machine has no id, as in many
/// containers.
pub(super) fn machine_id() -> Option<String> {
    hashed(&fs::read_to_string(MACHINE_ID).ok()?)
}

fn hashed(id: &str) -> Option<String> {
    let id = id.trim();
    let is_id = id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit());
    is_id.then(|| hex::encode(Sha256::digest(id))[..DIGITS].to_owned())
}

/// The full description of the processor that a launch recorded.
pub(super) fn processor(launch: &Launch) -> Option<&str> {
    launch.machine.pointer("/cpu/processor")?.as_str()
}

/// Returns how the machine of every launch differs from this one; `None` if a launch was made here
/// or it cannot be decided.
pub(super) fn made_elsewhere(launches: &[Launch], here: &MachineIdentity) -> Option<String> {
    let differences: Option<Vec<String>> = launches
        .iter()
        .map(|launch| difference(launch, here))
        .collect();
    differences?.pop()
}

/// How the machine of a launch differs from this one. A GPU in common means the same machine, else
/// [`MachineTraces`] decide.
pub(super) fn difference(launch: &Launch, here: &MachineIdentity) -> Option<String> {
    let listed = launch.devices.as_array().into_iter().flatten();
    let shares_gpu = listed
        .filter_map(|device| {
            device["board_uuid"]
                .as_str()
                .or_else(|| device["uuid"].as_str())
        })
        .any(|uuid| here.gpus.iter().any(|gpu| gpu == uuid));
    match shares_gpu {
        true => None,
        false => MachineTraces::of(launch).difference(&here.traces()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn launch(machine_id: Option<&str>, cpu: Value, devices: Value) -> Launch {
        serde_json::from_value(json!({
            "launch": 1, "started_utc": "2026-01-01T00:00:00Z", "boot_id": "then", "monotonic_nanoseconds": 1, "run_anchor_nanoseconds": 1,
            "pid": 1, "command_line": [], "machine": {"cpu": {"model": cpu}}, "machine_id": machine_id, "devices": devices,
            "versions": {"kiln": "0", "kiln_sha256": null, "trial_program": "t", "trial_program_sha256": null}, "environment": {},
        }))
        .unwrap()
    }

    fn here() -> MachineIdentity {
        MachineIdentity {
            machine_id: Some("aaa".into()),
            host_id: Some("net-1".into()),
            boot_id: Some("now".into()),
            cpu_model: Some("Xeon".into()),
            gpus: vec!["GPU-1".into()],
        }
    }

    #[test]
    fn only_evidence_makes_it_another_machine() {
        let none = json!({"none": "no driver"});
        let other = |launch: Launch| made_elsewhere(&[launch], &here());
        assert_eq!(
            other(launch(Some("bbb"), json!("Xeon"), none.clone())).as_deref(),
            Some("machine id bbb there, aaa here")
        );
        assert_eq!(
            other(launch(Some("bbb"), json!("EPYC"), none.clone())).as_deref(),
            Some("EPYC there, Xeon here")
        );
        assert_eq!(
            other(launch(None, json!("EPYC"), none.clone())).as_deref(),
            Some("EPYC there, Xeon here")
        );
        assert_eq!(
            other(launch(Some("aaa"), json!("EPYC"), none.clone())).as_deref(),
            Some("EPYC there, Xeon here"),
            "a copy of an image on another machine"
        );
        assert_eq!(other(launch(None, json!("Xeon"), none.clone())), None);
        assert_eq!(other(launch(None, Value::Null, none)), None);
        assert_eq!(
            other(launch(
                Some("bbb"),
                json!("EPYC"),
                json!([{"uuid": "GPU-1"}])
            )),
            None,
            "a container on the same machine"
        );
        assert!(
            other(launch(
                Some("bbb"),
                json!("Xeon"),
                json!([{"uuid": "GPU-2"}])
            ))
            .is_some()
        );
    }

    #[test]
    fn two_hosts_of_one_image_are_two_machines() {
        let of = |host_id: &str| Launch {
            host_id: Some(host_id.to_owned()),
            ..launch(Some("aaa"), json!("Xeon"), Value::Null)
        };
        assert_eq!(
            made_elsewhere(&[of("net-2")], &here()).as_deref(),
            Some("host id net-2 there, net-1 here")
        );
        assert_eq!(made_elsewhere(&[of("net-1")], &here()), None);
        assert_eq!(
            made_elsewhere(&[of("dmi-2")], &here()),
            None,
            "ids of two kinds say nothing"
        );
    }

    #[test]
    fn one_launch_here_makes_the_run_this_machines() {
        let there = launch(Some("bbb"), json!("Xeon"), Value::Null);
        let same_boot = MachineIdentity {
            boot_id: Some("then".into()),
            ..here()
        };
        assert!(
            made_elsewhere(
                &[
                    there.clone(),
                    launch(Some("aaa"), json!("Xeon"), Value::Null)
                ],
                &here()
            )
            .is_none()
        );
        assert!(
            made_elsewhere(std::slice::from_ref(&there), &here()).is_some()
                && made_elsewhere(&[there], &same_boot).is_none()
        );
        assert!(made_elsewhere(&[], &here()).is_none());
    }

    #[test]
    fn an_id_is_hashed_and_what_is_no_id_is_none() {
        let id = hashed("0123456789abcdef0123456789abcdef\n").unwrap();
        assert!(id.len() == DIGITS && !"0123456789abcdef0123456789abcdef".contains(&id));
        assert_eq!((hashed(""), hashed("uninitialized\n")), (None, None));
    }
}
