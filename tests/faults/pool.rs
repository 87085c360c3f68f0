//! Runs the cases of a test side by side.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
};

use crate::{ends::Violation, form::is_wanted};

/// One case: its name, and what it found.
pub(crate) struct Tried {
    pub(crate) case: String,
    pub(crate) violations: Vec<Violation>,
}

/// Twice as many as cores, because a case mostly waits for processes.
fn workers() -> usize {
    2 * thread::available_parallelism().map_or(2, usize::from)
}

/// Tries each wanted case; a case that panics has a violation with the panic's text.
pub(crate) fn try_each<T: Send>(
    cases: Vec<(String, T)>,
    attempt: impl Fn(&str, T) -> Vec<Violation> + Sync,
) -> Vec<Tried> {
    let waiting = Mutex::new(
        cases
            .into_iter()
            .filter(|(case, _)| is_wanted(case))
            .collect::<Vec<_>>()
            .into_iter(),
    );
    let tried = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers() {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().next();
                    let Some((case, what)) = next else { break };
                    let found = catch_unwind(AssertUnwindSafe(|| attempt(&case, what)));
                    let violations = found.unwrap_or_else(|panic| {
                        vec![Violation::new("suite", text_of(panic.as_ref()))]
                    });
                    tried.lock().unwrap().push(Tried { case, violations });
                }
            });
        }
    });
    tried.into_inner().unwrap()
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
