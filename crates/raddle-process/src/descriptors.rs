//! Checks whether this process can open file descriptors.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// More than tokio opens for its first runtime: an epoll instance and a duplicate of it, an
/// eventfd, and a socket pair for signals with a duplicate of one end.
const RUNTIME_DESCRIPTORS: usize = 8;

/// Fails if this process cannot open the descriptors that an async runtime starts with. tokio would
/// panic instead, because it expects the signal socket pair to exist.
pub fn check_descriptors() -> io::Result<()> {
    let stdin = io::stdin();
    let duplicate = |_| stdin.as_fd().try_clone_to_owned();
    let opened: io::Result<Vec<OwnedFd>> = (0..RUNTIME_DESCRIPTORS).map(duplicate).collect();
    opened.map(drop).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{error}: raise the limit with 'ulimit -n 1024'"),
        )
    })
}
