//! The input of one attempt, as its routine or handler receives it.

use serde::{Deserialize, Serialize};

use crate::{
    TaskSpec, Tid, Trace,
    trace::{TraceParent, TraceState},
};

/// Environment variable with the id of the running task: the parent of the tasks that it submits.
pub const TID_VARIABLE: &str = "RADDLE_TID";
/// Environment variable with the number of the attempt.
pub const ATTEMPT_VARIABLE: &str = "RADDLE_ATTEMPT";
/// Environment variable with the id of the worker that runs the task.
pub const WORKER_VARIABLE: &str = "RADDLE_WORKER";
/// Environment variable with the fencing token of the attempt: a number that grows with every claim
/// and never repeats.
pub const FENCING_TOKEN_VARIABLE: &str = "RADDLE_FENCING_TOKEN";

/// One attempt of a task. A handler reads it as JSON on its standard input; a routine takes its
/// arguments from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptInput {
    /// The task.
    pub tid: Tid,
    /// The number of the attempt.
    pub attempt: u32,
    /// The trace context with this attempt as the span: outgoing calls carry it as `traceparent`.
    pub traceparent: TraceParent,
    /// The vendor-specific part of the trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
    /// The spec of the task.
    pub spec: TaskSpec,
}

impl AttemptInput {
    /// Creates the input of an attempt, with the trace context that `spec` derives for it.
    pub fn new(tid: Tid, attempt: u32, spec: TaskSpec) -> Self {
        let Trace { parent, state } = spec.trace(tid, attempt);
        Self {
            tid,
            attempt,
            traceparent: parent,
            tracestate: state,
            spec,
        }
    }
}
