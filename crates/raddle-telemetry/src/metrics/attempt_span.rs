//! `AttemptSpan`: a finished attempt as a span of a trace.

use raddle_broker::AttemptId;
use raddle_model::{TaskSpec, TraceParent, trace::SpanId};

use super::MetricsPage;

/// A finished attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptSpan {
    /// Its span.
    pub span: TraceParent,
    /// The span that submitted its task.
    pub parent: Option<SpanId>,
    /// The task's name.
    pub name: String,
    /// When it was claimed, in nanoseconds since the epoch.
    pub started: u64,
    /// When the broker recorded its end, in nanoseconds since the epoch.
    pub ended: u64,
    /// Further attributes.
    pub attributes: Vec<(&'static str, String)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Receives finished attempts. It must not block: the caller runs tasks.
pub trait AttemptRecorder: Send + Sync {
    /// Records a finished attempt.
    fn record(&self, attempt: AttemptSpan);

    /// Adds metrics about the recorder itself.
    fn show(&self, page: &mut MetricsPage);
}

impl AttemptSpan {
    /// An attempt that was claimed at this time. Its end is set later.
    pub(super) fn begin(attempt_id: AttemptId, spec: &TaskSpec, at: u64) -> Self {
        let mut attributes = vec![
            ("raddle.tid", attempt_id.tid.to_string()),
            ("raddle.attempt", attempt_id.attempt.to_string()),
            ("raddle.queue", spec.queue.clone()),
        ];
        attributes.extend(spec.kind.clone().map(|kind| ("raddle.kind", kind)));
        Self {
            span: spec.trace(attempt_id.tid, attempt_id.attempt).parent,
            parent: spec.traceparent.map(|parent| parent.span),
            name: spec.display_name().to_owned(),
            started: at,
            ended: at,
            attributes,
            failure: None,
        }
    }
}
