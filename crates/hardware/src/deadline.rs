//! The end of a wait for a driver, which each of its answers puts off.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A driver that goes on to answer, but slowly, is waited for up to so many times the patience.
const MOST_FOR_SLOW: u32 = 4;

thread_local! {
    /// Where this thread counts the answers of the driver, if somebody waits for them.
    static ANSWERS: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Counts an answer of the driver to a call of this thread.
pub(super) fn count_answer() {
    ANSWERS.with_borrow(|answers| {
        if let Some(answers) = answers {
            answers.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// The end of a wait, which each answer of the driver puts off.
pub(super) struct Deadline {
    at: Instant,
    /// It is put off to this moment at most.
    last: Instant,
    /// The time for the next answer.
    limit: Duration,
    pub(super) answers: Arc<AtomicU64>,
    seen: u64,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            at: now + limit,
            last: now + limit * MOST_FOR_SLOW,
            limit,
            answers: Arc::default(),
            seen: 0,
        }
    }

    pub(super) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let answers = self.answers.load(Ordering::Relaxed);
        if answers != self.seen {
            self.seen = answers;
            self.at = (now + self.limit).min(self.last);
        }
        self.at.saturating_duration_since(now)
    }
}

/// Work whose thread counts the answers of the driver.
pub(super) fn counted<T>(answers: Arc<AtomicU64>, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        ANSWERS.set(Some(answers));
        work()
    }
}
