//! A launch among several on a run: its trials come from tickets of the run's queue.

use std::io;

use kiln_core::{
    plan::{Outcome, Trial},
    record::{AttemptEnd, CollectedRows, StopAsked, TicketState, attempt::listed_attempts},
    spec::OnOom,
};

use super::LaunchState;
use crate::schedule::{
    attempt::Attempt,
    disk,
    judge::StopCause,
    remaining::{History, PlanCount, fallback},
    signals::StopRequest,
    tickets::{HeldCause, NextState, OwnTicket, Standing, Tickets, held_in_words, why_damaged},
};

impl LaunchState<'_> {
    /// Takes tickets until one has a trial to run, and puts its trials into the queue; returns
    /// whether there was one. Without an open ticket it takes back those of launches that are gone.
    pub(super) fn take_ticket(&mut self) -> bool {
        let Some(mut tickets) = self.tickets.take() else {
            return false;
        };
        let taken = match tickets.stop_asked() {
            Some(_) => Ok(false),
            None if tickets.has_just_looked(self.running.len()) => Ok(false),
            None => {
                let taken = self.take_from(&mut tickets);
                if let Ok(false) = taken {
                    tickets.note_fruitless(self.running.len());
                }
                taken
            }
        };
        self.tickets = Some(tickets);
        match taken {
            Ok(false) => {
                self.end_if_out_of_time();
                false
            }
            Ok(true) => true,
            // The running trials go on.
            Err(error) => {
                self.start_no_more(disk::cannot_write(self.request)(error));
                false
            }
        }
    }

    fn take_from(&mut self, tickets: &mut Tickets) -> io::Result<bool> {
        if self.next_token > 0 && tickets.has_left_many() {
            return Ok(false);
        }
        loop {
            let Some(own) = tickets.take()? else {
                if self.take_back(tickets)? {
                    continue;
                }
                return Ok(false);
            };
            if let Some(unknown) = own
                .trials
                .iter()
                .find(|id| self.trials.iter().all(|trial| trial.id != **id))
            {
                let why = why_damaged(own.ticket.number, unknown);
                tickets.put(&own, TicketState::Held)?;
                self.notice(&why);
                continue;
            }
            if self.begin_ticket(tickets, own)? {
                return Ok(true);
            }
        }
    }

    /// Puts the trials of a ticket that have no final row into the queue; without one the ticket is
    /// done.
    fn begin_ticket(&mut self, tickets: &mut Tickets, mut own: OwnTicket) -> io::Result<bool> {
        let run = &self.request.experiment.run;
        let mut is_begun = false;
        for trial in &own.trials {
            is_begun |= !listed_attempts(tickets.run(), trial)?.is_empty();
        }
        // Rows of others matter only for a trial that was begun, and for the memory of all.
        if run.on_oom == OnOom::SkipLarger || is_begun {
            self.open.others = others(tickets)?;
        }
        self.read_history(tickets.own.iter().chain([&own]));
        self.add_stand_ins(&mut own);
        let left: Vec<usize> = (0..self.trials.len())
            .filter(|index| {
                let id = &self.trials[*index].id;
                own.trials.contains(id)
                    && !self.history.is_settled(id, run.retries)
                    // A trial may be in two tickets, and wait or run here because of the other one.
                    && !self.queue.has(*index)
                    && self.running.iter().all(|attempt| attempt.index != *index)
            })
            .collect();
        if left.is_empty() {
            tickets.put(&own, TicketState::Done)?;
            self.read_history(tickets.own.iter());
            return Ok(false);
        }
        left.into_iter().for_each(|index| self.queue.then(index));
        tickets.own.push(own);
        Ok(true)
    }

    /// The history of the trials, of the rows that count for these tickets.
    fn read_history<'t>(&mut self, own: impl Iterator<Item = &'t OwnTicket> + Clone) {
        let counts = |end: &&AttemptEnd| {
            let mut after = own.clone().filter_map(|own| own.after.get(&end.trial));
            after.all(|after| *after == 0 || end.attempt > *after)
        };
        self.history = History::of(self.open.ends().filter(counts));
        self.progress = PlanCount::default();
        self.note_oom_trials();
    }

    /// The trials that stand in for those of a ticket that ran out of memory before.
    fn add_stand_ins(&mut self, own: &mut OwnTicket) {
        if self.request.experiment.run.on_oom != OnOom::Shrink {
            return;
        }
        let mut at = 0;
        while let Some(id) = own.trials.get(at).cloned() {
            at += 1;
            if self.history.last(&id) != Some(Outcome::Oom) {
                continue;
            }
            let Some(failed) = self.trials.iter().find(|trial| trial.id == id) else {
                continue;
            };
            let smaller = failed.shrunk();
            let is_known = |trial: &&Trial| {
                let is_it = smaller
                    .as_ref()
                    .is_some_and(|smaller| smaller.id == trial.id);
                is_it && trial.fallback_of.is_some()
            };
            if let Some(known) = self.trials.iter().find(is_known) {
                own.trials.push(known.id.clone());
            } else if let Some(smaller) = fallback(&self.trials, failed) {
                own.trials.push(smaller.id.clone());
                self.trials.to_mut().push(smaller);
            }
        }
    }

    /// Takes back the tickets of launches that are gone; returns whether one was.
    fn take_back(&mut self, tickets: &mut Tickets) -> io::Result<bool> {
        let (request, store) = (self.request, &mut self.open.store);
        let devices = self.instruments.devices();
        let (told, has_opened) = tickets.take_back(request, &devices, &mut |row| {
            store.keep(row).map(drop).map_err(io::Error::from)
        })?;
        told.iter().for_each(|text| self.notice(text));
        Ok(has_opened)
    }

    /// Hands in the tickets of which nothing is left.
    pub(super) fn settle_tickets(&mut self) {
        let Some(mut tickets) = self.tickets.take() else {
            return;
        };
        let retries = self.request.experiment.run.retries;
        let is_done = |own: &OwnTicket| {
            let mut trials = own.trials.iter();
            trials.all(|trial| self.history.is_settled(trial, retries))
        };
        let (done, left) = std::mem::take(&mut tickets.own)
            .into_iter()
            .partition(is_done);
        tickets.own = left;
        self.put(&mut tickets, done, TicketState::Done);
        self.tickets = Some(tickets);
        self.end_if_believed_gone();
    }

    /// Gives back what this launch has not finished.
    pub(super) fn give_tickets_back(&mut self) {
        let Some(mut tickets) = self.tickets.take() else {
            return;
        };
        let (trials, history) = (self.trials.clone(), self.history.clone());
        let standing = Standing::new(&trials, &history, self.request.experiment.run.retries);
        let mut too_long = Vec::new();
        for own in std::mem::take(&mut tickets.own) {
            let next = standing.next(&own.entries());
            let is_cause = |cause| tickets.is_cause(&own, cause);
            match (next, next.cause().filter(|cause| is_cause(*cause))) {
                (NextState::Done, _) => self.put(&mut tickets, vec![own], TicketState::Done),
                (_, None) => self.put(&mut tickets, vec![own], TicketState::Open),
                (_, Some(HeldCause::TooLong)) => too_long.push(own),
                (_, Some(cause)) => {
                    self.notice(&held_in_words(own.ticket.number, cause, 0, 0));
                    self.put(&mut tickets, vec![own], TicketState::Held);
                }
            }
        }
        for own in too_long {
            self.hold(&tickets, &standing, own);
        }
    }

    /// Holds a ticket whose trials are longer than their jobs, or those of them that are, and others
    /// like it.
    fn hold(&mut self, tickets: &Tickets, standing: &Standing<'_>, own: OwnTicket) {
        let (queue, entries) = (tickets.queue(), own.entries());
        let hold = || -> io::Result<Option<(usize, usize)>> {
            let left = standing.hold(queue, own.ticket, entries.clone())?;
            let others = standing.hold_others(queue, &entries)?;
            Ok(left.map(|left| (left, others)))
        };
        match hold() {
            Ok(Some((left, others))) => {
                let number = own.ticket.number;
                self.notice(&held_in_words(number, HeldCause::TooLong, left, others));
            }
            Ok(None) => {}
            Err(error) => self.fail(disk::cannot_write(self.request)(error)),
        }
    }

    /// Takes tickets out of those that this launch has, and their trials out of its queue.
    fn part_with(
        &mut self,
        tickets: &mut Tickets,
        is_gone: impl Fn(&OwnTicket) -> bool,
    ) -> Vec<OwnTicket> {
        let (gone, left): (Vec<OwnTicket>, _) = std::mem::take(&mut tickets.own)
            .into_iter()
            .partition(is_gone);
        tickets.own = left;
        let trials = &self.trials;
        let is_of_them = |index: usize| {
            let mut gone = gone.iter();
            gone.any(|own| own.trials.contains(&trials[index].id))
        };
        self.queue.forget(is_of_them);
        gone
    }

    /// The ticket of a trial that takes longer than this worker has is left to others.
    pub(super) fn leave_ticket(&mut self, index: usize, why: &str) {
        let Some(mut tickets) = self.tickets.take() else {
            return;
        };
        let id = self.trials[index].id.clone();
        let left = self.part_with(&mut tickets, |own| own.trials.contains(&id));
        for own in &left {
            tickets.leave(own.ticket.number, why.to_owned());
        }
        self.notice(&format!("{why}; its ticket is left to others"));
        self.put(&mut tickets, left, TicketState::Open);
        self.tickets = Some(tickets);
    }

    /// The ticket of a trial that failed and has retries left goes back, so that another worker may
    /// have more luck; returns whether it does. One of several trials stays: they keep to one worker.
    pub(super) fn pass_on(&mut self, index: usize) -> bool {
        let Some(mut tickets) = self.tickets.take() else {
            return false;
        };
        let id = &self.trials[index].id.clone();
        let passed = self.part_with(&mut tickets, |own| own.trials == [id.clone()]);
        let is_passed_on = !passed.is_empty();
        for own in &passed {
            tickets.pass_on(own.ticket.number);
        }
        self.put(&mut tickets, passed, TicketState::Open);
        self.tickets = Some(tickets);
        is_passed_on
    }

    fn put(&mut self, tickets: &mut Tickets, all: Vec<OwnTicket>, state: TicketState) {
        for own in all {
            let is_own = tickets.may_be_own(&own);
            match tickets.put(&own, state) {
                Ok(true) if is_own => {
                    if state == TicketState::Done {
                        tickets.note_done();
                    }
                }
                Ok(_) => {
                    tickets.note_taken_back(&own);
                    self.notice(&format!(
                        "ticket {} was taken back: this worker was believed gone; its rows count, and \
                         what is left of the ticket is for others",
                        own.ticket.number
                    ));
                }
                Err(error) => self.fail(disk::cannot_write(self.request)(error)),
            }
        }
    }

    /// These tickets are no longer this launch's: their trials are stopped, and those that wait are
    /// left to others.
    pub(super) fn tickets_taken_back(&mut self, taken: &[u64]) {
        let Some(mut tickets) = self.tickets.take() else {
            return;
        };
        // One that this launch gave back and took again since the look is its own.
        let own: Vec<u64> = tickets
            .own
            .iter()
            .filter(|own| tickets.may_be_own(own))
            .map(|own| own.ticket.number)
            .collect();
        let is_lost = |number: u64| taken.contains(&number) && !own.contains(&number);
        let lost = self.part_with(&mut tickets, |own| is_lost(own.ticket.number));
        lost.iter().for_each(|own| tickets.note_taken_back(own));
        self.tickets = Some(tickets);
        for own in &lost {
            for attempt in &mut self.running {
                if own.trials.contains(&self.trials[attempt.index].id) {
                    attempt.stop(StopCause::TakenBack);
                }
            }
            self.notice(&format!(
                "ticket {} was taken back: this worker was believed gone; its trials here are \
                 stopped, and whoever takes the ticket runs them again",
                own.ticket.number
            ));
        }
        self.end_if_believed_gone();
    }

    /// A trial that ended without a word may have been ended by who took its ticket back from a worker
    /// of this host: that is looked up before it is said that nobody knows who did it.
    pub(super) fn look_whose_it_is(&mut self, at: usize) {
        let Some(tickets) = &self.tickets else {
            return;
        };
        let attempt = &self.running[at];
        let id = &self.trials[attempt.index].id;
        let mut own = tickets.own.iter();
        let ticket = own.find(|own| own.trials.contains(id));
        if let Some(ticket) = ticket.filter(|own| !tickets.may_be_own(own))
            && !attempt.has_finished()
        {
            self.tickets_taken_back(&[ticket.ticket.number]);
        }
    }

    /// Each running trial keeps the most that ran beside it, here and in other launches of this host,
    /// which learn how many run here. One that has said that it is finished, and whose process is about
    /// to end, does not count.
    pub(super) fn count_concurrent(&mut self) {
        let is_at_work = |attempt: &&mut Attempt| !attempt.has_finished();
        let own = self.running.iter_mut().filter(is_at_work).count();
        let tickets = self.tickets.as_ref();
        let concurrent = own as u64 + tickets.map_or(0, |tickets| tickets.tell(own));
        for attempt in self.running.iter_mut().filter(is_at_work) {
            attempt.most_concurrent = attempt.most_concurrent.max(concurrent);
        }
    }

    /// Whether this launch may run the trial again: its ticket was not taken back.
    pub(super) fn is_its(&self, index: usize) -> bool {
        let id = &self.trials[index].id;
        self.tickets
            .as_ref()
            .is_none_or(|tickets| tickets.own.iter().any(|own| own.trials.contains(id)))
    }

    /// `kiln stop` was asked of the workers.
    pub(super) fn stop_as_asked(&mut self) {
        let asked = self.tickets.as_ref().and_then(Tickets::stop_asked);
        let request = match asked {
            None => return,
            Some(StopAsked::Drain) => StopRequest::Drain,
            Some(StopAsked::Now) => StopRequest::Stop,
        };
        if self.asked >= Some(request) {
            return;
        }
        self.asked = Some(request);
        self.counts.is_over = true;
        self.notice("`kiln stop` was asked: no more trials are started here");
        if request == StopRequest::Stop {
            self.running
                .iter_mut()
                .for_each(|attempt| attempt.stop(StopCause::Told));
        }
    }

    /// A trial stands in for one of a ticket.
    pub(super) fn add_to_ticket(&mut self, failed: usize, smaller: usize) {
        let (failed, smaller) = (&self.trials[failed].id, &self.trials[smaller].id);
        let own = self.tickets.iter_mut().flat_map(|tickets| &mut tickets.own);
        for ticket in own {
            if ticket.trials.contains(failed) {
                ticket.trials.push(smaller.clone());
            }
        }
    }
}

/// How the attempts of the other launches ended.
fn others(tickets: &Tickets) -> io::Result<Vec<AttemptEnd>> {
    Ok(CollectedRows::read(tickets.run())?.ends_but_of(tickets.launch())?)
}
