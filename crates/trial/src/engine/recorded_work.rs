//! Whether this thread does work that is recorded. A replay reads the memory that the recording read:
//! recorded work must not read tensors that may be freed before the recording is, such as those of a
//! cache with a limit. A tensor that it makes holds nothing before the first replay: no cache may
//! keep it.

use std::cell::Cell;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread does work that is recorded.
pub(crate) fn is_on() -> bool {
    IS_ON.get()
}

/// Does work that is recorded.
#[cfg(feature = "libtorch")]
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> T {
    /// Also where the work leaves with a panic.
    struct End(bool);
    impl Drop for End {
        fn drop(&mut self) {
            IS_ON.set(self.0);
        }
    }
    let _end = End(IS_ON.replace(true));
    work()
}
