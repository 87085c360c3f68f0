//! Location of the board: PCI, platform, fabric, black box, power profiles.

use serde_json::{Value, json};

use super::{Inverter, Kind, is_code, part, words};
use crate::code;

/// Value of the platform's structure for an unknown number.
const UNKNOWN_NUMBER: u64 = 0xff;

impl Inverter<'_> {
    pub(super) fn pci(&mut self) {
        let cell = |label: &str| {
            self.gpu
                .cell_at(&format!("PCI > {label}"))
                .and_then(|cell| Kind::Whole.read(cell))
        };
        let bus_id = self
            .gpu
            .cell_at("PCI > Bus Id")
            .unwrap_or(&self.gpu.label)
            .to_owned();
        let answer = json!({
            "domain": cell("Domain").unwrap_or(json!(0)),
            "bus": cell("Bus").unwrap_or(json!(0)),
            "device": cell("Device").unwrap_or(json!(0)),
            "pciDeviceId": cell("Device Id").unwrap_or(json!(0)),
            "pciSubSystemId": cell("Sub System Id").unwrap_or(json!(0)),
            "busId": bus_id,
        });
        let numbers = ["Domain", "Bus", "Device", "Device Id", "Sub System Id"];
        let code = numbers
            .iter()
            .find_map(|label| words::read(self.gpu.cell_at(&format!("PCI > {label}"))?).err());
        self.set(
            "nvmlDeviceGetPciInfo_v3",
            code.map_or(answer, |code| json!({"return": code})),
        );
        for (label, field) in [
            ("Atomic Caps Outbound", "228/0"),
            ("Atomic Caps Inbound", "229/0"),
        ] {
            if let Some(cell) = self.gpu.cell_at(&format!("PCI > {label}")) {
                let mask = |cell: &str| {
                    words::ATOMICS
                        .iter()
                        .enumerate()
                        .filter(|(_, name)| cell.split_whitespace().any(|word| word == **name))
                        .map(|(bit, _)| 1 << bit)
                        .sum::<u64>()
                };
                let answer = words::read(cell)
                    .map_or_else(|code| json!({"return": code}), |cell| json!(mask(cell)));
                self.set_field(field, 1, answer);
            }
        }
    }

    /// A page where nothing is known but the module has no such structure.
    pub(super) fn platform(&mut self) {
        const CELLS: [&str; 6] = [
            "Chassis Serial Number",
            "Slot Number",
            "Tray Index",
            "Host ID",
            "Peer Type",
            "GPU Fabric GUID",
        ];
        const OLD_CELLS: [&str; 6] = [
            "RACK Serial Number",
            "Chassis Physical Slot Number",
            "Compute Slot Index",
            "Node Index",
            "Peer Type",
            "GPU Fabric GUID",
        ];
        let Some(section) = self.gpu.at("Platform Info") else {
            return;
        };
        let is_old = section.cell_at("RACK Serial Number").is_some();
        let [serial, slot, tray, host, peer, guid] = (if is_old { OLD_CELLS } else { CELLS })
            .map(|label| section.cell_at(label).unwrap_or("N/A"));
        let cells = [serial, slot, tray, host, peer, guid];
        // A number may be unknown, but not refused.
        let is_absent = |code: &u32| {
            *code != code::NOT_SUPPORTED || cells.iter().all(|cell| words::read(cell).is_err())
        };
        if let Some(code) = words::absence(cells.into_iter()).filter(is_absent) {
            return self.set("nvmlDeviceGetPlatformInfo", json!({"return": code}));
        }
        let known = |cell: &str, kind: Kind| {
            words::read(cell)
                .ok()
                .and_then(|cell| kind.read(cell))
                .unwrap_or(json!(UNKNOWN_NUMBER))
        };
        let module = section.cell_at("Module Id").unwrap_or("N/A");
        let answer = json!({
            "chassisSerialNumber": words::read(serial).unwrap_or_default(),
            "slotNumber": known(slot, Kind::Whole),
            "trayIndex": known(tray, Kind::Whole),
            "hostId": known(host, Kind::Whole),
            "peerType": known(peer, Kind::Word(words::PEERS)),
            "moduleId": known(module, Kind::Whole),
            "ibGuid": format!("{:0>32}", guid.trim_start_matches("0x").replace("N/A", "")),
        });
        self.set("nvmlDeviceGetPlatformInfo", answer);
    }

    pub(super) fn fabric(&mut self) {
        let Some(section) = self.gpu.at("Fabric") else {
            return;
        };
        let state = section
            .cell_at("State")
            .or(section.cell.as_deref())
            .unwrap_or("N/A");
        // A known value of a GPU that joined cannot be absent by itself; the health cannot be
        // refused.
        let cells = section.cells();
        let of_call = cells
            .iter()
            .filter(|(path, _)| path != "Status")
            .map(|(_, cell)| cell.as_str());
        let refused = words::absence(of_call).filter(|code| *code != code::NOT_SUPPORTED);
        let parts = ["CliqueId", "ClusterUUID"]
            .iter()
            .filter_map(|label| section.cell_at(label));
        let answer = match part(state, Kind::Word(words::FABRIC_STATES)) {
            _ if refused.is_some() => json!({"return": refused}),
            answer if is_code(&answer) => answer,
            answer if answer.as_u64() > Some(2) && words::absence(parts.clone()).is_some() => {
                json!({"return": words::absence(parts)})
            }
            state => {
                let number = |label: &str, kind: Kind| {
                    section
                        .cell_at(label)
                        .and_then(|cell| kind.read(cell))
                        .unwrap_or(json!(0))
                };
                json!({
                    "state": state,
                    "status": number("Status", Kind::Word(words::FABRIC_STATUS)),
                    "cliqueId": number("CliqueId", Kind::Whole),
                    "clusterUuid": section.cell_at("ClusterUUID").unwrap_or_default(),
                    "healthMask": health_mask(section),
                    "healthSummary": number("Health > Summary", Kind::Word(words::HEALTH)),
                })
            }
        };
        self.set("nvmlDeviceGetGpuFabricInfoV", answer.clone());
        self.set("nvmlDeviceGetGpuFabricInfo", answer);
    }

    /// Microseconds since 1970 and microseconds. The page has the machine's local time; here it is
    /// taken for UTC.
    pub(super) fn bbx(&mut self) {
        let Some(at) = self
            .gpu
            .cell_at("Inforom BBX Object Flush > Latest Timestamp")
        else {
            return;
        };
        let duration = self
            .gpu
            .cell_at("Inforom BBX Object Flush > Latest Duration")
            .unwrap_or("0 us");
        let answer = match (
            words::absence([at, duration].into_iter()),
            microseconds(at),
            words::whole(duration),
        ) {
            (Some(code), _, _) => json!({"return": code}),
            (None, Some(at), Some(duration)) => json!([at, duration]),
            _ => json!({"return": code::UNKNOWN}),
        };
        self.set("nvmlDeviceGetLastBBXFlushTime", answer);
    }

    pub(super) fn profiles(&mut self) {
        let cells = ["Requested Profiles", "Enforced Profiles"].map(|label| {
            self.gpu
                .cell_at(&format!("Workload Power Profiles > {label}"))
        });
        let [Some(requested), Some(enforced)] = cells else {
            return;
        };
        let bits = |cell: &str| {
            Value::Array(
                cell.split([',', ' '])
                    .filter_map(words::whole)
                    .map(Value::from)
                    .collect(),
            )
        };
        let answer = match words::absence([requested, enforced].into_iter()) {
            None => {
                json!({"perfProfilesMask": bits(requested), "requestedProfilesMask": bits(requested), "enforcedProfilesMask": bits(enforced)})
            }
            Some(code) => json!({"return": code}),
        };
        self.set("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", answer);
    }
}

