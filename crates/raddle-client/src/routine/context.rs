//! The reply channel of the running task: progress, log lines and its trace.

use std::{
    env,
    fs::File,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use raddle_model::{
    Progress, ReplyLine, Trace,
    reply::{LogLevel, LogLine},
    trace::{TRACEPARENT, TRACESTATE},
};

use crate::host;

/// The reply of the task that this process runs, if it runs one.
static REPLY: Mutex<Option<File>> = Mutex::new(None);

pub(super) fn open_reply(reply: File) {
    *REPLY.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
}

/// Whether this process runs a task.
pub(super) fn has_reply() -> bool {
    REPLY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some()
}

/// Writes one line of the reply. Ignored outside of a task.
pub(super) fn write_line(reply: &ReplyLine) -> io::Result<()> {
    try_write_line(reply).map(drop)
}

/// Writes one line of the reply. Returns `false` outside of a task.
pub(super) fn try_write_line(reply: &ReplyLine) -> io::Result<bool> {
    if let Some(attempt) = host::context::current() {
        return attempt.say(reply).map(|()| true);
    }
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    // One write under the lock, so that lines of several threads do not mix.
    match REPLY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
    {
        Some(file) => file.write_all(&line).map(|()| true),
        None => Ok(false),
    }
}

/// Reports progress in percent, which `raddle task status` shows. Ignored outside of a task.
pub fn progress(percent: f64, message: impl Into<String>) {
    // A lost worker does not matter to the task here.
    let _ = write_line(&ReplyLine::Progress(Progress {
        percent: Some(percent),
        message: message.into(),
    }));
}

/// Writes a line to the task's log.
pub fn log(level: LogLevel, message: impl Into<String>) {
    let _ = write_line(&ReplyLine::Log(LogLine {
        level,
        message: message.into(),
    }));
}

/// The trace of this process: in a task, the task's trace with the attempt as span. Pass it on in
/// calls to other services.
pub fn trace() -> Option<Trace> {
    if let Some(attempt) = host::context::current() {
        return attempt.trace();
    }
    let parent = env::var(TRACEPARENT).ok()?.parse().ok()?;
    Some(Trace {
        parent,
        state: env::var(TRACESTATE)
            .ok()
            .and_then(|state| state.parse().ok()),
    })
}
