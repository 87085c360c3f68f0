//! The sampler's reading of a device at each tick: few calls, and one for all that NVML gives in a
//! batch.
//!
//! A field that a device does not offer is asked once, not at every tick; one that has had a value is
//! always asked again. A lost device is closed and tried again later. Calls may hang: [`desk`] runs
//! them in another thread than the one that waits for the answer.

pub(super) mod cost;
pub(super) mod desk;
mod fields;
mod groups;
mod tick;

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use nvml_wrapper::{Device, error::NvmlError};

use super::{
    Absence, Nvml, ProcessList, Reading,
    nvml::{absence, board_of, calls::total_and_used, reading_of},
};
use fields::FieldReasons;
use groups::{OpenedGpu, ReadingGroup};
pub use tick::{EVERYTHING, GpuTick, GpuWork};

/// A device that was lost or cannot be opened is tried again this much later.
const RETRY: Duration = Duration::from_secs(10);

/// Result of one reading of a device.
#[derive(Clone, Debug, Default)]
pub struct GpuReading {
    /// `None` if nothing could be read; `absent` has the reasons.
    pub tick: Option<GpuTick>,
    /// Field of [`GpuTick`], or [`EVERYTHING`], to the reason why it could not be read.
    pub absent: BTreeMap<&'static str, String>,
    /// Field to what a reader of its value should know.
    pub remarks: BTreeMap<&'static str, &'static str>,
    /// Compute processes on the device, if requested.
    pub processes: Option<ProcessList>,
    /// The device is gone, in NVML's words.
    pub lost: Option<String>,
    /// Duration since the driver last answered, in seconds, if it does not answer.
    pub silent_seconds: Option<f64>,
}

impl GpuReading {
    /// Nothing was read.
    fn nothing(reason: String) -> Self {
        Self {
            absent: [(EVERYTHING, reason)].into(),
            ..Self::default()
        }
    }

    /// The reason why nothing was read.
    pub fn reason(&self) -> Option<&str> {
        self.absent.get(EVERYTHING).map(String::as_str)
    }
}

/// Reads devices; the sampler's only way to a driver.
pub(super) trait GpuReader {
    fn read(&mut self, uuid: &str, wants_processes: bool) -> GpuReading;
}

/// The reader of real devices.
pub(super) struct NvmlReader {
    nvml: Nvml,
    devices: HashMap<String, DeviceHandle>,
}

enum DeviceHandle {
    Open(Box<OpenedGpu>),
    Closed { why: Absence, since: Instant },
}

impl NvmlReader {
    pub(super) fn new(nvml: Nvml) -> Self {
        Self {
            nvml,
            devices: HashMap::new(),
        }
    }

    fn handle(&mut self, uuid: &str) -> &mut DeviceHandle {
        let is_due = |handle: &DeviceHandle| match handle {
            DeviceHandle::Closed { since, .. } => since.elapsed() >= RETRY,
            DeviceHandle::Open(_) => false,
        };
        if self.devices.get(uuid).is_none_or(is_due) {
            let opened = open(&self.nvml, uuid)
                .map(|device| DeviceHandle::Open(Box::new(OpenedGpu::new(self.nvml, device))));
            self.devices.insert(
                uuid.to_owned(),
                opened.unwrap_or_else(|why| DeviceHandle::Closed {
                    why,
                    since: Instant::now(),
                }),
            );
        }
        // It was put there above.
        self.devices
            .entry(uuid.to_owned())
            .or_insert(DeviceHandle::Closed {
                why: Absence::NotFound,
                since: Instant::now(),
            })
    }
}

impl GpuReader for NvmlReader {
    fn read(&mut self, uuid: &str, wants_processes: bool) -> GpuReading {
        let nvml = self.nvml;
        let handle = self.handle(uuid);
        let mut look = GpuReading::default();
        if let DeviceHandle::Open(open) = handle {
            let (tick, ended) = read_open(open, &mut look);
            look.remarks = open.remarks();
            match ended {
                None => look.tick = Some(tick),
                Some(why) => {
                    *handle = DeviceHandle::Closed {
                        why,
                        since: Instant::now(),
                    }
                }
            }
        }
        if let DeviceHandle::Closed { why, .. } = handle {
            look.absent.insert(EVERYTHING, why.to_string());
            look.lost = is_lost(why).then(|| why.to_string());
        } else if wants_processes {
            look.processes = Some(nvml.compute_processes(uuid));
        }
        look
    }
}

