//! Handlers: named plug-ins that provide capabilities, written in Rust or as programs of their own.

use async_trait::async_trait;
use raddle_model::{
    AttemptInput, CapSet, TaskSpec, Trace,
    reply::{LogLevel, ReportedError},
};
use serde_json::Value;

use crate::routine;

/// A plug-in of the user's program. It runs in a process forked for the one task, so whatever it does to that process ends with it.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Its name, as tasks and `WORKER_PLUGINS` say it.
    fn name(&self) -> String;

    /// What it provides: it runs tasks that require no more than this, on workers that offer all of it.
    fn provides(&self) -> CapSet;

    /// Does the work. It may spread it as it likes, as long as one result comes of it.
    async fn handle(
        &self,
        job: AttemptInput,
        context: HandlerContext,
    ) -> Result<Value, ReportedError>;
}

/// What a handler can say while it works.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HandlerContext;

impl HandlerContext {
    /// Says how far the task has come, from 0 to 100.
    pub fn progress(&self, percent: f64, message: impl Into<String>) {
        routine::progress(percent, message);
    }

    /// The trace that the task belongs to.
    pub fn trace(&self) -> Option<Trace> {
        routine::trace()
    }

    /// Lets a task follow this one: it is submitted if this one succeeds, in the same step, and is never there if it does not.
    pub fn chain(&self, spec: TaskSpec) -> Result<(), routine::ChainError> {
        routine::chain(spec)
    }

    /// Writes a line to the task's log.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        routine::log(level, message);
    }
}

/// An entry in the program's list of handlers. Made by `raddle::handler!`.
#[derive(Clone, Copy, Debug)]
pub struct HandlerEntry {
    /// Makes the handler.
    pub make: fn() -> Box<dyn Handler>,
}

inventory::collect!(HandlerEntry);

/// What the function of a handler is called, which no routine can be.
pub fn function_name(name: &str) -> String {
    format!("handler {name}")
}

/// The handlers that this program was built with.
pub fn of_this_program() -> impl Iterator<Item = Box<dyn Handler>> {
    inventory::iter::<HandlerEntry>
        .into_iter()
        .map(|entry| (entry.make)())
}
