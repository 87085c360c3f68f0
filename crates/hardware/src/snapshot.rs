//! A snapshot: all readings of the host or of one device at one moment, as tidy entries.
//!
//! An entry is (section, field, value, unit), or the reason why there is no value. Names are snake
//! case; a section groups what `nvidia-smi -q` groups. Values that change with every reading are
//! included: a reader compares snapshots field by field.

use serde_json::{Map, Value as Json, json};

use super::{
    Gpu, HostFacts, Nvml, Reading,
    fields::{
        cell::{
            TypedReading, Value, ValueKind, bytes, count, enabled, milliseconds, percent, words,
        },
        rows,
    },
    gpu::{MigDevice, ProcessMemory},
};

/// The name of the host where a device's UUID would stand.
pub const HOST: &str = "host";

/// All readings of one device (or the host) at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// UUID, or [`HOST`].
    pub device: String,
    pub entries: Vec<Entry>,
}

/// One field of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub section: &'static str,
    pub field: String,
    /// As text; numbers as short as they can be.
    pub value: Reading<String>,
    /// Empty for words and plain counts.
    pub unit: &'static str,
    /// Identifies one particular board or other users' work: masked in tables unless the experiment
    /// says otherwise.
    pub is_identifying: bool,
}

/// A field with its value still typed: what tidy entries and JSON are made of.
#[derive(Clone, Debug)]
pub struct Item {
    pub section: &'static str,
    pub field: String,
    pub cell: TypedReading,
    pub is_identifying: bool,
}

impl Item {
    fn entry(self) -> Entry {
        let (value, unit) = self.cell.tidy();
        Entry {
            section: self.section,
            field: self.field,
            value,
            unit,
            is_identifying: self.is_identifying,
        }
    }

    /// `{"value": …, "unit": …}`, or `{"value": null, "reason": …}`.
    pub fn json(&self) -> Json {
        let (text, unit) = self.cell.tidy();
        let value = match (&self.cell.value, text.value()) {
            (Reading::Absent(absence), _) => {
                return json!({"value": null, "reason": absence.to_string()});
            }
            (Reading::Value(Value::Flag(flag)), _) => json!(flag),
            (Reading::Value(Value::Words(words)), _) => json!(words),
            // Masks and addresses stay as they are read aloud; the rest are numbers.
            (_, Some(text)) => text
                .parse::<serde_json::Number>()
                .map_or_else(|_| json!(text), Json::Number),
            (_, None) => Json::Null,
        };
        if unit.is_empty() {
            json!({ "value": value })
        } else {
            json!({"value": value, "unit": unit})
        }
    }
}

/// Items as JSON: section to field to value.
pub fn json(items: &[Item]) -> Json {
    let mut sections = Map::new();
    for item in items {
        let section = sections.entry(item.section).or_insert_with(|| json!({}));
        section[item.field.as_str()] = item.json();
    }
    Json::Object(sections)
}

fn of(device: String, items: Vec<Item>) -> Snapshot {
    Snapshot {
        device,
        entries: items.into_iter().map(Item::entry).collect(),
    }
}

/// The host's facts as a snapshot.
pub fn host(facts: &HostFacts) -> Snapshot {
    of(HOST.to_owned(), host_items(facts))
}

/// Everything of one device, read now. A lost device still gives its entries, with reasons.
pub fn device(nvml: &Nvml, uuid: &str) -> Snapshot {
    gpu(&Gpu::read(nvml, uuid))
}

/// A GPU that was read before. One without a UUID goes by its index.
pub fn gpu(gpu: &Gpu) -> Snapshot {
    of(name_of(gpu), items(gpu))
}

/// The UUID, else `gpu <index>`.
pub fn name_of(gpu: &Gpu) -> String {
    match (gpu.identity.uuid.value(), gpu.index.value()) {
        (Some(uuid), _) => uuid.clone(),
        (None, Some(index)) => format!("gpu {index}"),
        (None, None) => "gpu".to_owned(),
    }
}

/// Every field of a GPU: the table's, then what is repeated.
pub fn items(gpu: &Gpu) -> Vec<Item> {
    let mut items: Vec<Item> = rows()
        .filter_map(|row| {
            let (section, field) = row.tidy.split_once('.')?;
            Some(Item {
                section,
                field: field.to_owned(),
                cell: (row.cell)(gpu),
                is_identifying: row.is_identifying,
            })
        })
        .collect();
    items.extend(gpu.mig_devices.iter().flat_map(mig_items));
    for link in &gpu.fabric.links {
        items.push(item(
            "nvlink",
            format!("link{}_is_active", link.link),
            enabled(&link.is_active),
        ));
        items.push(item(
            "nvlink",
            format!("link{}_version", link.link),
            count(&link.version),
        ));
    }
    items.extend(process_items(gpu));
    items.extend(accounted_items(gpu));
    items
}

fn item(section: &'static str, field: String, cell: TypedReading) -> Item {
    Item {
        section,
        field,
        cell,
        is_identifying: false,
    }
}

