//! What is to follow the task that this process runs, if it succeeds.

use std::io;

use raddle_model::{ReplyLine, TaskSpec, Trace, spec::InvalidSpec};

use super::{context, trace};

/// Why nothing was chained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The task could not be run.
    #[error("the task cannot be chained, {0}")]
    Invalid(#[from] InvalidSpec),
    /// There is nothing that it could follow.
    #[error("only a task can chain others, and this process runs none: submit it instead")]
    NoTask,
    /// The worker is gone, and with it the attempt.
    #[error("the worker does not listen any more: {0}")]
    Unheard(#[source] io::Error),
}

/// Lets a task follow the one that this process runs: it is submitted if that succeeds, in the same step, and is never there if it does not.
///
/// It returns when the worker has been told. What a broker does not take then, because there are too many, fails the task.
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
    let line = serde_json::to_value(&spec).map_err(|error| ChainError::Unheard(error.into()))?;
    match context::say_to_worker(&ReplyLine::Chain(line)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ChainError::NoTask),
        Err(error) => Err(ChainError::Unheard(error)),
    }
}

/// So that a handler can give it back as its own error.
impl From<ChainError> for String {
    fn from(error: ChainError) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_chained_is_named() {
        let bad = TaskSpec {
            priority: 10,
            ..TaskSpec::command(["x"])
        };
        assert_eq!(
            chain(bad).unwrap_err().to_string(),
            "the task cannot be chained, at 'priority': must be 0 to 9"
        );
        let nobody = chain(TaskSpec::command(["x"])).unwrap_err();
        assert!(matches!(nobody, ChainError::NoTask), "{nobody}");
    }
}
