//! The engine for many machines: a Redis server, version 6.2 or newer.
//!
//! Every step that changes more than one thing is one script, so it happens whole or not at all. A script remembers its last
//! answer for each caller: a call whose answer was lost is sent again and changes nothing twice. Where a task stands is in a few hashes, by its
//! id; a sorted set holds the ids of those that can be claimed, in order. A list for each queue, set of needs and priority wakes workers: one that
//! waits blocks in one `BLPOP` over those it may take from, and a new element wakes exactly one worker. Its claim stands behind that in the
//! same pipeline and takes the best there is. No task is in such a list, so one whose worker dies right after it was woken is still there for
//! the next.
//!
//! What follows from the end of an attempt is decided here, from what was read, by the same function that all engines use; the script
//! then makes the change only if the task is still as it was read.

mod apply;
mod chain;
mod change;
mod claim;
mod complete;
mod connection;
mod control;
mod failure;
mod health;
mod lease;
mod log;
mod messages;
mod notify;
mod open;
mod output;
mod progress;
mod purge;
mod query;
mod reader;
mod reclaim;
mod record;
mod registry;
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

/// What the calls of one handle share.
struct RedisCore {
    link: ServerConnection,
    keys: Arc<Keys>,
    bell: Notifier,
    readers: Readers,
    unconfirmed: UnconfirmedCompletions,
    /// The partitions there are, as far as this handle knows.
    parts: Mutex<Arc<Vec<Partition>>>,
}

impl Redis {
    /// Connects to the server at `address`, and looks whether tasks can be kept there.
    pub async fn open(address: RedisAddress) -> Result<Self> {
        let keys = Arc::new(Keys::new(&address.namespace));
        let target = ServerTarget::new(address)?;
        let link = ServerConnection::open(target, Arc::clone(&keys)).await?;
        let redis = Self {
            core: Arc::new(RedisCore::new(link, keys)),
        };
        // Where no worker stays that would do it, those that come and go do. The script does it once a minute at most.
        redis.forget_answers().await;
        Ok(redis)
    }

    fn link(&self) -> &ServerConnection {
        &self.core.link
    }

    /// A wait for `topic`, which listens from now on.
    async fn wait(&self, topic: Topic, wait: Duration) -> TopicWait {
        self.core.bell.wait(topic, wait).await
    }
}

impl RedisCore {
    fn new(link: ServerConnection, keys: Arc<Keys>) -> Self {
        let bell = Notifier::new(Arc::clone(&link.target), Arc::clone(&keys));
        Self {
            link,
            keys,
            bell,
            readers: Readers::default(),
            unconfirmed: UnconfirmedCompletions::default(),
            parts: Mutex::default(),
        }
    }
}
