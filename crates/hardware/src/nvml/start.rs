//! The start of NVML: loads the driver's library, and waits for it with a limit.

use std::{
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use nvml_wrapper::error::NvmlError;

use super::{Nvml, NvmlAbsent, NvmlFault, absence};
use crate::Absence;

/// The library's name for the dynamic loader.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// How long the driver is waited for to start. Eight devices without persistence mode take tens of
/// seconds; some drivers hang here.
pub const START_LIMITS: StartLimits = StartLimits {
    slow: Duration::from_secs(5),
    most: Duration::from_secs(60),
};

/// Limits of the wait for the driver to start.
#[derive(Clone, Copy, Debug)]
pub struct StartLimits {
    /// After this time the caller is told that the driver is slow.
    pub slow: Duration,
    /// Longest wait.
    pub most: Duration,
}

impl StartLimits {
    /// The answer of the thread that starts the driver; `None` if it takes too long. Calls
    /// `tell_slow` once if the driver is slow.
    fn wait<T>(self, answers: &Receiver<T>, tell_slow: impl FnOnce()) -> Option<T> {
        match answers.recv_timeout(self.slow) {
            Err(RecvTimeoutError::Timeout) => {
                tell_slow();
                let left = self.most.saturating_sub(self.slow);
                answers.recv_timeout(left).ok()
            }
            answer => answer.ok(),
        }
    }
}

impl Nvml {
    /// Loads `library`, or what the system has, and starts it.
    ///
    /// # Errors
    /// [`NvmlAbsent`] has the reason: no driver, a driver that is not loaded, one that does not
    /// answer.
    pub fn open(library: Option<&Path>) -> Result<Self, NvmlAbsent> {
        Self::open_telling(library, || ())
    }

    /// The same; calls `tell_slow` once if the driver is slow to start ([`START_LIMITS`]).
    ///
    /// # Errors
    /// As [`Nvml::open`].
    pub fn open_telling(
        library: Option<&Path>,
        tell_slow: impl FnOnce(),
    ) -> Result<Self, NvmlAbsent> {
        let path = library.map_or_else(|| LIBRARY.into(), |path| path.as_os_str().to_owned());
        let (sender, receiver) = channel();
        let start = move || {
            let started = nvml_wrapper::Nvml::builder().lib_path(&path).init();
            // Nobody listens any more after the time limit.
            let _ = sender.send(started.map(|nvml| Self {
                library: Box::leak(Box::new(nvml)),
            }));
        };
        thread::Builder::new()
            .name("nvml start".to_owned())
            .spawn(start)
            .map_err(|error| NvmlAbsent {
                reason: format!("the driver was not asked: no thread could be started ({error})"),
                fault: NvmlFault::Thread,
            })?;
        match START_LIMITS.wait(&receiver, tell_slow) {
            Some(started) => started.map_err(|error| NvmlAbsent {
                reason: why_not_started(&error, library),
                fault: fault(&error, library),
            }),
            None => {
                let reason = format!(
                    "the NVIDIA driver did not answer within {} s",
                    START_LIMITS.most.as_secs()
                );
                Err(NvmlAbsent {
                    reason,
                    fault: NvmlFault::Silent,
                })
            }
        }
    }
}

fn fault(error: &NvmlError, library: Option<&Path>) -> NvmlFault {
    match (error, absence(error)) {
        (NvmlError::LibloadingError(_), _) if library.is_none() => NvmlFault::NotFound,
        (NvmlError::LibloadingError(_), _) => NvmlFault::Library,
        (_, Absence::Code(code)) => NvmlFault::Code(code),
        (_, Absence::NoPermission) => NvmlFault::Code(4),
        _ => NvmlFault::Other,
    }
}

fn why_not_started(error: &NvmlError, library: Option<&Path>) -> String {
    match (error, library) {
        (NvmlError::LibloadingError(_), None) => {
            format!("no NVIDIA driver found: the system has no {LIBRARY}")
        }
        (NvmlError::LibloadingError(cause), Some(path)) => {
            format!("no NVML at {}: {cause}", path.display())
        }
        (NvmlError::DriverNotLoaded, _) => "the NVIDIA driver is installed but not loaded; try \
                                            `nvidia-smi`"
            .to_owned(),
        (NvmlError::LibRmVersionMismatch, _) => "the NVIDIA driver's library and kernel module \
                                                 differ in version; reboot after the update"
            .to_owned(),
        (NvmlError::NoPermission, _) => {
            "this user has no permission to use the NVIDIA driver".to_owned()
        }
        (other, _) => format!("the NVIDIA driver did not start: {}", absence(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_said_plainly() {
        let absent = Nvml::open(Some(Path::new("/nowhere/libnvidia-ml.so.1"))).unwrap_err();
        assert!(
            absent
                .reason
                .starts_with("no NVML at /nowhere/libnvidia-ml.so.1: "),
            "{absent}"
        );
    }

    #[test]
    fn a_driver_that_is_slow_to_start_is_told_of_and_one_that_hangs_is_given_up() {
        let limits = StartLimits {
            slow: Duration::from_millis(1),
            most: Duration::from_secs(600),
        };
        let (sender, answers) = channel();
        // It answers only after the caller was told.
        let answer = limits.wait(&answers, || sender.send(7).unwrap());
        assert_eq!(answer, Some(7));
        // One that answers in time is not told of.
        sender.send(8).unwrap();
        let quick = StartLimits {
            slow: limits.most,
            ..limits
        };
        assert_eq!(quick.wait(&answers, || panic!("told")), Some(8));
        let short = StartLimits {
            most: Duration::from_millis(2),
            ..limits
        };
        let mut tellings = 0;
        assert_eq!(short.wait(&answers, || tellings += 1), None);
        assert_eq!(tellings, 1);
    }
}
