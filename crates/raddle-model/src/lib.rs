//! The task model of Raddle: what a task is, which states it may take, and what follows from each
//! outcome.
//!
//! This crate holds values and pure functions of values. It must not open a file, read a clock,
//! start a process or talk to a broker: other crates do, and ask this one what to do next.

pub mod apply_command;
#[cfg(test)]
mod arbitrary;
pub mod attempt_input;
pub mod backoff;
pub mod bytes;
pub mod caps;
pub mod control;
pub mod duration;
pub mod event;
pub mod exit;
pub mod frame;
pub mod handler;
pub mod host;
pub mod jitter;
pub mod limits;
pub mod manager;
pub mod next_step;
pub mod query;
pub mod queue_name;
pub mod reply;
pub mod retry;
pub mod routine;
pub mod schedule;
pub mod spec;
pub mod state;
pub mod stop;
pub mod task;
mod text;
pub mod tid;
pub mod time;
pub mod title;
pub mod trace;
pub mod worker;
pub mod worker_loss;

pub use attempt_input::AttemptInput;
pub use backoff::ExponentialBackoff;
pub use caps::CapSet;
pub use control::{ControlCommand, ControlMessage};
pub use duration::HumanDuration;
pub use event::{TaskEvent, TaskEventKind};
pub use exit::{AttemptReport, ExitStatus, ResourceUsage};
pub use limits::Limits;
pub use next_step::{AttemptCounters, NextStep, decide_next};
pub use query::TaskQuery;
pub use queue_name::QueueName;
pub use reply::{Progress, ReplyLine, ReplyParser};
pub use retry::RetryPolicy;
pub use schedule::Schedule;
pub use spec::{Target, TaskSpec};
pub use state::TaskState;
pub use task::TaskView;
pub use tid::{Tid, TidClock};
pub use trace::{Trace, TraceParent};
pub use worker::WorkerEntry;
