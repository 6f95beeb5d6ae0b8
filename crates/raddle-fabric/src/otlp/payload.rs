//! What is sent: the JSON form of OTLP's `ExportTraceServiceRequest`. Ids are hexadecimal there, and 64-bit numbers are text.

use serde::Serialize;

use super::exporter::Resource;
use crate::metrics::Attempt;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: String,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Attribute>,
    status: Status,
}

#[derive(Debug, Serialize)]
struct Attribute {
    key: &'static str,
    value: Text,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    string_value: String,
}

#[derive(Debug, Serialize)]
struct Status {
    code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Attributes,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Debug, Serialize)]
struct Attributes {
    attributes: Vec<Attribute>,
}

#[derive(Debug, Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: &'a [Span],
}

#[derive(Debug, Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

/// `SPAN_KIND_CONSUMER`: what takes a message from a queue and works on it.
const CONSUMER: u8 = 5;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;

impl From<Attempt> for Span {
    fn from(attempt: Attempt) -> Self {
        let Attempt { own, within, name, began, ended, attributes, failure } = attempt;
        Self {
            trace_id: own.trace.to_string(),
            span_id: own.span.to_string(),
            parent_span_id: within.map(|span| span.to_string()),
            name,
            kind: CONSUMER,
            start_time_unix_nano: began.to_string(),
            end_time_unix_nano: ended.max(began).to_string(),
            attributes: attributes.into_iter().map(attribute).collect(),
            status: Status { code: if failure.is_some() { STATUS_ERROR } else { STATUS_OK }, message: failure },
        }
    }
}

fn attribute((key, value): (&'static str, String)) -> Attribute {
    Attribute { key, value: Text { string_value: value } }
}

/// The body of a request.
pub(super) fn body(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let attributes = [("service.name", resource.service.clone()), ("host.name", resource.host.clone())];
    let request = Request {
        resource_spans: [ResourceSpans {
            resource: Attributes { attributes: attributes.into_iter().map(attribute).collect() },
            scope_spans: [ScopeSpans { scope: Scope { name: "raddle", version: env!("CARGO_PKG_VERSION") }, spans }],
        }],
    };
    serde_json::to_vec(&request).expect("it has only string keys")
}
