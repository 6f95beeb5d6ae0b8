//! The workers of this user on this machine, in whatever process they were started.
//!
//! Each worker is a file `<runtime dir>/raddle/pools/<namespace>.<uid>.json`, in the form of [`entry`]. Its publisher keeps it open and locked (`flock`): the kernel
//! releases the lock when the publisher ends, however that comes, and a file that is not locked has no publisher and is removed by the first process that finds it. The lock is
//! that of the open file, which a child has as well that was forked and has not called `exec`.
//!
//! Subscribers look when the kernel reports a change in the directory. That a publisher has died is one: a file that was open for writing is closed.

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
    entry::{self, ENDING},
    namespace,
    watch::DirectoryWatch,
};
use crate::{WorkerMetadata, WorkerUid};

/// How long it takes at most until something is noticed that the kernel has not reported.
const EVERY: Duration = Duration::from_secs(1);
/// How often an entry is opened again that its publisher replaces meanwhile.
const REPLACED_AT_MOST: usize = 3;

/// The workers of this user on this machine that were published under one name.
///
/// A worker is heard of by all subscribers at once, in all processes, and so is its end. It is there until it is dropped, or until all clones of the discovery that has
/// published it are gone, as with the end of their process, however that comes. Nothing is left of it then.
#[derive(Clone, Debug)]
pub struct LocalDiscovery {
    directory: Directory,
    namespace: String,
    /// The locked files of the workers that were published here.
    published: Arc<Mutex<BTreeMap<WorkerUid, File>>>,
}

impl LocalDiscovery {
    /// One for workers that are published under this name, in the user's own runtime directory. A name has up to 64 letters, digits, dots, dashes
    /// and underscores, and does not begin with a dot.
    pub fn new(namespace: &str) -> Result<Self, DiscoveryError> {
        Self::open(Directory::of_user(), namespace)
    }

    /// One for the workers that a pool has started, by the id that it has and no other: pools of one name do not mix there, and are listed nowhere.
    pub fn of_pool_id(id: &str) -> Result<Self, DiscoveryError> {
        Self::open(Directory::of_pool_id(), id)
    }

    /// The same, in another directory. It is made if it is not there; if it is, it must belong to this user alone.
    pub fn in_directory(
        pools: impl Into<PathBuf>,
        namespace: &str,
    ) -> Result<Self, DiscoveryError> {
        Self::open(Directory::at(pools.into()), namespace)
    }

    fn open(directory: Directory, name: &str) -> Result<Self, DiscoveryError> {
        namespace::check(name)?;
        Ok(Self {
            directory,
            namespace: name.to_owned(),
            published: Arc::default(),
        })
    }

    /// The name that its workers are published under.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The names that there are workers under.
    pub fn namespaces() -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(&Directory::of_user())
    }

    /// The same, in another directory.
    pub fn namespaces_in(pools: impl Into<PathBuf>) -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(&Directory::at(pools.into()))
    }

    /// The workers that are there now.
    pub fn snapshot(&self) -> Vec<WorkerMetadata> {
        self.look().unwrap_or_default()
    }

    /// The workers that are there now. An error says nothing of them: a process that is out of descriptors, for example, sees none.
    fn look(&self) -> io::Result<Vec<WorkerMetadata>> {
        let files = self.directory.list()?.into_iter();
        let own = files.filter(|path| namespace_of(path) == Some(&self.namespace));
        own.filter_map(|path| read(&path).transpose()).collect()
    }

    fn entry_of(&self, uid: WorkerUid) -> String {
        format!("{}.{uid}{ENDING}", self.namespace)
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<WorkerUid, File>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

// Files are small, few, and in memory: it takes less to read and write them here than to have a thread do so.

#[async_trait]
impl Publisher for LocalDiscovery {
    async fn publish(&self, event: DiscoveryEvent) -> Result<(), DiscoveryError> {
        match event {
            DiscoveryEvent::Added(worker) | DiscoveryEvent::Updated(worker) => {
                let path = self.directory.path();
                let mut published = self.published();
                let written = self.directory.make().and_then(|()| {
                    // Pools have names of their own, so that no other process may ever look for those of a program that was killed.
                    if published.is_empty() {
                        self.directory
                            .list()?
                            .iter()
                            .for_each(|path| drop(read(path)));
                        entry::remove_old_drafts(path);
                    }
                    entry::write(path, &self.entry_of(worker.uid), &worker, 0o600, true)
                });
                published.insert(
                    worker.uid,
                    written.map_err(DiscoveryError::at("cannot publish a worker", path))?,
                );
            }
            DiscoveryEvent::Dropped(worker) => self.withdraw(&worker),
        }
        Ok(())
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        let _ = entry::remove(&self.directory.path().join(self.entry_of(worker.uid)));
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
            .map_err(DiscoveryError::at("cannot watch for workers", path))?;
        let (watch, this) = (DirectoryWatch::new([path.to_owned()]), self.clone());
        let first = self.snapshot();
        let later = watch.snapshots(EVERY, move || {
            let _ = this.directory.make();
            this.look()
                .inspect_err(|error| tracing::debug!(%error, "the known workers stay"))
                .ok()
        });
        Ok(Subscription::from_snapshots(filter, first, later))
    }
}

fn namespaces_of(directory: &Directory) -> Result<Vec<String>, DiscoveryError> {
    let files = directory.list().map_err(DiscoveryError::at(
        "cannot look for pools",
        directory.path(),
    ))?;
    let held = files
        .iter()
        .filter(|path| matches!(read(path), Ok(Some(_))));
    let names: BTreeSet<_> = held
        .filter_map(|path| namespace_of(path))
        .map(str::to_owned)
        .collect();
    Ok(names.into_iter().collect())
}

/// The namespace that a file is of, by its name.
fn namespace_of(path: &Path) -> Option<&str> {
    let (namespace, uid) = path.file_stem()?.to_str()?.rsplit_once('.')?;
    uid.parse::<WorkerUid>().ok().map(|_| namespace)
}

/// The worker of an entry that its publisher holds, or `None`. Removes an entry that is not held. Other files are left alone: the directory may be a user's own.
fn read(path: &Path) -> io::Result<Option<WorkerMetadata>> {
    if namespace_of(path).is_none() {
        return Ok(None);
    }
    for _ in 0..REPLACED_AT_MOST {
        let file = match entry::open(path) {
            Err(error) if entry::is_absence(&error) => return Ok(None),
            opened => opened?,
        };
        if file.try_lock_shared().is_err() {
            let read = entry::read(file);
            let read = read
                .inspect_err(|error| tracing::debug!(entry = %path.display(), %error, "skipped"));
            return Ok(read.ok().and_then(|workers| workers.into_iter().next()));
        }
        if directory::is_still_at(&file, path) {
            let _ = entry::remove(path);
            return Ok(None);
        }
        // The publisher has put another file in its place, and released the old one after that.
    }
    Ok(None)
}
