//! Where tasks are kept: one trait, several engines that behave the same.
//!
//! [`Broker`] is the contract. [`connect`] opens the engine that a URL names. The `conformance` feature holds the suite that
//! every engine passes. Nothing here runs a task; engines store, order, lease and fence.

pub mod agent;
mod broker;
pub mod chain;
mod connect;
mod declare;
mod doubt;
mod error;
mod follow;
pub mod queues;
#[cfg(feature = "redis")]
pub mod redis;
pub mod request;
mod schedules;
pub mod sqlite;
mod summary;
mod wait;

#[cfg(feature = "conformance")]
pub mod conformance;

use raddle_core::bytes;

pub use broker::{
    Broker, Call, Heart, Leases, Log, Messages, Output, Proxy, Queries, Registry, Reply, Schedules, Tasks,
};
pub use connect::{ParseUrlError, StreamSource, Url, connect, open_stream};
pub use error::{Error, Result};
pub use request::*;
pub use schedules::{Agenda, ScheduleChange, ScheduleChanged, ScheduleView};
pub use summary::{Batch, Detail, Summary, Waiting};
