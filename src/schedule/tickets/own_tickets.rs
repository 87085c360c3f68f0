//! The tickets of one launch: taking one, knowing when it is done, giving it back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    sync::mpsc::Sender,
    time::Instant,
};

use fastrand::Rng;
use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        AttemptEnd, RunFolder, StopAsked, TableRow, Ticket, TicketContent, TicketEntry,
        TicketQueue, TicketState,
    },
};

use super::{
    heartbeat::Heart,
    launch_observer::LaunchObserver,
    limits::WorkerLimits,
    next_state::HeldCause,
    take_back::{TakingBack, TicketChanges},
};
use crate::schedule::{Event, RunRequest, clock::beat, instruments::LeasedGpu};

/// Workers that begin together would all try the first ticket; each begins at one of so many.
const SPREAD: usize = 16;

/// While its trials run, a worker without a ticket to take looks so often within a beat.
const LOOKS_PER_BEAT: u32 = 10;

/// A worker that ran trials and left so many tickets to others, because its time is too short, takes
/// no more.
const MOST_LEFT: usize = 16;

/// A worker that is there, and is believed gone so many times in a row, takes no more tickets: the
/// next would be taken back too.
const MOST_BELIEFS: u32 = 2;

/// A ticket that this launch has.
#[derive(Debug)]
pub(in crate::schedule) struct OwnTicket {
    pub(in crate::schedule) ticket: Ticket,
    /// Its trials, and those that stand in for one that ran out of memory.
    pub(in crate::schedule) trials: Vec<TrialId>,
    /// Attempts up to these do not count; of the trials that it names.
    pub(in crate::schedule) after: HashMap<TrialId, u64>,
    /// How often this launch had been believed gone when it took the ticket.
    beliefs: u32,
}

impl OwnTicket {
    /// The entries of its file.
    pub(in crate::schedule) fn entries(&self) -> Vec<TicketEntry> {
        let named = self.trials.iter().filter_map(|trial| {
            let after = *self.after.get(trial)?;
            Some(TicketEntry {
                trial: trial.clone(),
                after,
            })
        });
        named.collect()
    }
}

/// The source of a worker's trials.
#[derive(Debug)]
pub(in crate::schedule) struct Tickets {
    run: RunFolder,
    queue: TicketQueue,
    launch: u64,
    pub(in crate::schedule) own: Vec<OwnTicket>,
    /// The tickets that were open when the queue was last listed.
    open: Vec<Ticket>,
    /// Numbers of those that are left to others, because a trial takes longer than this worker has:
    /// why.
    too_long: BTreeMap<u64, String>,
    /// One of them that was open when the queue was last listed.
    left: Option<u64>,
    /// Numbers of those whose trial failed here and may be retried: others first.
    passed_on: BTreeSet<u64>,
    /// Trials of which an attempt was killed here.
    killed: HashSet<TrialId>,
    /// Trials of which the time of this job ended an attempt that had most of it.
    cut_off: HashSet<TrialId>,
    /// How often this launch was believed gone although it was there, since it ended a ticket.
    beliefs: u32,
    /// The last look that found no ticket, and how many trials ran here then.
    fruitless: Option<(Instant, usize)>,
    observer: LaunchObserver,
    heart: Heart,
    random: Rng,
    pub(in crate::schedule) limits: WorkerLimits,
}

impl Tickets {
    /// Whether nothing was found a moment ago while as many trials ran here: a look costs a file server,
    /// and this machine, which measures.
    pub(in crate::schedule) fn has_just_looked(&self, running: usize) -> bool {
        let pause = beat() / LOOKS_PER_BEAT;
        self.fruitless.is_some_and(|(looked, then)| {
            then == running && running > 0 && looked.elapsed() < pause
        })
    }

    pub(in crate::schedule) fn note_fruitless(&mut self, running: usize) {
        self.fruitless = Some((Instant::now(), running));
    }

