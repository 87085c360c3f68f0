//! Meaning of the words in cells for NVML.

use crate::code;

/// A cell is a value, or stands for a return code.
pub(super) fn read(cell: &str) -> Result<&str, u32> {
    let cell = cell.trim();
    let word = cell
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(cell);
    match word {
        "N/A" | "Not Supported" | "Not available in WDDM driver model" => Err(code::NOT_SUPPORTED),
        "Requested functionality has been deprecated" => Err(code::DEPRECATED),
        "Insufficient Permissions" | "Insufficient permissions" => Err(code::NO_PERMISSION),
        "GPU is lost" => Err(code::GPU_IS_LOST),
        "Function Not Found" => Err(code::FUNCTION_NOT_FOUND),
        "Not Found" => Err(code::NOT_FOUND),
        "GPU requires reset" | "GPU requires restart" => Err(16),
        "Timeout" => Err(code::TIMEOUT),
        "Unknown Error" | "Unknown error" | "ERR!" => Err(code::UNKNOWN),
        _ => Ok(cell),
    }
}

/// The code of a call that answers several cells, if one of them is absent: a refusal rather than
/// "not supported".
pub(super) fn absence<'a>(cells: impl Iterator<Item = &'a str>) -> Option<u32> {
    let codes: Vec<u32> = cells.filter_map(|cell| read(cell).err()).collect();
    codes
        .iter()
        .find(|code| **code != code::NOT_SUPPORTED)
        .or(codes.first())
        .copied()
}

/// The number a cell begins with: `627.32 W`, `16x`, `0x83`, `3072 bank(s)`, `100.00%`.
pub(super) fn number(cell: &str) -> Option<f64> {
    if let Some(digits) = cell.strip_prefix("0x") {
        return u64::from_str_radix(digits.split_whitespace().next()?, 16)
            .ok()
            .map(|number| number as f64);
    }
    let end = cell
        .find(|letter: char| !letter.is_ascii_digit() && !matches!(letter, '.' | '-' | '+'))
        .unwrap_or(cell.len());
    cell.get(..end)?.parse().ok()
}

/// An integer with all its digits; hexadecimal if it is marked so.
pub(super) fn whole(cell: &str) -> Option<u64> {
    match cell.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits.split_whitespace().next()?, 16).ok(),
        None => cell
            .split(|letter: char| !letter.is_ascii_digit())
            .next()?
            .parse()
            .ok(),
    }
}

pub(super) fn flag(cell: &str) -> Option<u64> {
    match cell.to_ascii_lowercase().as_str() {
        "enabled" | "yes" | "active" | "on" | "true" | "supported" | "valid" => Some(1),
        "disabled" | "no" | "not active" | "off" | "false" => Some(0),
        _ => None,
    }
}

/// A word's number in a table; a number stands for itself.
pub(super) fn word(cell: &str, table: &[(&str, u64)]) -> Option<u64> {
    let found = table
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(cell));
    found.map(|(_, number)| *number).or_else(|| whole(cell))
}

pub(super) const BRANDS: &[(&str, u64)] = &[
    ("Unknown", 0),
    ("Quadro", 1),
    ("Tesla", 2),
    ("NVS", 3),
    ("GRID", 4),
    ("Grid", 4),
    ("GeForce", 5),
    ("Titan", 6),
    ("NVIDIA Virtual Applications", 7),
    ("NVIDIA Virtual PC", 8),
    ("NVIDIA Virtual Compute Server", 9),
    ("NVIDIA RTX Virtual Workstation", 10),
    ("NVIDIA Cloud Gaming", 11),
    ("Quadro RTX", 12),
    ("NVIDIA RTX", 13),
    ("NVIDIA", 14),
    ("GeForce RTX", 15),
    ("Titan RTX", 16),
];

