//! A worker's end of the socket to its runner.
//!
//! The runtime watches it for what the runner says, and for nothing else. A frame that a runner takes makes room for more, and a worker that is woken
//! to hear of that has nothing to do with it: with short tasks, that would be every other time it is woken.

use std::{
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

use crate::sys;

/// Between two looks for room, where nobody tells of it.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<UnixStream>);

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(watch(stream, Interest::READABLE)?))
    }

    /// Appends what there is to be read, up to `max` bytes; none at the end. Cancel-safe.
    pub(crate) async fn read(&self, into: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            into.reserve(max);
            match sys::read_some(self.0.as_fd(), into, max) {
                Ok(n) => {
                    // Less than there was room for is all there was. The end stays to be found.
                    if (1..max).contains(&n) {
                        ready.clear_ready();
                    }
                    return Ok(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what there is room for, as soon as there is some. Cancel-safe.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // Tried before anybody asks whether there is room: there nearly always is.
        match sys::send(self.0.as_fd(), bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
        let room = self.0.get_ref().try_clone().and_then(|stream| watch(stream, Interest::WRITABLE));
        loop {
            let ready = match &room {
                Ok(room) => Some(room.writable().await?),
                // There is no descriptor left, which is no fault of the runner's.
                Err(_) => {
                    sleep(PAUSE).await;
                    None
                }
            };
            match sys::send(self.0.as_fd(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.into_iter().for_each(|mut ready| ready.clear_ready());
                }
                sent => return sent,
            }
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn shutdown(&self) {
        // One that is closed needs no telling.
        let _ = self.0.get_ref().shutdown(Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// Has the runtime tell when a stream is ready for something.
fn watch(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the stream owns its descriptor, which stays open and the same as long as the stream is there: nobody can take it out or replace it.
    Ok(unsafe { AsyncFd::register_with_interest(stream, interest) }?)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::fd::AsRawFd, path::Path};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn what_does_not_fit_waits_for_room() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Socket::new(ours).unwrap();
        let sent = vec![7; 4 << 20];
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).map(|_| read)
        });
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let n = timeout(SOON, socket.write(rest)).await.unwrap().unwrap();
            rest = &rest[n..];
        }
        socket.shutdown();
        assert_eq!(reader.join().unwrap().unwrap(), sent);
    }

    #[tokio::test]
    async fn all_that_was_said_is_read_and_then_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = Socket::new(ours).unwrap();
        let said: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let writer = std::thread::spawn({
            let said = said.clone();
            // In pieces that fill the reader's room exactly, and others.
            move || said.chunks(4096).try_for_each(|piece| io::Write::write_all(&mut &theirs, piece))
        });
        let mut read = Vec::new();
        while timeout(SOON, socket.read(&mut read, 4096)).await.unwrap().unwrap() > 0 {}
        writer.join().unwrap().unwrap();
        assert_eq!(read, said);
    }

    /// What the kernel tells the runtime about a descriptor.
    fn watched_for(descriptor: i32) -> Option<u32> {
        let is_watcher = |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("[eventpoll]"));
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
        open.filter(|path| is_watcher(path)).find_map(|path| {
            let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(path.file_name()?)).ok()?;
            info.lines().find_map(|line| {
                let mut words = line.strip_prefix("tfd:")?.split_whitespace();
                let is_this = words.next()?.parse() == Ok(descriptor);
                let events = words.nth(1)?;
                is_this.then(|| u32::from_str_radix(events, 16).ok()).flatten()
            })
        })
    }

    #[tokio::test]
    async fn nobody_is_woken_for_room() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let socket = Socket::new(ours).unwrap();
        let watched = watched_for(socket.as_fd().as_raw_fd()).expect("the runtime watches it");
        assert_ne!(watched & libc::EPOLLIN as u32, 0);
        assert_eq!(watched & libc::EPOLLOUT as u32, 0);
    }
}
