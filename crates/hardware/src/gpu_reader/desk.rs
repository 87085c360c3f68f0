//! A watchdog for driver calls: each device is read in a thread of its own, and the caller waits
//! with a timeout.
//!
//! A call that hangs cannot be canceled. Its device reads as silent until the call returns, and the
//! other devices are read meanwhile. Nothing ever waits for such a thread, the end of the program
//! included.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{GpuReader, GpuReading, NvmlReader};
use crate::{Nvml, patient::setting};

/// The place to ask for a device's readings without ever hanging.
pub struct GpuWatchdog {
    make: Arc<dyn Fn() -> Box<dyn GpuReader> + Send + Sync>,
    patience: Duration,
    /// By device.
    workers: HashMap<String, ReaderThread>,
}

impl fmt::Debug for GpuWatchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuWatchdog")
            .field("devices", &self.workers.keys())
            .finish_non_exhaustive()
    }
}

/// A thread that reads one device. It ends when its desk drops it.
struct ReaderThread {
    questions: Sender<bool>,
    answers: Receiver<GpuReading>,
    /// When it was asked, if it has not answered.
    asked: Option<Instant>,
}

impl GpuWatchdog {
    /// `patience`: timeout for an answer, unless `KILN_NVML_PATIENCE` sets another.
    pub fn new(nvml: &Nvml, patience: Duration) -> Self {
        let nvml = *nvml;
        Self::with(setting().unwrap_or(patience), move || {
            Box::new(NvmlReader::new(nvml))
        })
    }

    pub(crate) fn with(
        patience: Duration,
        make: impl Fn() -> Box<dyn GpuReader> + Send + Sync + 'static,
    ) -> Self {
        Self {
            make: Arc::new(make),
            patience,
            workers: HashMap::new(),
        }
    }

    /// One look at a device, or the reason why there is none. Takes at most the desk's patience; no
    /// time at all while an earlier question about the device has no answer.
    pub fn read(&mut self, uuid: &str, wants_processes: bool) -> GpuReading {
        let unasked = self.ask(uuid, wants_processes);
        unasked.unwrap_or_else(|| self.answer(uuid))
    }

    /// Asks about a device and does not wait for the answer: several devices that hang are then
    /// waited for at the same time. Returns the reason if there is no answer to come.
    pub(crate) fn ask(&mut self, uuid: &str, wants_processes: bool) -> Option<GpuReading> {
        if let Some(since) = self.unanswered(uuid) {
            return Some(silent(since));
        }
        let known = self.workers.remove(uuid);
        let mut worker = match known.map_or_else(|| self.hire(uuid), Ok) {
            Ok(worker) => worker,
            Err(error) => {
                return Some(GpuReading::nothing(format!(
                    "cannot start the thread that reads the GPU: {error}"
                )));
            }
        };
        // That a thread has ended is seen where its answer is awaited.
        let _ = worker.questions.send(wants_processes);
        worker.asked = Some(Instant::now());
        self.workers.insert(uuid.to_owned(), worker);
        None
    }

    /// The answer about a device; silence once the desk's patience since the question is over.
    pub(crate) fn answer(&mut self, uuid: &str) -> GpuReading {
        let ended = || GpuReading::nothing("the thread that reads the GPU has ended".to_owned());
        let Some(worker) = self.workers.get_mut(uuid) else {
            return ended();
        };
        let since = worker.asked.unwrap_or_else(Instant::now);
        let left = self.patience.saturating_sub(since.elapsed());
        match worker.answers.recv_timeout(left) {
            Ok(look) => {
                worker.asked = None;
                look
            }
            Err(RecvTimeoutError::Timeout) => silent(since),
            Err(RecvTimeoutError::Disconnected) => {
                self.workers.remove(uuid);
                ended()
            }
        }
    }

    /// When a device was asked that has not answered. An answer that came late is thrown away: it
    /// is of another moment.
    fn unanswered(&mut self, uuid: &str) -> Option<Instant> {
        let worker = self.workers.get_mut(uuid)?;
        let since = worker.asked?;
        match worker.answers.try_recv() {
            Ok(_) => worker.asked = None,
            Err(TryRecvError::Empty) => return Some(since),
            Err(TryRecvError::Disconnected) => {
                self.workers.remove(uuid);
            }
        }
        None
    }

    fn hire(&self, uuid: &str) -> io::Result<ReaderThread> {
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let (make, uuid) = (Arc::clone(&self.make), uuid.to_owned());
        let work = move || {
            let mut reader = make();
            while let Ok(wants_processes) = asked.recv() {
                if answer.send(reader.read(&uuid, wants_processes)).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new()
            .name("gpu reader".to_owned())
            .spawn(work)?;
        Ok(ReaderThread {
            questions,
            answers,
            asked: None,
        })
    }
}

fn silent(since: Instant) -> GpuReading {
    let seconds = since.elapsed().as_secs_f64();
    GpuReading {
        silent_seconds: Some(seconds),
        ..GpuReading::nothing(format!("the driver has not answered for {seconds:.1} s"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::gpu_reader::GpuTick;

    /// Hangs on device `hangs` until the test lets it go.
    struct Hanging(Arc<Mutex<Receiver<()>>>);

    impl GpuReader for Hanging {
        fn read(&mut self, uuid: &str, _wants_processes: bool) -> GpuReading {
            if uuid == "hangs" {
                let _ = self.0.lock().unwrap().recv();
            }
            GpuReading {
                tick: Some(GpuTick::default()),
                ..GpuReading::default()
            }
        }
    }

    #[test]
    fn a_device_that_hangs_is_silent_and_the_others_are_read() {
        let (release, hang) = channel();
        let hang = Arc::new(Mutex::new(hang));
        // A busy machine may take its time for what does not hang.
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(200));
        let mut desk = GpuWatchdog::with(long, move || Box::new(Hanging(Arc::clone(&hang))));
        assert!(desk.read("well", false).tick.is_some());
        desk.patience = short;
        let look = desk.read("hangs", false);
        assert!(
            look.tick.is_none() && look.silent_seconds.unwrap() >= short.as_secs_f64(),
            "{look:?}"
        );
        assert!(
            look.reason()
                .unwrap()
                .starts_with("the driver has not answered for "),
            "{look:?}"
        );
        desk.patience = long;
        assert!(desk.read("well", false).tick.is_some());
        // With such a patience a second wait would be noticed.
        let began = Instant::now();
        let again = desk.read("hangs", false);
        assert!(again.silent_seconds > look.silent_seconds && began.elapsed() < long);
        release.send(()).unwrap();
        // Once the call has returned the device is asked anew.
        while desk.unanswered("hangs").is_some() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        assert!(desk.read("hangs", false).tick.is_some());
    }
}
