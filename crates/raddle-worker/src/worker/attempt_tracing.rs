//! The traces of the tasks that this process has in hand, so that every line of its log that concerns one of them can name its trace.
//!
//! The log is the process's, and so is this. A task whose trace was not named has one that follows from its id, and needs no entry.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use raddle_broker::{AttemptId, LeasedTask};
use raddle_model::{Tid, trace::TraceId};

static NAMED: Mutex<BTreeMap<Tid, TraceId>> = Mutex::new(BTreeMap::new());

/// Notes what was claimed.
pub(crate) fn take(claims: &[LeasedTask]) {
    for LeasedTask {
        attempt_id, spec, ..
    } in claims
        .iter()
        .filter(|claim| claim.spec.traceparent.is_some())
    {
        let trace = spec.trace(attempt_id.tid, attempt_id.attempt).parent.trace;
        NAMED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(attempt_id.tid, trace);
    }
}

/// Forgets what is settled.
pub(crate) fn leave(tid: Tid) {
    NAMED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&tid);
}

/// The trace of a task that is in hand.
pub(crate) fn trace(attempt_id: AttemptId) -> TraceId {
    let named = NAMED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&attempt_id.tid)
        .copied();
    named.unwrap_or_else(|| TraceId::of(attempt_id.tid))
}

/// Writes a line of the log that concerns an attempt of a task in hand: `log!(warn, attempt_id, field = value, "message")`.
macro_rules! log {
    ($level:ident, $attempt_id:expr, $($rest:tt)+) => {{
        let attempt_id: ::raddle_broker::AttemptId = $attempt_id;
        ::tracing::$level!(
            tid = %attempt_id.tid,
            attempt = attempt_id.attempt,
            trace = %$crate::worker::attempt_tracing::trace(attempt_id),
            $($rest)+
        )
    }};
}
pub(crate) use log;
