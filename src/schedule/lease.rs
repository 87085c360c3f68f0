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
    /// The same, by other launches of kiln alone.
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
mod tests {
    use std::{cell::RefCell, path::PathBuf};

    use super::*;
    use crate::schedule::instruments::ProcessList;

    thread_local! {
        /// The folder of the locks, for the look at a pretended device.
        static LOCKS: RefCell<PathBuf> = const { RefCell::new(PathBuf::new()) };
    }

    /// A device without a visible process.
    fn unused(held_memory_bytes: u64) -> DeviceUse {
        DeviceUse {
            processes: ProcessList::Known(Vec::new()),
            utilization: Some(0.0),
            held_memory_bytes: Some(held_memory_bytes),
            fault: None,
        }
    }

    fn first_is_lost(uuid: &str) -> Result<DeviceUse, String> {
        Ok(DeviceUse {
            fault: (uuid == "GPU-0").then(|| "the GPU is lost".to_owned()),
            ..unused(0)
        })
    }

    fn first_is_full(uuid: &str) -> Result<DeviceUse, String> {
        Ok(unused(if uuid == "GPU-0" { 38 << 30 } else { 0 }))
    }

    /// GPU 1 does not answer, and nobody holds GPU 0 meanwhile.
    fn second_is_silent(uuid: &str) -> Result<DeviceUse, String> {
        if uuid == "GPU-0" {
            return Ok(unused(0));
        }
        let first = LOCKS.with(|locks| locks.borrow().join("GPU-0.lock"));
        let lock = lock_file(&first, "process 2").unwrap();
        assert!(lock.is_ok(), "GPU 0 is leased during the look at GPU 1");
        Err("no answer for 5 s".to_owned())
    }

