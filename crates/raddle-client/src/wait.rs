//! Following a task, and waiting for its end.

use std::time::Duration;

use raddle_broker::{Broker, Error, Queries, Result, TaskCursor, TaskUpdate};
use raddle_model::{TaskView, Tid};

use crate::orphan_processes;

/// How often to check whether the worker of a task is alive. Only tasks of dead workers wait for
/// it.
pub const WATCH_WORKERS: Duration = Duration::from_secs(1);

/// Longest single wait. Waits without limit repeat it.
pub const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Reads the output and events of one task.
#[derive(Debug)]
pub struct TaskFollower {
    tid: Tid,
    cursor: TaskCursor,
}

impl TaskFollower {
    /// Starts at the beginning.
    pub fn new(tid: Tid) -> Self {
        Self {
            tid,
            cursor: TaskCursor::default(),
        }
    }

    /// Waits for the next output or event. Cancel-safe.
    pub async fn next(&mut self, broker: &dyn Broker, wait: Duration) -> Result<TaskUpdate> {
        let progress = broker.follow(self.tid, self.cursor, wait).await?;
        self.cursor = progress.cursor;
        Ok(progress)
    }
}

/// Whether `within` is the task `tid` or a descendant of it: such a task must not wait for `tid`.
pub async fn is_within(broker: &dyn Broker, mut within: Option<Tid>, tid: Tid) -> Result<bool> {
    // A task has a higher TID than its parent, so no lower TID can be a descendant.
    while let Some(task) = within
        && task >= tid
    {
        if task == tid {
            return Ok(true);
        }
        within = broker
            .task(task)
            .await?
            .and_then(|task| task.parent)
            .filter(|parent| *parent < task);
    }
    Ok(false)
}

/// Waits until a task is finished, and returns it.
pub async fn until_finished(broker: &dyn Broker, tid: Tid) -> Result<TaskView> {
    let mut watch = TaskWatch::start(broker, tid).await?;
    loop {
        let view = broker.task(tid).await?.ok_or(Error::NotFound(tid))?;
        if view.state.is_terminal() {
            return Ok(view);
        }
        if !watch.next(broker, WATCH_WORKERS).await? {
            reclaim_if_worker_lost(broker, &view).await?;
        }
    }
}

/// Reclaims tasks if the worker of this task is gone. Live workers do that too, but there may be
/// none.
pub async fn reclaim_if_worker_lost(broker: &dyn Broker, task: &TaskView) -> Result<()> {
    if task.state.is_active()
        && !broker
            .workers()
            .await?
            .iter()
            .any(|worker| Some(worker.tid) == task.worker)
    {
        orphan_processes::kill_orphans_of_reclaimed(&broker.reclaim().await?).await;
    }
    Ok(())
}

/// Watches the event log for events of one task.
///
/// A query scans the events of all tasks. After a query without result the next one starts at the
/// end of the log, not at the last event of the task: otherwise each query would scan all events
/// since then.
#[derive(Clone, Copy, Debug)]
pub struct TaskWatch {
    tid: Tid,
    seen: u64,
}

impl TaskWatch {
    /// Starts at the end of the log. Read the task after this call, so that no event is missed.
    pub async fn start(log: &(impl Queries + ?Sized), tid: Tid) -> Result<Self> {
        Ok(Self {
            tid,
            seen: log.last_event().await?,
        })
    }

    /// Waits for an event of the task, and returns whether there was one. Cancel-safe.
    ///
    /// Events that arrive after the wait are skipped, so read the task again in either case.
    pub async fn next(&mut self, log: &(impl Queries + ?Sized), wait: Duration) -> Result<bool> {
        let events = log
            .events(Some(self.seen), Some(self.tid), 1000, wait)
            .await?;
        self.seen = match events.last() {
            Some(last) => last.id.as_u64(),
            None => log.last_event().await?,
        };
        Ok(!events.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use raddle_broker::{Call, CallHandler, NewTask, Reply, Tasks};
    use raddle_broker_sqlite::Sqlite;
    use raddle_model::{ControlCommand, ControlMessage, TaskSpec};

    use super::*;

    /// A broker that records where queries start.
    struct RecordingLog {
        memory: Sqlite,
        query_starts: Mutex<Vec<u64>>,
    }

    #[async_trait]
    impl CallHandler for RecordingLog {
        async fn call(&self, call: Call) -> Result<Reply> {
            if let Call::Events {
                after: Some(after), ..
            } = &call
            {
                self.query_starts.lock().unwrap().push(*after);
            }
            call.perform(&self.memory).await
        }
    }

    impl RecordingLog {
        async fn submit(&self) -> Tid {
            self.memory
                .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
                .await
                .unwrap()[0]
                .tid()
        }
    }

    #[tokio::test]
    async fn scans_events_of_other_tasks_once() {
        let log = RecordingLog {
            memory: Sqlite::in_memory().await.unwrap(),
            query_starts: Mutex::default(),
        };
        let (tid, mut before) = (log.submit().await, log.submit().await);
        let mut watch = TaskWatch::start(&log, tid).await.unwrap();
        for _ in 0..3 {
            let other = log.submit().await;
            assert!(!watch.next(&log, Duration::ZERO).await.unwrap());
            assert_eq!(
                log.query_starts.lock().unwrap().last(),
                Some(&before.as_u64())
            );
            before = other;
        }
        log.memory
            .control(tid, ControlMessage::new(ControlCommand::Kill))
            .await
            .unwrap();
        assert!(watch.next(&log, Duration::ZERO).await.unwrap());
        assert!(
            !watch.next(&log, Duration::ZERO).await.unwrap(),
            "each event is reported once"
        );
    }
}
