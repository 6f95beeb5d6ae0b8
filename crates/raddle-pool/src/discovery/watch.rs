//! What the kernel tells of folders and processes, in one place to wait at.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fs::inotify,
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

/// Stands for the folders among what can happen. Processes have other numbers.
pub(super) const FOLDERS: u64 = 0;
/// More is heard of the next time.
const AT_ONCE: usize = 64;

/// Folders and processes that are watched. A process is watched as long as its descriptor is open.
#[derive(Debug)]
pub(super) struct Watch {
    /// Has all others in it, so that the runtime has to look at one descriptor, however many processes there are.
    all: AsyncFd<OwnedFd>,
    folders: OwnedFd,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        let folders = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&all, &folders, epoll::EventData::new_u64(FOLDERS), epoll::EventFlags::IN)?;
        // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
        let all = unsafe { AsyncFd::register_with_interest(all, Interest::READABLE)? };
        Ok(Self { all, folders })
    }

    /// Watches a folder: for other folders in it, and for files that are complete, or gone. Returns whether it is there. A folder that is watched
    /// already may be named again; one that was made anew in its place has to be.
    pub(super) fn folder(&self, path: &Path) -> io::Result<bool> {
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF
            | inotify::WatchFlags::ONLYDIR
            | inotify::WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(&self.folders, path, flags) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Watches for the end of a process.
    pub(super) fn process(&self, pidfd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(epoll::add(self.all.get_ref(), pidfd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Waits until something happens, and returns where. It is told again until it was dealt with.
    pub(super) async fn wait(&self) -> io::Result<Vec<u64>> {
        loop {
            let mut ready = self.all.readable().await?;
            let mut events = Vec::with_capacity(AT_ONCE);
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(self.all.get_ref(), spare_capacity(&mut events), Some(&at_once)) {
                Ok(0) => ready.clear_ready(),
                Ok(_) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes note of all that was told of folders. Returns whether it is worth a look, for who is interested in these names.
    pub(super) fn heed_folders(&self, is_of_interest: impl Fn(&[u8]) -> bool) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.folders, &mut buffer);
        let mut is_news = false;
        loop {
            match events.next() {
                // What has no name is of the folder itself, or there was more than the kernel had room to tell of.
                Ok(event) => is_news |= event.file_name().is_none_or(|name| is_of_interest(name.to_bytes())),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return is_news,
                // It cannot be read, whatever it was.
                Err(_) => return true,
            }
        }
    }
}
