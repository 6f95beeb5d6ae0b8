//! Handlers: named plug-ins of a Rust program that provide capabilities.

use async_trait::async_trait;
use raddle_model::{
    AttemptInput, CapSet, TaskSpec, Trace,
    reply::{LogLevel, ReportedError},
};
use serde_json::Value;

use crate::routine;

/// A plug-in of the user's program. It runs in a process that is forked for the task.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The name that tasks and `WORKER_PLUGINS` use.
    fn name(&self) -> String;

    /// The capabilities that it provides. It runs tasks that require no others, on workers that
    /// offer all of these.
    fn provides(&self) -> CapSet;

    /// Runs a task and returns its result.
    async fn handle(
        &self,
        job: AttemptInput,
        context: HandlerContext,
    ) -> Result<Value, ReportedError>;
}

/// The context of a running handler: what it can report and read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HandlerContext;

impl HandlerContext {
    /// Reports progress in percent.
    pub fn progress(&self, percent: f64, message: impl Into<String>) {
        routine::progress(percent, message);
    }

    /// The trace that the task belongs to.
    pub fn trace(&self) -> Option<Trace> {
        routine::trace()
    }

    /// Chains a task: it is submitted if this task succeeds, in the same transaction.
    pub fn chain(&self, spec: TaskSpec) -> Result<(), routine::ChainError> {
        routine::chain(spec)
    }

    /// Writes a line to the task's log.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        routine::log(level, message);
    }
}

/// A handler in the program's registry. `raddle::handler!` makes it.
#[derive(Clone, Copy, Debug)]
pub struct HandlerEntry {
    /// Makes the handler.
    pub make: fn() -> Box<dyn Handler>,
}

inventory::collect!(HandlerEntry);

/// The function name of a handler. No routine can have it.
pub fn function_name(name: &str) -> String {
    format!("handler {name}")
}

/// The handlers of this program.
pub fn of_this_program() -> impl Iterator<Item = Box<dyn Handler>> {
    inventory::iter::<HandlerEntry>
        .into_iter()
        .map(|entry| (entry.make)())
}
