//! Chaining: tasks that are submitted if the running task succeeds.

use std::io;

use raddle_model::{ReplyLine, TaskSpec, Trace, spec::InvalidSpec};

use super::{context, trace};

/// Why a task was not chained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The spec is invalid.
    #[error("the task cannot be chained, {0}")]
    Invalid(#[from] InvalidSpec),
    /// This process runs no task.
    #[error("only a task can chain others, and this process runs none: submit it instead")]
    NoTask,
    /// The worker is gone, and its attempt with it.
    #[error("the worker does not read the reply: {0}")]
    WorkerGone(#[source] io::Error),
}

/// Chains a task to the one that this process runs: it is submitted if that task succeeds, in the
/// same transaction, and never otherwise.
///
/// Returns when the request is written to the worker. If the broker refuses it, because the limit
/// of chained tasks is reached, the running task fails.
pub fn chain(spec: TaskSpec) -> Result<(), ChainError> {
    spec.validate()?;
    let spec = match trace() {
        Some(Trace { parent, state }) if spec.traceparent.is_none() => TaskSpec {
            traceparent: Some(parent),
            tracestate: state,
            ..spec
        },
        _ => spec,
    };
    let line = serde_json::to_value(&spec).map_err(|error| ChainError::WorkerGone(error.into()))?;
    match context::try_write_line(&ReplyLine::Chain(line)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ChainError::NoTask),
        Err(error) => Err(ChainError::WorkerGone(error)),
    }
}

/// Lets a handler return it as its own error.
impl From<ChainError> for String {
    fn from(error: ChainError) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_invalid_specs_and_calls_outside_of_a_task() {
        let bad = TaskSpec {
            priority: 10,
            ..TaskSpec::command(["x"])
        };
        assert_eq!(
            chain(bad).unwrap_err().to_string(),
            "the task cannot be chained, at 'priority': must be 0 to 9"
        );
        let outside = chain(TaskSpec::command(["x"])).unwrap_err();
        assert!(matches!(outside, ChainError::NoTask), "{outside}");
    }
}
