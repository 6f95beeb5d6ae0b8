//! Stored messages.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use raddle_model::{QueueName, Tid, queue_name::TaskQueue};
use rusqlite::{Connection, params};

use super::{
    Sqlite,
    notify::Topic,
    submit::{prepare, submit},
    tx::{Tx, TxError, tid_at},
    writer::Durability,
};
use raddle_broker::{Message, MessageTransaction, Messages, PeekRequest, Result, Submitted};

/// The key of a queue in the table. Those of control queues start with a mark that no queue name
/// can start with, so they sort first and one lookup tells whether there is any.
pub(super) fn key(queue: &QueueName) -> String {
    match queue {
        QueueName::Task(_, TaskQueue::CtrlIn) => format!("{CONTROL_MARK}{queue}"),
        _ => queue.to_string(),
    }
}

const CONTROL_MARK: char = '!';

/// Appends one message.
pub(super) fn insert(tx: &mut Tx<'_>, queue: &QueueName, body: &str) -> Result<Tid, TxError> {
    let id = tx.next_id();
    if matches!(queue, QueueName::Task(_, TaskQueue::CtrlIn)) {
        tx.mark_control_stored();
        tx.notify(Topic::Control);
    }
    tx.notify(Topic::Queue);
    tx.db()
        .prepare_cached("INSERT INTO messages (queue, id, body) VALUES (?1, ?2, ?3)")?
        .execute(params![key(queue), id.as_i64(), body])?;
    Ok(id)
}

/// Takes all messages of a queue.
pub(super) fn drain(tx: &mut Tx<'_>, queue: &QueueName) -> Result<Vec<String>, TxError> {
    Ok(take(tx, queue, u32::MAX)?
        .into_iter()
        .map(|message| message.body)
        .collect())
}

fn take(tx: &mut Tx<'_>, queue: &QueueName, max: u32) -> Result<Vec<Message>, TxError> {
    let taken = select(tx.db(), queue, 0, max)?;
    if let Some(last) = taken.last() {
        tx.db()
            .prepare_cached("DELETE FROM messages WHERE queue = ?1 AND id <= ?2")?
            .execute(params![key(queue), last.id.as_i64()])?;
    }
    Ok(taken)
}

fn select(
    db: &Connection,
    queue: &QueueName,
    after: u64,
    max: u32,
) -> rusqlite::Result<Vec<Message>> {
    db.prepare_cached(
        "SELECT id, body FROM messages WHERE queue = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
    )?
    .query_map(
        params![key(queue), after.min(i64::MAX as u64) as i64, max],
        |row| {
            Ok(Message {
                id: tid_at(row, 0)?,
                body: row.get(1)?,
            })
        },
    )?
    .collect()
}

/// The sizes of all queues. Names that do not parse were not written by Raddle, and are skipped.
pub(super) fn queue_sizes(db: &Connection) -> rusqlite::Result<BTreeMap<QueueName, u64>> {
    let mut query = db.prepare_cached("SELECT queue, count(*) FROM messages GROUP BY queue")?;
    let mut rows = query.query([])?;
    let mut queue_sizes = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (name, messages): (String, i64) = (row.get(0)?, row.get(1)?);
        queue_sizes.extend(
            name.trim_start_matches(CONTROL_MARK)
                .parse()
                .ok()
                .map(|queue: QueueName| (queue, messages as u64)),
        );
    }
    Ok(queue_sizes)
}

#[async_trait]
impl Messages for Sqlite {
    async fn put(&self, queue: QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        self.write(Durability::Power, move |tx| {
            bodies.iter().map(|body| insert(tx, &queue, body)).collect()
        })
        .await
    }

    async fn take(&self, queue: QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, wait);
        loop {
            let queue = queue.clone();
            let taken = self
                .write(Durability::Power, move |tx| take(tx, &queue, max))
                .await?;
            if !taken.is_empty() || !wait.next(None).await {
                return Ok(taken);
            }
        }
    }

    async fn peek(&self, peek: PeekRequest) -> Result<Vec<Message>> {
        let mut wait = self.wait(Topic::Queue, peek.wait);
        loop {
            let peek = peek.clone();
            let seen = self
                .read(move |db| Ok(select(db, &peek.queue, peek.after, peek.max)?))
                .await?;
            if !seen.is_empty() || !wait.next(None).await {
                return Ok(seen);
            }
        }
    }

    async fn move_messages(&self, from: QueueName, to: QueueName, max: u32) -> Result<u64> {
        self.write(Durability::Power, move |tx| {
            let taken = take(tx, &from, max)?;
            taken
                .iter()
                .try_for_each(|message| insert(tx, &to, &message.body).map(drop))?;
            Ok(taken.len() as u64)
        })
        .await
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
        let tasks = tasks.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
        let queue = key(&queue);
        self.write(Durability::Power, move |tx| {
            // Check all before deleting any: earlier jobs of this transaction must be kept.
            for message in &messages {
                let there = "SELECT 1 FROM messages WHERE queue = ?1 AND id = ?2";
                if !tx
                    .db()
                    .prepare_cached(there)?
                    .exists(params![queue, message.id.as_i64()])?
                {
                    return Ok(None);
                }
            }
            for message in &messages {
                tx.db()
                    .prepare_cached("DELETE FROM messages WHERE queue = ?1 AND id = ?2")?
                    .execute(params![queue, message.id.as_i64()])?;
            }
            let submitted = submit(tx, tasks)?;
            new_messages
                .iter()
                .try_for_each(|message| insert(tx, &message.queue, &message.body).map(drop))?;
            Ok(Some(submitted))
        })
        .await
    }
}
