//! Converts signals from the user and the system to requests to a running sweep.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::{Handle, Signals},
};

use super::Event;

/// Levels of a stop request, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopRequest {
    /// First Ctrl-C: finish the running trials and start no more.
    Drain,
    /// Second Ctrl-C, SIGTERM, SIGHUP: stop the children with SIGTERM.
    Stop,
    /// A further signal: kill them.
    Kill,
}

/// Returns the request for one more signal after `before`; `None` if it asks for nothing more.
///
/// Slurm sends SIGTERM before the end of a job's time and again at the end, and `kiln stop --now` sends
/// it beside its word in the queue: it means the same each time. What does not end, Slurm kills.
pub(super) fn ask(
    before: Option<StopRequest>,
    signal: i32,
    is_in_slurm: bool,
) -> Option<StopRequest> {
    match (before, signal) {
        (None, SIGINT) => Some(StopRequest::Drain),
        (None | Some(StopRequest::Drain), _) => Some(StopRequest::Stop),
        (Some(_), SIGTERM) if is_in_slurm => None,
        (Some(StopRequest::Stop | StopRequest::Kill), _) => Some(StopRequest::Kill),
    }
}

/// Forwards signals as events until dropped.
pub(super) struct Listener {
    handle: Handle,
    /// Set by the first signal.
    asked: Arc<AtomicBool>,
}

impl Listener {
    /// A SIGHUP that is ignored at the start (`nohup`) stays ignored.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub(super) fn start(events: Sender<Event>) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heeded = [SIGINT, SIGTERM].into_iter();
        let mut signals =
            Signals::new(heeded.chain((!is_ignored(&status, SIGHUP)).then_some(SIGHUP)))?;
        let handle = signals.handle();
        let asked = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&asked);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for signal in signals.forever() {
                    heard.store(true, Ordering::Relaxed);
                    if events.send(Event::Signal(signal)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { handle, asked })
    }

    /// Set once a signal arrived.
    pub(super) fn asked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Whether `/proc/<pid>/status` says that the process ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask_of_the_process() {
        // The signals of a process under `nohup`, and of a usual one.
        let status =
            |mask: &str| format!("SigBlk:\t0000000000000003\nSigIgn:\t{mask}\nSigCgt:\t0\n");
        assert!(is_ignored(&status("0000000000001001"), SIGHUP));
        assert!(!is_ignored(&status("0000000000001001"), SIGINT));
        assert!(!is_ignored(&status("0000000000001000"), SIGHUP));
        assert!(!is_ignored("", SIGHUP));
    }

    #[test]
    fn the_first_ctrl_c_drains_the_second_stops_and_sigterm_stops_at_once() {
        use StopRequest::{Drain, Kill, Stop};
        // What was asked before, a signal, and what it asks for outside of Slurm and in it.
        for (before, signal, outside, inside) in [
            (None, SIGINT, Some(Drain), Some(Drain)),
            (None, SIGTERM, Some(Stop), Some(Stop)),
            (None, SIGHUP, Some(Stop), Some(Stop)),
            (Some(Drain), SIGINT, Some(Stop), Some(Stop)),
            (Some(Drain), SIGTERM, Some(Stop), Some(Stop)),
            (Some(Stop), SIGINT, Some(Kill), Some(Kill)),
            (Some(Stop), SIGTERM, Some(Kill), None),
            (Some(Kill), SIGTERM, Some(Kill), None),
        ] {
            assert_eq!(ask(before, signal, false), outside, "{before:?} {signal}");
            assert_eq!(ask(before, signal, true), inside, "{before:?} {signal}");
        }
    }
}
