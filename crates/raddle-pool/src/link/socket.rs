//! One end of a connection, without a runtime: reads and writes what can be at once.
//!
//! A runtime's own sockets wait for both directions at a time. Of a Unix socket that means that it wakes its thread whenever the other side has
//! read something. So whoever waits does it for the one direction that it needs.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use tokio::io::{Interest, unix::AsyncFd};

/// One end of a connection. It never blocks.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// The same end once more, which a runtime can wait for beside the first.
    pub(crate) fn duplicate(&self) -> io::Result<Arc<Self>> {
        Ok(Arc::new(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        }))
    }

    /// Has this runtime wait for it, once for each of which it has the same end.
    pub(crate) fn wait_for(self: Arc<Self>, interest: Interest) -> io::Result<AsyncFd<Arc<Self>>> {
        // SAFETY: it has one descriptor from its beginning to its end, and is kept for as long as it is waited for.
        unsafe { AsyncFd::register_with_interest(self, interest) }.map_err(|error| error.into_parts().1)
    }

    /// Ends the connection, whoever else has this end.
    pub(crate) fn shut(&self, how: Shutdown) {
        // The other side may have done it before.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => (&*stream).read(buffer),
            Self::Tcp(stream) => (&*stream).read(buffer),
        }
    }

    pub(crate) fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => (&*stream).write_vectored(slices),
            Self::Tcp(stream) => (&*stream).write_vectored(slices),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
