//! A non-blocking socket without a runtime.
//!
//! A tokio socket registers for both directions. On a Unix socket, the peer's reading makes it
//! writable, so each read of the peer would wake a thread here. `LinkSocket` registers only for the
//! direction that a task waits for.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::net::Shutdown;
use rustls::Connection;
use tokio::io::{Interest, unix::AsyncFd};

/// One end of a connection. It never blocks.
pub(crate) struct LinkSocket {
    /// The descriptor, whatever the kind of socket: `File` is enough for read and write.
    file: File,
    /// The other end may be on another machine, which can vanish without closing the connection.
    pub(crate) is_remote: bool,
    /// The TLS session, if there is one.
    tls: Option<Mutex<Connection>>,
}

/// Acknowledgements by the peer's kernel (`TCP_INFO`), which do not depend on its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Bytes acknowledged in total.
    pub(crate) bytes: u64,
    /// Segments are unacknowledged.
    pub(crate) is_pending: bool,
    /// Time since the last acknowledgement arrived.
    pub(crate) last_ack: Duration,
}

impl LinkSocket {
    /// Wraps a socket that is non-blocking already.
    pub(crate) fn new(socket: OwnedFd, is_remote: bool, tls: Option<Connection>) -> Self {
        Self {
            file: socket.into(),
            is_remote,
            tls: tls.map(Mutex::new),
        }
    }

    /// Whether data can be received without going through TLS.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Acknowledgements by the peer's kernel. `None` on a local socket, or if the kernel does not
    /// say.
    pub(crate) fn acknowledged(&self) -> Option<Acknowledged> {
        if !self.is_remote {
            return None;
        }
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        let (descriptor, value) = (self.file.as_raw_fd(), info.as_mut_ptr().cast());
        // SAFETY: the kernel writes at most `size` bytes into `info`, which has that size, and
        // `self` keeps the descriptor open.
        let outcome = unsafe {
            libc::getsockopt(
                descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                value,
                &raw mut size,
            )
        };
        // SAFETY: the value was zeroed, the kernel has overwritten part of it, and it consists of
        // integers.
        let info = unsafe { info.assume_init() };
        (outcome == 0).then(|| Acknowledged {
            bytes: info.tcpi_bytes_acked,
            is_pending: info.tcpi_unacked > 0,
            last_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        })
    }

    /// Registers for readability with the current runtime, independent of other registrations.
    pub(crate) fn readable(&self) -> io::Result<AsyncFd<File>> {
        self.register(Interest::READABLE)
    }

    /// Registers for writability with the current runtime, independent of other registrations.
    pub(crate) fn writable(&self) -> io::Result<AsyncFd<File>> {
        self.register(Interest::WRITABLE)
    }

    /// Duplicates the descriptor: epoll accepts each only once.
    fn register(&self, interest: Interest) -> io::Result<AsyncFd<File>> {
        let duplicate = self.file.try_clone()?;
        // SAFETY: the duplicate is owned by the `AsyncFd`, which keeps it open and never replaces
        // it.
        unsafe { AsyncFd::register_with_interest(duplicate, interest) }
            .map_err(|error| error.into_parts().1)
    }

    /// Shuts the connection down, also for other holders of this socket.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        if let Some(tls) = &self.tls {
            let mut tls = lock(tls);
            tls.send_close_notify();
            // A peer that misses `close_notify` sees the end of the TCP stream.
            let _ = flush(&mut tls, &self.file);
        }
        // Fails if the peer was faster.
        let _ = rustix::net::shutdown(&self.file, how);
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return (&self.file).read(buffer);
        };
        let mut tls = lock(tls);
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            tls.read_tls(&mut &self.file)?;
            let processed = tls.process_new_packets();
            // Sends TLS alerts and handshake messages, also when a packet was invalid. Data that
            // does not fit goes out with the next write.
            let _ = flush(&mut tls, &self.file);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    pub(crate) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return (&self.file).write_vectored(slices);
        };
        let mut tls = lock(tls);
        loop {
            let taken = tls.writer().write_vectored(slices)?;
            let flushed = flush(&mut tls, &self.file);
            match flushed {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                // rustls has buffered it and sends it with the next flush.
                _ if taken > 0 => return Ok(taken),
                flushed => flushed?,
            }
        }
    }

    /// Sends what TLS has buffered.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.tls
            .as_ref()
            .map_or(Ok(()), |tls| flush(&mut lock(tls), &self.file))
    }
}

fn flush(tls: &mut Connection, mut file: &File) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut file)?;
    }
    Ok(())
}

fn lock(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