/// Reads every group that each tick reads; the reason if the device is no longer available.
fn read_open(open: &mut OpenedGpu, look: &mut GpuReading) -> (GpuTick, Option<Absence>) {
    let mut tick = GpuTick::default();
    for group in ReadingGroup::EVERY_TICK {
        let mut fields = FieldReasons {
            lasting: &mut open.lasting,
            offered: &mut open.offered,
            absent: &mut look.absent,
            ended: None,
        };
        groups::read(group, &mut open.device, &mut fields, &mut tick);
        if let Some(why) = fields.ended {
            return (tick, Some(why));
        }
    }
    (tick, None)
}

/// The handle of a device, with NVML's own reason if there is none.
fn open(nvml: &Nvml, uuid: &str) -> Result<Device<'static>, Absence> {
    match nvml.library().device_by_uuid(uuid) {
        Ok(device) => Ok(device),
        Err(
            error @ (NvmlError::GpuLost | NvmlError::Uninitialized | NvmlError::DriverNotLoaded),
        ) => Err(absence(&error)),
        Err(_) => nvml.device(uuid).map_err(|error| absence(&error)),
    }
}

/// Whether the reason means that the device will not come back to this run: lost, or in need of a
/// reset.
fn is_lost(why: &Absence) -> bool {
    matches!(why, Absence::Lost | Absence::Code(16 | 28))
}

/// Whether a reason ends the series of a device: lost, or the driver under it gone. 1 is a library
/// not started, 9 a driver not loaded, 18 two versions of it.
fn is_end(why: &Absence) -> bool {
    is_lost(why) || matches!(why, Absence::Code(1 | 9 | 18))
}

/// Asks the driver whether it has given a device up; its words if so. One or two calls, which may
/// hang.
pub fn lost(nvml: &Nvml, uuid: &str) -> Option<String> {
    let why = gone(nvml, uuid).filter(is_lost)?;
    Some(why.to_string())
}

/// Why a device that was there before cannot be used now: the driver has given it up, or does not
/// find it any more. One or two calls, which may hang.
pub fn gone(nvml: &Nvml, uuid: &str) -> Option<Absence> {
    let device = match open(nvml, uuid) {
        Ok(device) => device,
        Err(why) => return Some(why),
    };
    let why = absence(&device.memory_info().err()?);
    is_lost(&why).then_some(why)
}

/// Power draw in watts: the present value, or the one-second mean where the driver has only that.
/// A GPU that is on draws power, so 0 W is no reading. For a MIG instance it is that of the whole GPU.
/// Makes a few driver calls, which may hang.
pub fn power_now_watts(nvml: &Nvml, uuid: &str) -> Option<f64> {
    let device = open(nvml, uuid).ok()?;
    let device = board_of(&device).unwrap_or(device);
    let instant = groups::instant_power_watts(nvml, &device);
    let is_reading = |watts: &f64| *watts > 0.0;
    instant.filter(is_reading).or_else(|| {
        let watts = f64::from(device.power_usage().ok()?) / 1e3;
        Some(watts).filter(is_reading)
    })
}

/// Power limit in watts that the driver enforces now. For a MIG instance it is that of the whole GPU.
/// Makes a few driver calls, which may hang.
pub fn power_limit_watts(nvml: &Nvml, uuid: &str) -> Reading<f64> {
    let device = match open(nvml, uuid) {
        Ok(device) => device,
        Err(why) => return Reading::Absent(why),
    };
    let device = board_of(&device).unwrap_or(device);
    reading_of(device.enforced_power_limit()).map(|milliwatts| f64::from(milliwatts) / 1e3)
}

/// Memory in use on a device, by whomever, without what driver and firmware reserve; `None` where a
/// display may account for it. Makes a few driver calls, which may hang.
pub fn held_memory_bytes(nvml: &Nvml, uuid: &str) -> Option<u64> {
    let device = open(nvml, uuid).ok()?;
    if device.is_display_active().unwrap_or(false) {
        return None;
    }
    let [_, used] = total_and_used(nvml, &device).into_value()?;
    Some(used)
}
