//! The tickets of a run on which several launches work: those of this launch, those of launches that
//! have ended, and those that are held.
//!
//! In: the queue in the folder of the run, and the clock. Out: a ticket to work on, and changes of
//! tickets. `docs/cluster-protocol.md` has the rules.

mod heartbeat;
mod launch_observer;
mod limits;
mod neighbours;
mod next_state;
mod own_tickets;
mod take_back;

pub(super) use self::{
    launch_observer::{LOOKS, LaunchObserver, own_process},
    limits::WorkerLimits,
    next_state::{HeldCause, NextState, Standing, held_in_words, why_damaged},
    own_tickets::{OwnTicket, Tickets},
    take_back::TakingBack,
};
