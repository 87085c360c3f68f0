//! Whether a program shows signs of life. Pure.

use std::time::{Duration, Instant};

/// Share of one CPU core, since the last sign of life, from which a program computes. Launchers that
/// only wait for hung processes use less: `torchrun` 0.7 %.
const LEAST_SHARE: f64 = 0.01;
/// Share since the last look that counts too: a short piece of work after a long rest.
const LEAST_SHARE_OF_A_LOOK: f64 = 0.1;
/// CPU time below which nothing counts: the kernel measures in hundredths of a second.
const LEAST_CPU_SECONDS: f64 = 0.05;
const EPSILON: f64 = 1e-6;

/// Bytes written and CPU time used until a moment, by a program and all that it started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) at: Instant,
    pub(super) bytes: u64,
    pub(super) cpu_seconds: f64,
}

#[derive(Debug)]
pub(super) struct ProgramLife {
    sign: Done,
    look: Done,
}

impl ProgramLife {
    pub(super) fn new(at: Instant) -> Self {
        let nothing = Done {
            at,
            bytes: 0,
            cpu_seconds: 0.0,
        };
        Self {
            sign: nothing,
            look: nothing,
        }
    }

    /// Whether the program wrote or computed since the last sign of life.
    pub(super) fn has_worked(&mut self, now: Done) -> bool {
        // The sum falls when a process ends whose parent did not wait for it.
        let has_ended = now.cpu_seconds < self.look.cpu_seconds - EPSILON;
        let has_worked = now.bytes != self.sign.bytes
            || has_ended
            || has_computed(&self.sign, &now, LEAST_SHARE)
            || has_computed(&self.look, &now, LEAST_SHARE_OF_A_LOOK);
        self.look = now;
        if has_worked {
            self.sign = now;
        }
        has_worked
    }
}

fn has_computed(since: &Done, now: &Done, share: f64) -> bool {
    let used = now.cpu_seconds - since.cpu_seconds + EPSILON;
    let time: Duration = now.at.saturating_duration_since(since.at);
    used >= LEAST_CPU_SECONDS && used >= share * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds with a sign of life, of a program looked at every second, by its CPU time in
    /// hundredths of a second.
    fn signs(seconds: u64, ticks: impl Fn(u64) -> u64) -> Vec<u64> {
        let start = Instant::now();
        let mut life = ProgramLife::new(start);
        (1..=seconds)
            .filter(|second| {
                life.has_worked(Done {
                    at: start + Duration::from_secs(*second),
                    bytes: 0,
                    cpu_seconds: ticks(*second) as f64 / 100.0,
                })
            })
            .collect()
    }

    #[test]
    fn cpu_time_counts_from_a_hundredth_of_a_core() {
        assert!(signs(600, |_| 0).is_empty());
        assert!(signs(600, |second| second * 7 / 10).is_empty(), "torchrun");
        // At 2 % and at 1 % the least time that counts comes every 3 s and every 5 s.
        assert_eq!(signs(9, |second| second * 2), [3, 6, 9]);
        assert_eq!(signs(10, |second| second), [5, 10]);
        assert_eq!(signs(3, |second| second * 100), [1, 2, 3]);
    }

    #[test]
    fn a_short_piece_of_work_after_a_long_rest_counts() {
        assert_eq!(signs(302, |second| 20 * u64::from(second > 300)), [301]);
    }

    #[test]
    fn a_byte_and_a_process_that_ended_count() {
        let start = Instant::now();
        let mut life = ProgramLife::new(start);
        let mut look = |bytes, cpu_seconds| {
            let at = start + Duration::from_secs(300);
            life.has_worked(Done {
                at,
                bytes,
                cpu_seconds,
            })
        };
        assert!(look(1, 0.04));
        assert!(!look(1, 0.04));
        assert!(look(1, 0.02));
        assert!(!look(1, 0.02));
    }
}
