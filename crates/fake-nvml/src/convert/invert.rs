//! Turns a page of labels into calls: the simple ones with `rules`, and here those that need
//! several cells, the driver's version or a list. A label that the page does not have leaves its
//! call out of the scenario, so it is not supported.

mod errors;
mod lists;
mod memory;
mod platform;

use serde_json::{Map, Value, json};

use super::{
    Node, Page,
    rules::{CALLS, FIELDS, Kind, LISTS, Members, OBJECTS, REMAPPED_ROWS},
    words,
};
use crate::{Device, Scenario, code};

pub(super) fn scenario(page: &Page) -> Scenario {
    let mut scenario = Scenario {
        description: describe(page),
        ..Scenario::default()
    };
    let calls = &mut scenario.calls;
    calls.insert("nvmlSystemGetDriverVersion".into(), page.driver().into());
    if let Some(cuda) = page
        .head_cell("CUDA UMD Version")
        .or(page.head_cell("CUDA Version"))
    {
        let word = cuda.split_whitespace().next().unwrap_or_default();
        let answer = match (words::read(cuda), word.split_once('.')) {
            (Err(code), _) => json!({"return": code}),
            (Ok(_), Some((major, minor))) => {
                calls.insert(
                    "nvmlSystemGetNVMLVersion".into(),
                    format!("{major}.{}", page.driver()).into(),
                );
                json!(
                    major.parse::<u32>().unwrap_or(0) * 1000
                        + minor.parse::<u32>().unwrap_or(0) * 10
                )
            }
            (Ok(_), None) => json!({"return": code::UNKNOWN}),
        };
        calls.insert("nvmlSystemGetCudaDriverVersion_v2".into(), answer);
    }
    for (index, gpu) in page.gpus.iter().enumerate() {
        let mut inverter = Inverter {
            gpu,
            device: Device::default(),
            driver: version(page.driver()),
        };
        inverter.set("nvmlDeviceGetIndex", json!(index));
        inverter.all();
        scenario.devices.push(inverter.device);
        if let Some(cell) = gpu.cell_at("(vGPU Driver 0)") {
            scenario.calls.insert(
                "nvmlGetVgpuDriverCapabilities/0".into(),
                plain(cell, Kind::Flag),
            );
        }
        lists::process_names(gpu, &mut scenario.calls);
    }
    scenario
}

fn describe(page: &Page) -> String {
    let names: Vec<&str> = page
        .gpus
        .iter()
        .filter_map(|gpu| gpu.cell_at("Product Name"))
        .collect();
    format!(
        "{}, driver {}, as nvidia-smi printed it",
        names.join(", "),
        page.driver()
    )
}

fn version(driver: &str) -> (u32, u32) {
    let mut parts = driver.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// A number that stands for a word no table here has, where a call answers more than that word.
const UNKNOWN_WORD: u64 = 0xfd;

/// As [`plain`], but an unknown word is an unknown number: it shows, and the other cells of the
/// same call stay.
fn part(cell: &str, kind: Kind) -> Value {
    match (words::read(cell), kind) {
        (Ok(word), Kind::Word(_)) => kind.read(word).unwrap_or(json!(UNKNOWN_WORD)),
        _ => plain(cell, kind),
    }
}

/// A cell as what a call answers. A word that this kind does not know is an unknown error, so that
/// it shows.
fn plain(cell: &str, kind: Kind) -> Value {
    match words::read(cell).map(|cell| kind.read(cell)) {
        Ok(Some(value)) => value,
        Ok(None) => json!({"return": code::UNKNOWN}),
        Err(code) => json!({"return": code}),
    }
}

fn is_code(value: &Value) -> bool {
    value.get("return").is_some()
}

/// One GPU's block becoming one device.
struct Inverter<'a> {
    gpu: &'a Node,
    device: Device,
    driver: (u32, u32),
}

