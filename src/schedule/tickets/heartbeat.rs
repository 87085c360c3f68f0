//! The heartbeat of a worker, from a thread of its own. The thread also looks whether the worker's
//! tickets are still its own, whether it shall stop, and how many trials others run on this host. It
//! waits for the shared folder in place of the thread that watches the trials.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc::Sender},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use kiln_core::record::{Heartbeat, RunFolder, StopAsked, Ticket, TicketQueue, TicketState};
use kiln_hardware::host;

use super::neighbours::Neighbours;
use crate::schedule::{Event, clock::beat};

/// Looks at the launches beside this one, and whether a stop was asked, for each beat.
const LOOKS_PER_BEAT: u32 = 3;
/// News is told and looked at after this part of a beat: between two trials a launch runs none for a
/// moment.
const SETTLING: u32 = 30;
/// A heart whose last beat is older than so many beats was out of reach: suspended, or the folder did
/// not answer.
const AWAY: u32 = 4;
/// What happened to the tickets meanwhile may be seen so many beats later: lists may be old, and who
/// takes a ticket back is at it for a while.
const SEEN_LATE: u32 = 20;

/// The state that the thread and the launch share.
#[derive(Debug, Default)]
struct Pulse {
    held: Vec<Ticket>,
    running: u64,
    /// Trials that other launches of the run have on this host, as seen since `running` changed.
    beside: u64,
    /// Whether `running` has changed since the last look.
    has_news: bool,
    /// When the heart beat last, on the clock that passes while the machine is suspended.
    last_beat: Duration,
    /// Since when beats do not get to the folder.
    failing_since: Option<Duration>,
    /// Until when a lost ticket may be because this launch was out of reach.
    away_until: Duration,
    is_over: bool,
}

impl Pulse {
    /// The heart beats, and the beat got to the folder or did not. A folder that takes none for long
    /// is no excuse any more: its tickets would be taken and lost again and again.
    fn note_beat(&mut self, now: Duration, beat: Duration, is_written: bool) {
        let is_late = now.saturating_sub(self.last_beat) > beat * AWAY;
        self.last_beat = now;
        let failing_since = match is_written {
            true => None,
            false => Some(self.failing_since.unwrap_or(now)),
        };
        self.failing_since = failing_since;
        let is_cut_off =
            failing_since.is_some_and(|since| now.saturating_sub(since) < beat * SEEN_LATE * 2);
        if is_late || is_cut_off {
            self.away_until = now + beat * SEEN_LATE;
        }
    }

    fn was_away(&self, now: Duration, beat: Duration) -> bool {
        now < self.away_until || now.saturating_sub(self.last_beat) > beat * AWAY
    }
}

type Shared = Arc<(Mutex<Pulse>, Condvar)>;

