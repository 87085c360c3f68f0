//! MIG devices and processes.

use serde_json::{Value, json};

use super::{Inverter, Kind, Node, is_code, memory, plain, words};
use crate::{Device, code, scenario::Calls};

impl Inverter<'_> {
    pub(super) fn mig(&mut self) {
        let blocks = self
            .gpu
            .children
            .iter()
            .filter(|child| child.label == "MIG Device");
        for (position, block) in blocks.enumerate() {
            let index = block
                .cell_at("Index")
                .and_then(words::whole)
                .map_or(position, |index| index as usize);
            if self.device.mig.len() <= index {
                self.device.mig.resize(index + 1, None);
            }
            if let Some(place) = self.device.mig.get_mut(index) {
                *place = Some(mig_device(block, index));
            }
        }
        // A whole board can be cut into seven.
        let can_mig = self
            .gpu
            .cell_at("MIG Mode > Current")
            .is_some_and(|cell| words::read(cell).is_ok());
        let most = if can_mig {
            self.device.mig.len().max(7)
        } else {
            0
        };
        self.set("nvmlDeviceGetMaxMigDeviceCount", json!(most));
    }

    pub(super) fn processes(&mut self) {
        let Some(section) = self.gpu.at("Processes") else {
            return;
        };
        let mut lists = [
            ("Compute", Vec::new()),
            ("Graphics", Vec::new()),
            ("MPSCompute", Vec::new()),
        ];
        for process in processes(section) {
            let [compute, graphics, mps] = &mut lists;
            let types: Vec<&str> = process.types.split('+').collect();
            let is_mps = types.contains(&"M");
            let into = [
                (is_mps, mps),
                (types.contains(&"C") && !is_mps, compute),
                (types.contains(&"G"), graphics),
            ];
            for (_, (_, list)) in into.into_iter().filter(|(belongs, _)| *belongs) {
                list.push(process.entry.clone());
            }
        }
        for (kind, list) in lists {
            let answer = match section.cell.as_deref().map(words::read) {
                Some(Err(code)) => json!({"return": code}),
                _ => Value::Array(list),
            };
            self.set(&format!("nvmlDeviceGet{kind}RunningProcesses_v3"), answer);
        }
    }
}

fn mig_device(block: &Node, index: usize) -> Device {
    let mut device = Device::default();
    let calls = &mut device.calls;
    // The page has no UUID for it.
    calls.insert(
        "nvmlDeviceGetUUID".into(),
        format!("MIG-00000000-0000-0000-0000-{index:012}").into(),
    );
    let cell = |path: &str| block.cell_at(path);
    for (label, call) in [
        ("GPU Instance ID", "nvmlDeviceGetGpuInstanceId"),
        ("Compute Instance ID", "nvmlDeviceGetComputeInstanceId"),
        (
            "ECC Errors > Volatile > SRAM Uncorrectable",
            "nvmlDeviceGetMemoryErrorCounter/1/0/7",
        ),
    ] {
        if let Some(cell) = cell(label) {
            calls.insert(call.into(), plain(cell, Kind::Whole));
        }
    }
    calls.insert("nvmlDeviceGetAttributes_v2".into(), attributes(block));
    let sections = [
        (
            ["Shared FB Memory Usage", "FB Memory Usage"],
            "nvmlDeviceGetMemoryInfo_v2",
            "total",
            &memory::FRAME_BUFFER[..],
        ),
        (
            ["Shared BAR1 Memory", "BAR1 Memory Usage"],
            "nvmlDeviceGetBAR1MemoryInfo",
            "bar1Total",
            &memory::BAR1[..],
        ),
    ];
    for (labels, call, total, parts) in sections {
        let section = labels.iter().find_map(|label| block.at(label));
        if let Some(answer) = section.and_then(|section| memory::answer(section, total, parts)) {
            calls.extend(
                memory::calls(call, answer)
                    .into_iter()
                    .map(|(call, answer)| (call.to_owned(), answer)),
            );
        }
    }
    device
}

/// The instance's share of the board. One call: an absent count makes all of them absent, a count
/// that is not printed is absent alone.
fn attributes(block: &Node) -> Value {
    const COUNTS: [(&str, &str); 6] = [
        ("multiprocessorCount", "Multiprocessor"),
        ("sharedCopyEngineCount", "Copy Engine"),
        ("sharedEncoderCount", "Encoder"),
        ("sharedDecoderCount", "Decoder"),
        ("sharedOfaCount", "OFA"),
        ("sharedJpegCount", "JPG"),
    ];
    let memory = ["Shared FB Memory Usage > Total", "FB Memory Usage > Total"]
        .into_iter()
        .find_map(|path| block.cell_at(path));
    let mut attributes = json!({
        "gpuInstanceSliceCount": 1,
        "computeInstanceSliceCount": 1,
        "memorySizeMB": memory.and_then(words::whole).unwrap_or(0),
    });
    for (member, label) in COUNTS {
        let cell = block.cell_at(&format!("Device Attributes > Shared > {label} count"));
        let count = cell.map_or(json!(0), |cell| plain(cell, Kind::Whole));
        if is_code(&count) {
            return count;
        }
        attributes[member] = count;
    }
    attributes
}

struct Process {
    types: String,
    name: Option<String>,
    pid: u64,
    entry: Value,
}

/// The section is a row of labels: two ids, then a process with more below it, and again.
fn processes(section: &Node) -> Vec<Process> {
    let mut found = Vec::new();
    let mut ids = [None, None];
    for child in &section.children {
        let number = child.cell.as_deref().and_then(words::whole);
        match (child.label.as_str(), number) {
            ("GPU instance ID", id) => ids[0] = id,
            ("Compute instance ID", id) => ids[1] = id,
            ("Process ID", Some(pid)) => found.push(process(child, pid, ids)),
            _ => {}
        }
    }
    found
}

fn process(node: &Node, pid: u64, [gpu_instance, compute_instance]: [Option<u64>; 2]) -> Process {
    let mut entry = json!({"pid": pid});
    let memory = node
        .cell_at("Used GPU Memory")
        .and_then(|cell| words::read(cell).ok())
        .and_then(words::whole);
    for (member, value) in [
        ("usedGpuMemory", memory.map(|mebibytes| mebibytes << 20)),
        ("gpuInstanceId", gpu_instance),
        ("computeInstanceId", compute_instance),
    ] {
        if let Some(value) = value {
            entry[member] = json!(value);
        }
    }
    Process {
        types: node.cell_at("Type").unwrap_or("C").to_owned(),
        name: node.cell_at("Name").map(str::to_owned),
        pid,
        entry,
    }
}

/// Names are the system's to tell.
pub(super) fn process_names(gpu: &Node, calls: &mut Calls) {
    for process in gpu.at("Processes").map(processes).unwrap_or_default() {
        let answer = match process.name.as_deref().map(words::read) {
            Some(Ok(name)) => json!(name),
            Some(Err(code)) => json!({"return": code}),
            None => json!({"return": code::NOT_FOUND}),
        };
        calls.insert(format!("nvmlSystemGetProcessName/{}", process.pid), answer);
    }
}
