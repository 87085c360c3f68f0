//! A watchdog for driver calls: they run in their own thread, and the caller waits with a timeout.
//!
//! A call that hangs cannot be canceled. Its thread is abandoned with the device it hangs on, a new
//! thread serves the other devices, and that device reads as silent until the call returns. Nothing
//! ever waits for such a thread, the end of the program included.

use std::{
    collections::HashMap,
    fmt,
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
    /// Waits for the next question.
    idle: Option<Worker>,
    /// By device: the thread that has not answered.
    stuck: HashMap<String, Stuck>,
}

impl fmt::Debug for GpuWatchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuWatchdog")
            .field("stuck", &self.stuck.keys())
            .finish_non_exhaustive()
    }
}

/// A thread with a reader. It ends when its desk drops it.
struct Worker {
    questions: Sender<(String, bool)>,
    answers: Receiver<GpuReading>,
}

struct Stuck {
    worker: Worker,
    since: Instant,
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
            idle: None,
            stuck: HashMap::new(),
        }
    }

    /// One look at a device, or the reason why there is none. Takes at most the desk's patience; no
    /// time at all while an earlier question about the device has no answer.
    pub fn read(&mut self, uuid: &str, wants_processes: bool) -> GpuReading {
        if let Some(silent) = self.still_silent(uuid) {
            return silent;
        }
        let worker = match self.idle.take().map_or_else(|| self.hire(), Ok) {
            Ok(worker) => worker,
            Err(error) => {
                return GpuReading::nothing(format!(
                    "cannot start the thread that reads the GPU: {error}"
                ));
            }
        };
        let since = Instant::now();
        // A worker that has ended answers this below.
        let _ = worker.questions.send((uuid.to_owned(), wants_processes));
        match worker.answers.recv_timeout(self.patience) {
            Ok(look) => {
                self.idle = Some(worker);
                look
            }
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.insert(uuid.to_owned(), Stuck { worker, since });
                silent(since)
            }
            Err(RecvTimeoutError::Disconnected) => {
                GpuReading::nothing("the thread that reads the GPU has ended".to_owned())
            }
        }
    }

    /// An answer that came late is thrown away: it is of another moment.
    fn still_silent(&mut self, uuid: &str) -> Option<GpuReading> {
        let Stuck { worker, since } = self.stuck.remove(uuid)?;
        match worker.answers.try_recv() {
            Ok(_) => {
                self.idle.get_or_insert(worker);
                None
            }
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                self.stuck.insert(uuid.to_owned(), Stuck { worker, since });
                Some(silent(since))
            }
        }
    }

    fn hire(&self) -> std::io::Result<Worker> {
        let (questions, asked) = channel::<(String, bool)>();
        let (answer, answers) = channel();
        let make = Arc::clone(&self.make);
        let work = move || {
            let mut reader = make();
            while let Ok((uuid, wants_processes)) = asked.recv() {
                if answer.send(reader.read(&uuid, wants_processes)).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new()
            .name("gpu reader".to_owned())
            .spawn(work)?;
        Ok(Worker { questions, answers })
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
        while desk.still_silent("hangs").is_some() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        assert!(desk.read("hangs", false).tick.is_some());
    }
}
