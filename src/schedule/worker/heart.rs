//! The thread of a worker that shows that it lives, and looks whether its tickets are still its own
//! and whether it shall stop. It waits for the shared folder in place of the thread that watches the
//! trials.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc::Sender},
    thread::JoinHandle,
    time::Duration,
};

use kiln_core::record::{Heartbeat, RunFolder, StopAsked, Ticket, TicketQueue, TicketState};

use super::beat;
use crate::schedule::Event;

/// What the thread and the launch share.
#[derive(Debug, Default)]
struct Pulse {
    held: Vec<Ticket>,
    running: u64,
    is_over: bool,
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

    /// The tickets that the launch has now, and the number of trials that it runs.
    pub(super) fn tell(&self, held: Vec<Ticket>, running: u64) {
        let mut pulse = lock(&self.shared.0);
        (pulse.held, pulse.running) = (held, running);
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
        for count in 0.. {
            let (held, running) = {
                let pulse = lock(&self.shared.0);
                (pulse.held.clone(), pulse.running)
            };
            // A folder that does not answer now answers later.
            let _ = Heartbeat { count, running }.write(&self.run, self.launch);
            for ticket in self.taken_back(&held) {
                let _ = self.events.send(Event::TakenBack(ticket));
            }
            let now = self.queue.stop_asked();
            if now > asked {
                asked = now;
                let _ = self.events.send(Event::StopAsked);
            }
            if self.rest(beat) {
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

    /// Waits for the next beat; returns whether the launch is over.
    fn rest(&self, beat: Duration) -> bool {
        let (pulse, woken) = &*self.shared;
        let waited = woken.wait_timeout_while(lock(pulse), beat, |pulse| !pulse.is_over);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

fn lock(pulse: &Mutex<Pulse>) -> MutexGuard<'_, Pulse> {
    pulse.lock().unwrap_or_else(PoisonError::into_inner)
}
