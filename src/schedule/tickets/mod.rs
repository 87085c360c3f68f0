//! The tickets of a run on which several launches work: those of this launch, those of launches that
//! have ended, and those that are held.
//!
//! In: the queue in the folder of the run, and the clock. Out: a ticket to work on, and changes of
//! tickets. `docs/cluster-protocol.md` has the rules.

mod gone;
mod heart;
mod holding;
mod limits;
mod neighbours;
mod own;
mod take_back;

pub(super) use self::{
    gone::{LOOKS, LaunchObserver, own_process},
    holding::{HeldCause, NextState, Standing, held_in_words, why_damaged},
    limits::WorkerLimits,
    own::{OwnTicket, Tickets},
    take_back::TakingBack,
};
