//! Stored messages: a sorted set per queue, whose members begin with the message id and so are in
//! order.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use raddle_model::{QueueName, Tid};

use super::{
    Redis,
    connection::Certainty,
    schema::Topic,
    script,
    submit::pack,
    value::{arg, tids},
};
use raddle_broker::{
    Message, MessageTransaction, Messages, NewMessage, PeekRequest, Result, Submitted,
};

#[async_trait]
impl Messages for Redis {
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        let mut args = self.core.keys.queue(&queue).args().to_vec();
        args.extend(bodies.into_iter().map(String::into_bytes));
        Ok(tids(
            self.link()
                .change::<Vec<String>>(&script::PUT, args, Certainty::Durable)
                .await?,
        ))
    }

    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, wait).await;
        loop {
            let mut args = vec![arg(max)];
            args.extend(self.core.keys.queue(&queue).args());
            let taken: Vec<String> = self
                .link()
                .change(&script::TAKE, args, Certainty::Durable)
                .await?;
            let taken: Vec<Message> = taken.iter().filter_map(|member| message(member)).collect();
            if !taken.is_empty() || !wait.next(None).await {
                return Ok(taken);
            }
        }
    }

    async fn peek(&self, peek: PeekRequest) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, peek.wait).await;
        let place = self.core.keys.queue(&peek.queue);
        let after = peek.after.min(i64::MAX as u64);
        loop {
            let mut range = redis::cmd("ZRANGEBYLEX");
            // Sorts after every member that begins with this id.
            range
                .arg(&place.key)
                .arg(format!("({}{after:019};", place.prefix));
            match place.prefix.strip_suffix(':') {
                Some(prefix) => range.arg(format!("({prefix};")),
                None => range.arg("+"),
            };
            range.arg("LIMIT").arg(0).arg(peek.max);
            let found: Vec<String> = self.link().read(&range).await?;
            let strip = |member: &String| message(member.strip_prefix(&place.prefix)?);
            let seen: Vec<Message> = found.iter().filter_map(strip).collect();
            if !seen.is_empty() || !wait.next(None).await {
                return Ok(seen);
            }
        }
    }

    async fn move_messages(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64> {
        let mut args = vec![arg(max)];
        args.extend(
            [from, to]
                .iter()
                .flat_map(|queue| self.core.keys.queue(queue).args()),
        );
        let moved: Vec<String> = self
            .link()
            .change(&script::TAKE, args, Certainty::Durable)
            .await?;
        Ok(moved.len() as u64)
    }

    async fn apply_transaction(
        &self,
        conversion: MessageTransaction,
    ) -> Result<Option<Vec<Submitted>>> {
        let MessageTransaction {
            queue,
            messages,
            tasks,
            new_messages,
        } = conversion;
        let place = self.core.keys.queue(&queue);
        let mut args = vec![pack(&tasks)?];
        args.extend(place.args());
        args.push(arg(messages.len()));
        args.extend(
            messages
                .iter()
                .map(|message| arg(format!("{}{}:{}", place.prefix, message.id, message.body))),
        );
        for NewMessage { queue, body } in new_messages {
            args.extend(self.core.keys.queue(&queue).args());
            args.push(body.into_bytes());
        }
        let tids: Option<Vec<String>> = self
            .link()
            .change(&script::APPLY_TRANSACTION, args, Certainty::Durable)
            .await?;
        tids.map(|tids| self.submitted(tids)).transpose()
    }
}

impl Redis {
    /// The sizes of all queues. Names that do not parse were not written by Raddle, and are
    /// skipped.
    pub(super) async fn queue_sizes(&self) -> Result<BTreeMap<QueueName, u64>> {
        let names: Vec<String> = self
            .link()
            .read(redis::cmd("SMEMBERS").arg(self.core.keys.named("queues")))
            .await?;
        let queues: Vec<QueueName> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let mut queue_sizes = BTreeMap::new();
        if !queues.is_empty() {
            let mut pipe = redis::pipe();
            queues
                .iter()
                .for_each(|queue| _ = pipe.cmd("ZCARD").arg(self.core.keys.queue(queue).key));
            let counts: Vec<u64> = self.link().query(&pipe).await?;
            queue_sizes.extend(queues.into_iter().zip(counts));
        }
        let of_tasks: Vec<(String, u64)> = self
            .link()
            .run_idempotent(&script::QUEUE_SIZES, Vec::new())
            .await?;
        for (name, messages) in of_tasks {
            let name = if name.contains('.') {
                format!("T{name}")
            } else {
                format!("T{name}.ctrl_in")
            };
            queue_sizes.extend(name.parse().ok().map(|queue: QueueName| (queue, messages)));
        }
        queue_sizes.retain(|_, messages| *messages > 0);
        Ok(queue_sizes)
    }
}

/// Parses a stored message: id and text.
fn message(member: &str) -> Option<Message> {
    let (id, body) = member.split_once(':')?;
    Some(Message {
        id: id.parse().ok()?,
        body: body.into(),
    })
}
