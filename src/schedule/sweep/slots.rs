//! The devices of a launch, and the groups of them that trials use: a slot is what one trial needs.

use std::time::Instant;

use kiln_core::{record::DEVICE_SEPARATOR, spec::CoolDown};

use crate::schedule::{
    Instruments, RunRequest,
    devices::DeviceRequest,
    instruments::LeasedGpu,
    lease::{Lease, Refusal},
    pools,
};

/// Devices with their slots; both are named by their index.
pub(super) struct Slots {
    devices: Vec<Lease>,
    /// The devices of each slot.
    slots: Vec<Vec<usize>>,
    /// Lost devices.
    lost: Vec<usize>,
    /// End time of the last trial on each device, for `run.cool_down`.
    rested_since: Vec<Option<Instant>>,
    /// Devices of which [`Slots::unknown_temperatures`] has told.
    told: Vec<usize>,
}

impl Slots {
    pub(super) fn new(devices: Vec<Lease>, slots: Vec<Vec<usize>>) -> Self {
        Self {
            rested_since: devices.iter().map(|_| None).collect(),
            devices,
            slots,
            lost: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Returns `cpu` or the UUIDs of a slot, in the form of a table row.
    pub(super) fn name(&self, slot: usize) -> String {
        let names: Vec<&str> = self.slots[slot]
            .iter()
            .map(|device| self.devices[*device].name())
            .collect();
        names.join(DEVICE_SEPARATOR)
    }

    /// The names of all slots.
    pub(super) fn names(&self) -> Vec<String> {
        (0..self.slots.len()).map(|slot| self.name(slot)).collect()
    }

    /// The GPUs of a slot; none on the CPU.
    pub(super) fn gpus(&self, slot: usize) -> Vec<LeasedGpu> {
        self.slots[slot]
            .iter()
            .filter_map(|device| self.devices[*device].gpu.clone())
            .collect()
    }

    /// Keeps the power limit of a GPU on which a trial is about to start.
    pub(super) fn set_power_limit(&mut self, uuid: &str, watts: Option<f64>) {
        let gpus = self
            .devices
            .iter_mut()
            .filter_map(|lease| lease.gpu.as_mut());
        for gpu in gpus.filter(|gpu| gpu.uuid == uuid) {
            gpu.power_limit_watts = watts;
        }
    }

    /// Says of each slot whether its devices are cool and in none of the `used` slots.
    pub(super) fn free(
        &self,
        used: &[usize],
        cool_down: Option<&CoolDown>,
        instruments: &Instruments,
    ) -> Vec<bool> {
        let is_free = |device: &usize| {
            used.iter().all(|slot| !self.slots[*slot].contains(device))
                && cool_down.is_none_or(|limit| self.is_cool(*device, limit, instruments))
        };
        self.slots
            .iter()
            .map(|slot| slot.iter().all(is_free))
            .collect()
    }

    fn is_cool(&self, device: usize, limit: &CoolDown, instruments: &Instruments) -> bool {
        let Some(gpu) = &self.devices[device].gpu else {
            return true;
        };
        let has_rested =
            self.rested_since[device].is_none_or(|since| since.elapsed() >= limit.at_most.0);
        has_rested
            || instruments
                .temperature_celsius(&gpu.uuid)
                .into_value()
                .is_none_or(|celsius| celsius < f64::from(limit.below_celsius))
    }

    /// Says of GPUs of a slot that `run.cool_down` could not wait for them, once of each.
    pub(super) fn unknown_temperatures(
        &mut self,
        slot: usize,
        instruments: &Instruments,
    ) -> Vec<String> {
        let mut notices = Vec::new();
        for device in &self.slots[slot] {
            let Some(gpu) = &self.devices[*device].gpu else {
                continue;
            };
            if self.rested_since[*device].is_none() || self.told.contains(device) {
                continue;
            }
            if let Some(reason) = instruments.temperature_celsius(&gpu.uuid).reason() {
                self.told.push(*device);
                notices.push(format!(
                    "`run.cool_down` cannot wait for GPU {} ({}): its temperature is unknown \
                     ({reason})",
                    gpu.index, gpu.name
                ));
            }
        }
        notices
    }

    /// A trial on the slot has ended.
    pub(super) fn rest(&mut self, slot: usize) {
        for device in &self.slots[slot] {
            self.rested_since[*device] = Some(Instant::now());
        }
    }

    /// Gives up a device; returns the slots that can no longer be used.
    pub(super) fn lose(&mut self, uuid: &str) -> Vec<usize> {
        let is_it = |device: &usize| {
            let gpu = self.devices[*device].gpu.as_ref();
            gpu.is_some_and(|gpu| gpu.uuid == uuid)
        };
        self.lost.extend((0..self.devices.len()).filter(is_it));
        let is_gone = |slot: &usize| {
            let devices = &self.slots[*slot];
            devices.iter().any(|device| self.lost.contains(device))
        };
        (0..self.slots.len()).filter(is_gone).collect()
    }

    /// Makes a further slot for a request from devices that are left, and leases those that are
    /// missing.
    ///
    /// # Errors
    /// As for [`pools::another`].
    pub(super) fn add(
        &mut self,
        wanted: &DeviceRequest,
        request: &RunRequest,
        instruments: &Instruments,
    ) -> Result<usize, Option<Refusal>> {
        let (mut slot, taken) =
            pools::another(wanted, &self.devices, &self.lost, request, instruments)?;
        slot.extend(self.devices.len()..self.devices.len() + taken.len());
        self.rested_since.extend(taken.iter().map(|_| None));
        self.devices.extend(taken);
        self.slots.push(slot);
        Ok(self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::spec::{DeviceName, Devices, Engine, Experiment};

    use super::*;
    use crate::schedule::{
        devices::DeviceChoice,
        lease::{Terms, take},
        sweep::tests::{gpu, places, request},
    };

    #[test]
    fn a_device_whose_power_limit_has_changed_is_still_held() {
        let place = tempfile::tempdir().unwrap();
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let [results, program, locks] = places(place.path(), "true");
        let request = request(&experiment, &[], [&results, &program, &locks]);
        let instruments = Instruments::pretending(vec![gpu(0), gpu(1)]);
        let terms = Terms {
            folder: &locks,
            instruments: &instruments,
            require_idle: false,
            who: "process 1",
        };
        let both = DeviceChoice::All(vec![gpu(0), gpu(1)]);
        let held = take(&both, 1, &[], &terms).unwrap();
        let mut slots = Slots::new(held, vec![vec![0], vec![1]]);
        for uuid in ["GPU-0", "GPU-1"] {
            slots.set_power_limit(uuid, Some(400.0));
        }
        let none_missing = take(&both, 1, &slots.devices, &terms).unwrap();
        assert!(none_missing.is_empty(), "{none_missing:?}");
        slots.lose("GPU-0");
        let wanted = DeviceRequest {
            devices: Devices::Named(DeviceName::Auto),
            engine: Engine::Libtorch,
            each: 1,
        };
        let slot = slots.add(&wanted, &request, &instruments).unwrap();
        assert_eq!(slots.name(slot), "GPU-1");
        slots.lose("GPU-1");
        assert_eq!(slots.add(&wanted, &request, &instruments), Err(None));
    }
}
