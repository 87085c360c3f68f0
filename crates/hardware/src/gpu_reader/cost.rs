//! Cost of reading a device, by group of fields: used to choose what every tick reads, and by
//! `make bench`.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use super::{
    GpuTick,
    fields::FieldReasons,
    groups::{self, OpenedGpu, ReadingGroup},
    open,
};
use crate::{Absence, Nvml};

/// GPM gives nothing for looks nearer than 100 ms.
const GPM_PAUSE: Duration = Duration::from_millis(110);

/// The time of one group's calls, in seconds, for each round.
#[derive(Clone, Debug)]
pub struct GroupCost {
    pub group: &'static str,
    pub seconds: Vec<f64>,
    /// The reasons why fields of the group are missing, if any.
    pub absent: Vec<String>,
}

/// Reads every group so many times. May hang with the driver; takes 0.1 s per round for GPM.
///
/// # Errors
/// The device cannot be opened.
pub fn costs(nvml: &Nvml, uuid: &str, rounds: usize) -> Result<Vec<GroupCost>, Absence> {
    let mut device = OpenedGpu::new(*nvml, open(nvml, uuid)?);
    let mut found: Vec<GroupCost> = ReadingGroup::EVERY_TICK
        .into_iter()
        .map(|group| cost(&mut device, group, rounds))
        .collect();
    let timed = |ask: &dyn Fn()| {
        let began = Instant::now();
        ask();
        began.elapsed().as_secs_f64()
    };
    let mut extra = |group, ask: &dyn Fn()| {
        found.push(GroupCost {
            group,
            seconds: (0..rounds).map(|_| timed(ask)).collect(),
            absent: Vec::new(),
        })
    };
    extra("process_list", &|| drop(nvml.compute_processes(uuid)));
    Ok(found)
}

fn cost(device: &mut OpenedGpu, group: ReadingGroup, rounds: usize) -> GroupCost {
    let mut absent = BTreeMap::new();
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        if group == ReadingGroup::Gpm {
            thread::sleep(GPM_PAUSE);
        }
        let mut fields = FieldReasons {
            lasting: &mut device.lasting,
            offered: &mut device.offered,
            absent: &mut absent,
            ended: None,
        };
        let began = Instant::now();
        groups::read(
            group,
            &mut device.device,
            &mut fields,
            &mut GpuTick::default(),
        );
        seconds.push(began.elapsed().as_secs_f64());
    }
    GroupCost {
        group: group.name(),
        seconds,
        absent: absent
            .into_iter()
            .map(|(field, reason)| format!("{field}: {reason}"))
            .collect(),
    }
}
