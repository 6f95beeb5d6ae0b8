//! The Redis engine, for many machines: a Redis server, version 6.2 or newer.
//!
//! Every operation that changes more than one key is one Lua script, and so atomic. A script stores
//! its last reply for each caller: a call whose reply was lost is sent again and changes nothing
//! twice. The status of a task is in a few hashes, by its id. A sorted set holds the ids of ready
//! tasks, in order.
//!
//! A list per queue, set of needs and priority wakes workers: a waiting worker blocks in one
//! `BLPOP` over the lists that it may take from, and a new element wakes exactly one worker. Its
//! claim follows in the same pipeline and takes the best task. The lists hold no tasks, so a task
//! stays claimable if its worker dies right after it was woken.
//!
//! The consequence of an attempt's end is decided here, from a snapshot, by the function that
//! all engines use; the script then applies the change only if the task is unchanged.

mod apply;
mod chain;
mod change;
mod claim;
mod complete;
mod connection;
mod control;
mod event_index;
mod failure;
mod health;
mod lease;
mod log;
mod messages;
mod name;
mod notify;
mod open;
mod operations;
mod output;
mod progress;
mod purge;
mod query;
mod queue_pause;
mod reader;
mod reclaim;
mod record;
mod registry;
mod rollups;
mod schedule;
mod schema;
mod script;
mod stream_source;
mod submit;
mod target;
mod url;
mod value;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use connection::ServerConnection;
use notify::{Notifier, TopicWait};
use raddle_broker::{
    Result,
    engine::UnconfirmedCompletions,
    engine::{FOREVER, SAFETY_INTERVAL},
};
use reader::Readers;
use schema::{Keys, Partition, Topic};
use target::ServerTarget;

pub use stream_source::RedisStream;
pub use url::RedisAddress;

/// A broker on a Redis server.
pub struct Redis {
    core: Arc<RedisCore>,
}

/// State that the calls of one handle share.
struct RedisCore {
    link: ServerConnection,
    keys: Arc<Keys>,
    notifier: Notifier,
    readers: Readers,
    unconfirmed: UnconfirmedCompletions,
    /// The partitions that this handle knows.
    partitions: Mutex<Arc<Vec<Partition>>>,
}

impl Redis {
    /// Connects to the server at `address`, and checks that it is fit to store tasks.
    pub async fn open(address: RedisAddress) -> Result<Self> {
        let keys = Arc::new(Keys::new(&address.namespace));
        let target = ServerTarget::new(address)?;
        let link = ServerConnection::open(target, Arc::clone(&keys)).await?;
        let redis = Self {
            core: Arc::new(RedisCore::new(link, keys)),
        };
        // Also done here, because there may be only short-lived workers. The script limits it to
        // once a minute.
        redis.delete_old_replies().await;
        Ok(redis)
    }

    fn link(&self) -> &ServerConnection {
        &self.core.link
    }

    /// Subscribes to `topic` from now on.
    async fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        self.core.notifier.wait(topic, wait).await
    }
}

impl RedisCore {
    fn new(link: ServerConnection, keys: Arc<Keys>) -> Self {
        let notifier = Notifier::new(Arc::clone(&link.target), Arc::clone(&keys));
        Self {
            link,
            keys,
            notifier,
            readers: Readers::default(),
            unconfirmed: UnconfirmedCompletions::default(),
            partitions: Mutex::default(),
        }
    }
}
