//! Leases on GPUs: a file lock per UUID in one folder for all users of the machine, held as long as
//! the run (or a command that measures) holds the device.

use std::{collections::VecDeque, io, path::Path};

use kiln_core::record::lock::{Lock, lock_file};

use super::{
    clock,
    devices::{DeviceChoice, busy, holds_memory},
    instruments::{DeviceUse, Instruments, LeasedGpu},
    locks_folder,
    process_record::end_earlier,
};

/// A device that this run holds; released when dropped.
#[derive(Debug)]
pub struct Lease {
    /// `None` is the CPU, which is not leased.
    pub(super) gpu: Option<LeasedGpu>,
    _lock: Option<Lock>,
}

impl Lease {
    pub(super) fn cpu() -> Self {
        Self {
            gpu: None,
            _lock: None,
        }
    }

    /// `None` is the CPU.
    pub fn gpu(&self) -> Option<&LeasedGpu> {
        self.gpu.as_ref()
    }

    /// `cpu`, or the UUID.
    pub(super) fn name(&self) -> &str {
        self.gpu.as_ref().map_or("cpu", |gpu| &gpu.uuid)
    }
}

/// Reason why devices are not available now.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// In use by others; it may be worth waiting.
    Busy(String),
    /// In use by other launches of kiln alone; it may be worth waiting.
    Leased(String),
    /// Lost since the launch began.
    Lost(String),
    /// The locks' folder cannot be used.
    Broken(String),
}

/// Leases the chosen devices for trials of `each` GPUs: all of them or none. `held` are devices
/// that this run already has.
///
/// # Errors
/// If a device is leased or used by others or lost, or the folder of the locks cannot be used.
pub(super) fn take(
    choice: &DeviceChoice,
    each: usize,
    held: &[Lease],
    terms: &Terms,
) -> Result<Vec<Lease>, Refusal> {
    match choice {
        DeviceChoice::Cpu { .. } => Ok(vec![Lease::cpu()]),
        DeviceChoice::All(devices) => {
            let mut missing: Vec<&LeasedGpu> = devices.iter().collect();
            missing.retain(|device| !has(held, device));
            look(&missing, terms)
                .into_iter()
                .collect::<Result<Vec<IdleMemory>, Refusal>>()?;
            lock_all(&missing, terms).map_err(|(_, refusal)| refusal)
        }
        DeviceChoice::FirstIdle(devices) => {
            let (had, others): (Vec<_>, Vec<_>) = devices
                .iter()
                .cloned()
                .partition(|device| has(held, device));
            first_idle(&others, each.saturating_sub(had.len()), terms)
        }
    }
}

/// Conditions of a lease.
pub(super) struct Terms<'a> {
    pub(super) folder: &'a Path,
    pub(super) instruments: &'a Instruments,
    pub(super) require_idle: bool,
    /// Text that names the holder.
    pub(super) who: &'a str,
}

fn has(held: &[Lease], device: &LeasedGpu) -> bool {
    held.iter().any(|lease| lease.gpu.as_ref() == Some(device))
}

/// Leases the first idle one of these GPUs as a trial would, for `what` (`` `kiln calibrate` ``),
/// without waiting.
///
/// # Errors
/// If each is leased or used by others, whom the text names, or the folder of the locks cannot be
/// used.
pub fn take_first_idle(
    devices: &[LeasedGpu],
    instruments: &Instruments,
    folder: &Path,
    what: &str,
) -> Result<Lease, String> {
    // They may hold a device.
    end_earlier(folder);
    let who = format!(
        "process {} since {} ({what})",
        std::process::id(),
        clock::utc_now()
    );
    let terms = Terms {
        folder,
        instruments,
        require_idle: true,
        who: &who,
    };
    match first_idle(devices, 1, &terms) {
        Ok(taken) => taken
            .into_iter()
            .next()
            .ok_or_else(|| "there is no GPU to lease".to_owned()),
        Err(
            Refusal::Busy(why) | Refusal::Leased(why) | Refusal::Lost(why) | Refusal::Broken(why),
        ) => Err(why),
    }
}

/// Leases `count` idle devices of these, or none; those whose memory others hold come last.
pub(super) fn first_idle(
    devices: &[LeasedGpu],
    count: usize,
    terms: &Terms,
) -> Result<Vec<Lease>, Refusal> {
    let (mut left, mut passed_over) = (devices.iter(), PassedOver::default());
    let (mut idle, mut with_memory) = (Vec::new(), VecDeque::new());
    loop {
        while idle.len() < count {
            let Some(device) = left.next() else {
                match with_memory.pop_front() {
                    Some(device) => idle.push(device),
                    None => return Err(passed_over.refusal()),
                }
                continue;
            };
            for found in look(&[device], terms) {
                match found {
                    Ok(IdleMemory::Free) => idle.push(device),
                    Ok(IdleMemory::Held) => with_memory.push_back(device),
                    Err(refusal) => passed_over.add(refusal)?,
                }
            }
        }
        match lock_all(&idle, terms) {
            Ok(taken) => return Ok(taken),
            Err((at, refusal)) => {
                idle.remove(at);
                passed_over.add(refusal)?;
            }
        }
    }
}

