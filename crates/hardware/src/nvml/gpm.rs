//! GPM, the chip's own counters of work (Hopper and later): two looks at a device and the metrics
//! between them.
//!
//! Called raw, because the wrapper's sample ends the program where the driver has no
//! `nvmlGpmSampleFree`. Two buffers are made once per device and change places at each look.

use std::{
    mem,
    time::{Duration, Instant},
};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlGpmMetricsGet_t, nvmlGpmSample_t,
    nvmlGpmSupport_t, nvmlReturn_t,
};

use super::{Nvml, raw::ask};
use crate::{Absence, Reading};

/// The driver renews its counters this often; nearer looks give nothing.
const NEAREST: Duration = Duration::from_millis(100);

/// The looks at one device.
pub(crate) struct GpmSeries {
    nvml: Nvml,
    /// Id of the GPU instance (MIG) whose counters are read; `None` for the whole GPU.
    instance: Option<u32>,
    earlier: Buffer,
    later: Buffer,
    /// Time at which `earlier` was filled.
    filled: Option<Instant>,
    request: Box<nvmlGpmMetricsGet_t>,
}

/// Result of one reading.
pub(crate) enum GpmLook {
    /// The first of two, or too near the one before.
    NotYet,
    /// One reading per requested metric, as a mean since the previous reading.
    Metrics(Vec<Reading<f64>>),
    Absent(Absence),
}

impl GpmSeries {
    /// Makes the buffers, if the device has GPM. `instance` is a GPU instance (MIG) of it.
    pub(crate) fn open(
        nvml: &Nvml,
        device: &Device<'_>,
        instance: Option<u32>,
    ) -> Result<Self, Absence> {
        if !is_supported(nvml, device)? {
            return Err(Absence::NotSupported);
        }
        // SAFETY: the structure is plain numbers and pointers that only NVML follows, for which
        // zero is a value.
        let request: Box<nvmlGpmMetricsGet_t> = Box::new(unsafe { mem::zeroed() });
        Ok(Self {
            nvml: *nvml,
            instance,
            earlier: Buffer::new(nvml)?,
            later: Buffer::new(nvml)?,
            filled: None,
            request,
        })
    }

    /// Reads the device's counters and returns the change since the previous reading, by metric
    /// number (`nvmlGpmMetricId_t`).
    pub(crate) fn look(&mut self, device: &Device<'_>, wanted: &[u32]) -> GpmLook {
        if self.filled.is_some_and(|at| at.elapsed() < NEAREST) {
            return GpmLook::NotYet;
        }
        if let Err(absence) = self.later.fill(&self.nvml, device, self.instance) {
            return GpmLook::Absent(absence);
        }
        let had_one = self.filled.replace(Instant::now()).is_some();
        mem::swap(&mut self.earlier, &mut self.later);
        if !had_one {
            return GpmLook::NotYet;
        }
        // After the swap `later` is the older one.
        self.metrics(wanted)
            .map_or_else(GpmLook::Absent, GpmLook::Metrics)
    }

    fn metrics(&mut self, wanted: &[u32]) -> Result<Vec<Reading<f64>>, Absence> {
        let function = self
            .nvml
            .library()
            .lib()
            .nvmlGpmMetricsGet
            .as_ref()
            .map_err(|_| Absence::NoSymbol)?;
        let count = wanted.len().min(self.request.metrics.len());
        self.request.version = NVML_GPM_METRICS_GET_VERSION;
        self.request.numMetrics = count as u32;
        (self.request.sample1, self.request.sample2) = (self.later.0, self.earlier.0);
        for (metric, id) in self.request.metrics.iter_mut().zip(wanted) {
            (metric.metricId, metric.nvmlReturn) = (*id, 0);
        }
        // SAFETY: both samples are live buffers of the library, and no more metrics are named than
        // there is room for.
        returned(unsafe { function(&raw mut *self.request) })?;
        let reading = |code, value: f64| match code {
            0 if value.is_finite() => Reading::Value(value),
            0 => Reading::absent("GPM returned no number"),
            code => Reading::Absent(Absence::of_code(code)),
        };
        Ok(self.request.metrics[..count]
            .iter()
            .map(|metric| reading(metric.nvmlReturn, metric.value))
            .collect())
    }
}

impl Drop for GpmSeries {
    fn drop(&mut self) {
        // A driver without the symbol keeps the two buffers: a few kilobytes.
        if let Ok(free) = self.nvml.library().lib().nvmlGpmSampleFree.as_ref() {
            for buffer in [&self.earlier, &self.later] {
                // SAFETY: the buffer came from the library and nobody uses it after this.
                unsafe { free(buffer.0) };
            }
        }
    }
}

fn is_supported(nvml: &Nvml, device: &Device<'_>) -> Result<bool, Absence> {
    let question = nvmlGpmSupport_t {
        version: NVML_GPM_SUPPORT_VERSION,
        isSupportedDevice: 0,
    };
    // SAFETY: the structure is the library's own layout and lives through the call.
    let answer = ask(
        device,
        nvml.library().lib().nvmlGpmQueryDeviceSupport.as_ref(),
        question,
        |function, handle, place| unsafe { function(handle, place) },
    );
    match answer {
        Reading::Value(support) => Ok(support.isSupportedDevice != 0),
        Reading::Absent(absence) => Err(absence),
    }
}

fn returned(code: nvmlReturn_t) -> Result<(), Absence> {
    if code == 0 {
        Ok(())
    } else {
        Err(Absence::of_code(code))
    }
}

/// A sample's place in the library.
struct Buffer(nvmlGpmSample_t);

impl Buffer {
    fn new(nvml: &Nvml) -> Result<Self, Absence> {
        let allocate = nvml
            .library()
            .lib()
            .nvmlGpmSampleAlloc
            .as_ref()
            .map_err(|_| Absence::NoSymbol)?;
        let mut sample: nvmlGpmSample_t = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        returned(unsafe { allocate(&raw mut sample) })?;
        if sample.is_null() {
            Err(Absence::Code(20))
        } else {
            Ok(Self(sample))
        }
    }

    fn fill(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        instance: Option<u32>,
    ) -> Result<(), Absence> {
        let (buffer, library) = (self.0, nvml.library().lib());
        // SAFETY, twice: the buffer is the library's own and in use by this thread alone.
        let filled = match instance {
            Some(id) => ask(
                device,
                library.nvmlGpmMigSampleGet.as_ref(),
                (),
                |function, handle, ()| unsafe { function(handle, id, buffer) },
            ),
            None => ask(
                device,
                library.nvmlGpmSampleGet.as_ref(),
                (),
                |function, handle, ()| unsafe { function(handle, buffer) },
            ),
        };
        match filled {
            Reading::Value(()) => Ok(()),
            Reading::Absent(absence) => Err(absence),
        }
    }
}
