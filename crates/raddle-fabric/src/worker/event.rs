//! What can happen to a worker, and what it can do about it.

use std::{collections::HashSet, time::Duration};

use raddle_broker::{Claim, Error, Fence, Finish, Result, Started, Verdict};
use raddle_core::{Control, Tid};
use raddle_exec::Order;

use super::{EndReason, ledger::Entry, words::Errand};

/// Something that has happened.
#[derive(Debug)]
pub(super) enum Event {
    /// The time that was waited for has come.
    Time,
    /// It has been asked to stop so many times in all.
    Asked(u32),
    /// The broker was asked for tasks.
    Claimed(Result<Found>),
    /// A target has begun.
    Started(Started),
    /// An attempt is over, and its slot is free. Whether its runner had to kill it.
    Ended { slot: usize, finish: Box<Finish>, killed: bool },
    /// What became of an attempt is written, or `None`: it was given up.
    Settled { fence: Fence, verdict: Option<Verdict> },
    /// The broker takes nothing that is said of an attempt, not even that it goes back.
    Refused { fence: Fence, error: Error },
    /// What became of attempts cannot be written yet, and is tried again.
    Unwritten(Error),
    /// A control word, to the worker or to a task.
    Told { tid: Tid, message: Control },
    /// The broker was asked which attempts it assigns to this worker. These were held when it was asked.
    Audited { held: Vec<Fence>, assigned: HashSet<Fence> },
    /// Others may have its tasks.
    LeaseLost,
}

/// What asking for tasks has found.
#[derive(Debug)]
pub(super) enum Found {
    Tasks(Vec<Claim>),
    Nothing,
    /// The one task that was asked for has reached its end.
    Over,
}

/// Something to do.
#[derive(Debug)]
pub(super) enum Effect {
    /// Ask for tasks.
    Claim {
        max: u32,
        wait: Duration,
    },
    /// Stop asking. What may have been taken by then goes back.
    Unclaim,
    Run {
        slot: usize,
        claim: Box<Claim>,
    },
    Order {
        slot: usize,
        order: Order,
    },
    Write(Entry),
    Errand(Errand),
    /// It was claimed under a lease that is lost: it is not ours to write about.
    Forsake(Fence),
    /// Nothing is insisted on from now on.
    Haste,
    /// Remove what has expired.
    Purge,
    /// Ask the broker which attempts it assigns to this worker, which holds these.
    Audit {
        held: Vec<Fence>,
    },
    /// Log it.
    Warn {
        fence: Fence,
        message: &'static str,
    },
    End(Result<End>),
}

/// Why the loop ended.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    Left(EndReason),
    /// It may go on under another id.
    LeaseLost,
}
