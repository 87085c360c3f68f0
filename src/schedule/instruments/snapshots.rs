//! Snapshots of the GPUs of a trial, each read in a thread of its own. The scheduler waits a moment
//! for them; one that comes later goes into the table at a later tick, and a GPU that hangs is not
//! read again before it has answered.

use std::{
    collections::HashMap,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use kiln_core::{plan::TrialId, record::SnapshotMoment};
use kiln_hardware::{Patience, Snapshot};

/// Longest wait of the scheduler. All readings of a GPU take less than half a second where the driver
/// is well.
const MOMENT: Duration = Duration::from_secs(1);

/// A snapshot that took longer is of another moment, and is dropped.
const LATEST: Duration = Duration::from_secs(10);

/// When and why a snapshot is read.
#[derive(Clone, Debug)]
pub(super) struct SnapshotOccasion {
    pub(super) moment: SnapshotMoment,
    pub(super) trial: TrialId,
    pub(super) attempt: u64,
    pub(super) run_seconds: f64,
}

/// A snapshot that was read.
#[derive(Debug)]
pub(super) struct TakenSnapshot {
    pub(super) snapshot: Snapshot,
    pub(super) occasion: SnapshotOccasion,
    uuid: String,
    took: Duration,
}

/// Reads snapshots beside the scheduler.
#[derive(Debug)]
pub(super) struct SnapshotReader {
    sender: Sender<TakenSnapshot>,
    answers: Receiver<TakenSnapshot>,
    /// GPUs that have not answered, and since when they are read.
    awaited: HashMap<String, Instant>,
    arrived: Vec<TakenSnapshot>,
    /// Whether the last answer came too late for the scheduler, which then waits for none.
    is_slow: bool,
}

impl Default for SnapshotReader {
    fn default() -> Self {
        let (sender, answers) = channel();
        Self {
            sender,
            answers,
            awaited: HashMap::new(),
            arrived: Vec::new(),
            is_slow: false,
        }
    }
}

impl SnapshotReader {
    /// Begins to read these GPUs, and waits a moment for their snapshots.
    pub(super) fn read(
        &mut self,
        uuids: Vec<String>,
        occasion: &SnapshotOccasion,
        patience: &Patience,
        read: impl Fn(&str) -> Snapshot + Clone + Send + 'static,
    ) {
        self.collect();
        let asked: Vec<String> = uuids
            .into_iter()
            .filter(|uuid| self.begin(uuid, occasion, read.clone()))
            .collect();
        let deadline = Instant::now() + MOMENT;
        while !self.is_slow && asked.iter().any(|uuid| self.awaited.contains_key(uuid)) {
            let left = deadline.saturating_duration_since(Instant::now());
            match patience.answer(&self.answers, left) {
                Some(taken) => self.keep(taken),
                None => self.is_slow = true,
            }
        }
    }

    /// Starts a thread that reads the GPU; `false` if there is one already, or the system has none.
    pub(super) fn begin(
        &mut self,
        uuid: &str,
        occasion: &SnapshotOccasion,
        read: impl Fn(&str) -> Snapshot + Send + 'static,
    ) -> bool {
        if self.awaited.contains_key(uuid) {
            return false;
        }
        let begun = Instant::now();
        let (sender, occasion, asked) = (self.sender.clone(), occasion.clone(), uuid.to_owned());
        let work = move || {
            let snapshot = read(&asked);
            // Nobody listens any more after the end of the launch.
            let _ = sender.send(TakenSnapshot {
                snapshot,
                occasion,
                uuid: asked,
                took: begun.elapsed(),
            });
        };
        let started = thread::Builder::new()
            .name("driver call".to_owned())
            .spawn(work);
        if started.is_ok() {
            self.awaited.insert(uuid.to_owned(), begun);
        }
        started.is_ok()
    }

    /// Waits for the snapshots that may still come in time, at the end of a launch; only a moment where
    /// that end is asked for.
    pub(super) fn finish(&mut self, patience: &Patience, is_asked: bool) {
        let limit = patience.limit().min(if is_asked { MOMENT } else { LATEST });
        while let Some(left) = self.longest_left(limit) {
            match patience.answer(&self.answers, left) {
                Some(taken) => self.keep(taken),
                None => return,
            }
        }
    }

    /// Time until the last of the awaited snapshots has taken `limit`; `None` if all have.
    fn longest_left(&self, limit: Duration) -> Option<Duration> {
        self.awaited
            .values()
            .filter_map(|begun| limit.checked_sub(begun.elapsed()))
            .max()
    }

    /// The snapshots that came since the last call, in the order in which they were asked for.
    pub(super) fn take_arrived(&mut self) -> Vec<TakenSnapshot> {
        self.collect();
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.sort_by(|one, other| {
            let by_time = one
                .occasion
                .run_seconds
                .total_cmp(&other.occasion.run_seconds);
            by_time.then_with(|| one.uuid.cmp(&other.uuid))
        });
        arrived
    }

    /// GPUs that have not answered for so long.
    pub(super) fn silent_for(&self, limit: Duration) -> Vec<String> {
        self.awaited
            .iter()
            .filter(|(_, begun)| begun.elapsed() >= limit)
            .map(|(uuid, _)| uuid.clone())
            .collect()
    }

    fn collect(&mut self) {
        while let Ok(taken) = self.answers.try_recv() {
            self.keep(taken);
        }
    }

    fn keep(&mut self, taken: TakenSnapshot) {
        self.awaited.remove(&taken.uuid);
        self.is_slow = taken.took > MOMENT;
        if taken.took <= LATEST {
            self.arrived.push(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn occasion(trial: &str, run_seconds: f64) -> SnapshotOccasion {
        SnapshotOccasion {
            moment: SnapshotMoment::Start,
            trial: TrialId(trial.to_owned()),
            attempt: 1,
            run_seconds,
        }
    }

    fn of(device: &str) -> Snapshot {
        Snapshot {
            device: device.to_owned(),
            entries: Vec::new(),
        }
    }

    /// Trial and device of each snapshot that came.
    fn arrived(reader: &mut SnapshotReader) -> Vec<(String, String)> {
        let taken = reader.take_arrived().into_iter();
        taken
            .map(|taken| (taken.occasion.trial.0, taken.snapshot.device))
            .collect()
    }

    fn pair(trial: &str, device: &str) -> (String, String) {
        (trial.to_owned(), device.to_owned())
    }

    #[test]
    fn a_gpu_that_hangs_is_waited_for_once_and_its_late_snapshot_is_kept() {
        let (release, hang) = channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let read = move |uuid: &str| {
            if uuid == "hangs" {
                let _ = hang.lock().unwrap().recv();
            }
            of(uuid)
        };
        let mut reader = SnapshotReader::default();
        let both = || vec!["hangs".to_owned(), "well".to_owned()];
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(600));
        reader.read(
            vec!["hangs".to_owned()],
            &occasion("a", 1.0),
            &Patience::of(short),
            read.clone(),
        );
        assert_eq!(reader.silent_for(Duration::ZERO), ["hangs"]);
        assert!(reader.silent_for(long).is_empty());
        // No second thread hangs on it, and the other GPU is still read.
        let patience = Patience::of(long);
        reader.read(both(), &occasion("b", 2.0), &patience, read);
        while reader.awaited.contains_key("well") {
            reader.collect();
            thread::yield_now();
        }
        assert_eq!(arrived(&mut reader), [pair("b", "well")]);
        release.send(()).unwrap();
        reader.finish(&patience, false);
        assert_eq!(arrived(&mut reader), [pair("a", "hangs")]);
    }

    #[test]
    fn nothing_is_waited_for_while_the_driver_is_slow() {
        let (_release, hang) = channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let read = move |uuid: &str| {
            let _ = hang.lock().unwrap().recv();
            of(uuid)
        };
        let mut reader = SnapshotReader {
            is_slow: true,
            ..SnapshotReader::default()
        };
        let patience = Patience::of(Duration::from_secs(600));
        reader.read(vec!["a".to_owned()], &occasion("t", 1.0), &patience, read);
        assert_eq!(patience.take_waited(), Duration::ZERO);
        assert_eq!(reader.silent_for(Duration::ZERO), ["a"]);
    }

    #[test]
    fn an_end_that_is_asked_for_waits_a_moment_at_most() {
        let mut reader = SnapshotReader::default();
        let begun = Instant::now().checked_sub(MOMENT).unwrap();
        reader.awaited.insert("a".to_owned(), begun);
        let patience = Patience::of(Duration::from_secs(600));
        reader.finish(&patience, true);
        assert_eq!(patience.take_waited(), Duration::ZERO);
    }

    #[test]
    fn a_snapshot_of_another_moment_is_dropped_and_the_next_one_decides_about_waiting() {
        let mut reader = SnapshotReader::default();
        let taken = |took: Duration| TakenSnapshot {
            snapshot: of("a"),
            occasion: occasion("t", 1.0),
            uuid: "a".to_owned(),
            took,
        };
        reader.keep(taken(LATEST + MOMENT));
        assert!(reader.is_slow && arrived(&mut reader).is_empty());
        reader.keep(taken(MOMENT / 2));
        assert!(!reader.is_slow);
        assert_eq!(arrived(&mut reader), [pair("t", "a")]);
    }
}
