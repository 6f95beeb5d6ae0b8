//! Streams that programs without Raddle write to (`XADD`). Their entries become messages of a queue.
//!
//! `XREADGROUP` makes an entry pending; one script then acknowledges it (`XACK`) and appends it to the queue. Only a pending entry can be
//! acknowledged, so each is appended once, however many managers read the stream. What a manager has read and not appended when it dies stays
//! pending, and `XAUTOCLAIM` gives it to the next.

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::QueueName;
use redis::{Cmd, FromRedisValue, RedisError, Value, aio::MultiplexedConnection};
use serde_json::{Map, Value as Json};
use tokio::time::timeout;

use super::{
    Redis,
    connection::Certainty,
    failure::{Fault, said},
    script,
    url::RedisAddress,
};
use raddle_broker::{Error, Result, StreamSource};

/// How many entries are transferred in one step.
const PORTION: u32 = 64;
/// For how long an entry is pending before another manager transfers it.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);
/// How long one read blocks, and so how often entries are looked for that are pending.
const BLOCK: Duration = Duration::from_secs(5);
/// How long an answer may take beyond that.
const MARGIN: Duration = Duration::from_secs(5);
/// All managers are one consumer: one for each would stay in the group when its manager is gone.
const CONSUMER: &str = "raddle";
/// The only field of an entry that is the message itself.
const WHOLE: &str = "message";

/// An entry's id and its fields. An entry that was deleted while it was pending has none.
type StreamEntry = (String, Option<Vec<(Vec<u8>, Vec<u8>)>>);

/// One stream, and the queue that its entries go to.
pub struct RedisStream {
    redis: Redis,
    stream: String,
    group: String,
    queue: QueueName,
    /// The connection that blocks, while there is one.
    reader: Option<MultiplexedConnection>,
}

impl RedisStream {
    /// Opens the stream, whose entries become messages of `queue`.
    pub async fn open(address: RedisAddress, stream: &str, queue: QueueName) -> Result<Self> {
        let namespace = address.namespace.clone();
        let redis = Redis::open(address).await?;
        // A script reaches one slot of a cluster. Without a hash tag in its name, that of a stream is the one of the namespace of the same name.
        if redis.link().server().await?.get("cluster_enabled") == "1" && stream != namespace {
            return Err(Error::Refused {
                place: redis.link().target.place(),
                reason: format!(
                    "is a cluster, where the stream '{stream}' is in another slot than the namespace"
                ),
                fix: format!("use ?namespace={stream}, or feed the source by 'raddle queue write'"),
            });
        }
        let (stream, group) = (stream.to_owned(), format!("raddle:{namespace}"));
        Ok(Self {
            redis,
            stream,
            group,
            queue,
            reader: None,
        })
    }

    /// The next entries: those that are pending for too long, or new ones, which are waited for.
    async fn read(&mut self) -> Result<Vec<StreamEntry>, Fault> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim
            .arg(&self.stream)
            .arg(&self.group)
            .arg(CONSUMER)
            .arg(ABANDONED_AFTER.as_millis() as u64);
        claim.arg("0-0").arg("COUNT").arg(PORTION);
        let abandoned = match self.ask(&claim).await? {
            // The next cursor, the entries, and since Redis 7 those that were deleted.
            Value::Array(parts) => parts
                .into_iter()
                .nth(1)
                .map(|entries| self.parse(entries))
                .transpose()?,
            _ => None,
        };
        if let Some(abandoned) = abandoned.filter(|entries: &Vec<StreamEntry>| !entries.is_empty())
        {
            return Ok(abandoned);
        }
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(&self.group)
            .arg(CONSUMER)
            .arg("COUNT")
            .arg(PORTION);
        read.arg("BLOCK")
            .arg(BLOCK.as_millis() as u64)
            .arg("STREAMS")
            .arg(&self.stream)
            .arg(">");
        let answer = self.ask(&read).await?;
        let streams: Option<Vec<(String, Vec<StreamEntry>)>> = self.parse(answer)?;
        Ok(streams
            .into_iter()
            .flatten()
            .flat_map(|(_, entries)| entries)
            .collect())
    }

    /// Sends a command over the connection that may block. Makes the group if there is none: then there is nothing to answer.
    async fn ask(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let target = &self.redis.link().target;
        // It is put back only when it has answered: one that may still answer is not used again.
        let mut connection = match self.reader.take() {
            Some(connection) => connection,
            None => target.connect(None).await?,
        };
        let query = async |command: &Cmd, connection: &mut MultiplexedConnection| {
            let late = || Fault::Away("a blocking read was not answered".into());
            timeout(BLOCK + MARGIN, command.query_async::<Value>(connection))
                .await
                .map_err(|_| late())
        };
        let mut answer = query(command, &mut connection).await?;
        if answer
            .as_ref()
            .is_err_and(|error| has_code(error, "NOGROUP"))
        {
            let mut create = redis::cmd("XGROUP");
            // From the first entry: what was added before Raddle was there is an event too.
            create
                .arg("CREATE")
                .arg(&self.stream)
                .arg(&self.group)
                .arg("0")
                .arg("MKSTREAM");
            answer = match query(&create, &mut connection).await? {
                Err(error) if !has_code(&error, "BUSYGROUP") => Err(error),
                _ => Ok(Value::Nil),
            };
        }
        let answer = answer.map_err(|error| target.explain(&error))?;
        self.reader = Some(connection);
        Ok(answer)
    }

    fn parse<T: FromRedisValue>(&self, answer: Value) -> Result<T, Fault> {
        self.redis.link().parse(answer).map_err(Fault::from)
    }
}

#[async_trait]
impl StreamSource for RedisStream {
    async fn transfer(&mut self) -> Result<u64> {
        let entries = match self.read().await {
            Ok(entries) => entries,
            Err(fault) => return Err(self.redis.link().give_up(fault)),
        };
        if entries.is_empty() {
            return Ok(0);
        }
        let mut args = self.redis.core.keys.queue(&self.queue).args().to_vec();
        args.extend([self.stream.clone(), self.group.clone()].map(String::into_bytes));
        for (id, fields) in entries {
            args.extend([id, message(&fields.unwrap_or_default())].map(String::into_bytes));
        }
        self.redis
            .link()
            .change(&script::TRANSFER, args, Certainty::Durable)
            .await
    }
}

fn has_code(error: &RedisError, code: &str) -> bool {
    said(error).is_some_and(|(said, _)| said == code)
}

/// The message that an entry is: its fields as a JSON object of texts, or the only field as it is if that is called `message`. Bytes that are no
/// text are replaced, as U+FFFD.
fn message(fields: &[(Vec<u8>, Vec<u8>)]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match fields {
        [(name, value)] if name == WHOLE.as_bytes() => text(value),
        _ => {
            let fields: Map<String, Json> = fields
                .iter()
                .map(|(name, value)| (text(name), text(value).into()))
                .collect();
            Json::Object(fields).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &[u8])]) -> String {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
            .collect();
        message(&fields)
    }

    #[test]
    fn an_entry_is_its_fields_or_its_only_field_message() {
        assert_eq!(
            of(&[("order", b"17"), ("item", b"\"loom\"")]),
            r#"{"item":"\"loom\"","order":"17"}"#
        );
        assert_eq!(of(&[("message", br#"{"order":17}"#)]), r#"{"order":17}"#);
        assert_eq!(
            of(&[("message", b"a"), ("b", b"\xff")]),
            "{\"b\":\"\u{fffd}\",\"message\":\"a\"}"
        );
    }
}
