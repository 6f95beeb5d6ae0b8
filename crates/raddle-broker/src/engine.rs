//! Parts that the engines share. Applications need none of them.

pub mod follow;

pub use crate::{
    chain::ChainAccount,
    error::is_want,
    request::written,
    schedules::{AGENDA, EXPIRED_AT_ONCE, read_entry},
    unconfirmed::{UnconfirmedCompletions, leaves_doubt},
    wait::{FOR_EVER, SAFETY_INTERVAL},
};
