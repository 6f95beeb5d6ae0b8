//! Conversion of an `AttemptSpan` to an OpenTelemetry span.

use std::time::{Duration, SystemTime};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::metrics::AttemptSpan;

pub(super) fn to_span_data(attempt: AttemptSpan) -> SpanData {
    let AttemptSpan {
        span,
        parent,
        name,
        started,
        ended,
        attributes,
        failure,
    } = attempt;
    let trace_id = TraceId::from_hex(&span.trace.to_string()).unwrap_or(TraceId::INVALID);
    let id = |id: raddle_model::trace::SpanId| {
        SpanId::from_hex(&id.to_string()).unwrap_or(SpanId::INVALID)
    };
    let at = |nanoseconds| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    SpanData {
        span_context: SpanContext::new(
            trace_id,
            id(span.span),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, id),
        parent_span_is_remote: parent.is_some(),
        // The attempt takes a message from a queue and processes it.
        span_kind: SpanKind::Consumer,
        name: name.into(),
        start_time: at(started),
        end_time: at(ended.max(started)),
        attributes: attributes
            .into_iter()
            .map(|(key, value)| KeyValue::new(key, value))
            .collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: failure.map_or(Status::Ok, Status::error),
        instrumentation_scope: InstrumentationScope::builder("raddle")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
