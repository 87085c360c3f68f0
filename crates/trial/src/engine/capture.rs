//! Work on a CUDA device that is captured once and replayed (`shim/capture.cpp`): the host then
//! makes one call instead of hundreds.

use std::{
    ffi::c_int,
    fmt,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{error_from_text, guard_result, shim::checked};
use crate::error::TrialError;

#[repr(C)]
struct CGraph {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn kiln_use_side_stream(device: c_int) -> c_int;
    fn kiln_empty_cache() -> c_int;
    fn kiln_capture_begin(pool: u64, graph: *mut *mut CGraph) -> c_int;
    fn kiln_capture_end(graph: *mut CGraph) -> c_int;
    fn kiln_capture_replay(graph: *mut CGraph) -> c_int;
    fn kiln_capture_forget(graph: *mut CGraph);
}

/// Memory that captures share. libtorch refuses a capture into memory whose captures are gone while
/// some of what they made lives on, so a number is used once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool(u64);

impl Pool {
    /// Memory of its own.
    pub(crate) fn new() -> Self {
        /// Any number but 0; libtorch's own start at 1.
        static NEXT: AtomicU64 = AtomicU64::new(0x6b69_6c6e);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// From now on, this thread's work on the device runs on its own stream, which can be captured.
///
/// Errors: no CUDA, or libtorch's words.
pub(crate) fn use_side_stream(device: usize) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_use_side_stream(device as c_int) })
}

/// Gives back what the allocator has cached. A capture allocates from memory of its own, and cannot
/// have the cache given back when the device has no more. Waits for the device.
///
/// Errors: libtorch's words.
pub(crate) fn empty_cache() -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_empty_cache() })
}

/// Captured work. The tensors that it reads and writes must stay where they are as long as it
/// lives.
pub(crate) struct Graph(NonNull<CGraph>);

// SAFETY: it owns device handles that libtorch lets any thread use, one at a time; nothing else
// refers to it.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `work` submits to the device in this thread, without executing it.
    /// Its results are in the memory of `pool`.
    ///
    /// Errors: `work`'s; libtorch's where the work cannot be captured. The thread captures nothing
    /// any more after either.
    pub(crate) fn capture<T>(
        pool: Pool,
        work: impl FnOnce() -> Result<T, TrialError>,
    ) -> Result<(Self, T), TrialError> {
        let mut graph = ptr::null_mut();
        // SAFETY: `graph` is a place.
        checked(unsafe { kiln_capture_begin(pool.0, &raw mut graph) })?;
        let graph = NonNull::new(graph)
            .map(Self)
            .ok_or_else(|| error_from_text("libtorch returned neither a graph nor an error"))?;
        // Operations leave with a panic, and a capture that does not end takes all later work in.
        let made = guard_result(work);
        // SAFETY: the graph lives, and its capture began in this thread.
        let ended = checked(unsafe { kiln_capture_end(graph.0.as_ptr()) });
        let made = made?;
        ended.map(|()| (graph, made))
    }

    /// Does the work once more with what its memory holds now. Does not wait.
    pub(crate) fn replay(&self) -> Result<(), TrialError> {
        // SAFETY: the graph lives.
        checked(unsafe { kiln_capture_replay(self.0.as_ptr()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim and is given back once.
        unsafe { kiln_capture_forget(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cuda_nothing_is_captured_and_the_words_say_so() {
        if tch::Cuda::is_available() {
            return;
        }
        let error = Graph::capture(Pool::new(), || -> Result<(), TrialError> {
            panic!("work that cannot be captured is not begun")
        })
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("captures work on a GPU") && error.contains("CUDAGraph"),
            "{error}"
        );
        assert!(
            use_side_stream(0)
                .unwrap_err()
                .to_string()
                .to_lowercase()
                .contains("cuda")
        );
    }
}
