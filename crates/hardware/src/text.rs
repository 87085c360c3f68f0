//! A snapshot as text in the layout of `nvidia-smi -q`, driver branch R590, and the host in the
//! same manner.
//!
//! Input: GPUs and a moment. Output: a string; nothing is printed here.

use kiln_units::without_controls;

use super::{
    Gpu, Reading,
    fields::{
        FieldRow, TextBlock, WITHIN,
        cell::{bytes, count, token, words},
        rows,
    },
    gpu::{MigDevice, Process, ProcessMemory},
    snapshot::Item,
};

/// The column of the colon.
const COLUMN: usize = 55;
/// That of the lines of processes, which nvidia-smi never moved.
const PROCESS_COLUMN: usize = 42;

/// Level of detail about other users' processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Full,
    /// Serial numbers and processes are kept back, as in the committed tables.
    Masked(&'static str),
}

/// The whole text: versions, then each GPU.
pub fn text(gpus: &[Gpu], moment: &jiff::Zoned, naming: Naming) -> String {
    let mut page = TextPage::default();
    page.out
        .push_str("\n==============NVSMI LOG==============\n\n");
    // As C's ctime writes it: a day below ten has a space before it.
    page.line(
        0,
        "Timestamp",
        &moment.strftime("%a %b %e %H:%M:%S %Y").to_string(),
    );
    if let Some(first) = gpus.first() {
        page.line(0, "Driver Version", &words(&first.driver.version).text());
        page.line(0, "CUDA Version", &words(&first.driver.cuda).text());
        page.out.push('\n');
        page.line(0, "Attached GPUs", &count(&first.driver.gpu_count).text());
    } else {
        page.line(0, "Attached GPUs", "0");
    }
    for gpu in gpus {
        page.gpu(gpu, naming);
        page.out.push('\n');
    }
    page.out
}

/// The host's facts in the same manner.
pub fn host_text(items: &[Item]) -> String {
    let mut page = TextPage::default();
    page.out.push_str("Host\n");
    let mut section = "";
    for item in items {
        if item.section != section {
            section = item.section;
            page.heading(1, section);
        }
        page.line(2, &item.field.replace('_', " "), &item.cell.text());
    }
    page.out
}

#[derive(Default)]
struct TextPage {
    out: String,
    /// Headings above the last line.
    path: Vec<&'static str>,
}

impl TextPage {
    fn heading(&mut self, depth: usize, heading: &str) {
        self.out.push_str(&format!(
            "{:indent$}{}\n",
            "",
            without_controls(heading),
            indent = depth * 4
        ));
    }

    fn line(&mut self, depth: usize, label: &str, value: &str) {
        self.aligned(COLUMN, depth, label, value);
    }

    fn aligned(&mut self, column: usize, depth: usize, label: &str, value: &str) {
        let indent = depth * 4;
        self.out.push_str(&format!(
            "{:indent$}{label:<width$}: {}\n",
            "",
            without_controls(value),
            width = column.saturating_sub(indent)
        ));
    }

    fn gpu(&mut self, gpu: &Gpu, naming: Naming) {
        self.path.clear();
        let bus_id = words(&gpu.pci.bus_id);
        let index = || {
            gpu.index
                .value()
                .map_or_else(|| "?".to_owned(), ToString::to_string)
        };
        let name = if bus_id.value.value().is_some() {
            bus_id.text()
        } else {
            format!("{} ({})", index(), bus_id.text())
        };
        self.heading(0, &format!("GPU {name}"));
        for row in rows() {
            match row.block {
                Some(TextBlock::MigDevices) => {
                    gpu.mig_devices.iter().for_each(|device| self.mig(device))
                }
                Some(TextBlock::Processes) => self.processes(gpu, naming),
                None if row.label.is_empty() || !(row.is_shown)(gpu) => {}
                None => self.row(row, gpu, naming),
            }
        }
    }

    fn row(&mut self, row: &FieldRow, gpu: &Gpu, naming: Naming) {
        let cell = (row.cell)(gpu);
        let value = match naming {
            Naming::Masked(mask) if row.is_identifying && cell.value.value().is_some() => {
                mask.to_owned()
            }
            _ => cell.text(),
        };
        let path: Vec<&'static str> = row.label.split(WITHIN).collect();
        let known = path
            .iter()
            .zip(&self.path)
            .take_while(|(one, other)| one == other)
            .count();
        let last = path.len() - 1;
        for (depth, heading) in path.iter().enumerate().take(last).skip(known) {
            self.heading(depth + 1, heading);
        }
        self.line(last + 1, path[last], &value);
        self.path = path;
    }

