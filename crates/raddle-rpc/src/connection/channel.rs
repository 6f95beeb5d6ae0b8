//! The way to one worker, and the calls that go over it. It belongs to the pool or proxy that has made it.

use std::{
    fmt, io,
    pin::pin,
    sync::{Arc, OnceLock, Weak},
};

use bytes::Bytes;
use raddle_discovery::Encoding;
use raddle_tls::{HandshakeError, WorkerCredentials};
use raddle_wire::v1;
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tonic::{Code, Status};

use super::{
    CallRequest,
    connect_state::{AGAIN, ConnectState, ConnectWait, SLOW},
    link::LinkEnd,
    reply_stream::{self, Permit, ReplyStream, distrusted},
    target::{CONNECT, ConnectTarget},
    transport::Transport,
};
use crate::RpcError;

/// Calls are bounded apart from each other by their depth. A routine that waits for one that it calls holds a place meanwhile: with one bound for all, enough of
/// them would wait for each other for ever. From this depth on they are not bounded.
const DEPTHS: usize = 8;

/// How often a call is sent over a link that then turns out to have been given up for others.
const AGAIN_AT_MOST: usize = 3;

/// The way to one worker. Nothing is opened before the first call.
pub(crate) struct Channel {
    target: Result<ConnectTarget, RpcError>,
    limit: usize,
    /// Where it was made: what a connection needs runs there, whatever runtime a caller is on. If that was outside of any, where it is first used.
    runtime: OnceLock<Handle>,
    /// By depth.
    permits: [Arc<Semaphore>; DEPTHS],
    /// Proves to the worker that calls come from its pool. Empty if they do not, or the worker knows in other ways.
    member: Bytes,
    reach: ConnectState,
    /// What the worker has said that it reads, when it has refused something else.
    encoding: OnceLock<Encoding>,
}

/// What is known of the way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    /// Nobody has asked, or somebody has been refused.
    Unknown,
    /// It is there.
    Open,
    /// Nobody says anything there.
    Silent,
}

