//! The channel to one worker, with the permits of the calls that it carries. It belongs to the pool
//! or proxy that has made it.

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
    connect_state::{ConnectState, ConnectWait, RETRY_PAUSE, SLOW},
    link::LinkEnd,
    reply_stream::{self, Permit, ReplyStream, handshake_failure},
    target::{CONNECT, ConnectTarget},
    transport::Transport,
};
use crate::RpcError;

/// Calls have separate limits by nesting depth. A routine that waits for a nested call holds a
/// permit meanwhile: with one limit for all depths, enough of them would deadlock. Calls at this
/// depth or deeper have no limit.
const DEPTHS: usize = 8;

/// How often a call is sent again because the worker was closing that link to make room for other
/// connections.
const MAX_EVICTIONS: usize = 3;

/// The channel to one worker. It opens nothing before the first call.
pub(crate) struct Channel {
    target: Result<ConnectTarget, RpcError>,
    limit: usize,
    /// The runtime that the connection's tasks run on, whichever runtime the caller is on: the one
    /// that made the channel, else the one of the first call.
    runtime: OnceLock<Handle>,
    /// Indexed by depth.
    permits: [Arc<Semaphore>; DEPTHS],
    /// Proof for the worker that calls come from its pool. Empty if they do not, or if the socket's
    /// peer credentials suffice.
    membership_proof: Bytes,
    connect: ConnectState,
    /// The encoding that the worker has named when it refused another.
    encoding: OnceLock<Encoding>,
}

/// What is known of the connection to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    /// Not tried yet, or the worker refused.
    Unknown,
    /// Connected.
    Open,
    /// The worker's address does not respond.
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
            membership_proof: Bytes::new(),
            connect: ConnectState::default(),
            encoding: OnceLock::new(),
        }
    }

    /// A copy with these credentials and without connection state.
    pub(super) fn with_credentials(&self, credentials: Option<WorkerCredentials>) -> Self {
        let target = self
            .target
            .clone()
            .map(|target| target.with_credentials(credentials));
        Self {
            target,
            membership_proof: self.membership_proof.clone(),
            ..Self::new("", None, self.limit)
        }
    }

    /// A copy with a membership proof and without connection state. On a Unix socket the proof is
    /// left out: the kernel names the peer.
    pub(super) fn with_membership(&self, proof: Bytes) -> Self {
        let is_tcp = self.target.as_ref().is_ok_and(ConnectTarget::is_tcp);
        let membership_proof = if is_tcp { proof } else { Bytes::new() };
        Self {
            target: self.target.clone(),
            membership_proof,
            ..Self::new("", None, self.limit)
        }
    }

    /// Whether `other` has the same target, limit and proof.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        self.target == other.target
            && self.limit == other.limit
            && self.membership_proof == other.membership_proof
    }

    /// The connection state, without I/O.
    pub(super) fn state(&self) -> ChannelState {
        match self.connect.open_transport() {
            Some(_) => ChannelState::Open,
            None if self.connect.is_silent() => ChannelState::Silent,
            None => ChannelState::Unknown,
        }
    }

    /// Connects if necessary, and waits for the outcome.
    pub(super) async fn ensure_connected(
        self: &Arc<Self>,
        wait: ConnectWait,
    ) -> Result<(), RpcError> {
        self.transport(wait).await.map(drop)
    }

    /// The encoding that the worker has asked for, if any.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.encoding.get().copied()
    }

    /// Remembers the encoding that the worker has asked for. If a worker with another encoding
    /// takes over the address, each call is refused once until the channel is dropped.
    pub(super) fn set_encoding(&self, encoding: Encoding) {
        let _ = self.encoding.set(encoding);
    }

    /// Waits until a call of this depth may be sent. The permit is held until it is dropped.
    pub(crate) async fn acquire_permit(self: &Arc<Self>, depth: usize) -> Result<Permit, RpcError> {
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

    /// Sends a call that has its permit. Returns when the worker has accepted it.
    pub(super) async fn dispatch(
        self: &Arc<Self>,
        call: &CallRequest,
        encoding: Encoding,
        mut permit: Permit,
        wait: ConnectWait,
    ) -> Result<ReplyStream, RpcError> {
        for _ in 0..MAX_EVICTIONS {
            let transport = self.transport(wait).await?;
            let encoded = v1::Call {
                member: self.membership_proof.clone(),
                ..call.encode_for(encoding)?
            };
            let refused = match transport.send(encoded).await {
                Ok(replies) => match ReplyStream::new(replies, encoding, permit)
                    .until_accepted()
                    .await
                {
                    Ok(replies) => return Ok(replies),
                    Err(refused) => refused,
                },
                Err(unsent) => {
                    drop(permit);
                    unsent
                }
            };
            // The worker closed this link, which was idle, to make room for others just when the
            // call was sent. It has not accepted the call.
            if refused.may_have_begun || transport.end() != Some(LinkEnd::Evicted) {
                return Err(refused);
            }
            permit = self.acquire_permit(call.depth()).await?;
        }
        Err(RpcError::refused(
            Code::Unavailable,
            "the worker has too many connections",
        ))
    }

    async fn transport(self: &Arc<Self>, wait: ConnectWait) -> Result<Arc<Transport>, RpcError> {
        match self.connect.open_transport() {
            Some(known) => Ok(known),
            None => self.connect(wait).await,
        }
    }

    /// Opens a transport, or joins the attempt under way.
    async fn connect(self: &Arc<Self>, wait: ConnectWait) -> Result<Arc<Transport>, RpcError> {
        let target = self.target.clone()?;
        let ticket = self.connect.join_attempt();
        if ticket.starts_attempt {
            // The task ends when there is a transport, when the worker has answered with an error,
            // or when the channel is dropped.
            self.runtime
                .get_or_init(Handle::current)
                .spawn(open_transport(PendingConnect(Arc::downgrade(self)), target));
        }
        self.connect.wait_for_outcome(ticket, wait).await
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

/// An attempt to open a transport. If its runtime shuts down first, its drop fails the waiting
/// calls.
struct PendingConnect(Weak<Channel>);

impl Drop for PendingConnect {
    fn drop(&mut self) {
        if let Some(channel) = self.0.upgrade() {
            channel.connect.abandon_attempt(RpcError::refused(
                Code::Unavailable,
                "the runtime of the pool was shut down",
            ));
        }
    }
}

/// Opens a transport. Retries while the address does not respond.
async fn open_transport(mut pending: PendingConnect, target: ConnectTarget) {
    loop {
        let mut connecting = pin!(timeout(CONNECT, Transport::open(&target)));
        let connected = match timeout(SLOW, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                let Some(channel) = pending.0.upgrade() else {
                    return;
                };
                channel.connect.record_slowness();
                drop(channel);
                connecting.await
            }
        };
        // Disarms the drop guard, unless there is a retry.
        let Some(channel) = std::mem::take(&mut pending.0).upgrade() else {
            return;
        };
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(transport) => {
                return channel.connect.record_success(Arc::new(transport));
            }
            Err(error)
                if !channel
                    .connect
                    .record_failure(&error, connect_error(&error)) =>
            {
                return;
            }
            Err(_) => pending.0 = Arc::downgrade(&channel),
        }
        drop(channel);
        sleep(RETRY_PAUSE).await;
    }
}

