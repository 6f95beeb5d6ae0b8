//! Trace ids of the tasks that this process runs, so that each log line about a task can name them.
//!
//! The map is process-wide, because the log is. A task without a `traceparent` has a trace id that
//! is derived from its TID, and needs no entry.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::{Tid, trace::TraceId};

static TRACES: Mutex<BTreeMap<Tid, TraceId>> = Mutex::new(BTreeMap::new());

/// Stores the trace ids of claimed tasks.
pub(crate) fn remember_traces(claims: &[LeasedTask]) {
    for LeasedTask {
        attempt_id, spec, ..
    } in claims
        .iter()
        .filter(|claim| claim.spec.traceparent.is_some())
    {
        let trace = spec.trace(attempt_id.tid, attempt_id.attempt).parent.trace;
        TRACES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(attempt_id.tid, trace);
    }
}

/// Removes the entry of a task whose end is recorded.
pub(crate) fn forget_trace(tid: Tid) {
    TRACES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&tid);
}

/// Returns the trace id of a task that this process runs.
pub(crate) fn trace_id(attempt_id: AttemptId) -> TraceId {
    let trace = TRACES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&attempt_id.tid)
        .copied();
    trace.unwrap_or_else(|| TraceId::from_task(attempt_id.tid))
}

/// Logs a line about an attempt: `log!(warn, attempt_id, field = value, "message")`.
macro_rules! log {
    ($level:ident, $attempt_id:expr, $($rest:tt)+) => {{
        let attempt_id: ::raddle_broker::AttemptId = $attempt_id;
        ::tracing::$level!(
            tid = %attempt_id.tid,
            attempt = attempt_id.attempt,
            trace = %$crate::worker::attempt_tracing::trace_id(attempt_id),
            $($rest)+
        )
    }};
}
pub(crate) use log;
