//! Watching a queue without taking messages.

use std::{collections::HashSet, time::Duration};

use raddle_model::{
    QueueName, Tid,
    queue_name::{ManagerQueue, SystemQueue, TaskQueue},
};
use tokio::time::Instant;

use super::{PAGE, views};
use crate::{Broker, Message, PeekRequest, Result, wait::FOREVER};

/// Watches one queue, and remembers what it has returned.
///
/// For records an id is not enough: a task appears in `raddle.dead` under the id that it always
/// had.
#[derive(Debug)]
pub struct Watch {
    queue: QueueName,
    /// Messages up to this id were returned or skipped.
    after: u64,
    /// Records that were returned and still exist, with their attempt. `None` before the first
    /// read.
    shown: Option<HashSet<(Tid, u32)>>,
}

impl Watch {
    /// Watches `queue` for messages with an id after `after`; 0 includes what is there already.
    ///
    /// A record with an earlier id is skipped if the first read finds it, and returned if it
    /// appears later.
    pub fn new(queue: QueueName, after: u64) -> Self {
        Self {
            queue,
            after,
            shown: None,
        }
    }

    /// New messages since the last call; waits for the first.
    pub async fn next(&mut self, broker: &dyn Broker, wait: Duration) -> Result<Vec<Message>> {
        match self.queue {
            QueueName::System(SystemQueue::Log) => {
                broker.events(Some(self.after), None, 1, wait).await?;
                let new = views::read_contents(broker, &self.queue, self.after, PAGE).await?;
                self.advance(&new);
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
        self.advance(&new);
        Ok(new)
    }

    /// Records appear and disappear with events, so wait for events before reading them again.
    async fn next_records(
        &mut self,
        broker: &dyn Broker,
        tid: Option<Tid>,
        wait: Duration,
    ) -> Result<Vec<Message>> {
        let deadline = Instant::now() + wait.min(FOREVER);
        // Results are a view of the log: skip other events for good.
        let is_log = matches!(self.queue.desk(), Some((_, ManagerQueue::Results)));
        loop {
            // Read before the records, so that no change is missed in between.
            let end = broker.last_event().await?;
            let mut new = if is_log {
                Vec::new()
            } else {
                self.new_records(broker).await?
            };
            let later = match is_log {
                true => views::read_contents(broker, &self.queue, self.after, PAGE).await?,
                false => views::stored(broker, &self.queue, self.after, PAGE).await?,
            };
            self.advance(&later);
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
            // The message of a task appears again with each attempt.
            QueueName::Task(tid, port) => match broker.task(tid).await? {
                Some(task) => views::task_message(broker, tid, port)
                    .await?
                    .into_iter()
                    .map(|own| (task.attempt, own))
                    .collect(),
                None => Vec::new(),
            },
            _ => views::read_contents(broker, &self.queue, 0, u32::MAX)
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

    fn advance(&mut self, shown: &[Message]) {
        if let Some(last) = shown.last() {
            self.after = last.id.as_u64();
        }
    }
}
