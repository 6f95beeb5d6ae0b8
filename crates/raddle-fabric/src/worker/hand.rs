//! The traces of the tasks that this process has in hand, so that every line of its log that concerns one of them can name its trace.
//!
//! The log is the process's, and so is this. A task whose trace was not named has one that follows from its id, and needs no entry.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use raddle_broker::{Claim, Fence};
use raddle_core::{Tid, trace::TraceId};

static NAMED: Mutex<BTreeMap<Tid, TraceId>> = Mutex::new(BTreeMap::new());

/// Notes what was claimed.
pub(crate) fn take(claims: &[Claim]) {
    for Claim { fence, spec, .. } in claims.iter().filter(|claim| claim.spec.traceparent.is_some()) {
        let trace = spec.trace(fence.tid, fence.attempt).parent.trace;
        NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(fence.tid, trace);
    }
}

/// Forgets what is settled.
pub(crate) fn leave(tid: Tid) {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner).remove(&tid);
}

/// The trace of a task that is in hand.
pub(crate) fn trace(fence: Fence) -> TraceId {
    let named = NAMED.lock().unwrap_or_else(PoisonError::into_inner).get(&fence.tid).copied();
    named.unwrap_or_else(|| TraceId::of(fence.tid))
}

/// Writes a line of the log that concerns an attempt of a task in hand: `log!(warn, fence, field = value, "message")`.
macro_rules! log {
    ($level:ident, $fence:expr, $($rest:tt)+) => {{
        let fence: ::raddle_broker::Fence = $fence;
        ::tracing::$level!(
            tid = %fence.tid,
            attempt = fence.attempt,
            trace = %$crate::worker::hand::trace(fence),
            $($rest)+
        )
    }};
}
pub(crate) use log;
