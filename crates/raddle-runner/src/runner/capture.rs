//! The pipes of a command: `Capture` collects its output and cuts it into frames, `InputFeed`
//! writes its input.
//!
//! Within a stream nothing is lost or reordered. The order between two streams is not kept.

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

/// Size at which collected output is sent at once.
const SEND_SIZE: usize = 64 * 1024;
/// Maximum time that collected output waits for more.
const LINGER: Duration = Duration::from_millis(20);

/// One output stream of a command.
pub(crate) struct Capture {
    stream: OutputChannel,
    reader: PipeReader,
    /// Our copy of the command's end. While it is open, the pipe cannot hang up, so a command that
    /// exits wakes the runner once instead of three times.
    writer: Option<PipeWriter>,
    buf: Vec<u8>,
    total: u64,
    /// Time at which the collected output must be sent.
    due: Option<Duration>,
    at_end: bool,
}

/// Writes the standard input of a command.
pub(crate) struct InputFeed {
    writer: PipeWriter,
    bytes: Vec<u8>,
    written: usize,
    /// Whether more input may follow.
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

    /// The descriptor that the command writes to, until the command is over.
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
            // Our copy is closed and every process of the command is dead, so an empty pipe counts
            // as end of file: only processes outside the attempt can still hold the other end, and
            // they may keep it for ever.
            Err(_) if self.writer.is_none() => self.at_end = true,
            Err(_) => {}
        }
    }

    /// Adds a message of the runner to the command's output.
    pub(crate) fn append_message(&mut self, text: &str, now: Duration) {
        self.buf.extend_from_slice(text.as_bytes());
        self.total += text.len() as u64;
        self.due.get_or_insert(now + LINGER);
    }

    /// Queues the output if enough was collected or it has waited long enough. Returns whether the
    /// output was queued.
    pub(crate) fn send_if_due(&mut self, now: Duration, control: &mut ControlSocket) -> bool {
        let send = self.buf.len() >= SEND_SIZE || self.due.is_some_and(|due| due <= now);
        if send {
            control.queue(&RunnerEvent::Output {
                stream: self.stream,
                bytes: std::mem::take(&mut self.buf),
            });
            self.due = None;
        }
        send
    }

    /// Time at which [`send_if_due`](Self::send_if_due) has something to send.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Closes our copy of the command's end, so that the pipe can end. No process of the command is
    /// left.
    pub(crate) fn close_command_end(&mut self) {
        self.writer = None;
    }

    pub(crate) fn at_end(&self) -> bool {
        self.at_end
    }

    /// The total number of bytes, and those bytes that were not sent.
    pub(crate) fn finish(self) -> (u64, Vec<u8>) {
        (self.total, self.buf)
    }
}

impl InputFeed {
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
        // With nothing to write, only a closed reader matters.
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

    /// Appends input. Call it after a [`write`](Self::write).
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.written);
        self.written = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Marks the end of the input.
    pub(crate) fn end(&mut self) {
        self.is_open = false;
    }

    /// Writes what the pipe accepts, and returns how much that was. Input that no process can read
    /// any more counts as written.
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

    /// Whether all input is written, or no process can read it.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open && self.written == self.bytes.len()
    }
}