impl Inverter<'_> {
    fn all(&mut self) {
        for (paths, kind, calls) in CALLS {
            if let Some(answer) = self.first(paths).map(|cell| plain(cell, *kind)) {
                for call in *calls {
                    self.set(call, answer.clone());
                }
            }
        }
        for (paths, kind, field, value_type) in FIELDS {
            if let Some(answer) = self.first(paths).map(|cell| plain(cell, *kind)) {
                self.set_field(field, *value_type, answer);
            }
        }
        for (call, cells) in LISTS {
            let found: Option<Vec<(&str, Kind)>> = cells
                .iter()
                .map(|(path, kind)| Some((self.gpu.cell_at(path)?, *kind)))
                .collect();
            let Some(found) = found else { continue };
            let answers: Vec<Value> = found.iter().map(|(cell, kind)| part(cell, *kind)).collect();
            let absent = words::absence(found.iter().map(|(cell, _)| *cell))
                .map(|code| json!({"return": code}));
            let answer = absent.or_else(|| answers.iter().find(|answer| is_code(answer)).cloned());
            self.set(call, answer.unwrap_or(Value::Array(answers)));
        }
        for (call, members) in OBJECTS {
            self.object(call, members);
        }
        self.rest();
    }

    fn rest(&mut self) {
        self.counters();
        self.event_reasons();
        self.utilization();
        self.performance();
        self.power_usage();
        self.compute_capability();
        self.age();
        self.bridge();
        self.license();
        self.power_smoothing();
        self.memory();
        self.pci();
        self.platform();
        self.fabric();
        self.profiles();
        self.bbx();
        self.ecc();
        self.retired();
        self.mig();
        self.processes();
    }

    /// The cell of the first of these labels that is on the page.
    fn first(&self, paths: &[&str]) -> Option<&str> {
        paths.iter().find_map(|path| self.gpu.cell_at(path))
    }

    fn set(&mut self, call: &str, answer: Value) {
        self.device.calls.insert(call.to_owned(), answer);
    }

    fn set_field(&mut self, field: &str, value_type: u64, answer: Value) {
        let answer = if is_code(&answer) {
            answer
        } else {
            json!({"type": value_type, "value": answer})
        };
        self.device.fields.insert(field.to_owned(), answer);
    }

    /// A structure of which every member is on the page. One that is absent makes the whole call
    /// so.
    fn object(&mut self, call: &str, members: Members) {
        let found: Option<Vec<&str>> = members
            .iter()
            .map(|(_, path, _)| self.gpu.cell_at(path))
            .collect();
        let Some(found) = found else { return };
        if let Some(code) = words::absence(found.iter().copied()) {
            return self.set(call, json!({"return": code}));
        }
        let mut object = Map::new();
        for ((member, _, kind), cell) in members.iter().zip(found) {
            let answer = plain(cell, *kind);
            if is_code(&answer) {
                return self.set(call, answer);
            }
            object.insert((*member).to_owned(), answer);
        }
        self.set(call, Value::Object(object));
    }

    /// Drivers from 580.82 on have other numbers for these.
    fn counters(&mut self) {
        let first = if self.driver >= (580, 82) { 269 } else { 251 };
        for (offset, label) in [
            "SW Thermal Slowdown",
            "HW Thermal Slowdown",
            "HW Power Braking",
        ]
        .into_iter()
        .enumerate()
        {
            if let Some(cell) = self
                .gpu
                .cell_at(&format!("Clocks Event Reasons Counters > {label}"))
            {
                let answer = plain(cell, Kind::Times(1000.0));
                self.set_field(&format!("{}/0", first + offset), 3, answer);
            }
        }
    }

    fn event_reasons(&mut self) {
        const BITS: [(&str, u64); 9] = [
            ("Idle", 0x1),
            ("Applications Clocks Setting", 0x2),
            ("SW Power Cap", 0x4),
            ("HW Slowdown", 0x8),
            ("Sync Boost", 0x10),
            ("SW Thermal Slowdown", 0x20),
            ("HW Slowdown > HW Thermal Slowdown", 0x40),
            ("HW Slowdown > HW Power Brake Slowdown", 0x80),
            ("Display Clock Setting", 0x100),
        ];
        let Some(section) = self
            .gpu
            .at("Clocks Event Reasons")
            .or(self.gpu.at("Clocks Throttle Reasons"))
        else {
            return;
        };
        let cells: Vec<(&str, u64)> = BITS
            .iter()
            .filter_map(|(label, bit)| Some((section.cell_at(label)?, *bit)))
            .collect();
        // One call: a bit that is absent makes all of them so.
        let said = section
            .cell
            .as_deref()
            .into_iter()
            .chain(cells.iter().map(|(cell, _)| *cell));
        let absent =
            words::absence(said.clone()).or(said.count().eq(&0).then_some(code::NOT_SUPPORTED));
        let answer = match (self.gpu.cell_at("(=Clocks Event Reasons Active)"), absent) {
            (Some(mask), _) => plain(mask, Kind::Whole),
            (None, Some(code)) => json!({"return": code}),
            (None, None) => json!(
                cells
                    .iter()
                    .filter(|(cell, _)| words::flag(cell) == Some(1))
                    .map(|(_, bit)| bit)
                    .sum::<u64>()
            ),
        };
        self.set("nvmlDeviceGetCurrentClocksEventReasons", answer.clone());
        self.set("nvmlDeviceGetCurrentClocksThrottleReasons", answer);
    }

    /// Each with its sampling period, which no page shows.
    fn utilization(&mut self) {
        const PERIOD_MICROSECONDS: u64 = 167_000;
        for (label, call) in [
            ("Encoder", "Encoder"),
            ("Decoder", "Decoder"),
            ("JPEG", "Jpg"),
            ("OFA", "Ofa"),
        ] {
            if let Some(cell) = self.gpu.cell_at(&format!("Utilization > {label}")) {
                let answer = plain(cell, Kind::Whole);
                let answer = if is_code(&answer) {
                    answer
                } else {
                    json!([answer, PERIOD_MICROSECONDS])
                };
                self.set(&format!("nvmlDeviceGet{call}Utilization"), answer);
            }
        }
    }

    fn performance(&mut self) {
        if let Some(cell) = self.gpu.cell_at("Performance State") {
            let answer = plain(cell.strip_prefix('P').unwrap_or(cell), Kind::Whole);
            self.set("nvmlDeviceGetPerformanceState", answer.clone());
            self.set("nvmlDeviceGetPowerState", answer);
        }
        if let Some(cell) = self.gpu.cell_at("Fan Speed") {
            let fans = u32::from(words::read(cell).is_ok());
            self.set("nvmlDeviceGetNumFans", json!(fans));
        }
    }

    /// The call without a field id is the average where there is one. A page with one power draw
    /// has what that call answers, and does not say whether it is the average.
    fn power_usage(&mut self) {
        const PATHS: [&str; 5] = [
            "(Power Draw)",
            "GPU Power Readings > Average Power Draw",
            "GPU Power Readings > Instantaneous Power Draw",
            "GPU Power Readings > Power Draw",
            "Power Readings > Power Draw",
        ];
        let cells: Vec<&str> = PATHS
            .iter()
            .filter_map(|path| self.gpu.cell_at(path))
            .collect();
        let known = cells
            .iter()
            .find(|cell| words::read(cell).is_ok())
            .or(cells.first());
        if let Some(answer) = known.map(|cell| plain(cell, Kind::Times(1000.0))) {
            self.set("nvmlDeviceGetPowerUsage", answer);
        }
    }

    fn compute_capability(&mut self) {
        let Some(cell) = self.gpu.cell_at("(Compute Capability)") else {
            return;
        };
        let numbers: Option<Vec<u64>> = cell.split('.').map(words::whole).collect();
        let answer = match (words::read(cell), numbers) {
            (Err(code), _) => json!({"return": code}),
            (Ok(_), Some(numbers)) if numbers.len() == 2 => json!(numbers),
            _ => json!({"return": code::UNKNOWN}),
        };
        self.set("nvmlDeviceGetCudaComputeCapability", answer);
    }

    /// Old pages do not name the architecture. Counts by single and double bits are those of boards
    /// up to Volta.
    fn age(&mut self) {
        const VOLTA: u64 = 5;
        if self.gpu.at("Product Architecture").is_none()
            && self.gpu.at("ECC Errors > Volatile > Single Bit").is_some()
        {
            self.set("nvmlDeviceGetArchitecture", json!(VOLTA));
        }
    }

    /// A guest's license, and the six numbers of its end.
    fn license(&mut self) {
        let Some(section) = self
            .gpu
            .at("vGPU Software Licensed Product")
            .or(self.gpu.at("GRID Licensed Product"))
        else {
            return;
        };
        let cells =
            ["Product Name", "License Status"].map(|label| section.cell_at(label).unwrap_or("N/A"));
        let [product, status] = cells;
        let answer = match words::absence(cells.into_iter()) {
            Some(code) => json!({"return": code}),
            None => {
                let numbers = status
                    .split(|letter: char| !letter.is_ascii_digit())
                    .filter_map(|number| number.parse().ok());
                let expiry: Vec<u64> = numbers.collect();
                let is_licensed = status.starts_with("Licensed");
                let mut answer =
                    json!({"productName": product, "featureState": u32::from(is_licensed)});
                if expiry.len() == 6 {
                    answer["expiry"] = json!(expiry);
                }
                answer
            }
        };
        self.set("nvmlDeviceGetGridLicensableFeatures_v4", answer);
    }

    /// The first bridge chip; the page has no more.
    fn bridge(&mut self) {
        const CHIPS: &[(&str, u64)] = &[("PLX", 0), ("BRO4", 1)];
        let cells = ["Type", "Firmware"]
            .map(|label| self.gpu.cell_at(&format!("PCI > Bridge Chip > {label}")));
        let [Some(chip), Some(firmware)] = cells else {
            return;
        };
        let parts = [part(chip, Kind::Word(CHIPS)), plain(firmware, Kind::Whole)];
        let absent =
            words::absence([chip, firmware].into_iter()).map(|code| json!({"return": code}));
        let answer = absent.or_else(|| parts.iter().find(|part| is_code(part)).cloned());
        self.set(
            "nvmlDeviceGetBridgeChipInfo",
            answer.unwrap_or(json!([parts])),
        );
    }

    /// Eighteen fields; a page that has one cell for them has the same value for all.
    fn power_smoothing(&mut self) {
        let Some(cell) = self.gpu.cell_at("Power Smoothing") else {
            return;
        };
        let first = if self.driver >= (580, 82) { 251 } else { 256 };
        let Err(code) = words::read(cell) else {
            return self.set_field(&format!("{first}/0"), 1, plain(cell, Kind::Flag));
        };
        for field in first..first + 18 {
            self.set_field(&format!("{field}/0"), 1, json!({"return": code}));
        }
    }
}
