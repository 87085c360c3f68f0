//! Whether the system starts as many threads as a library needs. libtorch's pools do not look: one of
//! them (`pthreadpool_create`, which `at::set_num_threads` calls) waits forever for threads that were
//! never started.

use std::{
    io,
    sync::RwLock,
    thread::{self, Builder},
};

use crate::TrialError;

/// Threads that a library may start beside its pools.
const SPARE: usize = 2;
/// The stack of a thread that only waits, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Checks that libtorch can start its two pools of `cpu_threads`, and that the initial weights can be
/// made by all cores.
///
/// Errors: [`TrialError::NoDevice`], with what limits them.
pub(super) fn check(cpu_threads: u64) -> Result<(), TrialError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let pools =
        usize::try_from(cpu_threads).map_or(usize::MAX, |count| 2 * count.saturating_sub(1));
    let count = pools.max(cores).saturating_add(SPARE);
    start(count, STACK_BYTES).map_err(|error| {
        TrialError::of_starting(
            &format!("libtorch needs room for {count} more threads with `train.cpu_threads` {cpu_threads}"),
            &error,
        )
    })
}

/// Starts threads that wait until all are there, and ends them.
fn start(count: usize, stack_bytes: usize) -> io::Result<()> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write();
        let started = (0..count).try_for_each(|_| {
            Builder::new()
                .stack_size(stack_bytes)
                .spawn_scoped(scope, || drop(gate.read()))
                .map(drop)
        });
        drop(closed);
        started
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_cannot_be_started_are_a_fault_of_the_machine() {
        check(4).unwrap();
        // No machine has room for such a stack; the system then says the same as at a limit of threads.
        let error = start(3, 1 << 60).unwrap_err();
        let fault = TrialError::of_starting("three threads", &error);
        assert!(
            matches!(&fault, TrialError::NoDevice(text) if text.contains("`ulimit -u`")),
            "{fault:?}"
        );
    }
}
