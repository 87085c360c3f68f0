//! `kiln watch --query`: chosen properties of each GPU at each look, like `nvidia-smi --query-gpu=… -l`: one header, then lines.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    commands::{Status, Stop},
    hardware::{
        Absence, Gpu, Nvml,
        query::{Format, Query},
    },
};

/// What is asked, and of whom.
pub(super) struct Asking {
    nvml: Arc<Nvml>,
    indices: Vec<u32>,
    /// How long an answer is waited for.
    patience: Duration,
    first: Query,
    later: Query,
    is_first: bool,
    /// The reading that has not come back, and since when.
    pending: Option<(Receiver<Vec<Gpu>>, Instant)>,
}

impl Asking {
    /// `properties` and `format` as nvidia-smi takes them.
    pub(super) fn new(properties: &str, format: &str, of: (Arc<Nvml>, Vec<u32>), patience: Duration) -> Result<Self, Stop> {
        let format = Format::parse(format).map_err(Stop::bad_input)?;
        let query = |format| Query::parse(properties, format).map_err(Stop::bad_input);
        let (first, later) = (query(format)?, query(Format { has_header: false, ..format })?);
        Ok(Self { nvml: of.0, indices: of.1, patience, first, later, is_first: true, pending: None })
    }

    /// The lines of one look. A driver that does not answer in time gives lines without values, and is asked anew only once it
    /// has answered.
    pub(super) fn look(&mut self) -> Result<String, Stop> {
        let (answer, since) = match self.pending.take() {
            Some(pending) => pending,
            None => (self.ask()?, Instant::now()),
        };
        let gpus = answer.recv_timeout(self.patience).unwrap_or_else(|_| {
            let silent = Absence::Other(format!("the driver has not answered for {:.1} s", since.elapsed().as_secs_f64()));
            self.pending = Some((answer, since));
            self.indices.iter().map(|_| Gpu::unread(&silent)).collect()
        });
        let query = if std::mem::take(&mut self.is_first) { &self.first } else { &self.later };
        Ok(query.answer(&gpus, &jiff::Zoned::now()))
    }

    fn ask(&self) -> Result<Receiver<Vec<Gpu>>, Stop> {
        let (sender, receiver) = channel();
        let (nvml, indices) = (Arc::clone(&self.nvml), self.indices.clone());
        let read = move || {
            // Nobody listens any more once the program ends.
            let _ = sender.send(indices.iter().map(|index| Gpu::read_index(&nvml, *index)).collect());
        };
        let cannot = |error: std::io::Error| Stop::new(Status::CannotRun, format!("no thread to read with: {error}"));
        thread::Builder::new().name("query".to_owned()).spawn(read).map_err(cannot)?;
        Ok(receiver)
    }
}
