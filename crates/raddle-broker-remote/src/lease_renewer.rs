//! A worker's lease, over a connection of its own. It blocks, with deadlines, and needs no runtime: nothing the worker does with its
//! other connection can hold it up.

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
    direct::Direct,
    protocol::{
        GREETING, MAX_REQUEST, ProtocolError, RenewalRequest, ToClient, ToServer, check_greeting,
    },
    socket,
};
use raddle_broker::{Call, Error, LeaseRenewer, LeaseStatus, Result};

/// No read or write of a beat may take longer, however long the lease is.
const LONGEST: Duration = Duration::from_secs(10);
/// Nor is a shorter one worth having.
const SHORTEST: Duration = Duration::from_millis(500);

pub(super) struct RemoteLeaseRenewer {
    path: PathBuf,
    worker: Tid,
    ttl: Duration,
    /// Opened with the first beat: a worker that lives shorter than that need not pay for it.
    stream: Option<UnixStream>,
    direct: Option<Arc<Direct>>,
    /// The heart of the engine itself, once there is no agent any more.
    own: Option<Box<dyn LeaseRenewer>>,
}

impl RemoteLeaseRenewer {
    pub(super) fn new(
        path: PathBuf,
        worker: Tid,
        ttl: Duration,
        direct: Option<Arc<Direct>>,
    ) -> Self {
        Self {
            path,
            worker,
            ttl,
            stream: None,
            direct,
            own: None,
        }
    }

    /// The heart of the engine itself, if the calls of this worker go there already: a connection that waits for control words hears of the
    /// agent's end at once.
    fn own(&mut self) -> Option<&mut Box<dyn LeaseRenewer>> {
        if self.own.is_none() {
            let broker = self.direct.as_ref()?.opened()?;
            self.own = Some(broker.lease_renewer(self.worker, self.ttl));
        }
        self.own.as_mut()
    }

    /// How long the agent may take to answer. Where there is another way, there has to be time left for it.
    fn patience(&self) -> Duration {
        let patience = if self.direct.is_some() {
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

    /// Receives one message: one that was not asked for never follows.
    fn receive(&self, stream: &mut UnixStream) -> Result<ToClient> {
        let gone = |error: io::Error| socket::unreachable(&self.path, &error);
        // A renewal has a short answer, and no server of ours says more.
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

    /// One beat on a connection that is there. One at a time, so that the answer is to this one.
    fn ask(&self, stream: &mut UnixStream, heartbeat: Heartbeat) -> Result<LeaseStatus> {
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
            ToClient::Renewed { pulse, .. } => Ok(pulse),
            ToClient::Failed { error, .. } => Err(error),
            _ => Err(refused(&self.path, ProtocolError::Unexpected.to_string())),
        }
    }
}

impl LeaseRenewer for RemoteLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        if let Some(own) = self.own() {
            return own.renew(heartbeat);
        }
        match (self.beat_by_agent(heartbeat), &self.direct) {
            // One that was stopped (SIGSTOP) is there, and says nothing. The lease must not run out meanwhile.
            (Err(Error::AgentGone { .. }), Some(direct)) => {
                let mut own = direct.open_blocking()?.lease_renewer(self.worker, self.ttl);
                let pulse = own.renew(heartbeat);
                self.own = Some(own);
                pulse
            }
            (pulse, _) => pulse,
        }
    }
}

impl RemoteLeaseRenewer {
    fn beat_by_agent(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        // Taken out: a connection on which something went wrong may still bring the answer to an earlier beat.
        if let Some(mut stream) = self.stream.take() {
            let began = Instant::now();
            match self.ask(&mut stream, heartbeat) {
                // The agent was replaced since the last beat. There is time for another try, and a beat can be said twice. After one that was not
                // answered there is not.
                Err(Error::AgentGone { .. })
                    if self.direct.is_none() || began.elapsed() < self.patience() => {}
                outcome => {
                    if !matches!(outcome, Err(Error::AgentGone { .. })) {
                        self.stream = Some(stream);
                    }
                    return outcome;
                }
            }
        }
        let mut stream = self.open()?;
        let pulse = self.ask(&mut stream, heartbeat);
        if !matches!(
            pulse,
            Err(Error::AgentGone { .. } | Error::AgentRefused { .. })
        ) {
            self.stream = Some(stream);
        }
        pulse
    }
}