    fn gpu(index: u32) -> LeasedGpu {
        LeasedGpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "H200".into(),
            memory_total_bytes: Some(1),
            ..LeasedGpu::default()
        }
    }

    #[test]
    fn a_leased_gpu_is_passed_over_and_its_holder_named() {
        let folder = tempfile::tempdir().unwrap();
        let instruments = Instruments::open(Some(Path::new("/nonexistent")));
        let terms = |who| Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: true,
            who,
        };
        let first = take(
            &DeviceChoice::FirstIdle(vec![gpu(0), gpu(1)]),
            1,
            &[],
            &terms("process 1"),
        )
        .unwrap();
        let second = take(
            &DeviceChoice::FirstIdle(vec![gpu(0), gpu(1)]),
            1,
            &[],
            &terms("process 2"),
        )
        .unwrap();
        assert_eq!((first[0].name(), second[0].name()), ("GPU-0", "GPU-1"));
        let Err(Refusal::Leased(words)) = take(
            &DeviceChoice::All(vec![gpu(1)]),
            1,
            &[],
            &terms("process 3"),
        ) else {
            panic!()
        };
        assert_eq!(words, "GPU 1 (H200) is leased by process 2");
        drop(second);
        assert_eq!(
            take(
                &DeviceChoice::All(vec![gpu(1)]),
                1,
                &[],
                &terms("process 3")
            )
            .unwrap()
            .len(),
            1
        );
        assert_eq!(
            take(
                &DeviceChoice::FirstIdle(vec![gpu(0)]),
                1,
                &first,
                &terms("process 1")
            )
            .unwrap()
            .len(),
            0
        );
    }

    #[test]
    fn several_are_taken_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let instruments = Instruments::open(Some(Path::new("/nonexistent")));
        let terms = |who| Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: true,
            who,
        };
        let all = || DeviceChoice::FirstIdle((0..4).map(gpu).collect());
        let names = |leases: &[Lease]| {
            leases
                .iter()
                .map(|lease| lease.name().to_owned())
                .collect::<Vec<_>>()
        };
        let first = take(&all(), 3, &[], &terms("process 1")).unwrap();
        assert_eq!(names(&first), ["GPU-0", "GPU-1", "GPU-2"]);
        let Err(Refusal::Leased(words)) = take(&all(), 2, &[], &terms("process 2")) else {
            panic!()
        };
        assert!(
            words.starts_with("GPU 0 (H200) is leased by process 1; GPU 1"),
            "{words}"
        );
        assert_eq!(
            names(&take(&all(), 4, &first, &terms("process 1")).unwrap()),
            ["GPU-3"],
            "what a refused one took is free again"
        );
    }

    #[test]
    fn devices_are_locked_in_one_order_and_keep_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let instruments = Instruments::open(Some(Path::new("/nonexistent")));
        let take = |devices: [u32; 2], who| {
            let terms = Terms {
                folder: folder.path(),
                instruments: &instruments,
                require_idle: false,
                who,
            };
            take(&DeviceChoice::All(devices.map(gpu).into()), 1, &[], &terms)
        };
        let taken = take([1, 0], "process 1").unwrap();
        assert_eq!((taken[0].name(), taken[1].name()), ("GPU-1", "GPU-0"));
        for devices in [[0, 1], [1, 0]] {
            let Err(Refusal::Leased(words)) = take(devices, "process 2") else {
                panic!()
            };
            assert_eq!(words, "GPU 0 (H200) is leased by process 1");
        }
    }

    #[test]
    fn others_may_have_a_device_while_a_silent_one_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        LOCKS.with(|locks| *locks.borrow_mut() = folder.path().to_owned());
        let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
        instruments.pretended_use = Some(second_is_silent);
        let terms = Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: true,
            who: "process 1",
        };
        let both = || vec![gpu(0), gpu(1)];
        for (choice, count) in [
            (DeviceChoice::All(both()), 1),
            (DeviceChoice::FirstIdle(both()), 2),
        ] {
            let Err(Refusal::Busy(words)) = take(&choice, count, &[], &terms) else {
                panic!()
            };
            assert_eq!(words, "GPU 1 (H200) does not answer: no answer for 5 s");
        }
        let one = take(&DeviceChoice::FirstIdle(both()), 1, &[], &terms).unwrap();
        assert_eq!(one[0].name(), "GPU-0");
    }

    #[test]
    fn a_gpu_whose_memory_is_held_is_the_last_choice() {
        let folder = tempfile::tempdir().unwrap();
        let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
        instruments.pretended_use = Some(first_is_full);
        let terms = Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: true,
            who: "process 1",
        };
        let take_one = |devices: Vec<LeasedGpu>| {
            let taken = take(&DeviceChoice::FirstIdle(devices), 1, &[], &terms);
            taken.unwrap().remove(0)
        };
        let free = take_one(vec![gpu(0), gpu(1)]);
        let full = take_one(vec![gpu(0), gpu(1)]);
        assert_eq!((free.name(), full.name()), ("GPU-1", "GPU-0"));
    }

    #[test]
    fn a_lost_gpu_is_not_idle_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
        instruments.pretended_use = Some(first_is_lost);
        let terms = Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: true,
            who: "process 1",
        };
        let lost = || Refusal::Lost("GPU 0 (H200) cannot be used: the GPU is lost".to_owned());
        let refused = |choice: DeviceChoice, each| take(&choice, each, &[], &terms).unwrap_err();
        let both = || vec![gpu(0), gpu(1)];
        assert_eq!(refused(DeviceChoice::All(both()), 1), lost());
        assert_eq!(refused(DeviceChoice::FirstIdle(both()), 2), lost());
        let one = take(&DeviceChoice::FirstIdle(both()), 1, &[], &terms).unwrap();
        assert_eq!(one[0].name(), "GPU-1");
        let Refusal::Leased(words) = refused(DeviceChoice::FirstIdle(both()), 1) else {
            panic!()
        };
        assert!(words.starts_with("GPU 0 (H200) cannot be used: the GPU is lost; GPU 1 (H200) is"));
    }

    #[test]
    fn a_command_leases_as_a_run_does_and_says_who_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let instruments = Instruments::open(Some(Path::new("/nonexistent")));
        let take_one = |devices: &[LeasedGpu]| {
            take_first_idle(devices, &instruments, folder.path(), "`kiln calibrate`")
        };
        let lease = take_one(&[gpu(0), gpu(1)]).unwrap();
        assert_eq!(lease.gpu(), Some(&gpu(0)));
        let refused = take_one(&[gpu(0)]).unwrap_err();
        let own = format!(
            "GPU 0 (H200) is leased by process {} since ",
            std::process::id()
        );
        assert!(
            refused.starts_with(&own) && refused.ends_with("(`kiln calibrate`)"),
            "{refused}"
        );
        assert_eq!(take_one(&[gpu(0), gpu(1)]).unwrap().gpu(), Some(&gpu(1)));
        drop(lease);
        assert_eq!(take_one(&[gpu(0)]).unwrap().gpu(), Some(&gpu(0)));
        assert!(take_one(&[]).is_err());
    }
}
