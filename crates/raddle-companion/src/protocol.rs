//! The messages between program and companion.
//!
//! Frames are those of [`raddle_model::host`]: JSON on one line, and for some a payload behind it.
//! The companion greets each connection with [`Hello`]. The program then sends [`Request`]s under
//! ids that it chooses, as many at a time as it likes. Each has exactly one final reply, `ok` or
//! `error`, also after [`Verb::Cancel`]; `item` and `note` may come before.

use std::path::PathBuf;

use raddle_broker::OutputStream;
use raddle_model::{ControlMessage, Tid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// Version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// A message from the program.
#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    /// Unique among the unfinished requests of the connection.
    pub(crate) id: u64,
    #[serde(rename = "do")]
    pub(crate) verb: Verb,
}

/// The request of the program.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    /// Serve the socket that came with this message. There is no reply: the greeting on that socket
    /// is it.
    Connect,
    /// End the request with this id.
    Cancel,
    /// Open the broker at a URL, or that of a directory.
    Open {
        queue_url: Option<String>,
        directory: PathBuf,
    },
    /// Store tasks, all or none.
    Submit {
        broker: usize,
        tasks: Vec<Box<RawValue>>,
        #[serde(default)]
        parent: Option<Tid>,
    },
    /// Submit a task, run it here unless it needs another worker, and wait for its end.
    Run {
        broker: usize,
        task: Box<RawValue>,
        #[serde(default)]
        parent: Option<Tid>,
    },
    /// Wait for the end of a task. The payload of the reply is its value.
    Result {
        broker: usize,
        tid: String,
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// The record of a task.
    Status { broker: usize, tid: String },
    /// The output of a task so far, as the payload.
    Logs {
        broker: usize,
        tid: String,
        #[serde(default)]
        stream: Option<OutputStream>,
    },
    /// Events and output of a task until it is finished, as items.
    Follow { broker: usize, tid: String },
    /// Send a control message to a task.
    Control {
        broker: usize,
        tid: String,
        message: ControlMessage,
    },
    /// Submit a finished task again.
    Retry { broker: usize, tid: String },
    /// Store a schedule, or replace the one of its name.
    Schedule {
        broker: usize,
        schedule: Box<RawValue>,
    },
    /// Remove a schedule.
    Unschedule { broker: usize, name: String },
    /// All schedules.
    Schedules { broker: usize },
    /// Make room for this many further items of the request with this id.
    Credit(usize),
    /// Start a pool.
    #[cfg(feature = "pool")]
    PoolOpen(Box<crate::pools::PoolOptions>),
    /// Stop a pool. Calls may take this long; without a time, they are cancelled.
    #[cfg(feature = "pool")]
    PoolClose {
        pool: u64,
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// The workers of a pool.
    #[cfg(feature = "pool")]
    PoolWorkers { pool: u64 },
    /// Call a routine. The payload is the array of arguments in MessagePack; that of the reply is
    /// the result.
    #[cfg(feature = "pool")]
    Call(crate::calls::CallOptions),
}

/// The first message of each connection.
#[derive(Debug, Serialize)]
pub(crate) struct Hello<'a> {
    pub(crate) hello: Greeting<'a>,
}

/// The content of [`Hello`].
#[derive(Debug, Serialize)]
pub(crate) struct Greeting<'a> {
    pub(crate) protocol: u32,
    pub(crate) version: &'a str,
    pub(crate) pid: u32,
}

/// A message about a request.
#[derive(Debug, Serialize)]
pub(crate) struct Reply<'a> {
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) content: Content<'a>,
}

/// The content of a [`Reply`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content<'a> {
    /// The request succeeded.
    Ok(&'a Value),
    /// The request failed.
    Error(&'a crate::Failure),
    /// One of several values.
    Item(&'a Value),
    /// A remark for people, such as why a task waits.
    Note(&'a str),
}
