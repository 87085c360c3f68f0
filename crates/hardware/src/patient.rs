//! Calls to a driver that may never answer. Each device is read in its own thread, with a timeout:
//! one that hangs is absent, with the reason, and the others are still read. A thread that hangs is
//! abandoned; one that panics or cannot be started is a reason of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Absence, DeviceFacts, Gpu, Nvml, Reading,
    deadline::{Deadline, counted},
    nvml::{absence, facts, instances, reading_of},
};

/// Timeout for an answer about a device, unless `KILN_NVML_PATIENCE` sets another. All readings of
/// one take less than half a second where the driver is well.
pub const DRIVER_PATIENCE: Duration = Duration::from_secs(5);

/// A patience by this is granted for each further device that is asked at the same time, because
/// they share the driver; and to a device that has hung once, to tell its name at least.
const SHORTER: u32 = 5;

/// Between two looks at whether the wait was given up.
const LOOK: Duration = Duration::from_millis(50);

/// Most of a look that counts as waited: in a longer one the program was stopped.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Timeout for answers, and the flag that cancels the wait.
#[derive(Clone, Debug)]
pub struct Patience {
    limit: Duration,
    is_given_up: Arc<AtomicBool>,
    /// Nanoseconds waited since [`Patience::take_waited`].
    waited: Arc<AtomicU64>,
}

impl Default for Patience {
    /// The program's: `KILN_NVML_PATIENCE`, else [`DRIVER_PATIENCE`].
    fn default() -> Self {
        Self::of(setting().unwrap_or(DRIVER_PATIENCE))
    }
}

const SETTING: &str = "KILN_NVML_PATIENCE";

/// `KILN_NVML_PATIENCE`: the seconds for which any answer of the driver is waited for; `None` if it
/// is not set or is not such a number.
pub(super) fn setting() -> Option<Duration> {
    static FOUND: LazyLock<Option<Duration>> =
        LazyLock::new(|| seconds(&std::env::var(SETTING).ok()?));
    *FOUND
}