    pub(in crate::schedule) fn new(
        run: &RunFolder,
        queue: TicketQueue,
        launch: u64,
        limits: WorkerLimits,
        events: Sender<Event>,
    ) -> Self {
        Self {
            limits,
            heart: Heart::start(run, &queue, launch, events),
            run: run.clone(),
            queue,
            launch,
            own: Vec::new(),
            open: Vec::new(),
            too_long: BTreeMap::new(),
            left: None,
            passed_on: BTreeSet::new(),
            killed: HashSet::new(),
            cut_off: HashSet::new(),
            beliefs: 0,
            fruitless: None,
            observer: LaunchObserver::of_worker(),
            random: Rng::new(),
        }
    }

    /// The folder of the run.
    pub(in crate::schedule) fn run(&self) -> &RunFolder {
        &self.run
    }

    pub(in crate::schedule) fn launch(&self) -> u64 {
        self.launch
    }

    /// Takes back the tickets of launches that are gone; the rows of their lost attempts go to
    /// `keep`. Returns what was done, in sentences, and whether a ticket was opened.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(in crate::schedule) fn take_back(
        &mut self,
        request: &RunRequest,
        devices: &[LeasedGpu],
        keep: &mut dyn FnMut(&TableRow) -> io::Result<()>,
    ) -> io::Result<(Vec<String>, bool)> {
        let taking = TakingBack {
            run: &self.run,
            queue: &self.queue,
            request,
            devices,
        };
        let TicketChanges {
            told, has_opened, ..
        } = taking.take_back(&mut self.observer, Some(self.launch), keep)?;
        Ok((told, has_opened))
    }

    pub(in crate::schedule) fn stop_asked(&self) -> Option<StopAsked> {
        self.queue.stop_asked()
    }

    /// Takes an open ticket; `None` if there is none.
    ///
    /// # Errors
    /// The queue cannot be read or written.
    pub(in crate::schedule) fn take(&mut self) -> io::Result<Option<OwnTicket>> {
        if let Some(own) = self.take_known()? {
            return Ok(Some(own));
        }
        let listed = self.queue.list()?;
        // One that bears this launch's number and that it is not at: the reply to its rename was
        // lost, and the list was old.
        let own = listed.iter().find(|ticket| {
            ticket.state == TicketState::Taken(self.launch) && !self.holds(ticket.number)
        });
        if let Some(own) = own.copied()
            && let Some(own) = self.opened(own)?
        {
            return Ok(Some(own));
        }
        self.open = listed;
        self.open.retain(|ticket| ticket.state == TicketState::Open);
        let (left, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition::<Vec<Ticket>, _>(|ticket| self.too_long.contains_key(&ticket.number));
        self.left = left.first().map(|ticket| ticket.number);
        let (last, first) = open
            .into_iter()
            .partition(|ticket| self.passed_on.contains(&ticket.number));
        self.open = first;
        let taken = self.take_known()?;
        if taken.is_some() {
            return Ok(taken);
        }
        self.open = last;
        let taken = self.take_known();
        // Others may be open by the time that the next one is wanted.
        self.open.clear();
        taken
    }

    /// Whether a ticket that this launch has may still be its own.
    pub(in crate::schedule) fn may_be_own(&self, own: &OwnTicket) -> bool {
        !matches!(self.queue.has(own.ticket), Ok(false))
    }

    /// A ticket is taken here again only when no other one is open.
    pub(in crate::schedule) fn pass_on(&mut self, number: u64) {
        self.passed_on.insert(number);
    }

    /// A ticket is not taken here again.
    pub(in crate::schedule) fn leave(&mut self, number: u64, why: String) {
        self.open.retain(|ticket| ticket.number != number);
        self.too_long.insert(number, why);
        self.left = Some(number);
    }

    /// Whether so many were left that a look at all others is not worth its time.
    pub(in crate::schedule) fn has_left_many(&self) -> bool {
        self.too_long.len() >= MOST_LEFT
    }

    /// Why a ticket that is still open was left to others; `None` if there is no such ticket.
    pub(in crate::schedule) fn why_left(&self) -> Option<&str> {
        self.too_long.get(&self.left?).map(String::as_str)
    }

    fn take_known(&mut self) -> io::Result<Option<OwnTicket>> {
        while !self.open.is_empty() {
            let at = self.random.usize(..self.open.len().min(SPREAD));
            let ticket = self.open.remove(at);
            let taken = TicketState::Taken(self.launch);
            if let Some(taken) = self.queue.put(ticket, taken)?
                && let Some(own) = self.opened(taken)?
            {
                return Ok(Some(own));
            }
        }
        Ok(None)
    }

    /// Reads a ticket that was taken; `None` if it is damaged, and then it is held: its trials get
    /// another one at the end. Or if it was in an old list only.
    fn opened(&self, ticket: Ticket) -> io::Result<Option<OwnTicket>> {
        let entries = match self.queue.content(ticket)? {
            TicketContent::Whole(entries) => entries,
            TicketContent::Damaged(_) => {
                self.queue.put(ticket, TicketState::Held)?;
                return Ok(None);
            }
            TicketContent::Moved => return Ok(None),
        };
        let after = |entry: &TicketEntry| (entry.trial.clone(), entry.after);
        Ok(Some(OwnTicket {
            ticket,
            after: entries.iter().map(after).collect(),
            beliefs: self.beliefs,
            trials: entries.into_iter().map(|entry| entry.trial).collect(),
        }))
    }

    pub(in crate::schedule) fn holds(&self, number: u64) -> bool {
        self.own.iter().any(|own| own.ticket.number == number)
    }

    /// Puts a ticket into its next state; returns whether it was still this launch's.
    ///
    /// # Errors
    /// The queue cannot be written.
    pub(in crate::schedule) fn put(&self, own: &OwnTicket, state: TicketState) -> io::Result<bool> {
        self.queue.put(own.ticket, state).map(|put| put.is_some())
    }

    /// An attempt has ended here.
    pub(in crate::schedule) fn note_end(&mut self, end: AttemptEnd) {
        if end.cut_off.is_some_and(|cut| cut.had_most) {
            self.cut_off.insert(end.trial);
        } else if end.outcome == Outcome::Killed {
            self.killed.insert(end.trial);
        }
    }

    /// Whether an attempt that ended here is the reason to hold a ticket. Without one somebody asked
    /// for it again, and nothing of it was begun.
    pub(in crate::schedule) fn is_cause(&self, own: &OwnTicket, cause: HeldCause) -> bool {
        let ended = match cause {
            HeldCause::Killed => &self.killed,
            HeldCause::TooLong => &self.cut_off,
        };
        own.trials.iter().any(|trial| ended.contains(trial))
    }

    pub(in crate::schedule) fn queue(&self) -> &TicketQueue {
        &self.queue
    }

    /// This launch ended a ticket that was still its own: nobody believes it gone any more.
    pub(in crate::schedule) fn note_done(&mut self) {
        self.beliefs = 0;
    }

    /// A ticket was taken back. All that this launch had together count as one belief, and none that
    /// came up while it was out of reach.
    pub(in crate::schedule) fn note_taken_back(&mut self, own: &OwnTicket) {
        if own.beliefs == self.beliefs && !self.heart.was_away() {
            self.beliefs += 1;
        }
    }

    /// Whether somebody believes this launch gone, whatever its heartbeat says.
    pub(in crate::schedule) fn is_believed_gone(&self) -> bool {
        self.beliefs >= MOST_BELIEFS
    }

    /// The others learn what this launch is at. Returns how many trials they run on this host, as last
    /// seen.
    pub(in crate::schedule) fn tell(&self, running: usize) -> u64 {
        let own = self.own.iter().map(|own| own.ticket).collect();
        self.heart.tell(own, running as u64)
    }
}
