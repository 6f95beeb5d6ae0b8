//! An attempt of a task, told as a whole when it is over.

use raddle_broker::Fence;
use raddle_core::{Spec, TraceParent, trace::SpanId};

use super::Page;

/// An attempt that is over, as a span of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
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
pub trait Recorder: Send + Sync {
    /// An attempt is over.
    fn record(&self, attempt: Attempt);

    /// Shows what became of what it was told.
    fn show(&self, page: &mut Page);
}

impl Attempt {
    /// One that was claimed at this time. Its end is added when it is known.
    pub(super) fn begin(fence: Fence, spec: &Spec, at: u64) -> Self {
        let mut attributes = vec![
            ("raddle.tid", fence.tid.to_string()),
            ("raddle.attempt", fence.attempt.to_string()),
            ("raddle.queue", spec.queue.clone()),
        ];
        attributes.extend(spec.kind.clone().map(|kind| ("raddle.kind", kind)));
        Self {
            own: spec.trace(fence.tid, fence.attempt).parent,
            within: spec.traceparent.map(|parent| parent.span),
            name: spec.display_name().to_owned(),
            began: at,
            ended: at,
            attributes,
            failure: None,
        }
    }
}
