//! One socket to a worker, and the calls that go over it.

use std::{
    io,
    pin::pin,
    sync::{
        Arc, LazyLock, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use raddle_wire::{
    frame::GREETING,
    v1::{self, worker_client::WorkerClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tonic::{Code, Status, transport};

use super::{
    link::Link,
    reach::{AGAIN, Reach, SLOW, Wait},
    replies::{self, From, Replies, Turn, distrusted, refusal},
    resource::ResourcePool,
    target::{CONNECT, Target},
};
use crate::{
    Encoding, RpcError,
    credentials::{Refusal, WorkerCredentials},
    stream::{GRPC, LINK},
};

/// How long a channel is kept that nobody uses.
const TTL: Duration = Duration::from_secs(60);
/// How often a call is sent over a link that then turns out to have been given up for others.
const AGAIN_AT_MOST: usize = 3;
/// How many are kept: twice as many as a discovery tells of. Who tells of others again and again has those let go of that nobody uses.
const MOST: usize = 8192;

/// All channels of this process. Tasks of a runtime cannot serve another, so that is part of the key.
static CHANNELS: LazyLock<ResourcePool<Key, Channel>> = LazyLock::new(|| ResourcePool::new(TTL, MOST));

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    target: Target,
    limit: usize,
    runtime: tokio::runtime::Id,
}

impl Key {
    fn new(address: &str, credentials: Option<&WorkerCredentials>, limit: usize) -> Result<Self, RpcError> {
        let runtime = tokio::runtime::Handle::current().id();
        Ok(Self { target: Target::new(address, credentials)?, limit, runtime })
    }
}

/// One socket to a worker.
pub(crate) struct Channel {
    target: Target,
    grpc: WorkerClient<transport::Channel>,
    permits: Arc<Semaphore>,
    manner: RwLock<Manner>,
    /// The machine of a worker without links was found to be gone.
    is_cut: Arc<AtomicBool>,
    reach: Reach,
    /// What the worker has said that it reads, when it has refused something else.
    encoding: OnceLock<Encoding>,
}

/// What is known of the way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nobody has asked, or somebody has been refused.
    Unknown,
    /// It is there.
    Open,
    /// Nobody says anything there.
    Silent,
}

/// How calls go.
enum Manner {
    /// Nobody has asked.
    Unknown,
    Link(Arc<Link>),
    /// The worker has no links.
    Grpc,
}

impl Channel {
    /// The channel there.
    pub(crate) fn get(
        address: &str,
        credentials: Option<&WorkerCredentials>,
        limit: usize,
    ) -> Result<Arc<Self>, RpcError> {
        let key = Key::new(address, credentials, limit)?;
        CHANNELS.get(&key, || Ok(Self::open(key.target.clone(), limit)))
    }

    /// What is known of the way there without asking anybody.
    pub(super) fn seen(address: &str, credentials: Option<&WorkerCredentials>, limit: usize) -> Way {
        let channel = Key::new(address, credentials, limit).ok().and_then(|key| CHANNELS.peek(&key));
        channel.map_or(Way::Unknown, |channel| match channel.known() {
            Some(_) => Way::Open,
            None if channel.reach.says_nothing() => Way::Silent,
            None => Way::Unknown,
        })
    }

    /// Finds out whether there is a way, and waits for that.
    pub(super) async fn reach(self: &Arc<Self>, wait: Wait) -> Result<(), RpcError> {
        self.link(wait).await.map(drop)
    }

    fn open(target: Target, limit: usize) -> Self {
        let is_cut = Arc::default();
        let grpc = target.client(&is_cut);
        let permits = Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)));
        let (manner, reach) = (RwLock::new(Manner::Unknown), Reach::default());
        Self { target, grpc, permits, manner, is_cut, reach, encoding: OnceLock::new() }
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
    pub(super) async fn dispatch(
        self: &Arc<Self>,
        call: &v1::Call,
        encoding: Encoding,
        mut turn: Turn,
        wait: Wait,
    ) -> Result<Replies, RpcError> {
        for _ in 0..AGAIN_AT_MOST {
            let Some(link) = self.link(wait).await? else { return self.dispatch_by_grpc(call, encoding, turn).await };
            let refused = match link.call(call.clone()) {
                Ok(sent) => match Replies::new(From::Link(sent), encoding, turn).once_taken().await {
                    Ok(replies) => return Ok(replies),
                    Err(refused) => refused,
                },
                Err(unsent) => unsent,
            };
            // It was quiet, and had to make room for others just when there was something to say: that was not taken.
            if refused.may_have_begun || !link.has_made_room() {
                return Err(refused);
            }
            turn = self.turn().await?;
        }
        Err(RpcError::refused(Code::Unavailable, "the worker has too many callers"))
    }

    async fn dispatch_by_grpc(&self, call: &v1::Call, encoding: Encoding, turn: Turn) -> Result<Replies, RpcError> {
        let replies = self.grpc.clone().dispatch(call.clone()).await;
        let replies = replies.inspect_err(|status| self.doubt(status));
        let from = From::Grpc(replies.map_err(|status| refusal(&status))?.into_inner());
        Replies::new(from, encoding, turn).once_taken().await
    }

    /// The link, if the worker has links.
    async fn link(self: &Arc<Self>, wait: Wait) -> Result<Option<Arc<Link>>, RpcError> {
        match self.known() {
            Some(known) => Ok(known),
            None => self.ask_for_link(wait).await,
        }
    }

    /// The link, where there was none a moment ago.
    async fn ask_for_link(self: &Arc<Self>, wait: Wait) -> Result<Option<Arc<Link>>, RpcError> {
        let asked = self.reach.ask(self.is_cut());
        if asked.is_mine {
            // Somebody may have opened one between the look and the question. A second would take its place, and end it with all that runs over it.
            if let Some(known) = self.known() {
                self.reach.reached();
                return Ok(known);
            }
            // Ends when there is a link, or the worker has answered otherwise, or nobody has the channel any more.
            tokio::spawn(open(Arc::downgrade(self), self.target.clone()));
        }
        let failed = self.reach.wait(asked, wait).await;
        // It may have come and gone.
        let lost = || RpcError::refused(Code::Unavailable, "the worker is gone");
        self.known().ok_or_else(|| failed.unwrap_or_else(lost))
    }

    /// How calls go, if that is known and the way is still there.
    fn known(&self) -> Option<Option<Arc<Link>>> {
        match &*self.manner.read().unwrap_or_else(PoisonError::into_inner) {
            Manner::Link(link) if link.is_open() => Some(Some(Arc::clone(link))),
            Manner::Grpc if !self.is_cut.load(Ordering::Relaxed) => Some(None),
            Manner::Link(_) | Manner::Grpc | Manner::Unknown => None,
        }
    }

    /// If the way to a worker without links broke, it is greeted anew: that finds out whether it can be reached, and nobody has to wait for it.
    fn doubt(&self, status: &Status) {
        if std::error::Error::source(status).is_some() {
            *self.manner.write().unwrap_or_else(PoisonError::into_inner) = Manner::Unknown;
        }
    }

    /// Whether the way there was is gone because nothing was heard any more.
    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
            || matches!(&*self.manner.read().unwrap_or_else(PoisonError::into_inner), Manner::Link(link) if link.is_cut())
    }
}

