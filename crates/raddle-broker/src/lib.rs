//! Where tasks are kept: one trait, several engines that behave the same.
//!
//! [`Broker`] is the contract. [`connect`] opens the engine that a URL names. The `conformance` feature holds the suite that
//! every engine passes. Nothing here runs a task; engines store, order, lease and fence.

mod broker;
pub mod chain;
mod connect;
mod declare;
mod error;
mod follow;
pub mod queues;
#[cfg(feature = "redis")]
pub mod redis;
pub mod remote;
pub mod request;
mod schedules;
pub mod sqlite;
mod summary;
mod unconfirmed;
mod wait;

#[cfg(feature = "conformance")]
pub mod conformance;

use raddle_model::bytes;

pub use broker::{
    Broker, Call, CallHandler, LeaseRenewer, Leases, Log, Messages, Output, Queries, Registry,
    Reply, Schedules, Tasks,
};
pub use connect::{BrokerUrl, ParseBrokerUrlError, StreamSource, connect, open_stream};
pub use error::{Error, Result};
pub use request::*;
pub use schedules::{DueItems, ScheduleChange, ScheduleChangeOutcome, ScheduleView};
pub use summary::{BatchSummary, Summary, SummaryDetail, WaitingTasks};
