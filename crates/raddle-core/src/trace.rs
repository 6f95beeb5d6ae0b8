//! W3C trace context: which trace a task belongs to, and what its attempts hand on.
//!
//! A task is part of the trace that its submitter names. Without one it is a trace of its own, which follows from its id. Each attempt is a span,
//! whose id follows from the task's id and the attempt's number: whoever runs the attempt and whoever tells of it need not tell each other.

use std::{fmt, str::FromStr};

use crate::{Spec, Tid, chance::mix, text::serialized_as_text};

/// The variable, and the header, in which the context of a trace is handed on.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The variable, and the header, for what vendors add to it.
pub const TRACESTATE: &str = "TRACESTATE";

/// A trace, and the span in it that what follows belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// What is decided about the trace already.
    pub flags: u8,
}

/// A trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// A span of a trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

/// What vendors add to a context. Passed on as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceState(String);

/// The context of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace, and the attempt as a span in it.
    pub parent: TraceParent,
    /// What vendors have added.
    pub state: Option<TraceState>,
}

/// Why a text is no trace context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTraceError {
    /// It is no `traceparent`.
    #[error("'{0}' is not a traceparent: give one like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    Parent(String),
    /// It is no `tracestate`.
    #[error("a tracestate has 1 to 512 printable ASCII characters, as in 'vendor=value'")]
    State,
}

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The only version whose form is known. Later ones begin like it.
const VERSION: &str = "00";
const LENGTH: usize = 55;
const MAX_STATE: usize = 512;

impl Spec {
    /// The context of an attempt of a task with this spec.
    pub fn trace(&self, tid: Tid, attempt: u32) -> Trace {
        let (trace, flags) = match &self.traceparent {
            Some(parent) => (parent.trace, parent.flags),
            // Nobody has decided that it is not recorded.
            None => (TraceId::of(tid), SAMPLED),
        };
        let state = self.tracestate.clone().filter(|_| self.traceparent.is_some());
        Trace { parent: TraceParent { trace, span: SpanId::of(tid, attempt), flags }, state }
    }
}

impl TraceParent {
    /// Whether somebody records the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl TraceId {
    /// The trace of a task that belongs to no other.
    pub fn of(tid: Tid) -> Self {
        let tid = tid.as_u64();
        Self((u128::from(mix(tid)) << 64 | u128::from(mix(!tid))).max(1))
    }
}

impl SpanId {
    /// The span that an attempt is.
    pub fn of(tid: Tid, attempt: u32) -> Self {
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
            let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let is_form = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
            let is_later = version != VERSION && version != "ff" && (rest.is_empty() || rest.starts_with('-'));
            if !is_form || parts.next().is_some() || !(version == VERSION && rest.is_empty() || is_later) {
                return None;
            }
            hex(version)?;
            let trace = Some(hex(trace)?).filter(|trace| *trace != 0)?;
            let span = Some(hex(span)?).filter(|span| *span != 0)?;
            Some(Self { trace: TraceId(trace), span: SpanId(span as u64), flags: hex(flags)? as u8 })
        };
        parse().ok_or_else(|| ParseTraceError::Parent(text.chars().take(80).collect()))
    }
}

/// A number in small hexadecimal digits, and nothing else.
fn hex(text: &str) -> Option<u128> {
    let is_digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_digits.then(|| u128::from_str_radix(text, 16).ok())?
}

impl FromStr for TraceState {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let is_state = (1..=MAX_STATE).contains(&text.len()) && text.bytes().all(|b| (b' '..=b'~').contains(&b));
        if is_state { Ok(Self(text.into())) } else { Err(ParseTraceError::State) }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}-{}-{}-{:02x}", self.trace, self.span, self.flags)
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
