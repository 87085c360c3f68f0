//! Errors of a file server that pass: what it answered late, or with a stale handle, it may answer at
//! the next try.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;

/// A try that begins later is not made, whatever the others took.
const LONGEST: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// An error that may pass.
pub trait Passing {
    /// Its number in the system; `None` if it has none.
    fn errno(&self) -> Option<Errno>;
}

impl Passing for Errno {
    fn errno(&self) -> Option<Errno> {
        Some(*self)
    }
}

/// Does it again, for a second at most, while it fails with an error that passes. It must do no harm
/// twice: the server may have done it and lost the reply. Never for a sync, which may succeed at the
/// second try although the data was lost at the first.
///
/// # Errors
/// That of the last try.
pub fn patiently<T, E: Passing>(mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(error) if passes(&error) && begun.elapsed() < LONGEST => {
                thread::sleep(BETWEEN_TRIES);
            }
            done => return done,
        }
    }
}

/// Does it again after each of these waits while `is_unread` says that the system could not read: for
/// work that takes so long, as a hash of a large file does, that [`patiently`] makes one try.
///
/// # Errors
/// That of the last try.
pub(crate) fn again_after<T, E>(
    waits: &[Duration],
    is_unread: impl Fn(&E) -> bool,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for wait in waits {
        match work() {
            Err(error) if is_unread(&error) => thread::sleep(*wait),
            done => return done,
        }
    }
    work()
}

/// Whether a file server may succeed at the next try: it did not reply in time, or its handle of the
/// file is stale.
fn passes(error: &impl Passing) -> bool {
    matches!(
        error.errno(),
        Some(Errno::STALE | Errno::IO | Errno::TIMEDOUT)
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_that_passes_is_tried_again() {
        let mut errors = vec![Errno::STALE, Errno::IO];
        let mut work = || match errors.pop() {
            Some(errno) => Err(io::Error::from(errno)),
            None => Ok(()),
        };
        assert!(patiently(&mut work).is_ok());
        let denied = patiently(|| Err::<(), _>(Errno::ACCESS));
        assert_eq!(denied, Err(Errno::ACCESS));
    }
}
