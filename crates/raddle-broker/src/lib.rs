//! Where tasks are kept: one trait, several engines that behave the same.
//!
//! [`Broker`] is the contract. The engines are crates of their own, `raddle-broker-sqlite`, `raddle-broker-redis` and
//! `raddle-broker-remote`; `raddle-broker-connect` opens the one that a URL names. The `conformance` feature holds the suite
//! that every engine passes. Nothing here runs a task; engines store, order, lease and fence.

mod broker;
pub mod chain;
mod declare;
pub mod engine;
mod error;
pub mod queues;
pub mod request;
mod schedules;
mod stream_source;
mod summary;
mod unconfirmed;
mod wait;

#[cfg(feature = "conformance")]
pub mod conformance;

use raddle_model::bytes;

pub use broker::{
    Broker, BrokerOpener, Call, CallHandler, LeaseRenewer, Leases, Log, Messages, Output, Queries,
    Registry, Reply, Schedules, Tasks,
};
pub use error::{Error, Result};
pub use request::*;
pub use schedules::{DueItems, ScheduleChange, ScheduleChangeOutcome, ScheduleView};
pub use stream_source::StreamSource;
pub use summary::{BatchSummary, Summary, SummaryDetail, WaitingTasks};
