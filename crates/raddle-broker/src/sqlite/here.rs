//! The owner of the database in a process that waits for each call: on its caller's thread, and there when something is first asked of it. While others have
//! the database it is waited for without blocking, so that a call can be given up.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    BLOCKED_PATIENCE, Shared,
    bell::Topic,
    image::Image,
    leases::Leases,
    open::{self, Place, Unmade},
    writer::{Scribe, Work},
};
use crate::{Error, Result};

/// Has the owner, for whoever asks.
#[derive(Clone)]
pub(super) struct Here(Arc<Mutex<Owner>>);

struct Owner {
    shared: Arc<Shared>,
    state: State,
}

enum State {
    Unmade(Unmade),
    Open(Scribe),
}

/// Between two looks at a lock that others have.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

impl Here {
    /// Opens the database, if there is one.
    pub(super) async fn look(path: &Path) -> Result<(Self, Arc<Shared>)> {
        let look = || open::look(path.into(), Some(BLOCKED_PATIENCE), open::SHORT_CHECKPOINT_PAGES);
        let (shared, place) = patiently(look).await?;
        let shared = Arc::new(shared);
        let state = match place {
            Place::Opened(database) => State::Open(Scribe::new(Arc::clone(&shared), database)),
            Place::Unmade(unmade) => State::Unmade(unmade),
        };
        let owner = Owner { shared: Arc::clone(&shared), state };
        Ok((Self(Arc::new(Mutex::new(owner))), shared))
    }

    /// Has the database there.
    pub(super) async fn until_open(&self) -> Result<()> {
        patiently(|| self.lock().open().map(drop)).await
    }

    /// As [`until_open`](Self::until_open), and waits for others to let go of it.
    pub(super) async fn until_free(&self) -> Result<()> {
        self.until_open().await?;
        let shared = Arc::clone(&self.lock().shared);
        until_free(&shared).await
    }

    /// Makes the database with something in it, which `first` gives. Nothing, where there is one, or `first` has nothing to give.
    pub(super) async fn begin_with<T>(
        &self,
        first: impl FnOnce(&Leases) -> Result<Option<(T, Image)>>,
    ) -> Result<Option<T>> {
        let Some(shared) = self.lock().unmade() else { return Ok(None) };
        until_free(&shared).await?;
        self.lock().begin_with(first)
    }

    /// Whether there is no database yet, or only one that was made with something in it and not opened since.
    pub(super) fn is_unopened(&self) -> bool {
        self.lock().unmade().is_some()
    }

    /// Does what was asked for. Who asks has seen to it that the database is there; if it is not, the work is dropped with its sender, which the receiver
    /// reports as closed.
    pub(super) fn perform(&self, work: Work) {
        self.lock().perform(work);
    }

    /// The same, unless somebody else is at it.
    pub(super) fn perform_if_free(&self, work: Work) {
        let _ = self.0.try_lock().map(|mut owner| owner.perform(work));
    }

    /// Has the database opened, and what the end of an attempt asks of it compiled.
    pub(super) fn make_ready(&self) {
        // What fails here fails again when it is needed, and is told then.
        if let Ok(scribe) = self.lock().open() {
            scribe.make_ready();
        }
    }

    /// A panic in a job leaves nothing half-done: its transaction was undone on the way out.
    fn lock(&self) -> MutexGuard<'_, Owner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    fn unmade(&self) -> Option<Arc<Shared>> {
        matches!(self.state, State::Unmade(_)).then(|| Arc::clone(&self.shared))
    }

    fn open(&mut self) -> Result<&mut Scribe> {
        if let State::Unmade(unmade) = &self.state {
            let database = unmade.open(&self.shared)?;
            self.state = State::Open(Scribe::new(Arc::clone(&self.shared), database));
        }
        match &mut self.state {
            State::Open(scribe) => Ok(scribe),
            State::Unmade(_) => Err(Error::Closed),
        }
    }

    fn perform(&mut self, work: Work) {
        if let Ok(scribe) = self.open() {
            scribe.perform(work, None);
        }
    }

    fn begin_with<T>(&mut self, first: impl FnOnce(&Leases) -> Result<Option<(T, Image)>>) -> Result<Option<T>> {
        let State::Unmade(unmade) = &self.state else { return Ok(None) };
        let Some((what, image)) = first(&self.shared.leases)? else { return Ok(None) };
        if !unmade.make_with(&self.shared, || image)? {
            return Ok(None);
        }
        self.shared.bell.ring(Topic::Log.into());
        Ok(Some(what))
    }
}

/// Does what fails as long as others have the database, when they have let go of it.
async fn patiently<T>(mut deed: impl FnMut() -> Result<T>) -> Result<T> {
    let mut waiting = Waiting::new();
    loop {
        match deed() {
            Err(Error::Locked { path, holder, .. }) => {
                let locked = |waited: Duration| Error::Locked { path, secs: waited.as_secs(), holder };
                waiting.pause().await.map_err(locked)?;
            }
            done => return done,
        }
    }
}

async fn until_free(shared: &Shared) -> Result<()> {
    let mut waiting = Waiting::new();
    while !shared.reserve()? {
        waiting.pause().await.map_err(|waited| shared.locked(waited))?;
    }
    Ok(())
}

/// A wait for a lock that the kernel tells nothing of: it looks again and again. Only short commands do, and seldom have to.
struct Waiting {
    began: Instant,
    pause: Duration,
}

impl Waiting {
    fn new() -> Self {
        Self { began: Instant::now(), pause: Duration::from_micros(100) }
    }

    /// Pauses before the next look. The error says for how long it has looked in vain.
    async fn pause(&mut self) -> Result<(), Duration> {
        if self.began.elapsed() >= BLOCKED_PATIENCE {
            return Err(BLOCKED_PATIENCE);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
