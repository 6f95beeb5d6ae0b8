//! The broker: the trait that stores tasks, queues, results, workers and events, and its values.
//!
//! [`Broker`] is the contract. The engines are crates of their own, `raddle-broker-sqlite` and
//! `raddle-broker-redis`, and `raddle-broker-remote` for a broker in another process;
//! `raddle-broker-connect` opens the one that a URL names. The `conformance` feature holds the
//! suite that every engine passes. Engines store, order, lease and fence; nothing here runs a task.

mod broker;
pub mod chain;
mod declare;
pub mod engine;
mod error;
mod filter;
pub mod operations;
pub mod queues;
mod request;
pub mod rollups;
mod schedules;
mod stream_source;
mod summary;
mod unconfirmed;
mod wait;

#[cfg(feature = "conformance")]
pub mod conformance;

use raddle_model::bytes;

pub use broker::{
    Broker, BrokerOpener, Call, CallHandler, LeaseRenewer, Leases, Log, Messages, Operations,
    Output, Queries, Registry, Reply, Rollups, Schedules, Tasks,
};
pub use error::{Error, Result};
pub use filter::{TaskFilter, TaskPage, matches_pattern};
pub use request::*;
pub use schedules::{DueItems, ScheduleChange, ScheduleChangeOutcome, ScheduleView};
pub use stream_source::StreamSource;
pub use summary::{BatchSummary, QueueSummary, Summary, SummaryDetail, WaitingTasks};
