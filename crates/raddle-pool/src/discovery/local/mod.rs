//! The workers of this user on this machine, in whatever process they were started.
//!
//! Each worker is a file in the folder of its namespace: `<runtime dir>/raddle/pools/<namespace>/<entry>`. The name of the file says whose it is: the
//! worker, and the very process that it is, which no other process will ever be again. So whoever finds out that the process is gone can
//! remove the file without asking anybody, and cannot hit the file of a worker that was started anew. Files are written under another name
//! and then renamed, so that nobody sees a part of one; what cannot be read all the same is skipped.
//!
//! Nobody serves this: publishers write, subscribers look. They look when the kernel says that there is something to see, in the folder or of one
//! of the processes, and compare what is there with what they knew. So nothing is missed that happens between two looks, or that the kernel
//! had no room to tell of.

mod entry;
mod folder;
mod pools;
mod process;
mod subscription;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use self::{folder::Folder, pools::Pools, process::Process, subscription::Local};
use super::{Discovery, DiscoveryError, Event, Filter, Publisher, Subscription};
use crate::WorkerMetadata;

/// The workers of this user on this machine that were published under one name.
///
/// A worker is heard of by all subscribers at once, in all processes, and so is its end, however it comes. Nothing is left of it then.
#[derive(Clone, Debug)]
pub struct LocalDiscovery {
    folder: Folder,
    /// What others have left behind is removed once.
    swept: Arc<OnceCell<()>>,
}

impl LocalDiscovery {
    /// One for workers that are published under this name, in the user's own runtime folder. A name has up to 64 letters, digits, dots, dashes
    /// and underscores, and does not begin with a dot.
    pub fn new(namespace: &str) -> Result<Self, DiscoveryError> {
        Self::of_pools(Pools::of_user(), namespace)
    }

    /// The same, in another folder. It is made if it is not there; if it is, it must belong to this user alone.
    pub fn in_folder(pools: impl Into<PathBuf>, namespace: &str) -> Result<Self, DiscoveryError> {
        Self::of_pools(Pools::at(pools.into()), namespace)
    }

    fn of_pools(pools: Pools, namespace: &str) -> Result<Self, DiscoveryError> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
        if !(1..=64).contains(&namespace.len()) || namespace.starts_with('.') || !namespace.chars().all(is_name) {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                "use 1 to 64 letters, digits, dots, dashes and underscores, and no dot first",
            );
            return Err(DiscoveryError { what: format!("'{namespace}' is no name for a pool"), source });
        }
        Ok(Self { folder: Folder::new(&Arc::new(pools), namespace), swept: Arc::default() })
    }

    /// The name that its workers are published under.
    pub fn namespace(&self) -> &str {
        self.folder.namespace()
    }

    /// The names that there are workers under.
    pub fn namespaces() -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(Pools::of_user())
    }

    /// The same, in another folder.
    pub fn namespaces_in(pools: impl Into<PathBuf>) -> Result<Vec<String>, DiscoveryError> {
        namespaces_of(Pools::at(pools.into()))
    }

    /// The workers that are there now.
    pub fn snapshot(&self) -> Vec<WorkerMetadata> {
        self.folder.workers()
    }

    async fn sweep(&self) {
        // Pools have names of their own, so that nobody may ever look again for those of a program that was killed.
        let sweep = || async {
            let pools = self.folder.pools();
            for namespace in pools.namespaces().unwrap_or_default() {
                Folder::new(pools, &namespace).sweep();
                tokio::task::yield_now().await;
            }
        };
        self.swept.get_or_init(sweep).await;
    }
}

// Files are small, few, and in memory: it takes less to read and write them here than to have a thread do so.

#[async_trait]
impl Publisher for LocalDiscovery {
    async fn publish(&self, event: Event) -> Result<(), DiscoveryError> {
        self.sweep().await;
        let path = self.folder.path();
        match event {
            Event::Added(worker) | Event::Updated(worker) => {
                let process = Process::find(worker.pid).map_err(failed("cannot look at the worker's process", path))?;
                match process {
                    Some(process) => {
                        self.folder.write(&worker, process).map_err(failed("cannot publish a worker", path))?;
                    }
                    // It has come too late: all that is left to do is what its end would have done.
                    None => self.withdraw(&worker),
                }
            }
            Event::Dropped(worker) => self.withdraw(&worker),
        }
        Ok(())
    }

    fn withdraw(&self, worker: &WorkerMetadata) {
        self.folder.remove(worker.uid, None);
    }
}

#[async_trait]
impl Discovery for LocalDiscovery {
    async fn subscribe(&self, filter: Option<Filter>) -> Result<Box<dyn Subscription>, DiscoveryError> {
        let local = Local::start(self.folder.clone(), filter);
        Ok(Box::new(local.map_err(failed("cannot watch for workers", self.folder.path()))?))
    }
}

fn namespaces_of(pools: Pools) -> Result<Vec<String>, DiscoveryError> {
    let pools = Arc::new(pools);
    let mut found = pools.namespaces().map_err(failed("cannot look for pools", pools.path()))?;
    found.retain(|namespace| !Folder::new(&pools, namespace).workers().is_empty());
    Ok(found)
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> DiscoveryError {
    DiscoveryError::of(format!("{what} ({})", path.display()))
}
