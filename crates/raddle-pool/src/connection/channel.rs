//! One socket to a worker, and the calls that go over it.

use std::{
    sync::{Arc, LazyLock, PoisonError, RwLock},
    time::Duration,
};

use raddle_wire::v1::worker_client::WorkerClient;
use tokio::sync::Semaphore;
use tonic::{Code, Status, transport};

use super::{
    Address, Outgoing,
    link::Link,
    replies::{self, From, Held, Replies, refusal},
    resource::ResourcePool,
};
use crate::RpcError;

/// How long a channel is kept that nobody uses.
const TTL: Duration = Duration::from_secs(60);
/// How long it may take to connect. A worker that listens accepts at once.
const CONNECT: Duration = Duration::from_secs(5);
/// Larger arguments go in a stream of their own: in a link they would hold up all others.
const BULKY: usize = 64 * 1024;
/// How much may be on its way before the other side has taken it.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The largest message. What is larger belongs into a file.
pub(crate) const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// The largest value in one, which leaves room for what comes with it.
pub(crate) const MAX_VALUE: usize = MAX_MESSAGE - 1024 * 1024;
/// A worker that says nothing for so long when it is asked whether it is there is not.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);

/// All channels of this process. Tasks of a runtime cannot serve another, so that is part of the key.
static CHANNELS: LazyLock<ResourcePool<Key, Channel>> = LazyLock::new(|| ResourcePool::new(TTL));

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: Arc<str>,
    limit: usize,
    runtime: tokio::runtime::Id,
}

/// One socket to a worker.
pub(crate) struct Channel {
    grpc: WorkerClient<transport::Channel>,
    permits: Arc<Semaphore>,
    way: RwLock<Way>,
    /// Held by whoever opens a link, so that it is one.
    opening: tokio::sync::Mutex<()>,
}

/// How calls go.
enum Way {
    /// Nobody has asked.
    Unknown,
    Link(Arc<Link>),
    /// The worker has no links.
    Plain,
}

impl Channel {
    /// The channel to this address.
    pub(crate) fn get(address: &Arc<str>, limit: usize) -> Result<Arc<Self>, RpcError> {
        let runtime = tokio::runtime::Handle::current().id();
        let key = Key { address: Arc::clone(address), limit, runtime };
        CHANNELS.get(&key, || Self::open(address, limit))
    }

    fn open(address: &str, limit: usize) -> Result<Self, RpcError> {
        let grpc = client(address)?;
        let permits = Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)));
        Ok(Self { grpc, permits, way: RwLock::new(Way::Unknown), opening: tokio::sync::Mutex::new(()) })
    }

    /// Sends a call, when it is its turn.
    pub(crate) async fn dispatch(self: &Arc<Self>, call: &Outgoing) -> Result<Replies, RpcError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| RpcError::refused(Code::Unavailable, "the channel is closed"))?;
        let held = Held { _permit: permit, _channel: Arc::clone(self) };
        // Also for those that do not go over it: until there is a link, nothing has begun.
        let link = self.link().await?.filter(|_| call.call.arguments.len() <= BULKY);
        let from = match link {
            Some(link) => From::Link(link.call((*call.call).clone())?),
            None => {
                let replies = self.grpc.clone().dispatch((*call.call).clone()).await;
                From::Plain(replies.map_err(|status| refusal(&status))?.into_inner())
            }
        };
        Ok(Replies::new(from, held))
    }

    /// The link, if the worker has links.
    async fn link(&self) -> Result<Option<Arc<Link>>, RpcError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _opening = self.opening.lock().await;
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let (way, link) = match Link::open(self.grpc.clone()).await {
            Ok(link) => {
                let link = Arc::new(link);
                (Way::Link(Arc::clone(&link)), Some(link))
            }
            Err(status) if status.code() == Code::Unimplemented => (Way::Plain, None),
            // Nothing was sent but the wish for a link.
            Err(status) => return Err(RpcError { may_have_begun: false, ..unanswered(&status) }),
        };
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = way;
        Ok(link)
    }

    /// The way, if it is known and still there.
    fn known(&self) -> Option<Option<Arc<Link>>> {
        match &*self.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Link(link) if link.is_open() => Some(Some(Arc::clone(link))),
            Way::Plain => Some(None),
            Way::Link(_) | Way::Unknown => None,
        }
    }
}

pub(super) fn unanswered(status: &Status) -> RpcError {
    let error = replies::refusal(status);
    // Whatever a way that broke is called, another worker may be reached.
    let code = if error.may_have_begun { Code::Unavailable } else { error.code };
    RpcError { code, ..error }
}

pub(super) fn client(address: &str) -> Result<WorkerClient<transport::Channel>, RpcError> {
    let place: Address = address.parse().map_err(|error| RpcError::refused(Code::Internal, format!("{error}")))?;
    // Where it leads is up to the connector; a request has to have some host.
    let endpoint = transport::Endpoint::from_static("http://worker")
        .connect_timeout(CONNECT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE);
    let client = WorkerClient::new(place.channel(endpoint));
    Ok(client.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE))
}