/// Refuses a `KILN_NVML_PATIENCE` that would be passed over.
///
/// # Errors
/// It is set, but not to an allowed number of seconds.
pub fn check_setting() -> Result<(), String> {
    match std::env::var_os(SETTING) {
        Some(text) if text.to_str().and_then(seconds).is_none() => Err(format!(
            "{SETTING} is `{}`; it must be a number of seconds from 0.01 to 3600, such as `10`",
            text.to_string_lossy()
        )),
        _ => Ok(()),
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (0.01..=3600.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

impl Patience {
    /// Waits so long.
    pub fn of(limit: Duration) -> Self {
        Self {
            limit,
            is_given_up: Arc::default(),
            waited: Arc::default(),
        }
    }

    /// As [`Patience::default`], until `is_given_up` is set, for example by a signal.
    pub fn until(is_given_up: Arc<AtomicBool>) -> Self {
        Self {
            is_given_up,
            ..Self::default()
        }
    }

    /// Runs `work` in its own thread.
    ///
    /// # Errors
    /// It takes too long, panics, or has no thread.
    pub fn wait<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Absence> {
        let (sender, answers) = channel();
        let send = move |answer| drop(sender.send(answer));
        let mut deadline = Deadline::after(self.limit);
        let work = counted(Arc::clone(&deadline.answers), work);
        start(thread::Builder::new(), work, send)?;
        let answer = self.next(&answers, &mut deadline);
        answer.unwrap_or_else(|| Err(self.silence()))
    }

    /// Runs `work` on every key in parallel, each in its own thread; with the reason for those that
    /// take too long, panic, or have no thread.
    pub fn each<K, T>(
        &self,
        keys: Vec<K>,
        work: impl Fn(K) -> T + Send + Sync + 'static,
    ) -> Vec<Result<T, Absence>>
    where
        K: Send + 'static,
        T: Send + 'static,
    {
        let others = self.shorter() * (keys.len().saturating_sub(1) as u32);
        let mut deadline = Deadline::after(self.limit + others);
        let mut found: Vec<Result<T, Absence>> = keys.iter().map(|_| Err(self.silence())).collect();
        let (sender, answers) = channel();
        let work = Arc::new(work);
        for (place, key) in keys.into_iter().enumerate() {
            let (sender, work) = (sender.clone(), Arc::clone(&work));
            let send = move |answer| drop(sender.send((place, answer)));
            let work = counted(Arc::clone(&deadline.answers), move || work(key));
            if let Err(why) = start(thread::Builder::new(), work, send) {
                found[place] = Err(why);
            }
        }
        drop(sender);
        while let Some((place, answer)) = self.next(&answers, &mut deadline) {
            found[place] = answer;
        }
        found
    }

    /// The next answer of threads of the caller's; `None` after `limit` or this patience.
    pub fn answer<T>(&self, answers: &Receiver<T>, limit: Duration) -> Option<T> {
        self.next(answers, &mut Deadline::after(limit.min(self.limit)))
    }

    /// The next answer; `None` at the deadline, when the wait is given up, and when there is no
    /// more to come.
    fn next<T>(&self, answers: &Receiver<T>, deadline: &mut Deadline) -> Option<T> {
        loop {
            let begun = Instant::now();
            let left = deadline.left();
            let answer = answers.recv_timeout(LOOK.min(left));
            let waited = begun.elapsed().min(LONGEST_LOOK);
            self.waited
                .fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
            match answer {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout)
                    if left.is_zero() || self.is_given_up.load(Ordering::Relaxed) =>
                {
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The time waited for answers since the last call.
    pub fn take_waited(&self) -> Duration {
        Duration::from_nanos(self.waited.swap(0, Ordering::Relaxed))
    }

    fn shorter(&self) -> Duration {
        self.limit / SHORTER
    }

    /// The patience with a device that has hung once, and while others wait.
    #[must_use]
    pub fn short(&self) -> Self {
        Self {
            limit: self.shorter(),
            ..self.clone()
        }
    }

    /// Longest wait for an answer.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The reason why there is no answer.
    pub fn silence(&self) -> Absence {
        Absence::Silent(self.limit)
    }
}

/// Starts a thread that sends the answer of `work`, or that it panicked.
fn start<T: 'static>(
    thread: thread::Builder,
    work: impl FnOnce() -> T + Send + 'static,
    send: impl FnOnce(Result<T, Absence>) + Send + 'static,
) -> Result<(), Absence> {
    let call = move || {
        let answer = catch_unwind(AssertUnwindSafe(work));
        send(answer.map_err(|_| Absence::Panicked));
    };
    let started = thread.name("driver call".to_owned()).spawn(call);
    started
        .map(drop)
        .map_err(|error| Absence::NoThread(error.to_string()))
}

/// The GPUs to read.
#[derive(Clone, Debug)]
pub enum Which {
    All,
    /// By nvidia-smi's indices.
    Indices(Vec<u32>),
}

/// Reads these GPUs in their order. One without an answer has nothing but its index and, if the driver
/// tells so much, its UUID, its name and the driver's version; [`silence_of`] tells it from others.
///
/// # Errors
/// All GPUs are asked for, and the driver does not say how many there are.
pub fn read_gpus(nvml: Nvml, which: Which, patience: &Patience) -> Result<Vec<Gpu>, Absence> {
    let indices = match which {
        Which::All => (0..count(nvml, patience)?).collect(),
        Which::Indices(indices) => indices,
    };
    let found = patience.each(indices.clone(), move |index| Gpu::read_index(&nvml, index));
    let all = found.into_iter().zip(indices);
    Ok(all
        .map(|(gpu, index)| gpu.unwrap_or_else(|why| unread(nvml, index, &why, patience)))
        .collect())
}

/// Reads all GPUs. Where the driver does not say how many there are, the first one has the reason.
pub fn read_all_gpus(nvml: Nvml, patience: &Patience) -> Vec<Gpu> {
    read_gpus(nvml, Which::All, patience)
        .unwrap_or_else(|absence| vec![Gpu::unread_at(0, &absence)])
}

/// The number of GPUs.
fn count(nvml: Nvml, patience: &Patience) -> Result<u32, Absence> {
    patience.wait(move || nvml.device_count())?
}

/// A GPU that was not read, for the reason `why`.
fn unread(nvml: Nvml, index: u32, why: &Absence, patience: &Patience) -> Gpu {
    let short = patience.short();
    let mut gpu = Gpu::unread(why);
    gpu.index = Reading::Value(u64::from(index));
    let uuid = short.wait(move || {
        reading_of(
            nvml.library()
                .device_by_index(index)
                .and_then(|device| device.uuid()),
        )
    });
    let name = short.wait(move || {
        reading_of(
            nvml.library()
                .device_by_index(index)
                .and_then(|device| device.name()),
        )
    });
    let driver = short.wait(move || (nvml.driver_version(), nvml.cuda_version()));
    if let Ok((version, cuda)) = driver {
        (gpu.driver.version, gpu.driver.cuda) = (version, cuda);
    }
    gpu.identity.uuid = uuid.unwrap_or_else(|_| Reading::Absent(why.clone()));
    gpu.identity.name = name.unwrap_or_else(|_| Reading::Absent(why.clone()));
    gpu
}

/// The reason why nothing was read from a GPU about which the driver hangs, or could not be asked; `None`
/// for all others.
pub fn silence_of(gpu: &Gpu) -> Option<&Absence> {
    let absence = gpu.memory.frame_buffer.total_bytes.absence();
    absence.filter(|absence| {
        matches!(
            absence,
            Absence::Silent(_) | Absence::NoThread(_) | Absence::Panicked
        )
    })
}

/// Message for a GPU in MIG mode without an instance, on which CUDA cannot run.
const NO_INSTANCE: &str = "MIG is on and no instance exists (`sudo nvidia-smi mig -cgi 0 -C` \
                           creates one)";

/// Every GPU by its index: its facts, or why it cannot be used; of a driver that does not say how many
/// there are, that reason, for the first. A GPU that is cut into MIG
/// instances is not there itself, because no process gets all of it: its instances are, each with
/// the GPU's index.
pub fn list_devices(nvml: Nvml, patience: &Patience) -> Vec<(u32, Result<DeviceFacts, Absence>)> {
    let count = match count(nvml, patience) {
        Ok(count) => count,
        Err(absence) => return vec![(0, Err(absence))],
    };
    let indices: Vec<u32> = (0..count).collect();
    let listed = patience.each(indices.clone(), move |index| device(&nvml, index));
    let listed = listed.into_iter().map(|found| found.unwrap_or_else(Err));
    let each = |(index, found): (u32, Result<Vec<DeviceFacts>, Absence>)| match found {
        Ok(devices) => devices
            .into_iter()
            .map(|device| (index, Ok(device)))
            .collect(),
        Err(absence) => vec![(index, Err(absence))],
    };
    indices.into_iter().zip(listed).flat_map(each).collect()
}

/// The GPU, or its instances.
fn device(nvml: &Nvml, index: u32) -> Result<Vec<DeviceFacts>, Absence> {
    let device = nvml
        .library()
        .device_by_index(index)
        .map_err(|error| absence(&error))?;
    device.uuid().map_err(|error| absence(&error))?;
    let board = facts(nvml, index, &device).ok_or(Absence::NotFound)?;
    match instances(nvml, &board, &device)? {
        Some(instances) if instances.is_empty() => Err(Absence::Other(NO_INSTANCE.to_owned())),
        Some(instances) => Ok(instances),
        None => Ok(vec![board]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_none_and_the_others_answer() {
        // A busy machine may be too slow for the first patience, even for what does not hang.
        let is_found = [0.1, 1.0, 60.0].into_iter().any(|seconds| {
            let (_release, hang) = channel::<()>();
            let hang = std::sync::Mutex::new(hang);
            let work = move |key: u32| {
                if key == 1 {
                    let _ = hang.lock().unwrap().recv();
                }
                key * 10
            };
            let patience = Patience::of(Duration::from_secs_f64(seconds));
            let found = patience.each(vec![0, 1, 2], work);
            assert_eq!(found[1], Err(patience.silence()));
            found == [Ok(0), Err(patience.silence()), Ok(20)]
        });
        assert!(is_found);
        assert_eq!(
            Patience::of(Duration::from_millis(200))
                .silence()
                .to_string(),
            "the driver has not answered for 0.2 s"
        );
    }

    #[test]
    fn the_setting_is_a_number_of_seconds() {
        assert_eq!(
            ["0.5", " 60 "].map(seconds),
            [
                Some(Duration::from_millis(500)),
                Some(Duration::from_secs(60))
            ]
        );
        assert_eq!(
            ["", "5 s", "-1", "0", "inf", "NaN", "1e9"].map(seconds),
            [None; 7]
        );
    }

    #[test]
    fn work_that_takes_too_long_is_left_behind() {
        assert_eq!(Patience::of(Duration::from_secs(60)).wait(|| 7), Ok(7));
        let (_release, hang) = channel::<()>();
        let short = Patience::of(Duration::from_millis(1));
        assert_eq!(
            short.wait(move || hang.recv().is_ok()),
            Err(short.silence())
        );
    }

    #[test]
    fn a_call_that_panics_or_has_no_thread_is_not_a_driver_that_hangs() {
        let patience = Patience::of(Duration::from_secs(60));
        let odd = |key: u32| match key {
            1 => panic!("an odd key"),
            key => key * 10,
        };
        let wanted = [Ok(0), Err(Absence::Panicked), Ok(20)];
        assert_eq!(patience.each(vec![0, 1, 2], odd), wanted);
        assert_eq!(patience.wait(move || odd(1)), Err(Absence::Panicked));
        // No machine has so much memory for a stack.
        let too_large = thread::Builder::new().stack_size(1 << 60);
        let not_started = start(too_large, || 7, drop).unwrap_err();
        assert!(
            not_started
                .to_string()
                .starts_with("the driver was not asked: no thread could be started ("),
            "{not_started}"
        );
    }

    #[test]
    fn the_time_waited_is_told_once() {
        let (_release, hang) = channel::<()>();
        let limit = Duration::from_millis(120);
        let patience = Patience::of(limit);
        let begun = Instant::now();
        let answer = patience.clone().wait(move || hang.recv().is_ok());
        assert_eq!(answer, Err(patience.silence()));
        let waited = patience.take_waited();
        assert!(
            limit / 2 <= waited && waited <= begun.elapsed(),
            "{waited:?}"
        );
        assert_eq!(patience.take_waited(), Duration::ZERO);
    }

    #[test]
    fn a_wait_that_is_given_up_ends_at_once() {
        let given_up = Arc::new(AtomicBool::new(false));
        let patience = Patience {
            limit: Duration::from_secs(60),
            ..Patience::until(Arc::clone(&given_up))
        };
        let (_release, hang) = channel::<()>();
        let began = Instant::now();
        let found = patience.wait(move || {
            given_up.store(true, Ordering::Relaxed);
            hang.recv().is_ok()
        });
        assert!(
            found == Err(patience.silence()) && began.elapsed() < patience.limit,
            "{:?}",
            began.elapsed()
        );
    }
}
