//! One socket to a worker, and the calls that go over it.

use std::{
    io,
    sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use raddle_wire::{
    frame::GREETING,
    v1::{self, worker_client::WorkerClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::Instant,
};
use tonic::{Code, Status, transport};

use super::{
    link::Link,
    replies::{self, From, Replies, Turn, refusal},
    resource::ResourcePool,
    stream::{GRPC, LINK},
    target::{CONNECT, Target},
};
use crate::{
    Encoding, RpcError,
    credentials::{Refusal, WorkerCredentials},
};

/// How long a channel is kept that nobody uses.
const TTL: Duration = Duration::from_secs(60);
/// How much may be on its way before the other side has taken it.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The largest message. What is larger belongs into a file.
pub(crate) const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// The largest value in one, which leaves room for what comes with it.
pub(crate) const MAX_VALUE: usize = raddle_wire::frame::MAX_BODY;
/// A worker that says nothing for so long when it is asked whether it is there is not.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);

/// All channels of this process. Tasks of a runtime cannot serve another, so that is part of the key.
static CHANNELS: LazyLock<ResourcePool<Key, Channel>> = LazyLock::new(|| ResourcePool::new(TTL));

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    target: Target,
    limit: usize,
    runtime: tokio::runtime::Id,
}

/// One socket to a worker.
pub(crate) struct Channel {
    target: Target,
    grpc: WorkerClient<transport::Channel>,
    permits: Arc<Semaphore>,
    way: RwLock<Way>,
    /// What the worker has said that it reads, when it has refused something else.
    encoding: OnceLock<Encoding>,
    /// Held by whoever opens a link, so that it is one. What has become of the last attempt, if that failed, and when.
    opening: tokio::sync::Mutex<Option<(Instant, RpcError)>>,
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
    /// The channel there.
    pub(crate) fn get(
        address: &str,
        credentials: Option<&WorkerCredentials>,
        limit: usize,
    ) -> Result<Arc<Self>, RpcError> {
        let runtime = tokio::runtime::Handle::current().id();
        let key = Key { target: Target::new(address, credentials)?, limit, runtime };
        CHANNELS.get(&key, || Ok(Self::open(key.target.clone(), limit)))
    }

    fn open(target: Target, limit: usize) -> Self {
        let grpc = target.client();
        let permits = Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)));
        let (way, opening) = (RwLock::new(Way::Unknown), tokio::sync::Mutex::default());
        Self { target, grpc, permits, way, encoding: OnceLock::new(), opening }
    }

    /// What the worker reads, if it has refused something else.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.encoding.get().copied()
    }

    /// It has refused another. Should a worker take its place that reads something else, that is said to each call until this channel is let go of.
    pub(super) fn is_to_be_called_in(&self, encoding: Encoding) {
        let _ = self.encoding.set(encoding);
    }

    /// Waits until a call may be sent. Whose turn it is, it is until this is dropped.
    pub(crate) async fn turn(self: &Arc<Self>) -> Result<Turn, RpcError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| RpcError::refused(Code::Unavailable, "the channel is closed"))?;
        Ok(Turn { _permit: permit, _channel: Arc::clone(self) })
    }

    /// Sends a call whose turn it is. Returns when it has been taken.
    pub(super) async fn dispatch(&self, call: &v1::Call, encoding: Encoding, turn: Turn) -> Result<Replies, RpcError> {
        let from = match self.link().await? {
            Some(link) => From::Link(link.call(call.clone())?),
            None => {
                let replies = self.grpc.clone().dispatch(call.clone()).await;
                From::Plain(replies.map_err(|status| refusal(&status))?.into_inner())
            }
        };
        let mut replies = Replies::new(from, encoding, turn);
        replies.taken().await?;
        Ok(replies)
    }

    /// The link, if the worker has links.
    async fn link(&self) -> Result<Option<Arc<Link>>, RpcError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let asked = Instant::now();
        let mut failed = self.opening.lock().await;
        if let Some(known) = self.known() {
            return Ok(known);
        }
        // Who has waited for an attempt that failed does not wait for another: else the last of many would wait for all of them.
        if let Some((_, error)) = failed.as_ref().filter(|(when, _)| *when >= asked) {
            return Err(error.clone());
        }
        let greeted = tokio::time::timeout(CONNECT, greet(&self.target)).await;
        let greeted = greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        // Nothing was sent but a greeting.
        let way = greeted.map_err(|error| {
            let error = unreached(&error);
            *failed = Some((Instant::now(), error.clone()));
            error
        })?;
        let link = match &way {
            Way::Link(link) => Some(Arc::clone(link)),
            Way::Unknown | Way::Plain => None,
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

/// Greets whoever serves there, and finds out how calls go.
async fn greet(target: &Target) -> io::Result<Way> {
    let mut stream = target.connect(&[LINK, GRPC]).await?;
    if stream.is_grpc() {
        return Ok(Way::Plain);
    }
    stream.write_all(&GREETING).await?;
    let mut greeting = [0; GREETING.len()];
    // A gRPC server begins to speak by itself. One that hangs up without a word was just ending, and has taken nothing.
    stream.read_exact(&mut greeting).await?;
    if greeting != GREETING {
        return Ok(Way::Plain);
    }
    Link::new(stream.into_socket()?).map(Arc::new).map(Way::Link)
}

/// Nobody was met there.
fn unreached(error: &io::Error) -> RpcError {
    if let Some(refusal) = Refusal::of(error) {
        return RpcError::refused(Code::Unavailable, format!("there is no trust between worker and caller: {refusal}"));
    }
    let message = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => format!("nobody serves there ({error})"),
        _ => format!("the worker cannot be reached ({error})"),
    };
    RpcError::refused(Code::Unavailable, message)
}

pub(super) fn unanswered(status: &Status) -> RpcError {
    let error = replies::refusal(status);
    // Whatever a way that broke is called, another worker may be reached.
    let code = if error.may_have_begun { Code::Unavailable } else { error.code };
    RpcError { code, ..error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_worker_that_does_not_greet_waits_no_longer_than_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // As a worker that stands still: the system connects, and nobody says anything.
        let _listener = UnixListener::bind(&path).unwrap();
        let target = Target::new(&format!("unix:{}", path.display()), None).unwrap();
        let channel = Channel::open(target, 100);
        let began = Instant::now();
        for link in join_all((0..20).map(|_| channel.link())).await {
            assert!(link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun));
        }
        assert!(began.elapsed() < 2 * CONNECT, "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(channel.link().await.is_err(), "a later one tries again");
        assert!(began.elapsed() > 2 * CONNECT, "{:?}", began.elapsed());
    }
}
