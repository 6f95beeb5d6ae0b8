//! Local discovery: the workers of this user on this machine, in any process.
//!
//! Each worker is a file `<runtime dir>/raddle/pools/<namespace>.<uid>.json`, in the format of
//! [`entry`]. Its publisher keeps it open and locked (`flock`): the kernel releases the lock when
//! the publisher ends, however it ends. A file that is not locked has no publisher, and the first
//! process that finds it removes it. The lock belongs to the open file description, so a forked
//! child that has not called `exec` holds it too.
//!
//! Subscribers read the directory when inotify reports a change. The death of a publisher is one,
//! because a file that was open for writing is closed.

mod directory;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use self::directory::Directory;
use super::{
    Discovery, DiscoveryError, DiscoveryEvent, Publisher, Subscription, WorkerFilter,
    entry::{self, SUFFIX},
    namespace,
    watch::DirectoryWatch,
};
use crate::{WorkerMetadata, WorkerUid};

/// Polling interval, for changes that inotify does not report.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often an entry is reopened that its publisher is replacing.
const MAX_REOPENS: usize = 3;

/// The workers of this user on this machine that were published under one name.
///
/// All subscribers, in all processes, see a worker and its end at once. A worker stays until it is
/// dropped, or until all clones of the discovery that has published it are gone, at the latest with
/// their process, however that ends. No file remains.
#[derive(Clone, Debug)]
pub struct LocalDiscovery {
    directory: Directory,
    namespace: String,
    /// The locked files of the workers published here.
    published: Arc<Mutex<BTreeMap<WorkerUid, File>>>,
}

impl LocalDiscovery {
    /// The workers published under this name, in the user's runtime directory. A name has up to 64
    /// letters, digits, dots, dashes and underscores, and does not start with a dot.
    pub fn new(namespace: &str) -> Result<Self, DiscoveryError> {
        Self::open(Directory::for_pools(), namespace)
    }

    /// The workers that the pool with this unique id has started: pools of the same name do not mix
    /// there, and are not listed.
    pub fn of_pool_id(id: &str) -> Result<Self, DiscoveryError> {
        Self::open(Directory::for_pool_members(), id)
    }

    /// Uses another directory. It is created if missing; otherwise it must be writable by this user
    /// only.
    pub fn in_directory(
        pools: impl Into<PathBuf>,
        namespace: &str,
    ) -> Result<Self, DiscoveryError> {
        Self::open(Directory::new(pools.into()), namespace)
    }

    fn open(directory: Directory, name: &str) -> Result<Self, DiscoveryError> {
        namespace::check_namespace(name)?;
        Ok(Self {
            directory,
            namespace: name.to_owned(),
            published: Arc::default(),
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The namespaces that have workers.
    pub fn namespaces() -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(&Directory::for_pools())
    }

    /// The namespaces in another directory.
    pub fn namespaces_in(pools: impl Into<PathBuf>) -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(&Directory::new(pools.into()))
    }

    /// The current workers.
    pub fn snapshot(&self) -> Vec<WorkerMetadata> {
        self.read_entries().unwrap_or_default()
    }

    /// Reads the current workers. An error does not mean that there are none: the process may be
    /// out of descriptors, for example.
    fn read_entries(&self) -> io::Result<Vec<WorkerMetadata>> {
        let files = self.directory.list()?.into_iter();
        let own = files.filter(|path| namespace_of(path) == Some(&self.namespace));
        own.filter_map(|path| read_held_entry(&path).transpose())
            .collect()
    }

    fn entry_name(&self, uid: WorkerUid) -> String {
        format!("{}.{uid}{SUFFIX}", self.namespace)
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<WorkerUid, File>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

// Synchronous I/O: the files are small, few, and in memory (tmpfs), so a blocking thread would cost
// more.

#[async_trait]
impl Publisher for LocalDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                let path = self.directory.path();
                let mut published = self.published();
                let written = self.directory.make().and_then(|()| {
                    // Clean up entries of killed publishers: pools have unique names, so that no
                    // other process may ever look for those of a killed program.
                    if published.is_empty() {
                        self.directory
                            .list()?
                            .iter()
                            .for_each(|path| drop(read_held_entry(path)));
                        entry::remove_old_drafts(path);
                    }
                    entry::write_worker(path, &self.entry_name(worker.uid), &worker, 0o600, true)
                });
                published.insert(
                    worker.uid,
                    written.map_err(DiscoveryError::wrap_path("cannot publish a worker", path))?,
                );
            }
            DiscoveryEvent::Dropped(worker) => self.withdraw(&worker),
        }
        Ok(())
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        let _ = entry::remove_file(&self.directory.path().join(self.entry_name(worker.uid)));
        self.published().remove(&worker.uid);
    }
}

#[async_trait]
impl Discovery for LocalDiscovery {
    async fn subscribe(
        &self,
        filter: Option<WorkerFilter>,
    ) -> Result<Subscription, DiscoveryError> {
        let path = self.directory.path();
        self.directory
            .make()
            .map_err(DiscoveryError::wrap_path("cannot watch for workers", path))?;
        let (watch, this) = (DirectoryWatch::new([path.to_owned()]), self.clone());
        let first = self.snapshot();
        let later = watch.snapshots(POLL_INTERVAL, move || {
            let _ = this.directory.make();
            this.read_entries()
                .inspect_err(|error| tracing::debug!(%error, "cannot read the entries; keeping the known workers"))
                .ok()
        });
        Ok(Subscription::from_snapshots(filter, first, later))
    }
}

fn namespaces_of(directory: &Directory) -> Result<Vec<String>, DiscoveryError> {
    let files = directory.list().map_err(DiscoveryError::wrap_path(
        "cannot look for pools",
        directory.path(),
    ))?;
    let held = files
        .iter()
        .filter(|path| matches!(read_held_entry(path), Ok(Some(_))));
    let names: BTreeSet<_> = held
        .filter_map(|path| namespace_of(path))
        .map(str::to_owned)
        .collect();
    Ok(names.into_iter().collect())
}

/// The namespace of a file, from its name.
fn namespace_of(path: &Path) -> Option<&str> {
    let (namespace, uid) = path.file_stem()?.to_str()?.rsplit_once('.')?;
    uid.parse::<WorkerUid>().ok().map(|_| namespace)
}

/// The worker of an entry whose lock is held, or `None`. Removes an entry without a lock. Leaves
/// other files alone, because the directory may be the user's own.
fn read_held_entry(path: &Path) -> io::Result<Option<WorkerMetadata>> {
    if namespace_of(path).is_none() {
        return Ok(None);
    }
    for _ in 0..MAX_REOPENS {
        let file = match entry::open_file(path) {
            Err(error) if entry::is_missing(&error) => return Ok(None),
            opened => opened?,
        };
        if file.try_lock_shared().is_err() {
            let read = entry::read_workers(file);
            let read = read
                .inspect_err(|error| tracing::debug!(entry = %path.display(), %error, "skipped"));
            return Ok(read.ok().and_then(|workers| workers.into_iter().next()));
        }
        if directory::is_same_file(&file, path) {
            let _ = entry::remove_file(path);
            return Ok(None);
        }
        // The publisher has replaced the file, and then closed the old one: read the new one.
    }
    Ok(None)
}
