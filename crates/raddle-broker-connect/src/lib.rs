//! Queue URLs, and opening the broker that a URL names.
//!
//! A crate of its own because it depends on all engines, and engines must not depend on each other.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use async_trait::async_trait;
use raddle_model::QueueName;

use raddle_broker::{Broker, BrokerOpener, Error, Result, StreamSource};
#[cfg(feature = "redis")]
use raddle_broker_redis as redis;
use raddle_broker_remote::Remote;
use raddle_broker_sqlite::Sqlite;

/// The address of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerUrl {
    /// In the memory of this process.
    Memory,
    /// In a file on this machine.
    Sqlite(PathBuf),
    /// Served by another process of this machine at this socket.
    Unix(PathBuf),
    /// On a Redis server.
    #[cfg(feature = "redis")]
    Redis(Box<redis::RedisAddress>),
}

/// The text is not a queue URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseBrokerUrlError(String);

#[cfg(feature = "redis")]
const FORMS: &str = "use sqlite:PATH; redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT/MASTER or redis+unix:PATH; unix:PATH \
                     for one that a worker serves; or mem:// for a broker that lives in one process";
#[cfg(not(feature = "redis"))]
const FORMS: &str = "use sqlite:PATH, unix:PATH for one that a worker serves, or mem:// for a broker that lives in one process";

/// Opens the broker at `url`. A SQLite database is created if it does not exist; a server must be
/// running.
pub async fn connect(url: &BrokerUrl) -> Result<Arc<dyn Broker>> {
    Ok(match url {
        BrokerUrl::Memory => Arc::new(Sqlite::in_memory().await?),
        BrokerUrl::Sqlite(path) => Arc::new(Sqlite::open(path).await?),
        BrokerUrl::Unix(path) => Arc::new(Remote::connect(path).await?),
        #[cfg(feature = "redis")]
        BrokerUrl::Redis(address) => Arc::new(redis::Redis::open((**address).clone()).await?),
    })
}

/// Opens a stream of the server at `url`, whose entries become messages of `queue`.
pub async fn open_stream(
    url: &BrokerUrl,
    stream: &str,
    queue: QueueName,
) -> Result<Box<dyn StreamSource>> {
    match url {
        #[cfg(feature = "redis")]
        BrokerUrl::Redis(address) => Ok(Box::new(
            redis::RedisStream::open((**address).clone(), stream, queue).await?,
        )),
        _ => {
            let (place, reason) = (
                url.to_string(),
                format!("has no streams, so '{stream}' cannot feed {queue}"),
            );
            Err(Error::Refused {
                place,
                reason,
                fix: "use redis://HOST:PORT".into(),
            })
        }
    }
}

#[async_trait]
impl BrokerOpener for BrokerUrl {
    async fn open(&self) -> Result<Arc<dyn Broker>> {
        connect(self).await
    }
}

impl BrokerUrl {
    /// Whether [`open_stream`] works with this URL.
    pub fn has_streams(&self) -> bool {
        #[cfg(feature = "redis")]
        return matches!(self, Self::Redis(_));
        #[cfg(not(feature = "redis"))]
        false
    }
}

impl BrokerUrl {
    /// The same URL for a service: calls wait without a limit for a server that is away, unless the
    /// URL sets one (`give_up_after`). With `opens`, the first connection waits too.
    pub fn patient(self, opens: bool) -> Self {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => Self::Redis(Box::new(address.patient(opens))),
            other => {
                let _ = opens;
                other
            }
        }
    }
}

impl BrokerUrl {
    /// The URL including the password, if it may contain one: for the environment of a child
    /// process.
    pub fn secret(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => Some(address.secret()),
            _ => None,
        }
    }
}

impl BrokerUrl {
    /// Whether the broker is reached over a network.
    pub fn is_on_network(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => address.is_on_network(),
            _ => false,
        }
    }
}

impl BrokerUrl {
    /// Whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => address.has_password(),
            _ => false,
        }
    }
}

impl FromStr for BrokerUrl {
    type Err = ParseBrokerUrlError;

    fn from_str(text: &str) -> Result<Self, ParseBrokerUrlError> {
        // Errors repeat only the scheme: a mistyped URL may contain a password.
        let scheme = || text.split(':').next().unwrap_or_default().to_owned();
        #[cfg(feature = "redis")]
        if let Some(address) = redis::RedisAddress::parse(text) {
            let refused = |reason| {
                ParseBrokerUrlError(format!(
                    "the queue URL {}:… cannot be used: {reason}",
                    scheme()
                ))
            };
            return address
                .map(|address| Self::Redis(Box::new(address)))
                .map_err(refused);
        }
        match text {
            "mem://" | "stub://" => Ok(Self::Memory),
            _ => match text.split_once(':') {
                Some(("sqlite", path)) if names_a_file(path) => Ok(Self::Sqlite(plain(path))),
                Some(("unix", path)) if names_a_file(path) => Ok(Self::Unix(plain(path))),
                _ => Err(ParseBrokerUrlError(format!(
                    "'{}' is not a queue URL: {FORMS}",
                    scheme()
                ))),
            },
        }
    }
}

fn names_a_file(path: &str) -> bool {
    !path.trim_start_matches('/').is_empty()
}

/// The path, also if it is written with slashes as in `sqlite:///var/lib/work.db`.
fn plain(path: &str) -> PathBuf {
    path.strip_prefix("//").unwrap_or(path).into()
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("mem://"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            #[cfg(feature = "redis")]
            Self::Redis(address) => write!(f, "{address}"),
        }
    }
}
