//! The pipes of a command: what it writes is collected and cut into frames, what it reads is fed to it.
//!
//! Within a stream nothing is lost or reordered; between the two streams no order is promised.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use super::control::ControlSocket;
use crate::{
    message::{OutputChannel, RunnerEvent},
    sys,
};

/// The size at which collected output is sent at once.
const CHUNK: usize = 64 * 1024;
/// How long collected output may wait for more.
const LINGER: Duration = Duration::from_millis(20);

/// One output stream of a command.
pub(crate) struct Capture {
    stream: OutputChannel,
    reader: PipeReader,
    /// Our own copy of the command's end. While it is open the pipe cannot hang up, so that a command which ends wakes us once
    /// and not three times.
    writer: Option<PipeWriter>,
    buf: Vec<u8>,
    total: u64,
    /// When the collected output is to be sent.
    due: Option<Duration>,
    at_end: bool,
}

/// Standard input that is still being written.
pub(crate) struct Feed {
    writer: PipeWriter,
    bytes: Vec<u8>,
    written: usize,
    /// Whether more may follow.
    is_open: bool,
}

impl Capture {
    pub(crate) fn new(stream: OutputChannel) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(reader.as_fd())?;
        Ok(Self {
            stream,
            reader,
            writer: Some(writer),
            buf: Vec::new(),
            total: 0,
            due: None,
            at_end: false,
        })
    }

    /// The descriptor that the command writes to, before it has begun.
    pub(crate) fn command_end(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn pollfd(&self, wanted: bool) -> libc::pollfd {
        let fd = if wanted && !self.at_end {
            self.reader.as_raw_fd()
        } else {
            -1
        };
        libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, now: Duration) {
        match sys::read_some(self.reader.as_fd(), &mut self.buf) {
            Ok(0) => self.at_end = true,
            Ok(n) => {
                self.total += n as u64;
                self.due.get_or_insert(now + LINGER);
            }
            // With our own end closed and every process of the command gone, "nothing there" is as good as the end: whoever else was
            // given the pipe is none of ours, and may keep it for ever.
            Err(_) if self.writer.is_none() => self.at_end = true,
            Err(_) => {}
        }
    }

    /// Adds a remark of ours to what the command wrote.
    pub(crate) fn remark(&mut self, text: &str, now: Duration) {
        self.buf.extend_from_slice(text.as_bytes());
        self.total += text.len() as u64;
        self.due.get_or_insert(now + LINGER);
    }

    /// Has a notice sent if enough was collected, or it has waited long enough. Returns whether it did.
    pub(crate) fn send_if_due(&mut self, now: Duration, control: &mut ControlSocket) -> bool {
        let send = self.buf.len() >= CHUNK || self.due.is_some_and(|due| due <= now);
        if send {
            control.put(&RunnerEvent::Output {
                stream: self.stream,
                bytes: std::mem::take(&mut self.buf),
            });
            self.due = None;
        }
        send
    }

    /// When [`send_if_due`](Self::send_if_due) has something to send.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// No process of the command is left: from here on the pipe has an end.
    pub(crate) fn close_command_end(&mut self) {
        self.writer = None;
    }

    pub(crate) fn at_end(&self) -> bool {
        self.at_end
    }

    /// The number of bytes read in all, and those of them that were not sent.
    pub(crate) fn finish(self) -> (u64, Vec<u8>) {
        (self.total, self.buf)
    }
}

impl Feed {
    /// Returns the feed and the descriptor that the command reads from.
    pub(crate) fn new(bytes: Vec<u8>, is_open: bool) -> io::Result<(Self, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(writer.as_fd())?;
        Ok((
            Self {
                writer,
                bytes,
                written: 0,
                is_open,
            },
            reader,
        ))
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        // With nothing to write only the end of its reader is news.
        let events = if self.written < self.bytes.len() {
            libc::POLLOUT
        } else {
            0
        };
        libc::pollfd {
            fd: self.writer.as_raw_fd(),
            events,
            revents: 0,
        }
    }

    /// Adds to what is to be written. It has been [written](Self::write) as far as possible.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.written);
        self.written = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Nothing more follows.
    pub(crate) fn end(&mut self) {
        self.is_open = false;
    }

    /// Writes what the pipe takes, and returns how much that was. What is not read by any process any more counts as taken.
    pub(crate) fn write(&mut self) -> usize {
        let before = self.written;
        while self.written < self.bytes.len() {
            match sys::write_some(self.writer.as_fd(), &self.bytes[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.written = self.bytes.len();
                    self.is_open = false;
                }
            }
        }
        self.written - before
    }

    /// Whether all is written, or no process reads it any more.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open && self.written == self.bytes.len()
    }
}
