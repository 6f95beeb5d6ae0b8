//! One end of a connection, without a runtime: reads and writes what can be at once.
//!
//! A runtime's own sockets wait for both directions at a time. Of a Unix socket that means that it wakes its thread whenever the other side has
//! read something. So whoever waits does it for the one direction that it needs.

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
    /// Its descriptor, of whatever kind of socket: to read and write, a file is as good.
    file: File,
    /// The other end may be on another machine, which can go without a word.
    pub(crate) is_far: bool,
    /// What is sent, and received, is encrypted by this.
    tls: Option<Mutex<Connection>>,
}

/// What the system of the other end has acknowledged, whatever its processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// How much of what it was sent.
    pub(crate) bytes: u64,
    /// Something was sent that it has not.
    pub(crate) is_waiting: bool,
    /// How long ago it has last said anything.
    pub(crate) heard: Duration,
}

impl LinkSocket {
    /// One that was told not to block.
    pub(crate) fn new(socket: OwnedFd, is_far: bool, tls: Option<Connection>) -> Self {
        Self {
            file: socket.into(),
            is_far,
            tls: tls.map(Mutex::new),
        }
    }

    /// Whether what arrives may be read past this.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// What the system of the other end has acknowledged. `None` if that cannot be told.
    pub(crate) fn acknowledged(&self) -> Option<Acknowledged> {
        if !self.is_far {
            return None;
        }
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        let (descriptor, place) = (self.file.as_raw_fd(), info.as_mut_ptr().cast());
        // SAFETY: the system writes no more than `size` bytes, all of which are there, and the descriptor is open for as long as it is borrowed.
        let outcome = unsafe {
            libc::getsockopt(
                descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                place,
                &raw mut size,
            )
        };
        // SAFETY: all bytes of it are set, to zero if by nobody else, and it is made of numbers.
        let info = unsafe { info.assume_init() };
        (outcome == 0).then(|| Acknowledged {
            bytes: info.tcpi_bytes_acked,
            is_waiting: info.tcpi_unacked > 0,
            heard: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        })
    }

    /// Has this runtime wait until it can be read, beside whoever else waits for it.
    pub(crate) fn readable(&self) -> io::Result<AsyncFd<File>> {
        self.wait_for(Interest::READABLE)
    }

    /// Has this runtime wait until it can be written, beside whoever else waits for it.
    pub(crate) fn writable(&self) -> io::Result<AsyncFd<File>> {
        self.wait_for(Interest::WRITABLE)
    }

    /// By another descriptor: a runtime waits for each once.
    fn wait_for(&self, interest: Interest) -> io::Result<AsyncFd<File>> {
        let again = self.file.try_clone()?;
        // SAFETY: it has one descriptor from its beginning to its end, and is kept for as long as it is waited for.
        unsafe { AsyncFd::register_with_interest(again, interest) }
            .map_err(|error| error.into_parts().1)
    }

    /// Ends the connection, whoever else has this end.
    pub(crate) fn shut(&self, how: Shutdown) {
        if let Some(tls) = &self.tls {
            let mut tls = lock(tls);
            tls.send_close_notify();
            // Who does not hear of the end in good order hears of it otherwise.
            let _ = flush(&mut tls, &self.file);
        }
        // The other side may have done it before.
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
            // What the protocol itself has to say, also if it is that something is wrong. If it does not fit, it goes with what is sent next.
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
                // What it has taken is its own to send.
                _ if taken > 0 => return Ok(taken),
                flushed => flushed?,
            }
        }
    }

    /// Sends what was taken and not sent.
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
