//! The runner's end of the connection to its worker, or to the supervisor of its container. It never blocks; what the other end does not take yet waits in
//! a buffer whose size its users keep an eye on.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use raddle_model::frame::{self, Decoder};

use crate::{
    container::SILENCE,
    message::{MAX_TO_RUNNER, RunnerEvent, ToRunner},
    sys,
};

/// Beyond this much unsent, no more output is read from the command.
const FULL: usize = 256 * 1024;
const KEPT: usize = 64 * 1024;

/// Why the worker cannot be listened to any more.
#[derive(Debug)]
pub(crate) enum ControlClosed {
    /// It closed the connection, or died.
    Closed,
    /// It can be told nothing more: functions cannot be called here any more.
    Broken,
    Malformed(frame::FrameError),
    /// It started an attempt while another was running.
    OutOfTurn,
}

pub(crate) struct ControlSocket {
    input: OwnedFd,
    output: OwnedFd,
    incoming: Decoder,
    outgoing: Vec<u8>,
    /// How much of `outgoing` was sent.
    sent: usize,
    /// The other end has not taken all that was offered to it.
    blocked: bool,
    /// When something was last received, where the other end says regularly that it is there.
    heard: Option<Duration>,
}

impl ControlSocket {
    /// A socket to a worker.
    pub(crate) fn of_socket(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket.try_clone()?, socket, None)
    }

    /// Two pipes to the supervisor of a container. An engine that is restarted may keep them open with nothing at their other ends, so silence is an end too.
    pub(crate) fn of_pipes(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        Self::new(input, output, Some(sys::now()))
    }

    fn new(input: OwnedFd, output: OwnedFd, heard: Option<Duration>) -> io::Result<Self> {
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
            heard,
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

    /// When the other end is given up, if it is silent until then.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.heard.map(|heard| heard + SILENCE)
    }

    /// Takes in what poll has found of [`pollfds`](Self::pollfds).
    pub(crate) fn attend(&mut self, [input, output]: [i16; 2]) -> Result<(), ControlClosed> {
        if output != 0 {
            self.flush();
        }
        if input != 0 {
            match sys::read_some(self.input.as_fd(), self.incoming.buffer()) {
                Ok(1..) => self.heard.iter_mut().for_each(|heard| *heard = sys::now()),
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

    /// Has a notice sent with the next [`flush`](Self::flush).
    pub(crate) fn put(&mut self, notice: &RunnerEvent) {
        frame::encode_into(&mut self.outgoing, notice);
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether more output should wait until the other end has read some.
    pub(crate) fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent > FULL
    }

    /// Sends what the other end takes. That it is gone shows when the input is read.
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
            self.outgoing.shrink_to(KEPT);
            self.sent = 0;
        } else if self.sent > FULL {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// The next message that has arrived whole.
    pub(crate) fn next(&mut self) -> Result<Option<ToRunner<'static>>, ControlClosed> {
        self.incoming.next().map_err(ControlClosed::Malformed)
    }
}
