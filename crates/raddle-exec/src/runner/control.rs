//! The runner's end of the socket to its worker. It never blocks; what the worker does not take yet waits in a buffer whose size
//! its users keep an eye on.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use crate::{
    frame::{self, Malformed, ToRunner},
    sys,
};

/// Beyond this much unsent, no more output is read from the command.
const FULL: usize = 256 * 1024;
const READ: usize = 64 * 1024;

/// Why the worker cannot be listened to any more.
#[derive(Debug)]
pub(crate) enum Hangup {
    /// It closed the socket, or died.
    Closed,
    /// It can be told nothing more: functions cannot be called here any more.
    Broken,
    Malformed(Malformed),
}

pub(crate) struct Control {
    socket: OwnedFd,
    incoming: Vec<u8>,
    pub(crate) outgoing: Vec<u8>,
    /// How much of `outgoing` was sent.
    sent: usize,
    /// The worker has not taken all that was offered to it.
    blocked: bool,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        sys::set_nonblocking(socket.as_fd())?;
        Ok(Self { socket, incoming: Vec::new(), outgoing: Vec::new(), sent: 0, blocked: false })
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        let events = if self.blocked { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 }
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether more output should wait until the worker has read some.
    pub(crate) fn is_full(&self) -> bool {
        self.outgoing.len() - self.sent > FULL
    }

    /// Sends what the worker takes. That it is gone shows when the socket is read.
    pub(crate) fn flush(&mut self) {
        while self.has_outgoing() {
            let rest = &self.outgoing[self.sent..];
            // SAFETY: pointer and length come from one slice.
            let n =
                unsafe { libc::send(self.socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
            match sys::check(n as i32) {
                Ok(_) => self.sent += n as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.blocked = self.has_outgoing();
        if !self.blocked {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Reads once from the socket.
    pub(crate) fn read(&mut self) -> Result<(), Hangup> {
        match sys::read_some(self.socket.as_fd(), &mut self.incoming, READ) {
            Ok(0) => Err(Hangup::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Hangup::Closed),
        }
    }

    /// The next whole frame among what was read.
    pub(crate) fn next(&mut self) -> Result<Option<ToRunner>, Hangup> {
        frame::take_to_runner(&mut self.incoming).map_err(Hangup::Malformed)
    }

    /// Gives memory back that only a large request or a slow worker needed.
    pub(crate) fn trim(&mut self) {
        if self.incoming.is_empty() {
            self.incoming.shrink_to(READ);
        }
        if self.outgoing.is_empty() {
            self.outgoing.shrink_to(READ);
        }
    }
}
