//! The task model of Raddle: what a task is, which states it may take, and what follows from each outcome.
//!
//! Everything here is a value or a pure function of values. Nothing in this crate opens a file, reads a clock,
//! starts a process or talks to a broker: those who do ask here what to do next.

#[cfg(test)]
mod arbitrary;
pub mod backoff;
pub mod brake;
pub mod bytes;
pub mod caps;
pub mod chance;
pub mod control;
pub mod departure;
pub mod event;
pub mod exit;
pub mod frame;
pub mod handler;
pub mod job;
pub mod limits;
pub mod manager;
pub mod moment;
pub mod obey;
pub mod queue_name;
pub mod reply;
pub mod retry;
pub mod routine;
pub mod schedule;
pub mod settle;
pub mod span;
pub mod spec;
pub mod state;
pub mod stop;
pub mod supervisor;
pub mod task;
mod text;
pub mod tid;
pub mod title;
pub mod trace;
pub mod worker;

pub use backoff::ExponentialBackoff;
pub use caps::CapSet;
pub use control::{Control, Word};
pub use event::{Event, EventKind};
pub use exit::{Exit, Report, Usage};
pub use job::Job;
pub use limits::Limits;
pub use queue_name::QueueName;
pub use reply::{Dialogue, Progress, Reply};
pub use retry::Retry;
pub use schedule::Schedule;
pub use settle::{Next, Tally, settle};
pub use span::Span;
pub use spec::{Spec, Target};
pub use state::State;
pub use task::TaskView;
pub use tid::{Tid, TidClock};
pub use trace::{Trace, TraceParent};
pub use worker::WorkerEntry;
