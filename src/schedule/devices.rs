//! Selects the devices that a trial may use: `run.devices`, the GPUs found and
//! `CUDA_VISIBLE_DEVICES` go in, a choice comes out. Pure; `lease` takes the devices.

use kiln_core::{
    plan::Trial,
    spec::{DeviceId, DeviceName, Devices, Engine},
    units::{Bytes, Fraction, counted, listed},
};

use super::{
    instruments::{DeviceUse, Instruments, LeasedGpu, ProcessList},
    visible::{fault, restrict},
};
use crate::preflight::{IDLE_MEMORY_BYTES, is_hidden_on_purpose};

/// GPUs busier than this are not idle.
const IDLE_UTILIZATION: f64 = 0.05;

/// The devices that a trial's settings ask for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceRequest {
    pub(super) devices: Devices,
    pub(super) engine: Engine,
    /// Number of devices that share its batches.
    pub(super) each: u64,
}

impl DeviceRequest {
    pub(super) fn of(trial: &Trial) -> Self {
        Self {
            devices: trial.devices.clone(),
            engine: trial.engine,
            each: trial.devices_per_trial,
        }
    }
}

/// The devices that a trial may run on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DeviceChoice {
    /// The CPU; with the reason why it is no GPU if the user may have expected one.
    Cpu { no_gpu: Option<String> },
    /// The first of these that is idle.
    FirstIdle(Vec<LeasedGpu>),
    /// All of these.
    All(Vec<LeasedGpu>),
}

/// The devices of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceOffer<'a> {
    pub(super) devices: &'a [LeasedGpu],
    /// GPUs that cannot be used, by index, and why.
    pub(super) unusable: &'a [(u32, String)],
    /// Reason why there are none.
    pub(super) absence: Option<&'a str>,
    /// `CUDA_VISIBLE_DEVICES` of kiln's own environment.
    pub(super) visible: Option<&'a str>,
}

/// Chooses among the GPUs of the machine.
///
/// # Errors
/// If a GPU is requested by name or by `all` and does not exist; the text lists the available ones.
pub(super) fn choose(
    wanted: &Devices,
    engine: Engine,
    offer: DeviceOffer,
) -> Result<DeviceChoice, String> {
    let visible: Vec<LeasedGpu> = restrict(offer.devices, offer.unusable, offer.visible);
    match (wanted, engine) {
        (Devices::Named(DeviceName::Cpu), _) | (Devices::Named(DeviceName::Auto), Engine::Flex) => {
            Ok(DeviceChoice::Cpu { no_gpu: None })
        }
        (_, Engine::Flex) => Err(
            "`run.engine: flex` runs on the CPU only; `run.devices` must be `auto` or `cpu`"
                .to_owned(),
        ),
        (Devices::Named(DeviceName::Auto), _)
            if visible.is_empty() && lacks_gpus_by_mistake(offer) =>
        {
            Err(format!(
                "{}; `--device cpu` runs the trials on the CPU",
                nothing_visible(offer)
            ))
        }
        (Devices::Named(DeviceName::Auto), _) if visible.is_empty() => Ok(DeviceChoice::Cpu {
            no_gpu: Some(nothing_visible(offer)),
        }),
        (Devices::Named(DeviceName::Auto), _) => Ok(DeviceChoice::FirstIdle(visible)),
        (Devices::Named(DeviceName::All), _) if visible.is_empty() => Err(format!(
            "`run.devices: all` needs a GPU: {}; try `--device auto` or `--device cpu`",
            nothing_visible(offer)
        )),
        (Devices::Named(DeviceName::All), _) => Ok(DeviceChoice::All(visible)),
        (Devices::List(ids), _) => ids
            .iter()
            .map(|id| find(id, &visible, offer))
            .collect::<Result<_, _>>()
            .and_then(each_once)
            .map(DeviceChoice::All),
    }
}