/// Why devices were passed over.
#[derive(Default)]
struct PassedOver {
    reasons: Vec<String>,
    /// Whether others than kiln use one.
    is_busy: bool,
    is_leased: bool,
    is_lost: bool,
}

impl PassedOver {
    /// # Errors
    /// If the folder of the locks cannot be used.
    fn add(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        let (flag, reason) = match refusal {
            Refusal::Leased(reason) => (&mut self.is_leased, reason),
            Refusal::Busy(reason) => (&mut self.is_busy, reason),
            Refusal::Lost(reason) => (&mut self.is_lost, reason),
            Refusal::Broken(_) => return Err(refusal),
        };
        *flag = true;
        self.reasons.push(reason);
        Ok(())
    }

    fn refusal(self) -> Refusal {
        let reasons = self.reasons.join("; ");
        match (self.is_busy, self.is_lost && !self.is_leased) {
            (true, _) => Refusal::Busy(reasons),
            (false, true) => Refusal::Lost(reasons),
            (false, false) => Refusal::Leased(reasons),
        }
    }
}

/// The memory of a device that appears idle.
enum IdleMemory {
    Free,
    /// A process that is not visible holds some.
    Held,
}

/// Checks of each device that others do not use it. All are read at the same time. They are not
/// leased meanwhile: a driver that hangs takes seconds, in which others could not have the devices.
fn look(devices: &[&LeasedGpu], terms: &Terms) -> Vec<Result<IdleMemory, Refusal>> {
    if !terms.require_idle {
        return devices.iter().map(|_| Ok(IdleMemory::Free)).collect();
    }
    let uuids = devices.iter().map(|device| device.uuid.clone()).collect();
    let uses = terms.instruments.uses_of(uuids);
    let each = devices.iter().zip(uses);
    each.map(|(device, found)| idle_memory(device, found, terms))
        .collect()
}

fn idle_memory(
    device: &LeasedGpu,
    found: Result<DeviceUse, String>,
    terms: &Terms,
) -> Result<IdleMemory, Refusal> {
    let why = match found {
        Ok(DeviceUse {
            fault: Some(fault), ..
        }) => {
            return Err(Refusal::Lost(format!(
                "GPU {} ({}) cannot be used: {fault}",
                device.index, device.name
            )));
        }
        Ok(device_use) => match busy(device, &device_use.processes, device_use.utilization) {
            Some(why) => why,
            None if holds_memory(&device_use) => return Ok(IdleMemory::Held),
            None => return Ok(IdleMemory::Free),
        },
        Err(reason) => format!(
            "GPU {} ({}) does not answer: {reason}",
            device.index, device.name
        ),
    };
    // Where it is a trial of another launch, that is named.
    lock(device, terms).and(Err(Refusal::Busy(why)))
}

/// Leases all of these or none; an error has the place of the device that was refused. They are locked
/// in the order of their UUIDs: of two launches that name them in other orders, one gets them.
fn lock_all(devices: &[&LeasedGpu], terms: &Terms) -> Result<Vec<Lease>, (usize, Refusal)> {
    let mut order: Vec<usize> = (0..devices.len()).collect();
    order.sort_by_key(|at| &devices[*at].uuid);
    let mut leases = Vec::new();
    for at in order {
        let lease = lock(devices[at], terms).map_err(|refusal| (at, refusal))?;
        leases.push((at, lease));
    }
    leases.sort_by_key(|(at, _)| *at);
    Ok(leases.into_iter().map(|(_, lease)| lease).collect())
}

fn lock(device: &LeasedGpu, terms: &Terms) -> Result<Lease, Refusal> {
    // The older name of a MIG instance has slashes in it.
    let path = terms
        .folder
        .join(format!("{}.lock", device.uuid.replace('/', "_")));
    let broken = |error: io::Error| {
        Refusal::Broken(format!(
            "{}: {error}; name another folder in `KILN_LOCKS`",
            path.display()
        ))
    };
    locks_folder::make(terms.folder).map_err(broken)?;
    match lock_file(&path, terms.who).map_err(broken)? {
        Ok(lock) => Ok(Lease {
            gpu: Some(device.clone()),
            _lock: Some(lock),
        }),
        Err(holder) => Err(Refusal::Leased(format!(
            "GPU {} ({}) is leased by {}",
            device.index, device.name, holder.0
        ))),
    }
}

#[cfg(test)]
mod tests;