/// The error of a call that could not be sent because connecting failed.
fn connect_error(error: &io::Error) -> RpcError {
    if let Some(refusal) = HandshakeError::from_io(error) {
        return handshake_failure(&refusal);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => RpcError::no_listener(error),
        _ => RpcError::refused(
            Code::Unavailable,
            format!("cannot reach the worker ({error})"),
        ),
    }
}

pub(super) fn control_error(status: &Status) -> RpcError {
    let error = reply_stream::error_of_status(status);
    // A control request whose connection broke can go to another worker, so the code is always
    // `Unavailable`.
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

    /// A channel to a worker that hangs: the kernel accepts the connection, and no greeting
    /// arrives.
    fn silent_worker() -> (tempfile::TempDir, UnixListener, Arc<Channel>) {
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
    async fn concurrent_calls_share_one_connect_attempt_and_its_timeout() {
        let (_directory, _listener, channel) = silent_worker();
        let began = Instant::now();
        for link in join_all((0..20).map(|_| channel.transport(ConnectWait::UntilDone))).await {
            assert!(
                link.is_err_and(|error| error.code == Code::Unavailable && !error.may_have_begun)
            );
        }
        assert!(began.elapsed() < 2 * CONNECT, "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            channel.transport(ConnectWait::UntilDone).await.is_err(),
            "a later call waits for the next attempt"
        );
        assert!(began.elapsed() > 2 * CONNECT, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_with_other_workers_wait_once_and_briefly() {
        let (_directory, _listener, channel) = silent_worker();
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
    async fn opens_no_second_link_when_another_call_was_faster() {
        let (_directory, listener, channel) = silent_worker();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let first = Arc::new(Transport::Link(
            LinkConnection::new(LinkSocket::new(ours.into(), false, None)).unwrap(),
        ));
        channel.connect.record_success(Arc::clone(&first));
        let link = timeout(CONNECT, channel.connect(ConnectWait::UntilDone))
            .await
            .expect("returns without waiting");
        assert!(Arc::ptr_eq(&link.unwrap(), &first));
        listener.set_nonblocking(true).unwrap();
        assert!(
            listener
                .accept()
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        );
    }

    #[tokio::test]
    async fn reconnects_in_the_background_to_a_worker_that_responds_again() {
        let (_directory, listener, channel) = silent_worker();
        assert!(channel.transport(ConnectWait::Briefly).await.is_err());
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let meeting = async {
            // The first attempt gets no greeting and times out.
            let (_silent, _) = listener.accept().await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = [0; GREETING.len()];
            stream.read_exact(&mut greeting).await.unwrap();
            stream.write_all(&GREETING).await.unwrap();
            while channel.connect.open_transport().is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(2 * CONNECT, meeting).await.expect("connects");
        assert!(channel.transport(ConnectWait::Briefly).await.is_ok());
    }

    /// Callers on other runtimes share the connection, and it ends with its own runtime.
    #[test]
    fn connection_runs_on_the_runtime_that_made_the_channel() {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap()
        };
        let (home, other) = (runtime(), runtime());
        let (_directory, listener, channel) = home.block_on(async { silent_worker() });
        let answering = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; GREETING.len()]).unwrap();
            stream.write_all(&GREETING).unwrap();
            stream
        });
        assert!(
            other
                .block_on(channel.transport(ConnectWait::UntilDone))
                .is_ok()
        );
        let _worker = answering.join().unwrap();
        other.shutdown_background();
        assert!(
            channel.connect.open_transport().is_some(),
            "the connection outlives the caller's runtime"
        );
        home.shutdown_timeout(CONNECT);
        assert!(channel.connect.open_transport().is_none());
        let again = async {
            timeout(CONNECT, channel.transport(ConnectWait::UntilDone))
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