/// Two bits per field, four for the configuration (`NVML_GPU_FABRIC_HEALTH_MASK_…` of nvml.h).
fn health_mask(section: &super::Node) -> u64 {
    const FIELDS: [(&str, u32); 5] = [
        ("Bandwidth", 0),
        ("Route Recovery in progress", 2),
        ("Route Unhealthy", 4),
        ("Access Timeout Recovery", 6),
        ("Partition Assigned", 12),
    ];
    let read = |label: &str, table| {
        section
            .cell_at(&format!("Health > {label}"))
            .and_then(|cell| words::word(cell, table))
            .unwrap_or(0)
    };
    let mask: u64 = FIELDS
        .iter()
        .map(|(label, shift)| read(label, words::HEALTH_FIELDS) << shift)
        .sum();
    mask | read("Incorrect Configuration", words::CONFIGURATION) << 8
}

/// `2024/07/10 08:30:24.927`.
fn microseconds(text: &str) -> Option<u64> {
    let numbers: Vec<u64> = text
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let [year, month, day, hours, minutes, seconds, rest @ ..] = numbers.as_slice() else {
        return None;
    };
    // Days since 1970-03-01 of the calendar whose years begin in March, so that the leap day is the
    // last.
    let (year, month) = if *month < 3 {
        (year.checked_sub(1)?, month + 9)
    } else {
        (*year, month.checked_sub(3)?)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day;
    let since_1970 = days.checked_sub(719_469)?;
    let seconds = since_1970 * 86_400 + hours * 3600 + minutes * 60 + seconds;
    Some(seconds * 1_000_000 + rest.first().unwrap_or(&0) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_microseconds() {
        assert_eq!(microseconds("1970/01/01 00:00:00.000"), Some(0));
        assert_eq!(
            microseconds("2024/07/10 08:30:24.927"),
            Some(1_720_600_224_927_000)
        );
        assert_eq!(
            microseconds("2024/02/29 00:00:00.001"),
            Some(1_709_164_800_001_000)
        );
        assert_eq!(microseconds("yesterday"), None);
    }
}
