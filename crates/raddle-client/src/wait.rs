//! Waiting for the end of a task.

use std::time::Duration;

use raddle_broker::{Broker, Error, Queries, Result, TaskCursor, TaskUpdate};
use raddle_model::{TaskView, Tid};

use crate::orphan_processes;

/// How often to look whether the worker that has a task is still there. Delays only what a dead worker has left behind.
pub const WATCH_WORKERS: Duration = Duration::from_secs(1);

/// One look waits no longer than this before it is begun again, so that a wait without end can be written down.
pub const LONG: Duration = Duration::from_secs(3600);

/// A reader of one task's output and events.
#[derive(Debug)]
pub struct TaskFollower {
    tid: Tid,
    cursor: TaskCursor,
}

impl TaskFollower {
    /// From the beginning.
    pub fn new(tid: Tid) -> Self {
        Self {
            tid,
            cursor: TaskCursor::default(),
        }
    }

    /// What is new; waits for it. Nothing is lost when the future is dropped.
    pub async fn next(&mut self, broker: &dyn Broker, wait: Duration) -> Result<TaskUpdate> {
        let progress = broker.follow(self.tid, self.cursor, wait).await?;
        self.cursor = progress.cursor;
        Ok(progress)
    }
}

/// Whether `within` is the task `tid`, or one that was submitted by it or below it: such a task must not wait for `tid`.
pub async fn is_within(broker: &dyn Broker, mut within: Option<Tid>, tid: Tid) -> Result<bool> {
    // A task has a later id than the task that submitted it, so no earlier one can be below `tid`.
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

/// Waits until a task is finished, and returns what became of it.
pub async fn until_finished(broker: &dyn Broker, tid: Tid) -> Result<TaskView> {
    let mut news = TaskWatch::of(broker, tid).await?;
    loop {
        let view = broker.task(tid).await?.ok_or(Error::NotFound(tid))?;
        if view.state.is_terminal() {
            return Ok(view);
        }
        if !news.next(broker, WATCH_WORKERS).await? {
            reclaim_if_worker_lost(broker, &view).await?;
        }
    }
}

/// Takes a task back from a worker that is gone. Live workers do this by themselves; without one, nobody else would.
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

/// News of one task, from the log of all.
///
/// A look for them goes through what has happened to others as well. One that found nothing is followed by one from the end of the log, and not
/// from the last event that was about the task: otherwise each would go through all that has happened since.
#[derive(Clone, Copy, Debug)]
pub struct TaskWatch {
    tid: Tid,
    seen: u64,
}

impl TaskWatch {
    /// From now on. What the task is now is to be asked after this, so that nothing falls in between.
    pub async fn of(log: &(impl Queries + ?Sized), tid: Tid) -> Result<Self> {
        Ok(Self {
            tid,
            seen: log.last_event().await?,
        })
    }

    /// Waits for something to happen to the task, and returns whether it has. Nothing is lost when the future is dropped.
    ///
    /// What came after the wait was over is passed over, so the task is to be looked at again in either case.
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

    /// A log that notes from where it is looked at.
    struct Noting {
        memory: Sqlite,
        looks: Mutex<Vec<u64>>,
    }

    #[async_trait]
    impl CallHandler for Noting {
        async fn call(&self, call: Call) -> Result<Reply> {
            if let Call::Events {
                after: Some(after), ..
            } = &call
            {
                self.looks.lock().unwrap().push(*after);
            }
            call.perform(&self.memory).await
        }
    }

    impl Noting {
        async fn submit(&self) -> Tid {
            self.memory
                .submit(vec![NewTask::new(TaskSpec::command(["true"]))])
                .await
                .unwrap()[0]
                .tid()
        }
    }

    #[tokio::test]
    async fn what_others_do_is_gone_through_once() {
        let log = Noting {
            memory: Sqlite::in_memory().await.unwrap(),
            looks: Mutex::default(),
        };
        let (tid, mut before) = (log.submit().await, log.submit().await);
        let mut news = TaskWatch::of(&log, tid).await.unwrap();
        for _ in 0..3 {
            let other = log.submit().await;
            assert!(!news.next(&log, Duration::ZERO).await.unwrap());
            assert_eq!(log.looks.lock().unwrap().last(), Some(&before.as_u64()));
            before = other;
        }
        log.memory
            .control(tid, ControlMessage::new(ControlCommand::Kill))
            .await
            .unwrap();
        assert!(news.next(&log, Duration::ZERO).await.unwrap());
        assert!(
            !news.next(&log, Duration::ZERO).await.unwrap(),
            "it is told of once"
        );
    }
}