impl Channel {
    pub(super) fn new(
        address: &str,
        credentials: Option<&WorkerCredentials>,
        limit: usize,
    ) -> Self {
        let runtime = Handle::try_current().map_or_else(|_| OnceLock::new(), OnceLock::from);
        Self {
            target: ConnectTarget::new(address, credentials),
            limit,
            runtime,
            permits: std::array::from_fn(|_| {
                Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)))
            }),
            member: Bytes::new(),
            reach: ConnectState::default(),
            encoding: OnceLock::new(),
        }
    }

    /// The same with these credentials, and without what is known.
    pub(super) fn with_credentials(&self, credentials: Option<WorkerCredentials>) -> Self {
        let target = self
            .target
            .clone()
            .map(|target| target.with_credentials(credentials));
        Self {
            target,
            member: self.member.clone(),
            ..Self::new("", None, self.limit)
        }
    }

    /// The same with a proof that calls come from the worker's pool, and without what is known. At a Unix socket the kernel says who calls.
    pub(super) fn with_member(&self, member: Bytes) -> Self {
        let is_at_a_port = self.target.as_ref().is_ok_and(ConnectTarget::is_at_a_port);
        let member = if is_at_a_port { member } else { Bytes::new() };
        Self {
            target: self.target.clone(),
            member,
            ..Self::new("", None, self.limit)
        }
    }

    /// Whether another leads to the same place, by the same means.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.target == other.target && self.limit == other.limit && self.member == other.member
    }

    /// What is known of the way without asking anybody.
    pub(super) fn way(&self) -> ChannelState {
        match self.reach.known() {
            Some(_) => ChannelState::Open,
            None if self.reach.says_nothing() => ChannelState::Silent,
            None => ChannelState::Unknown,
        }
    }

    /// Finds out whether there is a way, and waits for that.
    pub(super) async fn reach(self: &Arc<Self>, wait: ConnectWait) -> Result<(), RpcError> {
        self.transport(wait).await.map(drop)
    }

    /// What the worker reads, if it has refused something else.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.encoding.get().copied()
    }

    /// It has refused another. Should a worker take its place that reads something else, that is said to each call until this channel is let go of.
    pub(super) fn is_to_be_called_in(&self, encoding: Encoding) {
        let _ = self.encoding.set(encoding);
    }

    /// Waits until a call of this depth may be sent. Whose turn it is, it is until this is dropped.
    pub(crate) async fn turn(self: &Arc<Self>, depth: usize) -> Result<Permit, RpcError> {
        let permit =
            match self.permits.get(depth).cloned() {
                Some(permits) => {
                    let permit = permits.acquire_owned().await;
                    Some(permit.map_err(|_| {
                        RpcError::refused(Code::Unavailable, "the channel is closed")
                    })?)
                }
                None => None,
            };
        Ok(Permit {
            _permit: permit,
            _channel: Arc::clone(self),
        })
    }

    /// Sends a call whose turn it is. Returns when it has been taken.
    pub(super) async fn dispatch(
        self: &Arc<Self>,
        call: &CallRequest,
        encoding: Encoding,
        mut turn: Permit,
        wait: ConnectWait,
    ) -> Result<ReplyStream, RpcError> {
        for _ in 0..AGAIN_AT_MOST {
            let transport = self.transport(wait).await?;
            let written = v1::Call {
                member: self.member.clone(),
                ..call.written_in(encoding)?
            };
            let refused = match transport.send(written).await {
                Ok(answers) => match ReplyStream::new(answers, encoding, turn).once_taken().await {
                    Ok(replies) => return Ok(replies),
                    Err(refused) => refused,
                },
                Err(unsent) => {
                    drop(turn);
                    unsent
                }
            };
            // It was quiet, and had to make room for others just when there was something to say: that was not taken.
            if refused.may_have_begun || transport.lost() != Some(LinkEnd::ForOthers) {
                return Err(refused);
            }
            turn = self.turn(call.depth()).await?;
        }
        Err(RpcError::refused(
            Code::Unavailable,
            "the worker has too many callers",
        ))
    }

    async fn transport(self: &Arc<Self>, wait: ConnectWait) -> Result<Arc<Transport>, RpcError> {
        match self.reach.known() {
            Some(known) => Ok(known),
            None => self.connect(wait).await,
        }
    }

    /// The way, where there was none a moment ago.
    async fn connect(self: &Arc<Self>, wait: ConnectWait) -> Result<Arc<Transport>, RpcError> {
        let target = self.target.clone()?;
        let asked = self.reach.ask();
        if asked.is_mine {
            // Ends when there is a way, or the worker has answered otherwise, or nobody has the channel any more.
            self.runtime
                .get_or_init(Handle::current)
                .spawn(open(PendingConnect(Arc::downgrade(self)), target));
        }
        self.reach.wait(asked, wait).await
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("target", &self.target)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// An attempt to open a way. When its runtime ends before it does, those who wait are told.
struct PendingConnect(Weak<Channel>);

impl Drop for PendingConnect {
    fn drop(&mut self) {
        if let Some(channel) = self.0.upgrade() {
            channel.reach.give_up(RpcError::refused(
                Code::Unavailable,
                "the runtime of the pool has ended",
            ));
        }
    }
}

/// Opens a way. Tries again and again, if nobody says anything.
async fn open(mut opening: PendingConnect, target: ConnectTarget) {
    loop {
        let mut connecting = pin!(timeout(CONNECT, Transport::open(&target)));
        let connected = match timeout(SLOW, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                let Some(channel) = opening.0.upgrade() else {
                    return;
                };
                channel.reach.is_slow();
                drop(channel);
                connecting.await
            }
        };
        // From here on it is over, unless it is tried again.
        let Some(channel) = std::mem::take(&mut opening.0).upgrade() else {
            return;
        };
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(transport) => {
                return channel.reach.reached(Arc::new(transport));
            }
            Err(error) if !channel.reach.failed(&error, unreached(&error)) => return,
            Err(_) => opening.0 = Arc::downgrade(&channel),
        }
        drop(channel);
        sleep(AGAIN).await;
    }
}

/// Nobody was met there.
fn unreached(error: &io::Error) -> RpcError {
    if let Some(refusal) = HandshakeError::of(error) {
        return distrusted(&refusal);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => RpcError::nobody(error),
        _ => RpcError::refused(
            Code::Unavailable,
            format!("the worker cannot be reached ({error})"),
        ),
    }
}