/// The same for trials that use several GPUs at once: returns the largest multiple of that number of
/// the requested GPUs.
///
/// # Errors
/// As for [`choose`]; also if there are fewer GPUs than one trial uses.
pub(super) fn choose_each(
    request: &DeviceRequest,
    offer: DeviceOffer,
) -> Result<DeviceChoice, String> {
    let choice = choose(&request.devices, request.engine, offer)?;
    let (DeviceChoice::FirstIdle(found) | DeviceChoice::All(found)) = &choice else {
        return Ok(choice);
    };
    let each = request.each.max(1) as usize;
    if let Some(instance) = found.iter().find(|device| device.instance.is_some())
        && each > 1
    {
        let uuid = &instance.uuid;
        return Err(format!(
            "`run.devices_per_trial` is {each}, but CUDA shows only one MIG instance to a process, \
             and {uuid} is one; try `--set run.devices_per_trial=1`, or name whole GPUs with \
             `--device`"
        ));
    }
    if found.len() < each {
        let listed: Vec<String> = found
            .iter()
            .map(|device| format!("{} ({})", device.index, device.uuid))
            .collect();
        let (have, there) = (counted(found.len(), "GPU"), listed.join(", "));
        return Err(format!(
            "`run.devices_per_trial` is {each}, and a trial may use {have}: {there}; try `--set \
             run.devices_per_trial={}`",
            found.len()
        ));
    }
    Ok(match choice {
        DeviceChoice::All(mut found) => {
            found.truncate(found.len() - found.len() % each);
            DeviceChoice::All(found)
        }
        other => other,
    })
}

/// How to run the trials on the CPU instead of a GPU, as the end of a message; nothing for a worker, whose
/// run names the devices. `has_final`: a run with a final outcome keeps them too.
pub(super) fn cpu_instead(is_worker: bool, has_final: bool) -> &'static str {
    match (is_worker, has_final) {
        (true, _) => "",
        (false, true) => ", `--fresh --device cpu` starts a new run on the CPU",
        (false, false) => ", `--device cpu` runs the trials on the CPU",
    }
}

/// Whether the user may expect a GPU where none is visible: there are GPUs that cannot be used, or
/// `CUDA_VISIBLE_DEVICES` is wrong.
fn lacks_gpus_by_mistake(offer: DeviceOffer) -> bool {
    let is_wrong = |text: &str| fault(text, offer.devices, offer.unusable).is_some();
    !is_hidden_on_purpose(offer.visible)
        && (!offer.unusable.is_empty() || offer.visible.is_some_and(is_wrong))
}

/// Why this machine has no GPU that may be used, with this `CUDA_VISIBLE_DEVICES`.
pub fn why_none_visible(instruments: &Instruments, visible: Option<&str>) -> String {
    let (devices, absence) = (instruments.devices(), instruments.absence());
    nothing_visible(DeviceOffer {
        devices: &devices,
        unusable: instruments.unusable(),
        absence: absence.as_deref(),
        visible,
    })
}

fn nothing_visible(offer: DeviceOffer) -> String {
    if offer.devices.is_empty() && !offer.unusable.is_empty() {
        let each = offer
            .unusable
            .iter()
            .map(|(index, why)| format!("GPU {index} cannot be used: {why}"));
        return each.collect::<Vec<_>>().join("; ");
    }
    match (offer.devices.is_empty(), offer.absence) {
        (false, _) => match offer.visible {
            Some(text) if !is_hidden_on_purpose(Some(text)) => {
                fault(text, offer.devices, offer.unusable).unwrap_or_else(|| {
                    names_none(text, offer.devices) + &without_uuids(text, offer.unusable)
                })
            }
            _ => "`CUDA_VISIBLE_DEVICES` hides every GPU".to_owned(),
        },
        (true, Some(absence)) => absence.to_owned(),
        (true, None) => "the NVIDIA driver reports no GPU".to_owned(),
    }
}

