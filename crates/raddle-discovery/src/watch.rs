//! Looking at directories again when something changes in them.

use std::{
    future::{pending, ready},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    time::Duration,
};

use futures_core::Stream;
use futures_util::{StreamExt, stream};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::WorkerMetadata;

/// How long to wait after a change before looking. Changes come in bursts; and the kernel reports that a file is closed before it releases the lock of it.
const SETTLE: Duration = Duration::from_millis(10);

/// Notices changes in directories, by `inotify`.
pub(super) struct DirectoryWatch {
    directories: Vec<PathBuf>,
    /// `None` where the kernel has no more of them: then there are only the looks at intervals.
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl DirectoryWatch {
    /// Begins to watch. What changes after this is noticed.
    pub(super) fn new(directories: impl Into<Vec<PathBuf>>) -> Self {
        let inotify = inotify().inspect_err(|error| {
            tracing::warn!(%error, "cannot watch directories for workers: they are only looked at now and then");
        });
        let watch = Self {
            directories: directories.into(),
            inotify: inotify.ok(),
        };
        watch.renew();
        watch
    }

    /// A snapshot after each change, and after `every` without one: the kernel does not report what other machines do to a shared disk. `look` runs on a thread
    /// that may block; it returns `None` if the workers that are known stay.
    pub(super) fn snapshots<L>(
        self,
        every: Duration,
        look: L,
    ) -> impl Stream<Item = Vec<WorkerMetadata>> + Send
    where
        L: FnMut() -> Option<Vec<WorkerMetadata>> + Send + 'static,
    {
        let looks = stream::unfold((self, look), move |(watch, mut look)| async move {
            let _ = timeout(every, watch.changed()).await;
            sleep(SETTLE).await;
            let looking = spawn_blocking(move || {
                watch.renew();
                (look(), (watch, look))
            });
            looking.await.ok()
        });
        looks.filter_map(ready)
    }

    /// Watches the directories as they are now: one may have been made, or replaced by another.
    fn renew(&self) {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for (inotify, directory) in self
            .inotify
            .iter()
            .flat_map(|it| self.directories.iter().map(move |at| (it, at)))
        {
            // One that is not there is seen by a look at an interval.
            let _ = inotify::add_watch(inotify.get_ref(), directory, flags);
        }
    }

    async fn changed(&self) {
        let Some(inotify) = &self.inotify else {
            return pending().await;
        };
        let Ok(mut readable) = inotify.readable().await else {
            return pending().await;
        };
        let mut events = [0; 4096];
        while rustix::io::read(inotify.get_ref(), &mut events).is_ok() {}
        readable.clear_ready();
    }
}

fn inotify() -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
    Ok(unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }?)
}
