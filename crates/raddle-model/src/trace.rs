//! W3C trace context: which trace a task belongs to, and what its attempts propagate.
//!
//! A task belongs to the trace that its submitter names. Without one it starts a trace that derives
//! from its id. Each attempt is a span whose id derives from the task id and the attempt number, so
//! the process that runs the attempt and the process that exports the span need not communicate.

use std::{fmt, str::FromStr};

use crate::{TaskSpec, Tid, jitter::mix, text::serialized_as_text};

/// Environment variable and header that carry the trace context.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// Environment variable and header for the vendor-specific part.
pub const TRACESTATE: &str = "TRACESTATE";

/// A trace and the parent span of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Trace flags.
    pub flags: u8,
}

/// A trace id. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// A span id. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

/// The vendor-specific part of a trace context. Passed on unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceState(String);

/// The trace context of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace, with the attempt as the span.
    pub parent: TraceParent,
    /// The vendor-specific part.
    pub state: Option<TraceState>,
}

/// The text is not a trace context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTraceError {
    /// Not a `traceparent`.
    #[error(
        "'{0}' is not a traceparent: give one like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    )]
    Parent(String),
    /// Not a `tracestate`.
    #[error("a tracestate has 1 to 512 printable ASCII characters, as in 'vendor=value'")]
    State,
}

/// Flag of a sampled trace.
const SAMPLED: u8 = 1;
/// The only known version. Later versions begin with the same fields.
const VERSION: &str = "00";
const LENGTH: usize = 55;
const MAX_STATE: usize = 512;

impl TaskSpec {
    /// Returns the trace context of an attempt of a task with this spec.
    pub fn trace(&self, tid: Tid, attempt: u32) -> Trace {
        let (trace, flags) = match &self.traceparent {
            Some(parent) => (parent.trace, parent.flags),
            // A new trace is sampled by default.
            None => (TraceId::from_task(tid), SAMPLED),
        };
        let state = self
            .tracestate
            .clone()
            .filter(|_| self.traceparent.is_some());
        Trace {
            parent: TraceParent {
                trace,
                span: SpanId::from_attempt(tid, attempt),
                flags,
            },
            state,
        }
    }
}

impl TraceParent {
    /// Returns whether the trace is sampled.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl TraceId {
    /// Derives the trace of a task that belongs to no other.
    pub fn from_task(tid: Tid) -> Self {
        let tid = tid.as_u64();
        Self((u128::from(mix(tid)) << 64 | u128::from(mix(!tid))).max(1))
    }
}

impl SpanId {
    /// Derives the span of an attempt.
    pub fn from_attempt(tid: Tid, attempt: u32) -> Self {
        Self(mix(tid.as_u64() ^ u64::from(attempt).rotate_left(40)).max(1))
    }
}

impl FromStr for TraceParent {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let parse = || {
            let fits = text.is_ascii() && text.len() >= LENGTH;
            let (known, rest) = fits.then(|| text.split_at(LENGTH))?;
            let mut parts = known.split('-');
            let (version, trace, span, flags) =
                (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let is_form =
                version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
            let is_later =
                version != VERSION && version != "ff" && (rest.is_empty() || rest.starts_with('-'));
            if !is_form
                || parts.next().is_some()
                || !(version == VERSION && rest.is_empty() || is_later)
            {
                return None;
            }
            hex(version)?;
            let trace = Some(hex(trace)?).filter(|trace| *trace != 0)?;
            let span = Some(hex(span)?).filter(|span| *span != 0)?;
            Some(Self {
                trace: TraceId(trace),
                span: SpanId(span as u64),
                flags: hex(flags)? as u8,
            })
        };
        parse().ok_or_else(|| ParseTraceError::Parent(text.chars().take(80).collect()))
    }
}

/// Parses lower-case hexadecimal digits.
fn hex(text: &str) -> Option<u128> {
    let is_digits = text
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_digits.then(|| u128::from_str_radix(text, 16).ok())?
}

impl FromStr for TraceState {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let is_state = (1..=MAX_STATE).contains(&text.len())
            && text.bytes().all(|b| (b' '..=b'~').contains(&b));
        if is_state {
            Ok(Self(text.into()))
        } else {
            Err(ParseTraceError::State)
        }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{VERSION}-{}-{}-{:02x}",
            self.trace, self.span, self.flags
        )
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TraceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serialized_as_text!(TraceParent, TraceState);

#[cfg(test)]
mod tests;
