//! The pipes of a command: what it writes is collected and cut into frames, what it reads is fed to it.
//!
//! Within a stream nothing is lost or reordered; between the two streams no order is promised.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsFd, AsRawFd, RawFd},
    time::Duration,
};

use crate::{frame, message::Stream, sys};

/// One read, and the size at which collected output is sent at once.
const CHUNK: usize = 64 * 1024;
/// How long collected output may wait for more.
const LINGER: Duration = Duration::from_millis(20);

/// One output stream of a command.
pub(crate) struct Capture {
    stream: Stream,
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
}

impl Capture {
    pub(crate) fn new(stream: Stream, buf: Vec<u8>) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(reader.as_fd())?;
        Ok(Self { stream, reader, writer: Some(writer), buf, total: 0, due: None, at_end: false })
    }

    /// The descriptor that the command writes to.
    pub(crate) fn command_end(&self) -> RawFd {
        self.writer.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(crate) fn pollfd(&self, wanted: bool) -> libc::pollfd {
        let fd = if wanted && !self.at_end { self.reader.as_raw_fd() } else { -1 };
        libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, now: Duration) {
        match sys::read_some(self.reader.as_fd(), &mut self.buf, CHUNK) {
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

    /// Appends a frame to `out` if enough was collected, or it has waited long enough. Returns whether it did.
    pub(crate) fn send_if_due(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let send = self.buf.len() >= CHUNK || self.due.is_some_and(|due| due <= now);
        if send {
            frame::put_output(out, self.stream, &self.buf);
            self.buf.clear();
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
    pub(crate) fn new(bytes: Vec<u8>) -> io::Result<(Self, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(writer.as_fd())?;
        Ok((Self { writer, bytes, written: 0 }, reader))
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        libc::pollfd { fd: self.writer.as_raw_fd(), events: libc::POLLOUT, revents: 0 }
    }

    /// Writes what the pipe takes. Returns whether the feed is over: all is written, or nobody reads it.
    pub(crate) fn write(&mut self) -> bool {
        while self.written < self.bytes.len() {
            match sys::write_some(self.writer.as_fd(), &self.bytes[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}