/// Opens a link. Tries again and again, if nobody says anything.
async fn open(channel: Weak<Channel>, target: Target) {
    loop {
        let mut greeting = pin!(timeout(CONNECT, greet(&target)));
        let greeted = match timeout(SLOW, &mut greeting).await {
            Ok(greeted) => greeted,
            Err(_) => {
                let Some(channel) = channel.upgrade() else { return };
                channel.reach.is_slow();
                drop(channel);
                greeting.await
            }
        };
        let Some(channel) = channel.upgrade() else { return };
        // Nothing was sent but a greeting.
        match greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(manner) => {
                channel.is_cut.store(false, Ordering::Relaxed);
                *channel.manner.write().unwrap_or_else(PoisonError::into_inner) = manner;
                return channel.reach.reached();
            }
            Err(error) if !channel.reach.failed(&error, unreached(&error)) => return,
            Err(_) => {}
        }
        drop(channel);
        sleep(AGAIN).await;
    }
}

/// Greets whoever serves there, and finds out how calls go.
async fn greet(target: &Target) -> io::Result<Manner> {
    let mut stream = target.connect(&[LINK, GRPC]).await?;
    if stream.is_grpc() {
        return Ok(Manner::Grpc);
    }
    stream.write_all(&GREETING).await?;
    let mut greeting = [0; GREETING.len()];
    // A gRPC server begins to speak by itself. One that hangs up without a word was just ending, and has taken nothing.
    stream.read_exact(&mut greeting).await?;
    if greeting != GREETING {
        return Ok(Manner::Grpc);
    }
    Link::new(stream.into_socket()?).map(Arc::new).map(Manner::Link)
}

