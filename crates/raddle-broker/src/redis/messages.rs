//! Stored messages: a sorted set for each queue, whose members begin with the message's id and so are in order.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{QueueName, Tid};

use super::{
    Redis,
    keys::Topic,
    link::Sure,
    script,
    value::{arg, list, number, text, tids},
};
use crate::{Conversion, Letter, Message, Messages, Peek, QueueDepth, Result, Submitted};

#[async_trait]
impl Messages for Redis {
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        let place = self.core.keys.queue(&queue);
        let mut args = vec![arg(place.prefix), arg(place.listed), arg(place.mark)];
        args.extend(bodies.into_iter().map(String::into_bytes));
        Ok(tids(self.link().change(&script::PUT, vec![place.key], args, Sure::Durable).await?))
    }

    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, wait).await;
        loop {
            let place = self.core.keys.queue(&queue);
            let args = vec![arg(max), arg(place.prefix), arg(place.listed)];
            let taken = self.link().change(&script::TAKE, vec![place.key], args, Sure::Durable).await?;
            let taken: Vec<Message> = list(taken).into_iter().filter_map(|member| message(&text(member))).collect();
            if !taken.is_empty() || !wait.again(None).await {
                return Ok(taken);
            }
        }
    }

    async fn look(&self, peek: Peek) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, peek.wait).await;
        let place = self.core.keys.queue(&peek.queue);
        let after = peek.after.min(i64::MAX as u64);
        loop {
            let mut pipe = redis::pipe();
            // Behind every member that begins with this id.
            pipe.cmd("ZRANGEBYLEX").arg(&place.key).arg(format!("({}{after:019};", place.prefix));
            match place.prefix.strip_suffix(':') {
                Some(prefix) => pipe.arg(format!("({prefix};")),
                None => pipe.arg("+"),
            };
            pipe.arg("LIMIT").arg(0).arg(peek.max);
            let found = self.link().pipe(pipe).await?.pop().unwrap_or_default();
            let strip = |member: String| message(member.strip_prefix(&place.prefix)?);
            let seen: Vec<Message> = list(found).into_iter().map(text).filter_map(strip).collect();
            if !seen.is_empty() || !wait.again(None).await {
                return Ok(seen);
            }
        }
    }

    async fn shift(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64> {
        let (from, to) = (self.core.keys.queue(&from), self.core.keys.queue(&to));
        let args = vec![arg(max), arg(from.prefix), arg(from.listed), arg(to.prefix), arg(to.listed), arg(to.mark)];
        let moved = self.link().change(&script::TAKE, vec![from.key, to.key], args, Sure::Durable).await?;
        Ok(list(moved).into_iter().next().map_or(0, number))
    }

    async fn convert(&self, conversion: Conversion) -> Result<Option<Vec<Submitted>>> {
        let Conversion { queue, messages, tasks, letters } = conversion;
        let (streams, packed) = self.submission(&tasks)?;
        let place = self.core.keys.queue(&queue);
        let (mut keys, mut args) = (vec![place.key], vec![packed, arg(place.listed), arg(messages.len())]);
        let member = |message: &Message| format!("{}{}:{}", place.prefix, message.id, message.body).into_bytes();
        args.extend(messages.iter().map(member));
        for Letter { to, body } in letters {
            let place = self.core.keys.queue(&to);
            keys.push(place.key);
            args.extend([arg(place.prefix), arg(place.listed), arg(place.mark), body.into_bytes()]);
        }
        keys.extend(streams);
        let mut answer = list(self.link().change(&script::CONVERT, keys, args, Sure::Durable).await?).into_iter();
        if answer.next().map(text).as_deref() != Some("made") {
            return Ok(None);
        }
        self.submitted(&mut answer).await.map(Some)
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>> {
        let mut pipe = redis::pipe();
        pipe.cmd("SMEMBERS").arg(self.core.keys.of("queues"));
        let names = list(self.link().pipe(pipe).await?.pop().unwrap_or_default());
        // A name that does not parse was not written by us; it is passed over rather than failing the whole list.
        let queues: Vec<QueueName> = names.into_iter().filter_map(|name| text(name).parse().ok()).collect();
        let mut depths = Vec::new();
        if !queues.is_empty() {
            let mut pipe = redis::pipe();
            queues.iter().for_each(|queue| _ = pipe.cmd("ZCARD").arg(self.core.keys.queue(queue).key));
            let counts = self.link().pipe(pipe).await?.into_iter().map(number);
            depths.extend(queues.into_iter().zip(counts).map(|(queue, messages)| QueueDepth { queue, messages }));
        }
        let of_tasks = list(self.link().look(&script::DEPTHS, Vec::new(), Vec::new()).await?);
        for pair in of_tasks.chunks_exact(2) {
            let (name, messages) = (text(pair[0].clone()), number(pair[1].clone()));
            let name = if name.contains('.') { format!("T{name}") } else { format!("T{name}.ctrl_in") };
            depths.extend(name.parse().ok().map(|queue| QueueDepth { queue, messages }));
        }
        depths.retain(|depth| depth.messages > 0);
        depths.sort_by_cached_key(|depth| depth.queue.to_string());
        Ok(depths)
    }
}

/// A message from what is stored of it: its id and its text.
fn message(member: &str) -> Option<Message> {
    let (id, body) = member.split_once(':')?;
    Some(Message { id: id.parse().ok()?, body: body.into() })
}
