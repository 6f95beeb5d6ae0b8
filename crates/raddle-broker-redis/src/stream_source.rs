//! Streams to which programs without Raddle write (`XADD`). Their entries become messages of a
//! queue.
//!
//! `XREADGROUP` makes an entry pending; one script then acknowledges it (`XACK`) and appends it to
//! the queue. Only a pending entry can be acknowledged, so each is appended once, however many
//! managers read the stream. Entries that a manager has read but not appended when it dies stay
//! pending, and `XAUTOCLAIM` gives them to the next.

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

/// The number of entries transferred at once.
const PORTION: u32 = 64;
/// How long an entry is pending before another manager transfers it.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);
/// How long one read blocks, and so how often pending entries are checked.
const BLOCK: Duration = Duration::from_secs(5);
/// How long a reply may take beyond that.
const MARGIN: Duration = Duration::from_secs(5);
/// All managers are one consumer: a consumer of each would stay in the group after its manager.
const CONSUMER: &str = "raddle";
/// The field that is the whole message if it is the only one.
const WHOLE: &str = "message";

/// The id and fields of an entry. No fields if it was deleted while it was pending.
type StreamEntry = (String, Option<Vec<(Vec<u8>, Vec<u8>)>>);

/// A stream, and the queue of its entries.
pub struct RedisStream {
    redis: Redis,
    stream: String,
    group: String,
    queue: QueueName,
    /// The blocking connection, if it is open.
    reader: Option<MultiplexedConnection>,
}

impl RedisStream {
    /// Opens a stream whose entries become messages of `queue`.
    pub async fn open(address: RedisAddress, stream: &str, queue: QueueName) -> Result<Self> {
        let namespace = address.namespace.clone();
        let redis = Redis::open(address).await?;
        // A script can only access one slot of a cluster. Without a hash tag, the slot of a stream
        // is that of the namespace of the same name.
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

    /// The next entries: those that are pending for too long, or new ones; waits for them.
    async fn read(&mut self) -> Result<Vec<StreamEntry>, Fault> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim
            .arg(&self.stream)
            .arg(&self.group)
            .arg(CONSUMER)
            .arg(ABANDONED_AFTER.as_millis() as u64);
        claim.arg("0-0").arg("COUNT").arg(PORTION);
        let abandoned = match self.send(&claim).await? {
            // `XAUTOCLAIM` returns the next cursor, the entries, and since Redis 7 the deleted
            // ones.
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
        let answer = self.send(&read).await?;
        let streams: Option<Vec<(String, Vec<StreamEntry>)>> = self.parse(answer)?;
        Ok(streams
            .into_iter()
            .flatten()
            .flat_map(|(_, entries)| entries)
            .collect())
    }

    /// Sends a command over the blocking connection. Creates the group if it does not exist; then
    /// there are no entries.
    async fn send(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let target = &self.redis.link().target;
        // Kept only after it has replied: a connection with an outstanding reply is not used again.
        let mut connection = match self.reader.take() {
            Some(connection) => connection,
            None => target.connect(None).await?,
        };
        let query = async |command: &Cmd, connection: &mut MultiplexedConnection| {
            let late = || Fault::Away("no reply to a blocking read".into());
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
            // From the first entry: entries that were added before Raddle ran count too.
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

/// The message of an entry: its fields as a JSON object of strings, or the field `message` as it is
/// if it is the only one. Bytes that are not UTF-8 are replaced by U+FFFD.
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

    fn text_of(fields: &[(&str, &[u8])]) -> String {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
            .collect();
        message(&fields)
    }

    #[test]
    fn an_entry_becomes_its_fields_or_its_only_message() {
        assert_eq!(
            text_of(&[("order", b"17"), ("item", b"\"loom\"")]),
            r#"{"item":"\"loom\"","order":"17"}"#
        );
        assert_eq!(
            text_of(&[("message", br#"{"order":17}"#)]),
            r#"{"order":17}"#
        );
        assert_eq!(
            text_of(&[("message", b"a"), ("b", b"\xff")]),
            "{\"b\":\"\u{fffd}\",\"message\":\"a\"}"
        );
    }
}