pub(super) fn unanswered(status: &Status) -> RpcError {
    let error = reply_stream::refusal(status);
    // Whatever a way that broke is called, another worker may be reached.
    let code = if error.may_have_begun {
        Code::Unavailable
    } else {
        error.code
    };
    RpcError { code, ..error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use futures_util::future::join_all;
    use std::time::Duration;

    use raddle_wire::frame::GREETING;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::{super::link::LinkConnection, *};
    use crate::link::LinkSocket;

    /// As a worker that stands still: the system connects, and nobody says anything.
    fn silent() -> (tempfile::TempDir, UnixListener, Arc<Channel>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        (
            directory,
            listener,
            Arc::new(Channel::new(&format!("unix:{}", path.display()), None, 100)),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_worker_that_does_not_greet_waits_no_longer_than_the_first() {
        let (_directory, _listener, channel) = silent();
        let began = Instant::now();
        for link in join_all((0..20).map(|_| channel.transport(ConnectWait::ForIt))).await {
            assert!(
                link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun)
            );
        }
        assert!(began.elapsed() < 2 * CONNECT, "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            channel.transport(ConnectWait::ForIt).await.is_err(),
            "a later one waits for the next attempt"
        );
        assert!(began.elapsed() > 2 * CONNECT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_others_to_ask_waits_once_and_not_for_long() {
        let (_directory, _listener, channel) = silent();
        let began = Instant::now();
        for _ in 0..20 {
            let link = channel.transport(ConnectWait::Briefly).await;
            assert!(
                link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun)
            );
        }
        assert!(
            (SLOW..2 * SLOW).contains(&began.elapsed()),
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn no_second_link_is_opened_where_somebody_was_faster() {
        let (_directory, listener, channel) = silent();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let first = Arc::new(Transport::Link(
            LinkConnection::new(LinkSocket::new(ours.into(), false, None)).unwrap(),
        ));
        channel.reach.reached(Arc::clone(&first));
        let link = timeout(CONNECT, channel.connect(ConnectWait::ForIt))
            .await
            .expect("nobody is waited for");
        assert!(Arc::ptr_eq(&link.unwrap(), &first));
        listener.set_nonblocking(true).unwrap();
        assert!(
            listener
                .accept()
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        );
    }

    #[tokio::test]
    async fn a_worker_that_is_back_is_reached_without_a_call() {
        let (_directory, listener, channel) = silent();
        assert!(channel.transport(ConnectWait::Briefly).await.is_err());
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let meeting = async {
            // The first is never answered, and gives up.
            let (_silent, _) = listener.accept().await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = [0; GREETING.len()];
            stream.read_exact(&mut greeting).await.unwrap();
            stream.write_all(&GREETING).await.unwrap();
            while channel.reach.known().is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(2 * CONNECT, meeting).await.expect("it is reached");
        assert!(channel.transport(ConnectWait::Briefly).await.is_ok());
    }

    /// Callers on other runtimes use the same connection, and outlive neither it nor its runtime.
    #[test]
    fn a_connection_runs_where_its_channel_was_made() {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap()
        };
        let (home, other) = (runtime(), runtime());
        let (_directory, listener, channel) = home.block_on(async { silent() });
        let answering = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; GREETING.len()]).unwrap();
            stream.write_all(&GREETING).unwrap();
            stream
        });
        assert!(
            other
                .block_on(channel.transport(ConnectWait::ForIt))
                .is_ok()
        );
        let _worker = answering.join().unwrap();
        other.shutdown_background();
        assert!(
            channel.reach.known().is_some(),
            "the caller's runtime is not the connection's"
        );
        home.shutdown_timeout(CONNECT);
        assert!(channel.reach.known().is_none());
        let again = async {
            timeout(CONNECT, channel.transport(ConnectWait::ForIt))
                .await
                .expect("at once")
        };
        let error = runtime().block_on(again).err().unwrap();
        assert_eq!(
            (error.code, error.may_have_begun),
            (Code::Unavailable, false)
        );
    }
}
