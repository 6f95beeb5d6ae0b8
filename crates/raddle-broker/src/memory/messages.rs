//! Stored messages.

use std::{ops::Bound, time::Duration};

use async_trait::async_trait;
use raddle_core::{QueueName, Tid, queue_name::Port};

use super::{
    Memory,
    shared::Topic,
    state::{Now, State, behind},
};
use crate::{
    Messages, Result,
    request::{Conversion, Message, Peek, QueueDepth, Submitted},
};

#[async_trait]
impl Messages for Memory {
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        Ok(self.shared.change(|state, now| state.put(&queue, bodies, now)))
    }

    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        let taken = self.shared.wait_for(Topic::Messages, wait, |state, _| Ok(found(state.take(&queue, max)))).await?;
        Ok(taken.unwrap_or_default())
    }

    async fn look(&self, peek: Peek) -> Result<Vec<Message>> {
        let seen = self.shared.wait_for(Topic::Messages, peek.wait, |state, _| Ok(found(state.look(&peek)))).await?;
        Ok(seen.unwrap_or_default())
    }

    async fn shift(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64> {
        Ok(self.shared.change(|state, now| state.shift(&from, &to, max, now)))
    }

    async fn convert(&self, conversion: Conversion) -> Result<Option<Vec<Submitted>>> {
        self.shared.change(|state, now| state.convert(conversion, now))
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>> {
        Ok(self.shared.change(|state, _| {
            let depth = |(queue, held): (&QueueName, &std::collections::BTreeMap<_, _>)| QueueDepth {
                queue: queue.clone(),
                messages: held.len() as u64,
            };
            state.queues.iter().map(depth).collect()
        }))
    }
}

impl State {
    /// Appends messages to a queue.
    pub(super) fn put(&mut self, queue: &QueueName, bodies: Vec<String>, now: Now) -> Vec<Tid> {
        let messages: Vec<_> = bodies.into_iter().map(|body| (self.next_id(now), body)).collect();
        let ids = messages.iter().map(|(id, _)| *id).collect();
        self.add(queue, messages);
        ids
    }

    fn take(&mut self, queue: &QueueName, max: u32) -> Vec<Message> {
        let Some(held) = self.queues.get_mut(queue) else { return Vec::new() };
        let mut taken = Vec::new();
        while taken.len() < max as usize
            && let Some((id, body)) = held.pop_first()
        {
            taken.push(Message { id, body });
        }
        if held.is_empty() {
            self.queues.remove(&queue);
        }
        taken
    }

    fn look(&self, peek: &Peek) -> Vec<Message> {
        let Some(held) = self.queues.get(&peek.queue) else { return Vec::new() };
        let after = behind(peek.after);
        let message = |(id, body): (&Tid, &String)| Message { id: *id, body: body.clone() };
        held.range((after, Bound::Unbounded)).take(peek.max as usize).map(message).collect()
    }

    fn shift(&mut self, from: &QueueName, to: &QueueName, max: u32, now: Now) -> u64 {
        let moved = self.take(from, max).into_iter().map(|message| message.body).collect();
        self.put(to, moved, now).len() as u64
    }

    fn convert(&mut self, conversion: Conversion, now: Now) -> Result<Option<Vec<Submitted>>> {
        let Conversion { queue, messages, tasks, letters } = conversion;
        let held = self.queues.get(&queue);
        if messages.iter().any(|message| held.is_none_or(|held| !held.contains_key(&message.id))) {
            return Ok(None);
        }
        let submitted = self.submit(tasks, now)?;
        if let Some(held) = self.queues.get_mut(&queue) {
            messages.iter().for_each(|message| _ = held.remove(&message.id));
            if held.is_empty() {
                self.queues.remove(&queue);
            }
        }
        letters.into_iter().for_each(|letter| _ = self.put(&letter.to, vec![letter.body], now));
        Ok(Some(submitted))
    }

    fn add(&mut self, queue: &QueueName, messages: Vec<(Tid, String)>) {
        if messages.is_empty() {
            return;
        }
        self.queues.entry(queue.clone()).or_default().extend(messages);
        self.wake.messages = true;
        self.wake.controls |= matches!(queue, QueueName::Task(_, Port::CtrlIn));
    }
}

/// Nothing found means to wait on.
fn found(messages: Vec<Message>) -> Option<Vec<Message>> {
    Some(messages).filter(|messages| !messages.is_empty())
}
