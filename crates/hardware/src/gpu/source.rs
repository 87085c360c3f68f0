//! Source of a GPU's readings: an open device with one batch of field values, or the reason why
//! there is none.

use std::collections::HashMap;

use nvml_wrapper::{Device, error::NvmlError};

use crate::{
    Absence, Nvml, Reading,
    nvml::{
        absence, field_ids as id,
        field_ids::{MovedIds, moved_ids},
        raw::{FieldValue, field_values},
        reading_of,
    },
};

/// One device as the sections ask it. Where it cannot be opened every question has the same answer:
/// why.
pub(super) struct DeviceSource<'a> {
    /// `None` if nothing is read.
    pub(super) nvml: Option<&'a Nvml>,
    device: Result<(&'a Nvml, Device<'static>), Absence>,
    fields: HashMap<(u32, u32), Reading<FieldValue>>,
    pub(super) moved: MovedIds,
}

impl<'a> DeviceSource<'a> {
    pub(super) fn new(nvml: &'a Nvml, device: Result<Device<'static>, NvmlError>) -> Self {
        let moved = moved_ids(nvml.driver_version().value().map(String::as_str));
        let device = device.map_err(|error| absence(&error));
        let fields = device
            .as_ref()
            .map(|device| read_fields(nvml, device, &wanted_fields(moved)))
            .unwrap_or_default();
        Self {
            nvml: Some(nvml),
            device: device.map(|device| (nvml, device)),
            fields,
            moved,
        }
    }

    /// A source that answers every question with one reason.
    pub(super) fn silent(absence: Absence) -> Self {
        Self {
            nvml: None,
            device: Err(absence),
            fields: HashMap::new(),
            moved: moved_ids(None),
        }
    }

    /// Asks the library, for what is not of one device.
    pub(super) fn library<T>(&self, ask: impl FnOnce(&Nvml) -> Reading<T>) -> Reading<T> {
        match (self.nvml, &self.device) {
            (Some(nvml), _) => ask(nvml),
            (None, Err(absence)) => Reading::Absent(absence.clone()),
            (None, Ok((nvml, _))) => ask(nvml),
        }
    }

    /// Asks through nvml-wrapper.
    pub(super) fn tell<T>(
        &self,
        ask: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Reading<T> {
        self.raw(|_, device| reading_of(ask(device)))
    }

    /// Asks through one of `nvml::calls`.
    pub(super) fn raw<T>(
        &self,
        ask: impl FnOnce(&Nvml, &Device<'static>) -> Reading<T>,
    ) -> Reading<T> {
        match &self.device {
            Ok((nvml, device)) => ask(nvml, device),
            Err(absence) => Reading::Absent(absence.clone()),
        }
    }

    /// A field value that was read with the batch.
    fn field(&self, id: u32, scope: u32) -> Reading<FieldValue> {
        match (self.fields.get(&(id, scope)), &self.device) {
            (Some(reading), _) => reading.clone(),
            (None, Err(absence)) => Reading::Absent(absence.clone()),
            (None, Ok(_)) => Reading::Absent(Absence::NoCall),
        }
    }

    /// A field that is a count or a quantity.
    pub(super) fn unsigned(&self, id: u32, scope: u32) -> Reading<u64> {
        self.field(id, scope).and_then(|value| {
            Reading::or_absent(value.unsigned(), "NVML did not return an integer")
        })
    }

    /// A field that may be a fraction.
    pub(super) fn float(&self, id: u32) -> Reading<f64> {
        self.field(id, 0).map(FieldValue::float)
    }

    /// A field that may be below zero.
    pub(super) fn signed(&self, id: u32) -> Reading<i64> {
        self.field(id, 0)
            .and_then(|value| Reading::or_absent(value.signed(), "NVML did not return an integer"))
    }
}

/// All field values of a snapshot.
fn wanted_fields(moved: MovedIds) -> Vec<(u32, u32)> {
    let plain = [
        id::SW_POWER_CAP,
        id::SYNC_BOOST,
        id::MEMORY_TEMPERATURE,
        id::NVLINK_COUNT,
        id::PCIE_REPLAY_ROLLOVERS,
        id::SHUTDOWN_MARGIN,
        id::SLOWDOWN_MARGIN,
        id::MEMORY_MAX_MARGIN,
        id::GPU_MAX_MARGIN,
        id::ATOMICS_OUTBOUND,
        id::ATOMICS_INBOUND,
        id::RECOVERY_ACTION,
        id::EDPP_MULTIPLIER,
        id::CHARGE_SMOOTHING,
        moved.sw_thermal_slowdown,
        moved.hw_thermal_slowdown,
        moved.hw_power_brake,
    ];
    let limits = [
        id::POWER_LIMIT_MIN,
        id::POWER_LIMIT_MAX,
        id::POWER_LIMIT_DEFAULT,
        id::POWER_LIMIT_CURRENT,
        id::POWER_LIMIT_REQUESTED,
    ];
    let draws = [id::POWER_AVERAGE, id::POWER_INSTANT];
    let mut wanted: Vec<(u32, u32)> = plain.into_iter().map(|id| (id, 0)).collect();
    wanted.extend((0..18).map(|offset| (moved.power_smoothing + offset, 0)));
    wanted.extend((0..14).map(|offset| (id::DELAYED_SMOOTHING + offset, 0)));
    for scope in [id::SCOPE_GPU, id::SCOPE_MODULE, id::SCOPE_MEMORY] {
        wanted.extend(draws.map(|id| (id, scope)));
    }
    for scope in [id::SCOPE_GPU, id::SCOPE_MODULE, id::SCOPE_GPU_BASE] {
        wanted.extend(limits.map(|id| (id, scope)));
    }
    wanted
}

/// Reads the fields in one call. A driver that refuses the batch, because one field is unknown to
/// it, is asked one by one.
fn read_fields(
    nvml: &Nvml,
    device: &Device<'static>,
    wanted: &[(u32, u32)],
) -> HashMap<(u32, u32), Reading<FieldValue>> {
    const INVALID_ARGUMENT: Absence = Absence::Code(2);
    let mut answers = field_values(nvml, device, wanted);
    if answers
        .iter()
        .all(|answer| answer.absence() == Some(&INVALID_ARGUMENT))
    {
        answers = wanted
            .iter()
            .flat_map(|one| field_values(nvml, device, std::slice::from_ref(one)))
            .collect();
    }
    // A driver older than the field reports that the field does not exist.
    let readings = answers.into_iter().map(|answer| {
        if answer.absence() == Some(&INVALID_ARGUMENT) {
            Reading::Absent(Absence::NoSymbol)
        } else {
            answer
        }
    });
    wanted.iter().copied().zip(readings).collect()
}