pub(super) const ARCHITECTURES: &[(&str, u64)] = &[
    ("Kepler", 2),
    ("Maxwell", 3),
    ("Pascal", 4),
    ("Volta", 5),
    ("Turing", 6),
    ("Ampere", 7),
    ("Ada Lovelace", 8),
    ("Ada", 8),
    ("Hopper", 9),
    ("Blackwell", 10),
    ("Rubin", 13),
    ("Unknown", 0xffff_ffff),
];

pub(super) const ADDRESSING: &[(&str, u64)] = &[("None", 0), ("HMM", 1), ("ATS", 2)];
pub(super) const DRIVER_MODELS: &[(&str, u64)] =
    &[("WDDM", 0), ("WDM", 1), ("TCC", 1), ("MCDM", 2)];
pub(super) const OPERATION_MODES: &[(&str, u64)] =
    &[("All On", 0), ("Compute", 1), ("Low Double Precision", 2)];
pub(super) const VIRTUALIZATION: &[(&str, u64)] = &[
    ("None", 0),
    ("Pass-Through", 1),
    ("VGPU", 2),
    ("vGPU", 2),
    ("Host VGPU", 3),
    ("Host VSGA", 4),
];
pub(super) const HOST_VGPU: &[(&str, u64)] = &[("Non SR-IOV", 0), ("SR-IOV", 1)];
pub(super) const COMPUTE_MODES: &[(&str, u64)] = &[
    ("Default", 0),
    ("Exclusive_Thread", 1),
    ("Prohibited", 2),
    ("Exclusive_Process", 3),
];
pub(super) const RECOVERY: &[(&str, u64)] = &[
    ("None", 0),
    ("Reset", 1),
    ("GPU Reset", 1),
    ("Reboot", 2),
    ("Node Reboot", 2),
    ("Drain P2P", 3),
    ("Drain and Reset", 4),
    ("Recover IMEX", 5),
    ("Bus Reset", 6),
    ("System Reboot", 7),
];
pub(super) const PEERS: &[(&str, u64)] = &[("Direct Connected", 0), ("Switch Connected", 1)];
pub(super) const FABRIC_STATES: &[(&str, u64)] = &[
    ("Not Supported", 0),
    ("Not Started", 1),
    ("In Progress", 2),
    ("Completed", 3),
];
pub(super) const FABRIC_STATUS: &[(&str, u64)] = &[
    ("Success", 0),
    ("Uninitialized", 1),
    ("Invalid Argument", 2),
    ("Not Supported", 3),
    ("Insufficient Permissions", 4),
    ("Not Found", 6),
    ("Insufficient Size", 7),
    ("Timeout", 10),
    ("GPU is lost", 15),
    ("Insufficient resources", 23),
    ("Not Ready", 27),
    ("Invalid State", 29),
    ("Unknown Error", 999),
];
pub(super) const HEALTH: &[(&str, u64)] = &[
    ("N/A", 0),
    ("Not Supported", 0),
    ("Healthy", 1),
    ("Unhealthy", 2),
    ("Limited Capacity", 3),
];
/// Fields of two bits in the health's mask.
pub(super) const HEALTH_FIELDS: &[(&str, u64)] = &[
    ("N/A", 0),
    ("True", 1),
    ("Yes", 1),
    ("Degraded", 1),
    ("False", 2),
    ("No", 2),
    ("Full", 2),
];
pub(super) const CONFIGURATION: &[(&str, u64)] = &[
    ("N/A", 0),
    ("None", 1),
    ("Incorrect SysGuid", 2),
    ("Incorrect Chassis Serial Number", 3),
    ("No Partition", 4),
    ("Insufficient Nvlinks", 5),
    ("Incompatible GPU FW", 6),
    ("Invalid Location", 7),
    ("Invalid GPU State", 8),
];
pub(super) const ATOMICS: [&str; 7] = [
    "FETCHADD_32",
    "FETCHADD_64",
    "SWAP_32",
    "SWAP_64",
    "CAS_32",
    "CAS_64",
    "CAS_128",
];
