//! Seeing what comes into a queue, without taking it.

use std::{collections::HashSet, time::Duration};

use raddle_model::{
    QueueName, Tid,
    queue_name::{ManagerQueue, SystemQueue, TaskQueue},
};
use tokio::time::Instant;

use super::{PAGE, views};
use crate::{Broker, Message, PeekRequest, Result, wait::FOREVER};

/// A watcher of one queue. It remembers what it has shown.
///
/// Ids alone do not suffice for that where records are shown: a task comes into `raddle.dead` with the id it has always had.
#[derive(Debug)]
pub struct Watch {
    queue: QueueName,
    /// Messages up to this id have been shown, or were not asked for.
    after: u64,
    /// Records that have been shown, as long as they are there, with the attempt they belonged to. `None` before the first look.
    shown: Option<HashSet<(Tid, u32)>>,
}

impl Watch {
    /// Watches `queue` for what has an id after `after`; 0 begins with what is there already.
    ///
    /// A record with an earlier id is passed over if the first look finds it, and shown if it comes later.
    pub fn new(queue: QueueName, after: u64) -> Self {
        Self {
            queue,
            after,
            shown: None,
        }
    }

    /// What has come since the last call; waits for the first.
    pub async fn next(&mut self, broker: &dyn Broker, wait: Duration) -> Result<Vec<Message>> {
        match self.queue {
            QueueName::System(SystemQueue::Log) => {
                broker.events(Some(self.after), None, 1, wait).await?;
                let new = views::look(broker, &self.queue, self.after, PAGE).await?;
                self.pass(&new);
                Ok(new)
            }
            _ if matches!(
                self.queue.desk(),
                Some((
                    _,
                    ManagerQueue::Requests | ManagerQueue::Results | ManagerQueue::Status
                ))
            ) =>
            {
                self.next_records(broker, None, wait).await
            }
            QueueName::System(system) if system.is_view() => {
                self.next_records(broker, None, wait).await
            }
            QueueName::Task(tid, TaskQueue::Inbox | TaskQueue::Reserved | TaskQueue::Outbox) => {
                self.next_records(broker, Some(tid), wait).await
            }
            _ => self.next_stored(broker, wait).await,
        }
    }

    async fn next_stored(&mut self, broker: &dyn Broker, wait: Duration) -> Result<Vec<Message>> {
        let new = broker.peek(self.peek(wait)).await?;
        self.pass(&new);
        Ok(new)
    }

    /// Records come and go with events, so the log is what tells when to look at them again.
    async fn next_records(
        &mut self,
        broker: &dyn Broker,
        tid: Option<Tid>,
        wait: Duration,
    ) -> Result<Vec<Message>> {
        let deadline = Instant::now() + wait.min(FOREVER);
        // What became of requests is a part of the log: events that are not about them are gone through once.
        let is_log = matches!(self.queue.desk(), Some((_, ManagerQueue::Results)));
        loop {
            // Asked for before records are looked at, so that no change falls in between.
            let end = broker.last_event().await?;
            let mut new = if is_log {
                Vec::new()
            } else {
                self.new_records(broker).await?
            };
            let later = match is_log {
                true => views::look(broker, &self.queue, self.after, PAGE).await?,
                false => views::stored(broker, &self.queue, self.after, PAGE).await?,
            };
            self.pass(&later);
            new.extend(later);
            let left = deadline.saturating_duration_since(Instant::now());
            if !new.is_empty() || left.is_zero() {
                return Ok(new);
            }
            if is_log {
                self.after = self.after.max(end);
            }
            tokio::select! {
                event = broker.events(Some(end), tid, 1, left) => drop(event?),
                message = broker.peek(self.peek(left)) => drop(message?),
            }
        }
    }

    async fn new_records(&mut self, broker: &dyn Broker) -> Result<Vec<Message>> {
        let records: Vec<(u32, Message)> = match self.queue {
            // The same task's message comes back with each attempt.
            QueueName::Task(tid, port) => match broker.task(tid).await? {
                Some(task) => views::own(broker, tid, port)
                    .await?
                    .into_iter()
                    .map(|own| (task.attempt, own))
                    .collect(),
                None => Vec::new(),
            },
            _ => views::look(broker, &self.queue, 0, u32::MAX)
                .await?
                .into_iter()
                .map(|record| (0, record))
                .collect(),
        };
        let there: HashSet<(Tid, u32)> = records
            .iter()
            .map(|(attempt, record)| (record.id, *attempt))
            .collect();
        let is_new = |(attempt, record): &(u32, Message)| match &self.shown {
            Some(shown) => !shown.contains(&(record.id, *attempt)),
            None => record.id.as_u64() > self.after,
        };
        let new = records
            .into_iter()
            .filter(is_new)
            .map(|(_, record)| record)
            .collect();
        self.shown = Some(there);
        Ok(new)
    }

    fn peek(&self, wait: Duration) -> PeekRequest {
        PeekRequest {
            queue: self.queue.clone(),
            after: self.after,
            max: PAGE,
            wait,
        }
    }

    fn pass(&mut self, shown: &[Message]) {
        if let Some(last) = shown.last() {
            self.after = last.id.as_u64();
        }
    }
}
