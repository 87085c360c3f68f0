//! The groups of fields of one device: one group is what one or two driver calls give together.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use nvml_wrapper::{Device, enum_wrappers::device::Clock};

use super::{GpuTick, GpuWork, fields::FieldReasons};
use crate::{
    Absence, Nvml, Reading,
    nvml::{
        board_of,
        calls::{gpu_celsius, gpu_instance_id, total_and_used},
        field_ids::{MEMORY_TEMPERATURE, POWER_AVERAGE, POWER_INSTANT, SCOPE_GPU},
        gpm::{GpmLook, GpmSeries},
        is_instance,
        raw::{FieldValue, ask, field_values},
        reading_of,
    },
};

/// A group of values that are read together. Their cost is in `docs/measurement.md`;
/// [`super::cost`] measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadingGroup {
    Utilization,
    Memory,
    /// Power, energy, memory temperature, PCIe and ECC counters: one call.
    Batch,
    /// Only where the batch has no power.
    Power,
    Temperature,
    Clocks,
    Reasons,
    State,
    Codec,
    Gpm,
}

impl ReadingGroup {
    /// All of them: each is a call or two that reads what the driver holds. Left out are those that
    /// block or walk lists: PCIe throughput (20 ms a call; the batch's counters stand for it) and
    /// process lists (asked for now and then).
    pub(super) const EVERY_TICK: [Self; 10] = [
        Self::Utilization,
        Self::Memory,
        Self::Batch,
        Self::Power,
        Self::Temperature,
        Self::Clocks,
        Self::Reasons,
        Self::State,
        Self::Codec,
        Self::Gpm,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Utilization => "utilization",
            Self::Memory => "memory",
            Self::Batch => "batched_fields",
            Self::Power => "power_usage",
            Self::Temperature => "temperature",
            Self::Clocks => "clocks",
            Self::Reasons => "clock_event_reasons",
            Self::State => "performance_state",
            Self::Codec => "encoder_decoder",
            Self::Gpm => "gpm",
        }
    }
}

/// A device that is read, with what its readings need from tick to tick.
pub(super) struct OpenedGpu {
    pub(super) device: OpenDevice,
    /// Fields whose answer will not change.
    pub(super) lasting: BTreeMap<&'static str, String>,
    /// Fields that have had a value.
    pub(super) offered: BTreeSet<&'static str>,
}

/// The handle and the readings before.
pub(super) struct OpenDevice {
    nvml: Nvml,
    handle: Device<'static>,
    /// The whole GPU, where the device is a MIG instance of it.
    board: Option<Device<'static>>,
    is_instance: bool,
    is_mig: bool,
    gpm: Option<GpmSeries>,
    /// Time and counters of the last reading: bytes received and transmitted.
    pcie_before: Option<(Instant, Option<FieldValue>, Option<FieldValue>)>,
    /// The most that the link could carry one way.
    pcie_bytes_per_second: f64,
}

impl OpenedGpu {
    pub(super) fn new(nvml: Nvml, handle: Device<'static>) -> Self {
        let (board, is_instance) = (board_of(&handle), is_instance(&handle));
        let whole = board.as_ref().unwrap_or(&handle);
        let is_mig = is_instance || whole.mig_mode().is_ok_and(|mode| mode.current == 1);
        let mut lasting = BTreeMap::new();
        let mut gpm = GpmSeries::open(&nvml, whole, instance_with_gpm(&nvml, &handle))
            .inspect_err(|absence| {
                if absence.is_lasting() {
                    lasting.insert("gpm", absence.to_string());
                }
            })
            .ok();
        if is_mig {
            lasting.insert(
                "utilization",
                "NVML gives no utilization while MIG is on".to_owned(),
            );
        }
        if is_instance {
            for field in WHOLE_BOARD_ONLY {
                lasting.insert(
                    field,
                    "NVML counts for the whole board, not for one MIG instance".to_owned(),
                );
            }
            if instance_with_gpm(&nvml, &handle).is_none() {
                gpm = None;
                lasting.insert(
                    "gpm",
                    "the chip counts for the whole GPU instance, and this device is only a part of \
                     it"
                        .to_owned(),
                );
            }
        }
        let pcie_bytes_per_second = pcie_most(
            whole.max_pcie_link_gen().ok(),
            whole.max_pcie_link_width().ok(),
        );
        Self {
            device: OpenDevice {
                nvml,
                handle,
                board,
                is_instance,
                is_mig,
                gpm,
                pcie_before: None,
                pcie_bytes_per_second,
            },
            lasting,
            offered: BTreeSet::new(),
        }
    }

