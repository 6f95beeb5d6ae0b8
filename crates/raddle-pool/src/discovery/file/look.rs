//! Looking at what is written down, and where it would be seen that it changes.

use std::{io, path::Path};

use super::{
    reader::{Reader, is_entry},
    trail::Trail,
};
use crate::{WorkerMetadata, discovery::watch::Watch};

/// What Kubernetes exchanges in a folder of its own.
const EXCHANGED: &[u8] = b"..data";
/// The way to a file may change while it is taken. Nobody changes it that often.
const TRIES: usize = 5;

/// Looks. On a thread that may be kept waiting: it may be the disk of another machine.
pub(super) struct Look {
    reader: Reader,
    watched: Option<Watched>,
    /// It was said that the kernel tells nothing.
    is_deaf: bool,
}

struct Watched {
    trail: Trail,
    watch: Watch,
}

impl Look {
    pub(super) fn new(path: &Path) -> Self {
        Self { reader: Reader::new(path.to_owned()), watched: None, is_deaf: false }
    }

    /// The first look, which must succeed.
    pub(super) fn first(&mut self) -> io::Result<Vec<WorkerMetadata>> {
        self.watch();
        self.reader.look()?;
        Ok(self.reader.workers())
    }

    /// Any other look.
    pub(super) fn again(&mut self) -> Vec<WorkerMetadata> {
        self.watch();
        self.reader.look_again();
        self.reader.workers()
    }

    /// Waits until there may be something to see. For ever, if the kernel does not tell.
    pub(super) async fn wait(&self) {
        while let Some(Watched { trail, watch }) = &self.watched {
            if let Err(error) = watch.wait().await {
                tracing::debug!(%error, "nothing is told of files");
                break;
            }
            if watch.heed_folders(|name| trail.has(name) || is_entry(name) || name == EXCHANGED) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Watches the way to the files as it is now. Before a look: what changes after it is then told.
    fn watch(&mut self) {
        for _ in 0..TRIES {
            let trail = Trail::of(self.reader.path());
            let is_followed = self.watched.as_ref().is_some_and(|watched| watched.trail == trail);
            // A folder that was made anew in the place of another has to be named again.
            let watched = match self.watched.take().filter(|_| is_followed) {
                Some(watched) => watched.begin(),
                None => Watch::new().and_then(|watch| Watched { trail, watch }.begin()),
            };
            match watched {
                Ok(watched) => self.watched = Some(watched),
                Err(error) => {
                    if !self.is_deaf {
                        tracing::warn!(path = %self.reader.path().display(), %error, "cannot watch for workers: they are only looked at now and then");
                    }
                    self.is_deaf = true;
                    return;
                }
            }
            if is_followed {
                return;
            }
        }
    }
}

impl Watched {
    fn begin(self) -> io::Result<Self> {
        self.trail.folders.iter().try_for_each(|folder| self.watch.folder(folder).map(drop))?;
        Ok(self)
    }
}
