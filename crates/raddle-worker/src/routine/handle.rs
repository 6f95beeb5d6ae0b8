//! A submitted call, and its result when there is one.

use std::{fmt, marker::PhantomData, sync::Arc};

use raddle_broker::{Broker, Error};
use raddle_model::{ExitStatus, TaskState, TaskView, Tid};
use serde::de::DeserializeOwned;

use crate::{
    explain::{PrintedReasons, explain_while},
    wait,
};

/// A submitted task that will give back a `T`.
pub struct TaskHandle<T> {
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
        state: TaskState,
        /// How its last attempt ended.
        exit: ExitStatus,
    },
    /// The task came to an end without having begun.
    #[error("task {tid} was {state} before it began")]
    NeverBegan {
        /// The task.
        tid: Tid,
        /// Its state.
        state: TaskState,
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

impl<T> TaskHandle<T> {
    /// The task `tid`, which is known to give back a `T`.
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
    /// The result, as soon as there is one. May be asked for again, as long as the task's record is kept. If the task does not begin within 2 s, a warning in the
    /// log says why, and what to do; at once, if no worker serves what it asks for.
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
        let report = report.ok_or(TaskError::NeverBegan { tid, state })?;
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
    async fn a_wait_for_a_task_that_no_worker_takes_says_why_and_what_to_do() {
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
            let said = async {
                while !log.text().contains(why) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                result = handle.result() => panic!("there is none: {result:?}"),
                said = tokio::time::timeout(Duration::from_secs(30), said) => said.expect("it is said"),
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
