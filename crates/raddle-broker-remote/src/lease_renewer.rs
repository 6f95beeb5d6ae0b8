//! Renewal of a lease, over its own connection. It blocks, with deadlines, and needs no
//! runtime, so the worker's other connection cannot delay it.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle_model::{
    Tid,
    frame::{Decoder, encode},
    worker::Heartbeat,
};

use super::{
    connection::{refused, welcome},
    fallback::Fallback,
    protocol::{
        GREETING, MAX_REQUEST, ProtocolError, RenewalRequest, ToClient, ToServer, check_greeting,
    },
    socket,
};
use raddle_broker::{Call, Error, LeaseRenewer, LeaseStatus, Result};

/// The limit for one read or write, however long the lease is.
const LONGEST: Duration = Duration::from_secs(10);
/// The lower limit.
const SHORTEST: Duration = Duration::from_millis(500);

pub(super) struct RemoteLeaseRenewer {
    path: PathBuf,
    worker: Tid,
    ttl: Duration,
    /// Opened with the first renewal: a worker that lives shorter need not pay for it.
    stream: Option<UnixStream>,
    fallback: Option<Arc<Fallback>>,
    /// The own renewer of the engine, once the server is gone.
    engine_renewer: Option<Box<dyn LeaseRenewer>>,
}

impl RemoteLeaseRenewer {
    pub(super) fn new(
        path: PathBuf,
        worker: Tid,
        ttl: Duration,
        fallback: Option<Arc<Fallback>>,
    ) -> Self {
        Self {
            path,
            worker,
            ttl,
            stream: None,
            fallback,
            engine_renewer: None,
        }
    }

    /// The own renewer of the engine if the worker's calls go to the engine already: the connection
    /// that waits for commands notices the end of the server at once.
    fn engine_renewer(&mut self) -> Option<&mut Box<dyn LeaseRenewer>> {
        if self.engine_renewer.is_none() {
            let broker = self.fallback.as_ref()?.opened()?;
            self.engine_renewer = Some(broker.lease_renewer(self.worker, self.ttl));
        }
        self.engine_renewer.as_mut()
    }

    /// How long the server may take to reply. With a fallback there must be time left for it.
    fn patience(&self) -> Duration {
        let patience = if self.fallback.is_some() {
            self.ttl / 4
        } else {
            self.ttl
        };
        patience.clamp(SHORTEST, LONGEST)
    }

    fn open(&self) -> Result<UnixStream> {
        let path = &self.path;
        let mut stream = socket::connect_blocking(path, self.patience())?;
        let _ = stream.write_all(&GREETING);
        let mut greeting = [0; GREETING.len()];
        stream
            .read_exact(&mut greeting)
            .map_err(|error| socket::unreachable(path, &error))?;
        check_greeting(&greeting).map_err(|error| refused(path, error.to_string()))?;
        welcome(path, Some(self.receive(&mut stream)?))?;
        Ok(stream)
    }

    /// Receives one message; none follows without a request.
    fn receive(&self, stream: &mut UnixStream) -> Result<ToClient> {
        let gone = |error: io::Error| socket::unreachable(&self.path, &error);
        // The reply to a renewal is short, and our servers send nothing longer.
        let mut decoder = Decoder::new(MAX_REQUEST);
        let mut piece = [0; 4096];
        loop {
            if let Some(message) = decoder
                .next()
                .map_err(|error| refused(&self.path, error.to_string()))?
            {
                return Ok(message);
            }
            match stream.read(&mut piece) {
                Ok(0) => return Err(gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(length) => decoder.push(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
    }

    /// One renewal over an open connection. One at a time, so that the reply belongs to it.
    fn request_renewal(
        &self,
        stream: &mut UnixStream,
        heartbeat: Heartbeat,
    ) -> Result<LeaseStatus> {
        let renewal = RenewalRequest {
            worker: self.worker,
            ttl: self.ttl,
            heartbeat,
        };
        let frame = encode(&ToServer::<Call>::Renew { id: 0, renewal });
        stream
            .write_all(&frame)
            .map_err(|error| socket::unreachable(&self.path, &error))?;
        match self.receive(stream)? {
            ToClient::Renewed { status, .. } => Ok(status),
            ToClient::Failed { error, .. } => Err(error),
            _ => Err(refused(&self.path, ProtocolError::Unexpected.to_string())),
        }
    }
}

impl LeaseRenewer for RemoteLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        if let Some(engine_renewer) = self.engine_renewer() {
            return engine_renewer.renew(heartbeat);
        }
        match (self.renew_over_socket(heartbeat), &self.fallback) {
            // A server that is stopped (SIGSTOP) accepts connections and does not reply. The lease
            // must not expire meanwhile.
            (Err(Error::AgentGone { .. }), Some(fallback)) => {
                let mut engine_renewer = fallback
                    .open_blocking()?
                    .lease_renewer(self.worker, self.ttl);
                let status = engine_renewer.renew(heartbeat);
                self.engine_renewer = Some(engine_renewer);
                status
            }
            (status, _) => status,
        }
    }
}

impl RemoteLeaseRenewer {
    fn renew_over_socket(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        // Taken out: after an error the connection may still deliver the reply to an earlier
        // renewal.
        if let Some(mut stream) = self.stream.take() {
            let began = Instant::now();
            match self.request_renewal(&mut stream, heartbeat) {
                // The server was replaced since the last renewal. There is time for another try,
                // and renewals are idempotent. After a renewal without a reply there is no time.
                Err(Error::AgentGone { .. })
                    if self.fallback.is_none() || began.elapsed() < self.patience() => {}
                outcome => {
                    if !matches!(outcome, Err(Error::AgentGone { .. })) {
                        self.stream = Some(stream);
                    }
                    return outcome;
                }
            }
        }
        let mut stream = self.open()?;
        let status = self.request_renewal(&mut stream, heartbeat);
        if !matches!(
            status,
            Err(Error::AgentGone { .. } | Error::AgentRefused { .. })
        ) {
            self.stream = Some(stream);
        }
        status
    }
}
