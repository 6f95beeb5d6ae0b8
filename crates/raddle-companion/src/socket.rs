//! Sockets of the program: reading with passed descriptors, and the check of peers.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
};

use rustix::{
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    process::{Pid, geteuid},
};
use tokio::{io::Interest, net::UnixStream};

/// How much is read at once.
const READ: usize = 16 * 1024;
/// How many descriptors one read can bring: a program sends one with each message.
const PASSED: usize = 8;

/// Makes a stream of a socket that the program has passed.
pub(crate) fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    check_peer(&stream)?;
    Ok(stream)
}

/// Refuses a peer of another user.
pub(crate) fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user == 0 || user == geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the program runs as user {user}"),
    ))
}

/// The process that has made the socket pair.
pub(crate) fn peer_process(stream: &UnixStream) -> Option<Pid> {
    stream.peer_cred().ok()?.pid().and_then(Pid::from_raw)
}

/// Appends what has arrived to `buffer`, and descriptors to `passed`. Returns how many bytes; 0 at
/// the end.
pub(crate) async fn read(
    stream: &UnixStream,
    buffer: &mut Vec<u8>,
    passed: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    stream
        .async_io(Interest::READABLE, || {
            let length = buffer.len();
            buffer.resize(length + READ, 0);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                stream,
                &mut [IoSliceMut::new(&mut buffer[length..])],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let bytes = received.as_ref().map_or(0, |received| received.bytes);
            buffer.truncate(length + bytes);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed.extend(descriptors);
                }
            }
            received
                .map(|received| received.bytes)
                .map_err(io::Error::from)
        })
        .await
}
