//! Every reading of every GPU of this machine:
//! `cargo run --release -p kiln-hardware --example snapshot`.
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use kiln_hardware::{Nvml, NvmlAbsent, Reading, snapshot::device};

fn main() -> Result<(), NvmlAbsent> {
    let nvml = Nvml::open(None)?;
    for gpu in nvml.devices() {
        for entry in device(&nvml, &gpu.uuid).entries {
            match &entry.value {
                Reading::Value(value) => {
                    println!("{} {}: {value} {}", entry.section, entry.field, entry.unit)
                }
                Reading::Absent(reason) => println!("{} {}: {reason}", entry.section, entry.field),
            }
        }
    }
    Ok(())
}
