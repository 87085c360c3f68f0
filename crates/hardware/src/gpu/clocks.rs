//! Clock frequencies, in MHz.

use nvml_wrapper::{Device, enum_wrappers::device::Clock, error::NvmlError};

use super::{Section, source::DeviceSource};
use crate::Reading;

/// One frequency per part of the chip.
#[derive(Clone, Debug)]
pub struct ClockSet {
    pub graphics: Reading<u64>,
    pub sm: Reading<u64>,
    pub memory: Reading<u64>,
    pub video: Reading<u64>,
}

#[derive(Clone, Debug)]
pub struct Clocks {
    pub current: ClockSet,
    pub max: ClockSet,
    /// Clocks that a user set for applications. Withdrawn from driver 590 on.
    pub applications: ClockSet,
    pub default_applications: ClockSet,
    pub max_customer_boost: Reading<u64>,
}

impl ClockSet {
    fn read(
        source: &DeviceSource<'_>,
        ask: impl Fn(&Device<'_>, Clock) -> Result<u32, NvmlError>,
    ) -> Self {
        let clock = |clock: Clock| source.tell(|device| ask(device, clock)).map(u64::from);
        Self {
            graphics: clock(Clock::Graphics),
            sm: clock(Clock::SM),
            memory: clock(Clock::Memory),
            video: clock(Clock::Video),
        }
    }
}

impl Section for Clocks {
    fn read(source: &DeviceSource<'_>) -> Self {
        Self {
            current: ClockSet::read(source, |device, clock| device.clock_info(clock)),
            max: ClockSet::read(source, |device, clock| device.max_clock_info(clock)),
            applications: ClockSet::read(source, |device, clock| device.applications_clock(clock)),
            default_applications: ClockSet::read(source, |device, clock| {
                device.default_applications_clock(clock)
            }),
            max_customer_boost: source
                .tell(|device| device.max_customer_boost_clock(Clock::Graphics))
                .map(u64::from),
        }
    }
}