fn mig_items(device: &MigDevice) -> Vec<Item> {
    let cells = [
        ("uuid", words(&device.uuid)),
        ("name", words(&device.name)),
        ("gpu_instance", count(&device.gpu_instance_id)),
        ("compute_instance", count(&device.compute_instance_id)),
        ("multiprocessors", count(&device.multiprocessors)),
        ("copy_engines", count(&device.copy_engines)),
        ("encoders", count(&device.encoders)),
        ("decoders", count(&device.decoders)),
        ("ofa_engines", count(&device.ofa_engines)),
        ("jpeg_engines", count(&device.jpeg_engines)),
        ("sram_uncorrected", count(&device.sram_uncorrected_volatile)),
        ("memory_total", bytes(&device.memory.total_bytes)),
        ("memory_reserved", bytes(&device.memory.reserved_bytes)),
        ("memory_used", bytes(&device.memory.used_bytes)),
        ("memory_free", bytes(&device.memory.free_bytes)),
        ("bar1_total", bytes(&device.bar1.total_bytes)),
        ("bar1_used", bytes(&device.bar1.used_bytes)),
        ("bar1_free", bytes(&device.bar1.free_bytes)),
    ];
    cells
        .into_iter()
        .map(|(name, cell)| item("mig", format!("device{}_{name}", device.index), cell))
        .collect()
}

/// The number of computing processes, then per process `process_<pid>_…`.
fn process_items(gpu: &Gpu) -> Vec<Item> {
    let computing = gpu
        .processes
        .as_ref()
        .map(|list| list.iter().filter(|process| process.has_compute).count() as u64);
    let mut items = vec![item(
        "processes",
        "compute_processes".to_owned(),
        count(&computing),
    )];
    for process in gpu.processes.value().into_iter().flatten() {
        let memory = match process.memory {
            ProcessMemory::Bytes(used) => Reading::Value(used),
            ProcessMemory::NotTold => Reading::absent("the driver does not say"),
        };
        let cells = [
            ("name", words(&process.name)),
            ("kind", words(&Reading::Value(process.kind().to_owned()))),
            ("memory", bytes(&memory)),
        ];
        items.extend(cells.into_iter().map(|(name, cell)| {
            let field = format!("process_{}_{name}", process.pid);
            Item {
                is_identifying: true,
                ..item("processes", field, cell)
            }
        }));
    }
    items
}

fn accounted_items(gpu: &Gpu) -> Vec<Item> {
    let accounted = gpu
        .accounted_processes
        .as_ref()
        .map(|list| list.len() as u64);
    let mut items = vec![item(
        "processes",
        "accounted_processes".to_owned(),
        count(&accounted),
    )];
    for process in gpu.accounted_processes.value().into_iter().flatten() {
        let cells = [
            ("utilization", percent(&process.gpu_percent)),
            ("memory_utilization", percent(&process.memory_percent)),
            ("max_memory", bytes(&process.max_memory_bytes)),
            ("time", milliseconds(&process.milliseconds)),
        ];
        items.extend(cells.into_iter().map(|(name, cell)| {
            let field = format!("accounted_{}_{name}", process.pid);
            Item {
                is_identifying: true,
                ..item("processes", field, cell)
            }
        }));
    }
    items
}

/// The host's facts, in the order of the tables.
pub fn host_items(facts: &HostFacts) -> Vec<Item> {
    let value = |text: &String| Reading::Value(text.clone());
    let flag = |reading: &Reading<bool>| TypedReading {
        kind: ValueKind::Flag("no", "yes"),
        ..enabled(reading)
    };
    let real = |reading: &Reading<f64>, kind: ValueKind| TypedReading {
        kind,
        value: reading.as_ref().map(|number| Value::Real(*number)),
    };
    let cells = [
        ("cpu", "model", words(&facts.cpu_model)),
        ("cpu", "processor", words(&facts.processor)),
        ("cpu", "features", words(&facts.cpu_features)),
        ("cpu", "physical_cores", count(&facts.physical_cores)),
        ("cpu", "logical_cores", count(&facts.logical_cores)),
        (
            "cpu",
            "usable_cores",
            count(&Reading::Value(facts.usable_cores)),
        ),
        ("cpu", "scaling_governor", words(&facts.scaling_governor)),
        (
            "cpu",
            "load_1_minute",
            real(&facts.load_1_minute, ValueKind::Plain),
        ),
        ("memory", "total", bytes(&facts.memory_bytes)),
        ("memory", "available", bytes(&facts.memory_available_bytes)),
        ("memory", "swap_total", bytes(&facts.swap_bytes)),
        ("limits", "cgroup_version", count(&facts.cgroup_version)),
        (
            "limits",
            "cgroup_cpu",
            real(&facts.cgroup_cpu_cores, ValueKind::Cores),
        ),
        ("limits", "cgroup_memory", bytes(&facts.cgroup_memory_bytes)),
        ("system", "kernel", words(&facts.kernel)),
        ("system", "distribution", words(&facts.distribution)),
        ("system", "architecture", words(&value(&facts.architecture))),
        ("system", "container", words(&facts.container)),
        ("system", "virtual_machine", flag(&facts.virtual_machine)),
        ("system", "boot_id", words(&facts.boot_id)),
        ("system", "clock_source", words(&facts.clock_source)),
        (
            "disk",
            "results_total",
            bytes(&facts.results_disk_total_bytes),
        ),
        (
            "disk",
            "results_free",
            bytes(&facts.results_disk_free_bytes),
        ),
    ];
    cells
        .into_iter()
        .map(|(section, field, cell)| item(section, field.to_owned(), cell))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_snapshot_has_every_field_once_and_a_reason_for_each_gap() {
        let snapshot = host(&crate::host::read());
        let mut seen = std::collections::HashSet::new();
        for entry in &snapshot.entries {
            assert!(
                seen.insert((entry.section, entry.field.clone())),
                "{}.{} twice",
                entry.section,
                entry.field
            );
            assert!(
                !entry.value.reason().is_some_and(|reason| reason.is_empty()),
                "{}.{} is absent without a reason",
                entry.section,
                entry.field
            );
        }
        assert!(seen.contains(&("cpu", "usable_cores".to_owned())));
    }
}
