//! Peaks of the machine's devices: what a trial could reach at most.

use kiln_core::{
    plan::Trial,
    record::peaks::{self, DeviceKey},
    spec::Engine,
};

use super::{Instruments, LeasedGpu};

impl Instruments {
    /// Key of the stored peak of this GPU, or of the CPU with this number of threads; `None` for a
    /// processor without a name.
    pub fn peak_key(&self, gpu: Option<&LeasedGpu>, cpu_threads: u64) -> Option<DeviceKey> {
        Some(match gpu {
            Some(gpu) => DeviceKey {
                device: gpu.uuid.clone(),
                name: gpu.name.clone(),
                driver: self.driver(),
                cpu_threads: None,
                processor: None,
                cpu_products: None,
                power_limit_watts: gpu.power_limit_watts.map(|watts| watts.round() as u64),
            },
            None => DeviceKey::of_cpu(self.cpu_name()?, cpu_threads, self.processor()),
        })
    }

    /// Dense peak for this trial in FLOP/s, of all its devices together, and where it is from
    /// (`measured` or `table`, of the first); `None` if one is unknown. `libtorch` is the version
    /// that the trial ran on, as its child says; a peak measured on another does not count.
    pub fn peak_flops(
        &self,
        devices: &[LeasedGpu],
        trial: &Trial,
        libtorch: Option<&str>,
    ) -> Option<(f64, String)> {
        if devices.is_empty() {
            return self.peak_of(None, trial, libtorch);
        }
        let peaks: Option<Vec<(f64, String)>> = devices
            .iter()
            .map(|gpu| self.peak_of(Some(gpu), trial, libtorch))
            .collect();
        peaks?
            .into_iter()
            .reduce(|(sum, source), (flops, _)| (sum + flops, source))
    }

    fn peak_of(
        &self,
        device: Option<&LeasedGpu>,
        trial: &Trial,
        libtorch: Option<&str>,
    ) -> Option<(f64, String)> {
        // Neither the precision nor the operations of a command are known.
        if trial.engine == Engine::Flex || trial.model.command().is_some() {
            return None;
        }
        let key = self.peak_key(
            device,
            trial.train.cpu_threads.resolve(self.host.usable_cores),
        )?;
        let peak = peaks::lookup(
            self.peaks.as_deref(),
            &key,
            libtorch,
            trial.train.precision.name(),
        )?;
        Some((peak.flops, peak.source.to_owned()))
    }
}
