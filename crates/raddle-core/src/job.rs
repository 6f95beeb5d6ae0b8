//! A task as the routine or handler that runs it gets it.

use serde::{Deserialize, Serialize};

use crate::{
    Spec, Tid, Trace,
    trace::{TraceParent, TraceState},
};

/// The variable in which a task finds its own id: the parent of what it submits.
pub const TID_VARIABLE: &str = "RADDLE_TID";
/// The variable in which a task finds the number of its attempt.
pub const ATTEMPT_VARIABLE: &str = "RADDLE_ATTEMPT";
/// The variable in which a task finds the id of the worker that runs it.
pub const WORKER_VARIABLE: &str = "RADDLE_WORKER";
/// The variable in which a task finds the fencing token of its attempt: a number that grows with every claim and never repeats.
pub const FENCING_TOKEN_VARIABLE: &str = "RADDLE_FENCING_TOKEN";

/// One attempt of a task: what a handler reads as JSON on its standard input, and a routine takes its arguments from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The task.
    pub tid: Tid,
    /// The number of the attempt.
    pub attempt: u32,
    /// The trace it belongs to, and itself as a span in it: what it calls carries this as `traceparent`.
    pub traceparent: TraceParent,
    /// What vendors have added to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
    /// What the task is to do.
    pub spec: Spec,
}

impl Job {
    /// An attempt of a task.
    pub fn new(tid: Tid, attempt: u32, spec: Spec) -> Self {
        let Trace { parent, state } = spec.trace(tid, attempt);
        Self { tid, attempt, traceparent: parent, tracestate: state, spec }
    }
}
