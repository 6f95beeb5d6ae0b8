//! What a function can say while it runs.

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

/// The answer of the task that this process runs, if it runs one.
static REPLY: Mutex<Option<File>> = Mutex::new(None);

pub(super) fn open(reply: File) {
    *REPLY.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
}

/// Whether this process runs a task.
pub(super) fn is_open() -> bool {
    REPLY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some()
}

/// One line of the answer. Outside of a task it goes nowhere.
pub(super) fn say(reply: &ReplyLine) -> io::Result<()> {
    say_to_worker(reply).map(drop)
}

/// One line of the answer. Says whether there is anybody to hear it.
pub(super) fn say_to_worker(reply: &ReplyLine) -> io::Result<bool> {
    if let Some(attempt) = host::context::current() {
        return attempt.say(reply).map(|()| true);
    }
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    // Written under the lock and at once, so that lines of several threads stay whole.
    match REPLY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
    {
        Some(file) => file.write_all(&line).map(|()| true),
        None => Ok(false),
    }
}

/// Says how far the task has come, from 0 to 100. It is shown by `task status`; outside of a task it goes nowhere.
pub fn progress(percent: f64, message: impl Into<String>) {
    // Whether anybody listens does not matter to the task.
    let _ = say(&ReplyLine::Progress(Progress {
        percent: Some(percent),
        message: message.into(),
    }));
}

/// Writes a line to the task's log.
pub fn log(level: LogLevel, message: impl Into<String>) {
    let _ = say(&ReplyLine::Log(LogLine {
        level,
        message: message.into(),
    }));
}

/// The trace that this process belongs to: in a task, the task's, with the attempt as its span. What it calls should carry it on.
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