/// Says that this `CUDA_VISIBLE_DEVICES` names none of the devices.
fn names_none(text: &str, devices: &[LeasedGpu]) -> String {
    let instances: Vec<&str> = devices
        .iter()
        .filter(|device| device.instance.is_some())
        .map(|device| device.uuid.as_str())
        .collect();
    match instances.as_slice() {
        [] => format!(
            "`CUDA_VISIBLE_DEVICES={text}` names none of {} here",
            counted(devices.len(), "GPU")
        ),
        there => format!(
            "`CUDA_VISIBLE_DEVICES={text}` names none of the devices here; MIG instances are {}",
            there.join(", ")
        ),
    }
}

/// The GPUs that cannot be used, one of which a UUID may mean; nothing for names that begin with an
/// index.
fn without_uuids(names: &str, unusable: &[(u32, String)]) -> String {
    let first = names.trim_start();
    if !["GPU-", "MIG-"]
        .iter()
        .any(|start| first.starts_with(start))
    {
        return String::new();
    }
    let words = |(index, why): &(u32, String)| {
        format!("; GPU {index} cannot be used ({why}), and its UUID is unknown")
    };
    unusable.iter().map(words).collect()
}

/// # Errors
/// If two names of `run.devices` mean the same device: it would be leased from itself.
fn each_once(devices: Vec<LeasedGpu>) -> Result<Vec<LeasedGpu>, String> {
    let again = (1..devices.len()).find(|at| devices[..*at].contains(&devices[*at]));
    match again.map(|at| &devices[at]) {
        Some(device) => Err(format!(
            "`run.devices` names GPU {} ({}) twice; name each device once",
            device.index, device.uuid
        )),
        None => Ok(devices),
    }
}

fn find(id: &DeviceId, visible: &[LeasedGpu], offer: DeviceOffer) -> Result<LeasedGpu, String> {
    let found = visible.iter().find(|device| match id {
        DeviceId::Index(index) => device.index == *index,
        DeviceId::Uuid(uuid) => device.is_named(uuid),
    });
    found.cloned().ok_or_else(|| {
        let wanted = match id {
            DeviceId::Index(index) => format!("GPU {index}"),
            DeviceId::Uuid(uuid) => uuid.clone(),
        };
        if let DeviceId::Index(index) = id
            && let Some((_, why)) = offer
                .unusable
                .iter()
                .find(|(unusable, _)| unusable == index)
        {
            return format!(
                "`run.devices` names {wanted}, which cannot be used: {why}; name another with \
                 `--device`, or `cpu`"
            );
        }
        let listed: Vec<String> = visible
            .iter()
            .map(|device| format!("{} ({})", device.index, device.uuid))
            .collect();
        let have = if listed.is_empty() {
            nothing_visible(offer)
        } else {
            let others = without_uuids(&wanted, offer.unusable);
            format!("there are {}{others}", listed.join(", "))
        };
        format!("`run.devices` names {wanted}: {have}")
    })
}

/// Returns the reason why a GPU is not idle; `None` if it appears idle.
pub(super) fn busy(
    device: &LeasedGpu,
    processes: &ProcessList,
    utilization: Option<f64>,
) -> Option<String> {
    if let ProcessList::Known(processes) = processes
        && !processes.is_empty()
    {
        let named: Vec<String> = processes
            .iter()
            .map(|process| {
                let user = process.user.as_deref().unwrap_or("unknown");
                let memory = process
                    .used_memory_bytes
                    .map_or("unknown memory".to_owned(), |bytes| {
                        Bytes(bytes).to_string()
                    });
                format!("PID {} of user {user} with {memory}", process.pid)
            })
            .collect();
        return Some(format!(
            "GPU {} ({}) is used by {}",
            device.index,
            device.name,
            listed(&named, ", ")
        ));
    }
    let utilization = utilization.filter(|share| *share >= IDLE_UTILIZATION)?;
    Some(format!(
        "GPU {} ({}) is {} busy",
        device.index,
        device.name,
        Fraction(utilization)
    ))
}

/// Whether memory of a GPU that appears idle is in use, by a process that is not visible.
pub(super) fn holds_memory(device_use: &DeviceUse) -> bool {
    let held = device_use.held_memory_bytes;
    held.is_some_and(|bytes| bytes >= IDLE_MEMORY_BYTES)
}

#[cfg(test)]
mod tests;
