//! Somebody who hears of the workers that a name stands for.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use raddle_dns::resolver::{self, HostsFile};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Settings,
    places::{Look, look},
    state::{Remark, State},
};
use crate::discovery::{Event, Filter, Subscription, changes::Told};

/// How long anybody waits for the first answer. Later ones are told when they come.
const FIRST: Duration = Duration::from_secs(5);
/// How long it may take to find out all that there is to know.
const LONGEST: Duration = Duration::from_secs(30);

/// Somebody who hears of the workers that a name stands for.
pub(super) struct Names {
    settings: Arc<Settings>,
    /// Rings when somebody wants to know sooner.
    asked: watch::Receiver<()>,
    phase: Phase,
    last: Instant,
    state: State,
    told: Told,
}

enum Phase {
    /// Until then.
    Waiting(Instant),
    /// Goes on when somebody waits again.
    Looking(BoxFuture<'static, Result<Look, String>>),
}

impl Names {
    /// Begins to listen. What is there is ready to be told, unless it takes too long to find out.
    pub(super) async fn start(settings: Arc<Settings>, filter: Option<Filter>) -> Self {
        let (mut asked, now) = (settings.again.subscribe(), Instant::now());
        asked.mark_unchanged();
        let phase = Phase::Waiting(now);
        let mut names = Self { settings, asked, phase, last: now, state: State::default(), told: Told::new(filter) };
        names.begin();
        // It is kept if it is not done by then.
        let _ = timeout(FIRST, names.step()).await;
        names
    }

    fn begin(&mut self) {
        let settings = Arc::clone(&self.settings);
        self.last = Instant::now();
        self.phase = Phase::Looking(Box::pin(async move {
            let looking = async {
                // Made for each look: the system's configuration may have changed, and no answer is to come from a cache.
                let resolver = match &settings.servers {
                    Some(servers) => resolver::from_servers(servers.iter().copied()),
                    None => resolver::from_system(HostsFile::Ignore),
                };
                look(&resolver.map_err(|error| error.to_string())?, &settings.service, settings.prefer).await
            };
            timeout(LONGEST, looking).await.unwrap_or_else(|_| Err("it takes too long to find out".into()))
        }));
    }

    /// Waits for what comes next, and does it. Can be dropped at any time.
    async fn step(&mut self) {
        match &mut self.phase {
            Phase::Waiting(until) => {
                tokio::select! {
                    () = sleep_until(*until) => self.begin(),
                    // Who can ask is part of the settings, so that there is always somebody.
                    _ = self.asked.changed() => {
                        *until = (*until).min(self.last + self.settings.bounds.least);
                    }
                }
            }
            Phase::Looking(looking) => {
                let found = looking.await;
                self.hear(found);
            }
        }
    }

    fn hear(&mut self, found: Result<Look, String>) {
        let name = &self.settings.name;
        let (look, fault) = match found {
            Ok(mut look) => {
                let doubt = look.doubt.take();
                (Some(look), doubt)
            }
            Err(fault) => (None, Some(fault)),
        };
        let (pause, remark) = self.state.hear(look, self.settings.bounds);
        let fault = fault.unwrap_or_default();
        match remark {
            Some(Remark::Fault) => {
                tracing::warn!(name, fault, "cannot find out who the workers are: those that are known stay");
            }
            Some(Remark::Mended) => tracing::info!(name, "it can be found out again who the workers are"),
            Some(Remark::Doubted) => tracing::warn!(name, "is said to have no workers any more: it is asked for again"),
            Some(Remark::Gone) => tracing::warn!(name, "has no workers any more"),
            None => tracing::trace!(name, fault, ?pause, "looked for workers"),
        }
        let workers = self.state.places().into_iter().map(|place| self.settings.worker(place));
        self.told.see(workers.collect::<Vec<_>>());
        self.phase = Phase::Waiting(Instant::now() + pause);
    }
}

#[async_trait]
impl Subscription for Names {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.next() {
                return Some(event);
            }
            self.step().await;
        }
    }
}
