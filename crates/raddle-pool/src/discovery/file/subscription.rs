//! Somebody who hears of the workers that are written down.

use std::{io, path::Path, time::Duration};

use async_trait::async_trait;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until},
};

use super::look::Look;
use crate::{
    WorkerMetadata,
    discovery::{Event, Filter, Subscription, changes::Told},
};

/// Somebody who hears of the workers that are written down.
pub(super) struct Files {
    state: State,
    every: Duration,
    told: Told,
}

enum State {
    /// Until then, or until the kernel says something.
    Waiting(Look, Instant),
    /// It goes on when nobody waits for it, and ends by itself.
    Looking(JoinHandle<(Look, Vec<WorkerMetadata>)>),
    /// There will be no more.
    Over,
}

impl Files {
    /// Begins to listen. What is there is ready to be told.
    pub(super) async fn start(path: &Path, every: Duration, filter: Option<Filter>) -> io::Result<Self> {
        let mut look = Look::new(path);
        let first = spawn_blocking(move || look.first().map(|workers| (look, workers)));
        let (look, workers) = first.await.map_err(io::Error::other)??;
        let mut told = Told::new(filter);
        told.see(workers);
        Ok(Self { state: State::Waiting(look, Instant::now() + every), every, told })
    }
}

#[async_trait]
impl Subscription for Files {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.next() {
                return Some(event);
            }
            // Whoever stops waiting here loses nothing: what the kernel said is followed by a look at once, and a look is kept.
            match &mut self.state {
                State::Waiting(look, until) => {
                    tokio::select! {
                        () = look.wait() => {}
                        () = sleep_until(*until) => {}
                    }
                    if let State::Waiting(mut look, _) = std::mem::replace(&mut self.state, State::Over) {
                        let looking = spawn_blocking(move || {
                            let workers = look.again();
                            (look, workers)
                        });
                        self.state = State::Looking(looking);
                    }
                }
                State::Looking(looking) => match looking.await {
                    Ok((look, workers)) => {
                        self.told.see(workers);
                        self.state = State::Waiting(look, Instant::now() + self.every);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "no more is heard of workers");
                        self.state = State::Over;
                    }
                },
                State::Over => return None,
            }
        }
    }
}
