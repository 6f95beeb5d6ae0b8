//! Code that the engines share. Not for applications.

pub mod follow;

pub use crate::{
    chain::ChainTotals,
    error::is_resource_exhaustion,
    request::{check_queue, serialize_spec},
    schedules::{MAX_DUE, MAX_EXPIRED, parse_entry},
    unconfirmed::{UnconfirmedCompletions, is_unconfirmed},
    wait::{FOREVER, SAFETY_INTERVAL},
};