/// Nobody was met there.
fn unreached(error: &io::Error) -> RpcError {
    if let Some(refusal) = Refusal::of(error) {
        return distrusted(&refusal);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => RpcError::nobody(error),
        _ => RpcError::refused(Code::Unavailable, format!("the worker cannot be reached ({error})")),
    }
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
    use tokio::time::Instant;

    use super::*;
    use crate::link::{Raw, Socket};

    /// As a worker that stands still: the system connects, and nobody says anything.
    fn silent() -> (tempfile::TempDir, UnixListener, Arc<Channel>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let target = Target::new(&format!("unix:{}", path.display()), None).unwrap();
        (folder, listener, Arc::new(Channel::open(target, 100)))
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_worker_that_does_not_greet_waits_no_longer_than_the_first() {
        let (_folder, _listener, channel) = silent();
        let began = Instant::now();
        for link in join_all((0..20).map(|_| channel.link(Wait::ForIt))).await {
            assert!(link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun));
        }
        assert!(began.elapsed() < 2 * CONNECT, "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(channel.link(Wait::ForIt).await.is_err(), "a later one waits for the next attempt");
        assert!(began.elapsed() > 2 * CONNECT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_others_to_ask_waits_once_and_not_for_long() {
        let (_folder, _listener, channel) = silent();
        let began = Instant::now();
        for _ in 0..20 {
            let link = channel.link(Wait::Briefly).await;
            assert!(link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun));
        }
        assert!((SLOW..2 * SLOW).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn no_second_link_is_opened_where_somebody_was_faster() {
        let (_folder, listener, channel) = silent();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let first = Arc::new(Link::new(Socket::new(Raw::Unix(ours), None)).unwrap());
        *channel.manner.write().unwrap() = Manner::Link(Arc::clone(&first));
        let link = timeout(CONNECT, channel.ask_for_link(Wait::ForIt)).await.expect("nobody is waited for");
        assert!(link.unwrap().is_some_and(|link| Arc::ptr_eq(&link, &first)));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
        assert!(channel.reach.ask(false).is_mine, "whoever needs one later opens it");
    }

    #[tokio::test]
    async fn a_worker_that_is_back_is_reached_without_a_call() {
        let (_folder, listener, channel) = silent();
        assert!(channel.link(Wait::Briefly).await.is_err());
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let meeting = async {
            // The first is never answered, and gives up.
            let (_silent, _) = listener.accept().await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = [0; GREETING.len()];
            stream.read_exact(&mut greeting).await.unwrap();
            stream.write_all(&GREETING).await.unwrap();
            while channel.known().is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(2 * CONNECT, meeting).await.expect("it is reached");
        assert!(matches!(channel.link(Wait::Briefly).await, Ok(Some(_))));
    }
}
