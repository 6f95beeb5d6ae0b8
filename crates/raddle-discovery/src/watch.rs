//! Watches directories with inotify, and polls them in addition.

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

/// Pause between a change and reading. Changes come in bursts, and the kernel reports the close of
/// a file before it releases its lock.
const SETTLE: Duration = Duration::from_millis(10);

/// Watches directories with inotify.
pub(super) struct DirectoryWatch {
    directories: Vec<PathBuf>,
    /// `None` if the kernel's limit is reached: then there is only polling.
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl DirectoryWatch {
    /// Starts watching. Later changes are noticed.
    pub(super) fn new(directories: impl Into<Vec<PathBuf>>) -> Self {
        let inotify = inotify().inspect_err(|error| {
            tracing::warn!(%error, "cannot watch directories with inotify; polling them instead");
        });
        let watch = Self {
            directories: directories.into(),
            inotify: inotify.ok(),
        };
        watch.add_watches();
        watch
    }

    /// Snapshots after each change, and every `interval` without one: the kernel does not report
    /// changes by other machines on a shared disk. `read` runs on a blocking thread; it returns
    /// `None` to keep the known workers.
    pub(super) fn snapshots<L>(
        self,
        interval: Duration,
        read: L,
    ) -> impl Stream<Item = Vec<WorkerMetadata>> + Send
    where
        L: FnMut() -> Option<Vec<WorkerMetadata>> + Send + 'static,
    {
        let reads = stream::unfold((self, read), move |(watch, mut read)| async move {
            let _ = timeout(interval, watch.changed()).await;
            sleep(SETTLE).await;
            let reading = spawn_blocking(move || {
                watch.add_watches();
                (read(), (watch, read))
            });
            reading.await.ok()
        });
        reads.filter_map(ready)
    }

    /// Adds watches for the directories as they are now: they may have been created or replaced.
    fn add_watches(&self) {
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
            // Fails if the directory is missing, which polling notices.
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
    // SAFETY: the descriptor is owned by the `AsyncFd`, which keeps it open and never replaces it.
    Ok(unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) }?)
}