    /// Remarks about the values for a reader.
    pub(super) fn remarks(&self) -> BTreeMap<&'static str, &'static str> {
        const WHOLE: &str = "for the whole board because MIG is on";
        if self.device.is_mig {
            ["power_watts", "energy_joules"]
                .map(|field| (field, WHOLE))
                .into()
        } else {
            BTreeMap::new()
        }
    }
}

/// Fields that NVML has of the whole GPU alone, and that would be taken for the work of a MIG
/// instance.
const WHOLE_BOARD_ONLY: [&str; 6] = [
    "pcie_receive_bytes_per_second",
    "pcie_transmit_bytes_per_second",
    "gpm_pcie",
    "gpm_nvlink",
    "encoder_utilization",
    "decoder_utilization",
];

/// The GPU instance whose counters are those of this MIG instance; `None` for a whole GPU, and
/// where the GPU instance is cut further (`1c.3g.40gb` in its name).
fn instance_with_gpm(nvml: &Nvml, device: &Device<'_>) -> Option<u32> {
    let is_cut_further = device.name().is_ok_and(|name| {
        name.rsplit_once(" MIG ")
            .is_some_and(|(_, profile)| profile.contains("c."))
    });
    (is_instance(device) && !is_cut_further)
        .then(|| gpu_instance_id(nvml, device).into_value())
        .flatten()
}

/// Reads one group into the tick. What a MIG instance has of its own is asked of it, the rest of
/// its GPU.
pub(super) fn read(
    group: ReadingGroup,
    open: &mut OpenDevice,
    fields: &mut FieldReasons<'_>,
    tick: &mut GpuTick,
) {
    let device = match group {
        ReadingGroup::Utilization | ReadingGroup::Memory | ReadingGroup::Codec => &open.handle,
        _ => open.board.as_ref().unwrap_or(&open.handle),
    };
    match group {
        ReadingGroup::Utilization => {
            let rates = fields.read("utilization", || reading_of(device.utilization_rates()));
            tick.utilization = rates.as_ref().map(|rates| f64::from(rates.gpu) / 100.0);
            tick.memory_utilization = rates.map(|rates| f64::from(rates.memory) / 100.0);
        }
        ReadingGroup::Memory => {
            tick.memory_used_bytes = fields
                .read("memory_used_bytes", || total_and_used(&open.nvml, device))
                .map(|[_, used]| used)
        }
        ReadingGroup::Batch => batch(open, fields, tick),
        ReadingGroup::Power if tick.power_watts.is_none() => {
            tick.power_watts = fields
                .read("power_watts", || reading_of(device.power_usage()))
                .map(|milliwatts| f64::from(milliwatts) / 1e3);
        }
        ReadingGroup::Power => {}
        ReadingGroup::Temperature => {
            tick.temperature_celsius =
                fields.read("temperature_celsius", || gpu_celsius(&open.nvml, device))
        }
        ReadingGroup::Clocks => {
            tick.sm_clock_megahertz = fields
                .read("sm_clock_megahertz", || {
                    reading_of(device.clock_info(Clock::SM))
                })
                .map(u64::from);
            tick.memory_clock_megahertz = fields
                .read("memory_clock_megahertz", || {
                    reading_of(device.clock_info(Clock::Memory))
                })
                .map(u64::from);
        }
        ReadingGroup::Reasons => {
            tick.throttle_bits = fields.read("throttle_bits", || reasons(&open.nvml, device))
        }
        ReadingGroup::State => {
            // 32 is the driver's word for not knowing.
            let known = |state: u32| {
                if state < 32 {
                    Reading::Value(state)
                } else {
                    Reading::absent("the driver does not know the performance state")
                }
            };
            tick.performance_state = fields.read("performance_state", || {
                reading_of(device.performance_state())
                    .map(|state| state.as_c())
                    .and_then(known)
            });
        }
        ReadingGroup::Codec => {
            let share = |percent: u32| f64::from(percent) / 100.0;
            tick.encoder_utilization = fields
                .read("encoder_utilization", || {
                    reading_of(device.encoder_utilization())
                })
                .map(|of| share(of.utilization));
            tick.decoder_utilization = fields
                .read("decoder_utilization", || {
                    reading_of(device.decoder_utilization())
                })
                .map(|of| share(of.utilization));
        }
        ReadingGroup::Gpm => gpm(open, fields, tick),
    }
}

