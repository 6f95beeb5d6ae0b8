//! `TaskHandle`: a submitted routine call and its result.

use std::{fmt, marker::PhantomData, sync::Arc};

use raddle_broker::{Broker, Error};
use raddle_model::{ExitStatus, TaskState, TaskView, Tid};
use serde::de::DeserializeOwned;

use crate::{
    explain::{PrintedReasons, explain_while},
    wait,
};

/// A submitted task with a result of type `T`.
pub struct TaskHandle<T> {
    broker: Arc<dyn Broker>,
    tid: Tid,
    result: PhantomData<fn() -> T>,
}

/// Why a task has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] Error),
    /// The task did not complete.
    #[error("task {tid} {state}: {exit}")]
    Ended {
        /// The task.
        tid: Tid,
        /// Its state.
        state: TaskState,
        /// How its last attempt ended.
        exit: ExitStatus,
    },
    /// The task ended before an attempt started.
    #[error("task {tid} was {state} before it started")]
    NeverStarted {
        /// The task.
        tid: Tid,
        /// Its state.
        state: TaskState,
    },
    /// The result is not of type `T`. A worker of another version may have run the task.
    #[error("the result of task {tid} is not of the expected type: {source}")]
    Type {
        /// The task.
        tid: Tid,
        /// The deserialisation error.
        source: serde_json::Error,
    },
}

impl<T> TaskHandle<T> {
    /// The handle of task `tid`, whose result has type `T`.
    pub fn new(broker: Arc<dyn Broker>, tid: Tid) -> Self {
        Self {
            broker,
            tid,
            result: PhantomData,
        }
    }

    /// The task's id.
    pub fn tid(&self) -> Tid {
        self.tid
    }
}

impl<T: DeserializeOwned> TaskHandle<T> {
    /// Waits for the result. May be called again as long as the task's record is kept. If the task
    /// does not start within 2 s, or at once if no worker serves it, a warning in the log says why
    /// and what to do.
    pub async fn result(&self) -> Result<T, TaskError> {
        let finished = wait::until_finished(&*self.broker, self.tid);
        let (mut printed, print) = (PrintedReasons::default(), |line: String| {
            tracing::warn!("{line}")
        });
        let finished =
            explain_while(&*self.broker, self.tid, &mut printed, print, finished).await?;
        let TaskView {
            tid, state, report, ..
        } = finished;
        let report = report.ok_or(TaskError::NeverStarted { tid, state })?;
        if state != TaskState::Completed {
            return Err(TaskError::Ended {
                tid,
                state,
                exit: report.exit,
            });
        }
        serde_json::from_value(report.value.unwrap_or_default())
            .map_err(|source| TaskError::Type { tid, source })
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("tid", &self.tid)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Mutex, time::Duration};

    use raddle_broker::NewTask;
    use raddle_broker_sqlite::Sqlite;
    use raddle_model::{Target, TaskSpec};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn warns_why_a_task_waits_and_what_to_do() {
        let broker: Arc<dyn Broker> = Arc::new(Sqlite::in_memory().await.unwrap());
        for (target, why, what_to_do) in [
            (
                TaskSpec::command(["true"]).target,
                "no worker is alive",
                "raddle worker start",
            ),
            (
                Target::Routine("sum".into()),
                "no live worker has that",
                "PROGRAM worker start",
            ),
        ] {
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .finish();
            let _guard = tracing::subscriber::set_default(subscriber);
            let tid = broker
                .submit(vec![NewTask::new(TaskSpec::new(target))])
                .await
                .unwrap()[0]
                .tid();
            let handle = TaskHandle::<u32>::new(Arc::clone(&broker), tid);
            let warned = async {
                while !log.text().contains(why) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                result = handle.result() => panic!("there is none: {result:?}"),
                warned = tokio::time::timeout(Duration::from_secs(30), warned) => warned.expect("a warning"),
            }
            let text = log.text();
            assert!(
                text.contains("WARN")
                    && text.contains(&tid.to_string())
                    && text.contains(what_to_do),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}