/// The heart of a launch; it stops when dropped.
#[derive(Debug)]
pub(super) struct Heart {
    shared: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    pub(super) fn start(
        run: &RunFolder,
        queue: &TicketQueue,
        launch: u64,
        events: Sender<Event>,
    ) -> Self {
        let shared = Shared::default();
        lock(&shared.0).last_beat = host::since_boot();
        let beating = Beating {
            run: run.clone(),
            queue: queue.clone(),
            launch,
            events,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("heart".to_owned())
            .spawn(move || beating.run(beat()))
            // Without it others take the tickets back after a while, and nothing is lost.
            .ok();
        Self { shared, thread }
    }

    /// The tickets that the launch has now, and the number of trials that it runs. Returns how many
    /// other launches of the run have on this host, as last seen.
    pub(super) fn tell(&self, held: Vec<Ticket>, running: u64) -> u64 {
        let mut pulse = lock(&self.shared.0);
        if pulse.running != running {
            // A number that was seen before a trial began does not count it.
            (pulse.has_news, pulse.beside) = (true, 0);
            self.shared.1.notify_all();
        }
        (pulse.held, pulse.running) = (held, running);
        pulse.beside
    }

    /// Whether this launch was out of reach of the others just now: suspended, or cut off from the
    /// folder.
    pub(super) fn was_away(&self) -> bool {
        lock(&self.shared.0).was_away(host::since_boot(), beat())
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        lock(&self.shared.0).is_over = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Beating {
    run: RunFolder,
    queue: TicketQueue,
    launch: u64,
    events: Sender<Event>,
    shared: Shared,
}

impl Beating {
    fn run(self, beat: Duration) {
        let mut asked: Option<StopAsked> = None;
        let mut neighbours = Neighbours::of(self.launch);
        let (mut count, mut due) = (0, Instant::now());
        loop {
            let (held, running, has_news) = {
                let mut pulse = lock(&self.shared.0);
                let has_news = std::mem::take(&mut pulse.has_news);
                (pulse.held.clone(), pulse.running, has_news)
            };
            let is_due = Instant::now() >= due;
            if is_due || has_news {
                // A folder that does not answer now answers later.
                let written = Heartbeat { count, running }.write(&self.run, self.launch);
                lock(&self.shared.0).note_beat(host::since_boot(), beat, written.is_ok());
                count += 1;
            }
            if is_due {
                due = Instant::now() + beat;
                let lost = self.taken_back(&held);
                if !lost.is_empty() {
                    let _ = self.events.send(Event::TakenBack(lost));
                }
            }
            let now = self.queue.stop_asked();
            if now > asked {
                asked = now;
                let _ = self.events.send(Event::StopAsked);
            }
            neighbours.find(&self.run);
            let beside = neighbours.running(&self.run);
            let mut pulse = lock(&self.shared.0);
            if !pulse.has_news {
                pulse.beside = beside;
            }
            drop(pulse);
            let left = due.saturating_duration_since(Instant::now());
            if self.rest(left.min(beat / LOOKS_PER_BEAT), beat / SETTLING) {
                // Others count what runs as long as this process lives.
                let _ = Heartbeat { count, running: 0 }.write(&self.run, self.launch);
                return;
            }
        }
    }

    /// The tickets that are listed in a state that is not this launch's. One that is not listed at
    /// all may be in the middle of a rename.
    fn taken_back(&self, held: &[Ticket]) -> Vec<u64> {
        let is_lost = |ticket: &&Ticket| matches!(self.queue.has(**ticket), Ok(false));
        let lost: Vec<&Ticket> = held.iter().filter(is_lost).collect();
        if lost.is_empty() {
            return Vec::new();
        }
        let listed = self.queue.list().unwrap_or_default();
        let own = TicketState::Taken(self.launch);
        let is_elsewhere = |ticket: &&&Ticket| {
            let mut same = listed.iter().filter(|other| other.number == ticket.number);
            let found = same.clone().count() > 0;
            found && same.all(|other| other.state != own)
        };
        let lost = lost.iter().filter(is_elsewhere);
        lost.map(|ticket| ticket.number).collect()
    }

    /// Waits for so long, or for news and then for `settling`; returns whether the launch is over.
    fn rest(&self, time: Duration, settling: Duration) -> bool {
        let before = time.saturating_sub(settling);
        self.wait(before, |pulse| !pulse.is_over && !pulse.has_news)
            || self.wait(settling, |pulse| !pulse.is_over)
    }

    fn wait(&self, time: Duration, goes_on: impl Fn(&Pulse) -> bool) -> bool {
        let (pulse, woken) = &*self.shared;
        let waited = woken.wait_timeout_while(lock(pulse), time, |pulse| goes_on(pulse));
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

fn lock(pulse: &Mutex<Pulse>) -> MutexGuard<'_, Pulse> {
    pulse.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use kiln_core::record::launch_folder;

    use super::*;
    use crate::schedule::tickets::neighbours::tests::begin_here;

    const BEAT: Duration = Duration::from_millis(50);

    #[test]
    fn a_heart_that_stood_still_was_away_and_for_a_while_after_it() {
        let at = Duration::from_secs;
        let mut pulse = Pulse {
            last_beat: at(1000),
            ..Pulse::default()
        };
        let beat = at(30);
        pulse.note_beat(at(1030), beat, true);
        assert!(!pulse.was_away(at(1100), beat));
        // No beat got through; then one does.
        assert!(pulse.was_away(at(1200), beat));
        pulse.note_beat(at(1900), beat, true);
        pulse.note_beat(at(1930), beat, true);
        assert!(pulse.was_away(at(1940), beat));
        for seconds in (1960..=2520).step_by(30) {
            assert_eq!(
                pulse.was_away(at(seconds), beat),
                seconds < 2500,
                "{seconds}"
            );
            pulse.note_beat(at(seconds), beat, true);
        }
        // A folder that takes no beat, for a while and then for ever.
        let mut cut_off = Pulse {
            last_beat: at(0),
            ..Pulse::default()
        };
        for seconds in (30..=3000).step_by(30) {
            cut_off.note_beat(at(seconds), beat, false);
            assert_eq!(
                cut_off.was_away(at(seconds), beat),
                seconds < 1800,
                "{seconds}"
            );
        }
        // A machine that was restored with a clock that is behind counts as away.
        pulse.note_beat(at(10), beat, true);
        assert!(pulse.was_away(at(20), beat));
    }

    #[test]
    fn what_runs_is_told_at_once_and_what_others_run_counts_from_the_next_look_on() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let queue = TicketQueue::create(&run, &[]).unwrap();
        let own = launch_folder::make(&run, 0).unwrap();
        let other = begin_here(&run, 2);
        let shared = Shared::default();
        let (events, _heard) = channel();
        let beating = Beating {
            run: run.clone(),
            queue,
            launch: own,
            events,
            shared: Arc::clone(&shared),
        };
        let heart = Heart {
            shared,
            thread: Some(std::thread::spawn(move || beating.run(BEAT))),
        };
        let wait_for = |holds: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !holds() {
                assert!(began.elapsed() < Duration::from_secs(60), "it never came");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let told = || Heartbeat::read(&run, own).map_or(9, |beat| beat.running);
        wait_for(&|| told() == 0);
        assert_eq!(heart.tell(Vec::new(), 1), 0, "seen before it began");
        wait_for(&|| told() == 1);
        wait_for(&|| heart.tell(Vec::new(), 1) == 2);
        Heartbeat {
            count: 9,
            running: 3,
        }
        .write(&run, other)
        .unwrap();
        wait_for(&|| heart.tell(Vec::new(), 1) == 3);
        assert_eq!(heart.tell(Vec::new(), 2), 0, "another trial began");
        wait_for(&|| told() == 2);
        drop(heart);
        assert_eq!(told(), 0, "nothing runs any more");
    }
}
