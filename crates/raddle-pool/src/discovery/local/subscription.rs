//! Somebody who hears of the workers of this machine.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
};

use async_trait::async_trait;

use super::{
    entry::{ENDING, Name},
    folder::{Folder, Stamp, keep_latest},
    process::Life,
};
use crate::{
    WorkerMetadata,
    discovery::{
        Event, Filter, Subscription,
        changes::Told,
        watch::{FOLDERS, Watch},
    },
};

/// Somebody who hears of the workers of this machine.
pub(super) struct Local {
    folder: Folder,
    watch: Watch,
    files: BTreeMap<Name, Seen>,
    /// The last number that was given to a process.
    number: u64,
    told: Told,
}

/// A file, as it was when it was last looked at.
struct Seen {
    stamp: Stamp,
    /// None if it could not be read, which was reported then.
    worker: Option<WorkerMetadata>,
    process: Option<Watched>,
}

/// A process whose end will be heard of.
struct Watched {
    number: u64,
    /// It is watched while this is open.
    _pidfd: OwnedFd,
}

impl Local {
    /// Begins to listen. What is there is ready to be told.
    pub(super) fn start(folder: Folder, filter: Option<Filter>) -> io::Result<Self> {
        let (watch, files) = (Watch::new()?, BTreeMap::new());
        let mut local = Self { folder, watch, files, number: FOLDERS, told: Told::new(filter) };
        local.folder.sweep();
        local.watch_folders()?;
        local.look();
        Ok(local)
    }

    /// Watches the folders that are there. Those of the namespaces come and go; that which they are in stays, unless somebody removes it.
    fn watch_folders(&self) -> io::Result<()> {
        self.folder.pools().make()?;
        self.watch.folder(self.folder.pools().path())?;
        self.watch.folder(self.folder.path())?;
        Ok(())
    }

    /// Finds out what has changed. Folders have to be watched before: what changes after the look is then told.
    fn look(&mut self) {
        let listed = self.folder.list();
        self.files.retain(|name, _| listed.contains_key(name));
        for (name, stamp) in listed {
            self.look_at(name, stamp);
        }
        let mut latest = BTreeMap::new();
        for seen in self.files.values() {
            if let Some(worker) = &seen.worker {
                keep_latest(&mut latest, seen.stamp, worker);
            }
        }
        self.told.see(latest.into_values().map(|(_, worker)| worker.clone()));
    }

    fn look_at(&mut self, name: Name, stamp: Stamp) {
        match self.files.get_mut(&name) {
            Some(seen) if seen.stamp == stamp => {
                if seen.process.is_none() && name.process.is_gone() {
                    self.end(name);
                }
            }
            Some(seen) if seen.process.is_some() => (seen.stamp, seen.worker) = read(&self.folder, name, stamp),
            _ => {
                let seen = match name.process.watch() {
                    Life::Gone => return self.folder.remove_entry(name),
                    Life::Elsewhere => Seen { stamp, worker: None, process: None },
                    Life::Alive(pidfd) => {
                        let process = pidfd.and_then(|pidfd| self.watch_process(pidfd));
                        let (stamp, worker) = read(&self.folder, name, stamp);
                        Seen { stamp, worker, process }
                    }
                };
                self.files.insert(name, seen);
            }
        }
    }

    fn watch_process(&mut self, pidfd: OwnedFd) -> Option<Watched> {
        self.number += 1;
        match self.watch.process(pidfd.as_fd(), self.number) {
            Ok(()) => Some(Watched { number: self.number, _pidfd: pidfd }),
            Err(error) => {
                tracing::debug!(%error, "cannot watch a worker's process: its end will be noticed at the next change of another");
                None
            }
        }
    }

    /// The process of an entry has ended.
    fn end(&mut self, name: Name) {
        self.files.remove(&name);
        self.folder.remove_entry(name);
    }

    fn hear(&mut self, happened: Vec<u64>) {
        let mut is_news = false;
        for number in happened {
            if number == FOLDERS {
                is_news |= self.watch.heed_folders(|name| is_of(name, self.folder.namespace()));
                continue;
            }
            let is_it = |seen: &Seen| seen.process.as_ref().is_some_and(|process| process.number == number);
            let ended = self.files.iter().find(|(_, seen)| is_it(seen)).map(|(name, _)| *name);
            if let Some(name) = ended {
                self.end(name);
                is_news = true;
            }
        }
        if is_news {
            if let Err(error) = self.watch_folders() {
                tracing::debug!(folder = %self.folder.path().display(), %error, "cannot watch for workers");
            }
            self.look();
        }
    }
}

#[async_trait]
impl Subscription for Local {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.next() {
                return Some(event);
            }
            // The only place to wait at, and nothing is taken there: whoever stops waiting loses nothing.
            match self.watch.wait().await {
                Ok(happened) => self.hear(happened),
                Err(error) => {
                    tracing::debug!(%error, "no more is heard of workers");
                    return None;
                }
            }
        }
    }
}

/// Reads an entry that has changed.
fn read(folder: &Folder, name: Name, stamp: Stamp) -> (Stamp, Option<WorkerMetadata>) {
    match folder.read(name) {
        Ok((stamp, worker)) => (stamp, Some(worker)),
        Err(error) => {
            tracing::debug!(entry = %folder.path().join(name.to_string()).display(), %error, "skipped");
            (stamp, None)
        }
    }
}

/// Whether a name is that of an entry, or of the folder of the namespace; and not of another one, or of a file that is being written.
fn is_of(name: &[u8], namespace: &str) -> bool {
    name == namespace.as_bytes() || (!name.starts_with(b".") && name.ends_with(ENDING.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_no_news() {
        let is_of = |name: &str| is_of(name.as_bytes(), "mine");
        assert_eq!(["mine", "a.json", "other", ".1-2-3.4", ".a.json"].map(is_of), [true, true, false, false, false]);
    }
}
