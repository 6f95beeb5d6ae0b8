//! An attempt of a task, told as a whole when it is over.

use raddle_broker::AttemptId;
use raddle_model::{TaskSpec, TraceParent, trace::SpanId};

use super::MetricsPage;

/// An attempt that is over, as a span of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptSpan {
    /// Its own context.
    pub own: TraceParent,
    /// The span that its task was submitted in.
    pub within: Option<SpanId>,
    /// The task's name.
    pub name: String,
    /// When it was claimed, in nanoseconds since the epoch.
    pub began: u64,
    /// When its end was known to the broker.
    pub ended: u64,
    /// What else is known of it.
    pub attributes: Vec<(&'static str, String)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Wants to know of attempts. It must not wait for anything: whoever tells has tasks to run.
pub trait AttemptRecorder: Send + Sync {
    /// An attempt is over.
    fn record(&self, attempt: AttemptSpan);

    /// Shows what became of what it was told.
    fn show(&self, page: &mut MetricsPage);
}

impl AttemptSpan {
    /// One that was claimed at this time. Its end is added when it is known.
    pub(super) fn begin(attempt_id: AttemptId, spec: &TaskSpec, at: u64) -> Self {
        let mut attributes = vec![
            ("raddle.tid", attempt_id.tid.to_string()),
            ("raddle.attempt", attempt_id.attempt.to_string()),
            ("raddle.queue", spec.queue.clone()),
        ];
        attributes.extend(spec.kind.clone().map(|kind| ("raddle.kind", kind)));
        Self {
            own: spec.trace(attempt_id.tid, attempt_id.attempt).parent,
            within: spec.traceparent.map(|parent| parent.span),
            name: spec.display_name().to_owned(),
            began: at,
            ended: at,
            attributes,
            failure: None,
        }
    }
}
