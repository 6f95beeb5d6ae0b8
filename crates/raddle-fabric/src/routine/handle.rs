//! A submitted call, and its result when there is one.

use std::{fmt, marker::PhantomData, sync::Arc};

use raddle_broker::{Broker, Error};
use raddle_core::{Exit, State, TaskView, Tid};
use serde::de::DeserializeOwned;

use crate::wait;

/// A submitted task that will give back a `T`.
pub struct Handle<T> {
    broker: Arc<dyn Broker>,
    tid: Tid,
    result: PhantomData<fn() -> T>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] Error),
    /// The task came to another end.
    #[error("task {tid} {state}: {exit}")]
    Ended {
        /// The task.
        tid: Tid,
        /// Its state.
        state: State,
        /// How its last attempt ended.
        exit: Exit,
    },
    /// The task came to an end without having begun.
    #[error("task {tid} was {state} before it began")]
    NeverBegan {
        /// The task.
        tid: Tid,
        /// Its state.
        state: State,
    },
    /// The result is not of the type that is asked for. A worker of another version may have run the task.
    #[error("the result of task {tid} is not of the type asked for: {source}")]
    Type {
        /// The task.
        tid: Tid,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl<T> Handle<T> {
    /// The task `tid`, which is known to give back a `T`.
    pub fn new(broker: Arc<dyn Broker>, tid: Tid) -> Self {
        Self { broker, tid, result: PhantomData }
    }

    /// The task's id.
    pub fn tid(&self) -> Tid {
        self.tid
    }
}

impl<T: DeserializeOwned> Handle<T> {
    /// The result, as soon as there is one. May be asked for again, as long as the task's record is kept.
    pub async fn result(&self) -> Result<T, TaskError> {
        let TaskView { tid, state, report, .. } = wait::until_finished(&*self.broker, self.tid).await?;
        let report = report.ok_or(TaskError::NeverBegan { tid, state })?;
        if state != State::Completed {
            return Err(TaskError::Ended { tid, state, exit: report.exit });
        }
        serde_json::from_value(report.value.unwrap_or_default()).map_err(|source| TaskError::Type { tid, source })
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("tid", &self.tid).finish_non_exhaustive()
    }
}
