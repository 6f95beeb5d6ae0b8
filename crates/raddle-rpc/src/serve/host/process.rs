//! The process of a host: its start, handshake and end.

use std::{io, os::fd::OwnedFd, process::Stdio, sync::Arc, time::Duration};

use raddle_model::{
    host::{FromHost, HostDecoder, HostHello, PROTOCOL, StopHost, ToHost},
    routine::Routines,
};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    process::{Child, Command},
    runtime::Handle,
    time::timeout,
};

use super::{relay::HostRelay, shim::ARGUMENT, socket::HostSocket};
use crate::worker::HostCommand;

/// How long a host may take for its shutdown. The pool kills a worker that takes longer than 2 s.
const SHUTDOWN: Duration = Duration::from_millis(1500);
/// Time between the end of the socket and the end of the process.
const EXIT_SKEW: Duration = Duration::from_secs(1);

/// A running host.
pub(crate) struct HostProcess {
    child: Child,
    pub(crate) relay: Arc<HostRelay>,
    pub(crate) routines: Routines,
}

impl HostProcess {
    /// Starts a host. Returns when it is ready, or why it is not. Its socket belongs to `runtime`.
    pub(crate) async fn start(command: &HostCommand, runtime: &Handle) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot start the host: {error}");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(cannot)?;
        ours.set_nonblocking(true).map_err(cannot)?;
        let mut stream = {
            let _runtime = runtime.enter();
            UnixStream::from_std(ours).map_err(cannot)?
        };
        let mut starting = Command::new("/proc/self/exe");
        starting
            .arg(ARGUMENT)
            .args(&command.argv)
            .envs(&command.env)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .kill_on_drop(true);
        if let Some(directory) = &command.directory {
            starting.current_dir(directory);
        }
        let mut child = starting.spawn().map_err(cannot)?;
        // Its copy of the socket, so that the end of the host is the end of the socket.
        drop(starting);
        let mut decoder = HostDecoder::default();
        let hello = match handshake(&mut stream, &mut decoder).await {
            Ok(hello) => hello,
            Err(None) => {
                let ended = timeout(EXIT_SKEW, child.wait()).await;
                let how = match ended {
                    Ok(Ok(status)) => format!(" ({status})"),
                    _ => String::new(),
                };
                return Err(format!(
                    "the host ended before it was ready{how}: its error is in the log"
                ));
            }
            Err(Some(reason)) => return Err(reason),
        };
        let (relay, routines) = HostRelay::new(HostSocket::new(stream), &hello)?;
        // Both end with the process.
        runtime.spawn(Arc::clone(&relay).read(decoder));
        runtime.spawn(Arc::clone(&relay).write());
        Ok(Self {
            child,
            relay,
            routines,
        })
    }

    /// Waits for the end of the host.
    pub(crate) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Has the host shut down, and kills it if that takes too long.
    pub(crate) async fn stop(mut self) {
        self.relay.push(&ToHost::Stop(StopHost {
            timeout_ms: SHUTDOWN.as_millis() as u64,
        }));
        if timeout(SHUTDOWN, self.child.wait()).await.is_err() {
            tracing::warn!("the host did not shut down in time, and is killed");
            let _ = self.child.kill().await;
        }
    }
}

/// Reads until the host is ready. `None` if it has closed the socket.
async fn handshake(
    stream: &mut UnixStream,
    decoder: &mut HostDecoder,
) -> Result<HostHello, Option<String>> {
    let mut hello = None;
    loop {
        let next = decoder
            .next_message::<FromHost>()
            .map_err(|error| Some(error.to_string()))?;
        match next.map(|(message, _)| message) {
            Some(FromHost::Hello(first)) if first.protocol != PROTOCOL => {
                return Err(Some(format!(
                    "the host speaks version {} of the host protocol, and this worker {PROTOCOL}",
                    first.protocol
                )));
            }
            Some(FromHost::Hello(first)) => hello = Some(first),
            Some(FromHost::Ready {}) => {
                return hello.ok_or_else(|| Some("the host was ready before its hello".to_owned()));
            }
            Some(FromHost::Failed(failed)) => {
                return Err(Some(format!(
                    "the host failed to start: {}",
                    failed.message
                )));
            }
            Some(_) => {}
            None => match stream.read_buf(decoder.buffer()).await {
                Ok(0) | Err(_) => return Err(None),
                Ok(_) => {}
            },
        }
    }
}