    fn mig(&mut self, device: &MigDevice) {
        self.heading(1, "MIG Device");
        self.line(2, "Index", &device.index.to_string());
        self.line(2, "GPU Instance ID", &count(&device.gpu_instance_id).text());
        self.line(
            2,
            "Compute Instance ID",
            &count(&device.compute_instance_id).text(),
        );
        self.heading(2, "Device Attributes");
        self.heading(3, "Shared");
        self.counts(
            4,
            &[
                ("Multiprocessor count", &device.multiprocessors),
                ("Copy Engine count", &device.copy_engines),
                ("Encoder count", &device.encoders),
                ("Decoder count", &device.decoders),
                ("OFA count", &device.ofa_engines),
                ("JPG count", &device.jpeg_engines),
            ],
        );
        self.heading(2, "ECC Errors");
        self.heading(3, "Volatile");
        self.counts(
            4,
            &[("SRAM Uncorrectable", &device.sram_uncorrected_volatile)],
        );
        self.heading(2, "Shared FB Memory Usage");
        let memory = &device.memory;
        let used = [("Used", &memory.used_bytes), ("Free", &memory.free_bytes)];
        self.memory(
            &[
                [
                    ("Total", &memory.total_bytes),
                    ("Reserved", &memory.reserved_bytes),
                ],
                used,
            ]
            .concat(),
        );
        self.heading(2, "Shared BAR1 Memory");
        self.memory(&[
            ("Total", &device.bar1.total_bytes),
            ("Used", &device.bar1.used_bytes),
            ("Free", &device.bar1.free_bytes),
        ]);
        self.path.clear();
    }

    fn counts(&mut self, depth: usize, lines: &[(&str, &Reading<u64>)]) {
        for (label, reading) in lines {
            self.line(depth, label, &count(reading).text());
        }
    }

    fn memory(&mut self, lines: &[(&str, &Reading<u64>)]) {
        for (label, reading) in lines {
            self.line(3, label, &bytes(reading).text());
        }
    }

    fn processes(&mut self, gpu: &Gpu, naming: Naming) {
        // WDDM and its successor keep the memory of processes to themselves.
        let unknown_memory = match gpu.modes.driver_model.current.value() {
            Some(0 | 2) => "Not available in WDDM driver model",
            _ => "N/A",
        };
        match &gpu.processes {
            Reading::Absent(absence) => self.line(1, "Processes", token(absence)),
            Reading::Value(list) if list.is_empty() => self.line(1, "Processes", "None"),
            Reading::Value(list) => {
                self.heading(1, "Processes");
                list.iter()
                    .for_each(|process| self.process(process, unknown_memory, naming));
            }
        }
        self.path.clear();
    }

    fn process(&mut self, process: &Process, unknown_memory: &str, naming: Naming) {
        let instance = |id: Option<u64>| id.map_or_else(|| "N/A".to_owned(), |id| id.to_string());
        let (pid, name) = match naming {
            Naming::Full => (process.pid.to_string(), words(&process.name).text()),
            Naming::Masked(mask) => (mask.to_owned(), mask.to_owned()),
        };
        let memory = match process.memory {
            ProcessMemory::Bytes(used) => bytes(&Reading::Value(used)).text(),
            ProcessMemory::NotTold => unknown_memory.to_owned(),
        };
        self.aligned(
            PROCESS_COLUMN,
            2,
            "GPU instance ID",
            &instance(process.gpu_instance_id),
        );
        self.aligned(
            PROCESS_COLUMN,
            2,
            "Compute instance ID",
            &instance(process.compute_instance_id),
        );
        self.aligned(PROCESS_COLUMN, 2, "Process ID", &pid);
        self.aligned(PROCESS_COLUMN, 3, "Type", process.kind());
        self.aligned(PROCESS_COLUMN, 3, "Name", &name);
        self.aligned(PROCESS_COLUMN, 3, "Used GPU Memory", &memory);
    }
}
