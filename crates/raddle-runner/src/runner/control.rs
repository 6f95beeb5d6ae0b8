//! The runner's connection to its worker, or to the supervisor of its container. It never blocks:
//! unsent bytes wait in a buffer, whose size callers check with `is_full`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use raddle_model::frame::{self, Decoder};

use crate::{
    container::HEARTBEAT_TIMEOUT,
    message::{MAX_TO_RUNNER, RunnerEvent, ToRunner},
    sys,
};

/// Number of unsent bytes above which no more output is read from the command.
const MAX_UNSENT: usize = 256 * 1024;
const RETAINED_CAPACITY: usize = 64 * 1024;

/// Reason why the connection cannot be used any more.
#[derive(Debug)]
pub(crate) enum ControlClosed {
    /// The peer closed the connection, or died.
    Closed,
    /// The fork server failed: this runner cannot call functions any more.
    ForkServerFailed,
    Malformed(frame::FrameError),
    /// The peer started an attempt while another was running.
    UnexpectedStart,
}

pub(crate) struct ControlSocket {
    input: OwnedFd,
    output: OwnedFd,
    incoming: Decoder,
    outgoing: Vec<u8>,
    /// Number of bytes of `outgoing` that were sent.
    sent: usize,
    /// The peer has not taken all bytes.
    blocked: bool,
    /// Time of the last received message, if the peer sends heartbeats.
    last_received: Option<Duration>,
}

impl ControlSocket {
    /// A socket to a worker.
    pub(crate) fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket.try_clone()?, socket, None)
    }

    /// Two pipes to the supervisor of a container. A container engine that restarts may keep them
    /// open without a peer, so silence counts as a closed connection.
    pub(crate) fn from_pipes(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        Self::new(input, output, Some(sys::now()))
    }

    fn new(input: OwnedFd, output: OwnedFd, last_received: Option<Duration>) -> io::Result<Self> {
        sys::set_nonblocking(input.as_fd())?;
        sys::set_nonblocking(output.as_fd())?;
        let incoming = Decoder::new(MAX_TO_RUNNER);
        Ok(Self {
            input,
            output,
            incoming,
            outgoing: Vec::new(),
            sent: 0,
            blocked: false,
            last_received,
        })
    }

    pub(crate) fn pollfds(&self) -> [libc::pollfd; 2] {
        let output = if self.blocked {
            self.output.as_raw_fd()
        } else {
            -1
        };
        [
            (self.input.as_raw_fd(), libc::POLLIN),
            (output, libc::POLLOUT),
        ]
        .map(|(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
    }

    /// Time at which a silent peer is given up.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.last_received
            .map(|last_received| last_received + HEARTBEAT_TIMEOUT)
    }

    /// Handles the events that poll found on [`pollfds`](Self::pollfds).
    pub(crate) fn handle_events(&mut self, [input, output]: [i16; 2]) -> Result<(), ControlClosed> {
        if output != 0 {
            self.flush();
        }
        if input != 0 {
            match sys::read_some(self.input.as_fd(), self.incoming.buffer()) {
                Ok(1..) => self
                    .last_received
                    .iter_mut()
                    .for_each(|last_received| *last_received = sys::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return Err(ControlClosed::Closed),
            }
        }
        if self
            .deadline()
            .is_some_and(|deadline| deadline <= sys::now())
        {
            Err(ControlClosed::Closed)
        } else {
            Ok(())
        }
    }

    /// Queues an event for the next [`flush`](Self::flush).
    pub(crate) fn queue(&mut self, event: &RunnerEvent) {
        frame::encode_into(&mut self.outgoing, event);
    }

    /// Whether bytes wait to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether output must wait until the peer has read some.
    pub(crate) fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent > MAX_UNSENT
    }

    /// Sends what the peer accepts. A closed peer is reported when the input is read.
    pub(crate) fn flush(&mut self) {
        while self.has_outgoing() {
            match sys::write_some(self.output.as_fd(), &self.outgoing[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.sent = self.outgoing.len(),
            }
        }
        self.blocked = self.has_outgoing();
        if !self.blocked {
            self.outgoing.clear();
            self.outgoing.shrink_to(RETAINED_CAPACITY);
            self.sent = 0;
        } else if self.sent > MAX_UNSENT {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// The next complete message.
    pub(crate) fn next(&mut self) -> Result<Option<ToRunner<'static>>, ControlClosed> {
        self.incoming.next().map_err(ControlClosed::Malformed)
    }
}
