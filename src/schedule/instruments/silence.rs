//! GPUs whose driver has not answered the scheduler: it does not wait for them again at once.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

/// For so long a GPU that did not answer counts as silent without being asked.
const PAUSE: Duration = Duration::from_secs(60);

/// Whether a GPU may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// It has answered, or was not asked.
    Answers,
    /// It did not answer a moment ago, and is not asked.
    Silent,
    /// It did not answer a while ago, and is asked again.
    Retry,
}

/// The silent GPUs, by UUID.
#[derive(Debug, Default)]
pub(super) struct SilentGpus {
    since: HashMap<String, Instant>,
    told: HashSet<String>,
    untold: Vec<String>,
}

impl SilentGpus {
    pub(super) fn hearing(&self, uuid: &str, now: Instant) -> Hearing {
        match self.since.get(uuid) {
            None => Hearing::Answers,
            Some(since) if now.saturating_duration_since(*since) < PAUSE => Hearing::Silent,
            Some(_) => Hearing::Retry,
        }
    }

    /// Notes whether a GPU that was asked has answered.
    pub(super) fn note(&mut self, uuid: &str, has_answered: bool, now: Instant) {
        if has_answered {
            self.since.remove(uuid);
        } else {
            self.since.insert(uuid.to_owned(), now);
            self.tell(uuid);
        }
    }

    /// The sampler waits for a GPU already, which is therefore not asked. The user is not told yet: the
    /// GPU may answer in time.
    pub(super) fn avoid(&mut self, uuid: &str, now: Instant) {
        self.since.insert(uuid.to_owned(), now);
    }

    /// The user is told of the GPU, once in a launch.
    pub(super) fn tell(&mut self, uuid: &str) {
        if self.told.insert(uuid.to_owned()) {
            self.untold.push(uuid.to_owned());
        }
    }

    /// GPUs of which the user was not told yet.
    pub(super) fn take_untold(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_gpu_is_asked_again_after_a_pause_and_told_of_once() {
        let mut silent = SilentGpus::default();
        let begin = Instant::now();
        let later = begin + PAUSE;
        assert_eq!(silent.hearing("a", begin), Hearing::Answers);
        silent.note("a", false, begin);
        assert_eq!(silent.hearing("a", begin), Hearing::Silent);
        assert_eq!(silent.hearing("b", begin), Hearing::Answers);
        assert_eq!(silent.hearing("a", later), Hearing::Retry);
        silent.note("a", false, later);
        assert_eq!(silent.hearing("a", later), Hearing::Silent);
        assert_eq!(silent.take_untold(), ["a"]);
        silent.note("a", true, later);
        assert_eq!(silent.hearing("a", later), Hearing::Answers);
        silent.tell("a");
        assert!(silent.take_untold().is_empty());
    }

    #[test]
    fn a_gpu_that_the_sampler_waits_for_is_not_asked_and_not_told_of_yet() {
        let mut silent = SilentGpus::default();
        let begin = Instant::now();
        silent.avoid("a", begin);
        assert_eq!(silent.hearing("a", begin), Hearing::Silent);
        assert_eq!(silent.hearing("a", begin + PAUSE), Hearing::Retry);
        assert!(silent.take_untold().is_empty());
        silent.tell("a");
        assert_eq!(silent.take_untold(), ["a"]);
    }
}
