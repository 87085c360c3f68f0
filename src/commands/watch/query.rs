//! `kiln watch --query`: prints selected properties of each GPU at each reading, like
//! `nvidia-smi --query-gpu=… -l`: one header, then lines.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use kiln_core::units::clock;
use kiln_hardware::{
    Absence, DeviceFacts, Gpu, Nvml, Reading,
    query::{Query, QueryFormat},
};

use crate::commands::{Status, Stop, note};

/// NVML's number for an unknown error; nvidia-smi prints `[Unknown Error]`.
const UNKNOWN_ERROR: u32 = 999;

/// The queries and the GPUs they are sent to.
pub(super) struct WatchQuery {
    nvml: Arc<Nvml>,
    asked: Vec<QueriedGpu>,
    /// Longest wait for an answer.
    patience: Duration,
    first: Query,
    later: Query,
    is_first: bool,
}

/// One GPU.
struct QueriedGpu {
    device: DeviceFacts,
    /// The last reading: constant properties are taken from it while the driver does not answer.
    known: Option<Gpu>,
    /// The pending reading and when it was requested.
    pending: Option<(Receiver<Gpu>, Instant)>,
    is_silent: bool,
}

impl WatchQuery {
    /// `queries` holds the query of the first reading and that of the later ones.
    pub(super) fn new(
        nvml: Arc<Nvml>,
        devices: Vec<DeviceFacts>,
        queries: (Query, Query),
        patience: Duration,
    ) -> Self {
        let asked = devices
            .into_iter()
            .map(|device| QueriedGpu {
                device,
                known: None,
                pending: None,
                is_silent: false,
            })
            .collect();
        Self {
            nvml,
            asked,
            patience,
            first: queries.0,
            later: queries.1,
            is_first: true,
        }
    }

    /// Returns the lines of one reading. A GPU whose driver does not answer in time gets a line
    /// with its known properties, and is asked again only once it has answered.
    pub(super) fn look(&mut self) -> Result<String, Stop> {
        for asked in self
            .asked
            .iter_mut()
            .filter(|asked| asked.pending.is_none())
        {
            asked.pending = Some((ask(&self.nvml, asked.device.index)?, Instant::now()));
        }
        let deadline = Instant::now() + self.patience;
        let gpus: Vec<Gpu> = self
            .asked
            .iter_mut()
            .map(|asked| asked.answer(deadline))
            .collect();
        let query = if std::mem::take(&mut self.is_first) {
            &self.first
        } else {
            &self.later
        };
        Ok(query.answer(&gpus, &clock::local_now()))
    }
}

/// The query of the first reading and that of the later ones, without a header; `properties` and
/// `format` are as for nvidia-smi.
pub(super) fn queries(properties: &str, format: &str) -> Result<(Query, Query), Stop> {
    let format = QueryFormat::parse(format).map_err(Stop::bad_input)?;
    let query = |format| Query::parse(properties, format).map_err(Stop::bad_input);
    Ok((
        query(format)?,
        query(QueryFormat {
            has_header: false,
            ..format
        })?,
    ))
}

fn ask(nvml: &Arc<Nvml>, index: u32) -> Result<Receiver<Gpu>, Stop> {
    let (sender, receiver) = channel();
    let nvml = Arc::clone(nvml);
    // The send fails only once the program ends.
    let read = move || drop(sender.send(Gpu::read_index(&nvml, index)));
    let cannot = |error: std::io::Error| {
        Stop::new(
            Status::CannotRun,
            format!("the reading thread could not be started: {error}"),
        )
    };
    thread::Builder::new()
        .name("query".to_owned())
        .spawn(read)
        .map_err(cannot)?;
    Ok(receiver)
}

impl QueriedGpu {
    fn answer(&mut self, deadline: Instant) -> Gpu {
        let Some((answer, since)) = self.pending.take() else {
            return self.unread();
        };
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(gpu) => {
                self.is_silent = false;
                self.known.insert(gpu).clone()
            }
            Err(why) => {
                let why = match why {
                    RecvTimeoutError::Timeout => {
                        self.pending = Some((answer, since));
                        format!(
                            "the driver has not answered for {:.1} s",
                            since.elapsed().as_secs_f64()
                        )
                    }
                    RecvTimeoutError::Disconnected => {
                        "the thread that reads it has stopped".to_owned()
                    }
                };
                self.say_silent(&why);
                self.unread()
            }
        }
    }

    /// Prints the reason once each time the driver stops answering; a line has no room for it.
    fn say_silent(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_silent, true) {
            note(&format!("GPU {}: {why}", self.device.index));
        }
    }

    /// The GPU's properties that are known without a new reading.
    fn unread(&self) -> Gpu {
        let mut gpu = Gpu::unread(&Absence::Code(UNKNOWN_ERROR));
        match &self.known {
            Some(known) => {
                (gpu.driver, gpu.identity, gpu.platform, gpu.firmware) = (
                    known.driver.clone(),
                    known.identity.clone(),
                    known.platform.clone(),
                    known.firmware.clone(),
                );
                (gpu.pci.domain, gpu.pci.bus, gpu.pci.device) = (
                    known.pci.domain.clone(),
                    known.pci.bus.clone(),
                    known.pci.device.clone(),
                );
                (gpu.pci.bus_id, gpu.pci.device_id) =
                    (known.pci.bus_id.clone(), known.pci.device_id.clone());
            }
            None => {
                gpu.identity.uuid = Reading::Value(self.device.uuid.clone());
                gpu.identity.name = self.device.name.clone();
            }
        }
        gpu.index = Reading::Value(u64::from(self.device.index));
        gpu.memory.frame_buffer.total_bytes = self.device.memory_total_bytes.clone();
        gpu
    }
}