/// Field numbers of nvml.h (`NVML_FI_DEV_…`) that every driver counts alike, all with scope 0 (the
/// GPU), and the tick's name of each.
const BATCH: [(u32, &str); 8] = [
    (83, "energy_joules"),
    (POWER_AVERAGE, "power_average"),
    (POWER_INSTANT, "power_instant_watts"),
    (MEMORY_TEMPERATURE, "memory_temperature_celsius"),
    (198, "pcie_receive_bytes_per_second"),
    (197, "pcie_transmit_bytes_per_second"),
    (3, "ecc_corrected_errors"),
    (4, "ecc_uncorrected_errors"),
];

/// The batch's power of the moment alone.
pub(super) fn instant_power_watts(nvml: &Nvml, device: &Device<'_>) -> Option<f64> {
    let milliwatts = field_values(nvml, device, &[(POWER_INSTANT, SCOPE_GPU)])
        .pop()?
        .into_value()?
        .unsigned()?;
    Some(milliwatts as f64 / 1e3)
}

fn batch(open: &mut OpenDevice, fields: &mut FieldReasons<'_>, tick: &mut GpuTick) {
    let wanted: Vec<(u32, &'static str)> = BATCH
        .into_iter()
        .filter(|(_, name)| !fields.is_absent(name))
        .collect();
    let asked: Vec<(u32, u32)> = wanted.iter().map(|(id, _)| (*id, SCOPE_GPU)).collect();
    let asked_at = Instant::now();
    let mut answers: BTreeMap<&str, FieldValue> = BTreeMap::new();
    let found = if asked.is_empty() {
        Vec::new()
    } else {
        field_values(
            &open.nvml,
            open.board.as_ref().unwrap_or(&open.handle),
            &asked,
        )
    };
    for ((_, name), answer) in wanted.iter().zip(found) {
        answers.extend(fields.keep(name, answer).map(|value| (*name, value)));
    }
    let count = |name: &str| answers.get(name).and_then(|value| value.unsigned());
    let thousandth = |name: &str| count(name).map(|value| value as f64 / 1e3);
    tick.energy_joules = thousandth("energy_joules")
        .or_else(|| energy(open.board.as_ref().unwrap_or(&open.handle), fields));
    tick.power_watts = thousandth("power_average");
    tick.power_instant_watts = thousandth("power_instant_watts");
    // A board without a sensor there answers 0.
    tick.memory_temperature_celsius = answers
        .get("memory_temperature_celsius")
        .map(|value| value.float())
        .filter(|celsius| *celsius > 0.0);
    tick.ecc_corrected_errors = count("ecc_corrected_errors");
    tick.ecc_uncorrected_errors = count("ecc_uncorrected_errors");
    let (received, sent) = (
        answers.get("pcie_receive_bytes_per_second").copied(),
        answers.get("pcie_transmit_bytes_per_second").copied(),
    );
    if let Some((before, received_before, sent_before)) =
        open.pcie_before.replace((asked_at, received, sent))
    {
        let seconds = (asked_at - before).as_secs_f64();
        tick.pcie_receive_bytes_per_second = rate(
            received_before,
            received,
            seconds,
            open.pcie_bytes_per_second,
        );
        tick.pcie_transmit_bytes_per_second =
            rate(sent_before, sent, seconds, open.pcie_bytes_per_second);
    }
}

/// Bytes per second of a PCIe link one way, before what the protocol itself needs; the fastest
/// there is where unknown. Source: PCI Express Base Specification 6.0 (2.5, 5, 8, 16, 32, 64 GT/s;
/// 8b/10b below generation 3).
fn pcie_most(generation: Option<u32>, lanes: Option<u32>) -> f64 {
    const PER_LANE: [f64; 6] = [250e6, 500e6, 1e9, 2e9, 4e9, 8e9];
    let known = generation.and_then(|generation| PER_LANE.get(generation.checked_sub(1)? as usize));
    known.unwrap_or(&PER_LANE[5]) * f64::from(lanes.filter(|lanes| *lanes > 0).unwrap_or(16))
}

/// Some drivers have the counter only as a separate call.
fn energy(device: &Device<'_>, fields: &mut FieldReasons<'_>) -> Option<f64> {
    let millijoules = fields.read("energy_call", || {
        reading_of(device.total_energy_consumption())
    });
    // The call's word on why is the plainer one: a driver that lacks the field says nothing of the
    // counter.
    match fields.absent.remove("energy_call") {
        Some(reason) => fields.absent.insert("energy_joules", reason),
        None => fields.absent.remove("energy_joules"),
    };
    millijoules.map(|millijoules| millijoules as f64 / 1e3)
}

/// `None` over a time too short for a rate, where the counter went back, where it says more than
/// the link carries, and where one of 32 bits could have started anew unseen.
fn rate(
    before: Option<FieldValue>,
    now: Option<FieldValue>,
    seconds: f64,
    most: f64,
) -> Option<f64> {
    let (before, now) = (before?, now?);
    let is_narrow = [before, now]
        .iter()
        .any(|value| matches!(value, FieldValue::Unsigned32(_)));
    if seconds <= 1e-3 || (is_narrow && most * seconds > f64::from(u32::MAX)) {
        return None;
    }
    let rate = now.unsigned()?.checked_sub(before.unsigned()?)? as f64 / seconds;
    (rate <= most).then_some(rate)
}

/// The newer name first: CUDA 14 takes the older one away.
fn reasons(nvml: &Nvml, device: &Device<'_>) -> Reading<u64> {
    // SAFETY: the call writes one number.
    let answer = ask(
        device,
        nvml.library()
            .lib()
            .nvmlDeviceGetCurrentClocksEventReasons
            .as_ref(),
        0,
        |function, handle, place| unsafe { function(handle, place) },
    );
    match answer {
        Reading::Value(bits) => Reading::Value(bits),
        Reading::Absent(Absence::Lost) => Reading::Absent(Absence::Lost),
        Reading::Absent(_) => {
            reading_of(device.current_throttle_reasons()).map(|reasons| reasons.bits())
        }
    }
}

/// Metrics of nvml.h (`NVML_GPM_METRIC_…`): SM active, SM occupancy, any tensor core, DRAM
/// bandwidth (percent each), then PCIe to and from the device, NVLink to and from it (MiB/s each).
const METRICS: [u32; 8] = [2, 3, 5, 10, 21, 20, 60, 61];
/// So many of them a MIG instance has of its own; traffic is the board's.
const OWN_METRICS: usize = 4;

fn gpm(open: &mut OpenDevice, fields: &mut FieldReasons<'_>, tick: &mut GpuTick) {
    let Some(series) = &mut open.gpm else {
        fields.is_absent("gpm");
        return;
    };
    if fields.is_absent("gpm") {
        return;
    }
    let wanted = if open.is_instance {
        &METRICS[..OWN_METRICS]
    } else {
        &METRICS
    };
    let metrics = match series.look(open.board.as_ref().unwrap_or(&open.handle), wanted) {
        GpmLook::NotYet => return,
        GpmLook::Metrics(metrics) => metrics,
        GpmLook::Absent(absence) => {
            fields.keep("gpm", Reading::<()>::Absent(absence));
            return;
        }
    };
    fields.offered.insert("gpm");
    let names = [
        "sm_active",
        "sm_occupancy",
        "tensor_active",
        "dram_bandwidth_utilization",
        "gpm_pcie",
        "gpm_pcie",
        "gpm_nvlink",
        "gpm_nvlink",
    ];
    let mut values = names
        .into_iter()
        .zip(metrics)
        .map(|(name, metric)| fields.keep(name, metric));
    let mut next = |of_one: f64| values.next().flatten().map(|value| value / of_one);
    // A percent is divided, as 0.01 has no exact number; MiB/s become B/s.
    const PERCENT: f64 = 100.0;
    const MIB: f64 = 1.0 / 1_048_576.0;
    let work = GpuWork {
        sm_active: next(PERCENT),
        sm_occupancy: next(PERCENT),
        tensor_active: next(PERCENT),
        dram_bandwidth_utilization: next(PERCENT),
        ..GpuWork::default()
    };
    let (pcie_in, pcie_out) = (next(MIB), next(MIB));
    tick.work = GpuWork {
        nvlink_receive_bytes_per_second: next(MIB),
        nvlink_transmit_bytes_per_second: next(MIB),
        ..work
    };
    // Better than the byte counters, which may wrap unseen.
    tick.pcie_receive_bytes_per_second = pcie_in.or(tick.pcie_receive_bytes_per_second);
    tick.pcie_transmit_bytes_per_second = pcie_out.or(tick.pcie_transmit_bytes_per_second);
}

#[cfg(test)]
mod tests;
