//! Reads `CUDA_VISIBLE_DEVICES` as CUDA does: its text and the GPUs of the machine go in, the devices
//! that it leaves visible come out. Pure.

use super::instruments::LeasedGpu;

/// A device that one entry names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NamedDevice<'a> {
    Usable(&'a LeasedGpu),
    /// The index of a GPU that cannot be used.
    Unusable(u32),
}

/// The GPUs and MIG instances that `CUDA_VISIBLE_DEVICES` leaves visible, in its order. Like CUDA,
/// it stops at the first entry that is not a device, shows none if one is named twice, and uses the
/// first instance of a GPU with MIG instances. UUIDs of GPUs may be abbreviated as long as they are
/// unique, those of instances not. `unusable` GPUs are left out.
pub fn restrict(
    devices: &[LeasedGpu],
    unusable: &[(u32, String)],
    visible: Option<&str>,
) -> Vec<LeasedGpu> {
    let Some(text) = visible else {
        return devices.to_vec();
    };
    let named = entries(text, devices, unusable);
    if twice(&named).is_some() {
        return Vec::new();
    }
    let mut left = Vec::new();
    for device in named {
        if let NamedDevice::Usable(gpu) = device {
            left.push(gpu.clone());
        }
    }
    left
}

/// Why a text that leaves no device visible does so; `None` if it names none of these GPUs.
pub(super) fn fault(
    text: &str,
    devices: &[LeasedGpu],
    unusable: &[(u32, String)],
) -> Option<String> {
    let named = entries(text, devices, unusable);
    let variable = format!("`CUDA_VISIBLE_DEVICES={text}`");
    if let Some(device) = twice(&named) {
        return Some(format!(
            "{variable} names {} twice; CUDA then shows no device at all; name each device once",
            words(device)
        ));
    }
    if !named.is_empty() {
        let reasons: Vec<String> = unusable
            .iter()
            .filter(|(index, _)| named.contains(&NamedDevice::Unusable(*index)))
            .map(|(index, why)| format!("GPU {index}: {why}"))
            .collect();
        let others: Vec<String> = devices
            .iter()
            .map(|gpu| format!("{} ({})", gpu.index, gpu.uuid))
            .collect();
        return Some(format!(
            "{variable} names only GPUs that cannot be used ({}); name others by UUID: {}",
            reasons.join("; "),
            others.join(", ")
        ));
    }
    let first = text.split(',').next().unwrap_or_default().trim();
    (boards(first, devices).len() > 1).then(|| {
        format!("{variable}: `{first}` is the beginning of several UUIDs; write the whole UUID")
    })
}

/// The devices that the entries name, up to the first entry that is not a device.
fn entries<'a>(
    text: &str,
    devices: &'a [LeasedGpu],
    unusable: &[(u32, String)],
) -> Vec<NamedDevice<'a>> {
    text.split(',')
        .map_while(|entry| named(entry.trim(), devices, unusable))
        .collect()
}

fn named<'a>(
    entry: &str,
    devices: &'a [LeasedGpu],
    unusable: &[(u32, String)],
) -> Option<NamedDevice<'a>> {
    if let Ok(index) = entry.parse::<u32>() {
        if let Some(gpu) = devices.iter().find(|device| device.index == index) {
            return Some(NamedDevice::Usable(gpu));
        }
        let is_unusable = unusable.iter().any(|(known, _)| *known == index);
        return is_unusable.then_some(NamedDevice::Unusable(index));
    }
    let found = match boards(entry, devices).as_slice() {
        [one] => Some(*one),
        _ => devices
            .iter()
            .find(|device| entry.starts_with("MIG-") && device.is_named(entry)),
    };
    found.map(NamedDevice::Usable)
}

/// The first device of each GPU whose UUID begins with this.
fn boards<'a>(entry: &str, devices: &'a [LeasedGpu]) -> Vec<&'a LeasedGpu> {
    let mut found: Vec<&'a LeasedGpu> = Vec::new();
    if !entry.starts_with("GPU-") || entry == "GPU-" {
        return found;
    }
    for device in devices {
        let board = device.board_uuid();
        if board.starts_with(entry) && found.iter().all(|known| known.board_uuid() != board) {
            found.push(device);
        }
    }
    found
}

/// The first device that is named again.
fn twice<'a>(named: &[NamedDevice<'a>]) -> Option<NamedDevice<'a>> {
    (1..named.len())
        .find(|at| named[..*at].contains(&named[*at]))
        .map(|at| named[at])
}

fn words(device: NamedDevice) -> String {
    match device {
        NamedDevice::Usable(gpu) if gpu.instance.is_some() => gpu.uuid.clone(),
        NamedDevice::Usable(gpu) => format!("GPU {} ({})", gpu.index, gpu.name),
        NamedDevice::Unusable(index) => format!("GPU {index}"),
    }
}
