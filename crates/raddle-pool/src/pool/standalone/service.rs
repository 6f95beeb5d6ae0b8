//! Keeps standalone workers, from the first start to the last end.

use std::{fmt, sync::Arc, time::Duration};

use raddle_core::routine::Routines;
use tokio::{sync::watch, time::sleep};

use super::{Options, Shutdown, place::nearby, published::Published};
use crate::{
    PoolError, WorkerMetadata,
    balancer::Context,
    connection,
    discovery::{LocalDiscovery, Publisher},
    membership::PoolKey,
    pool::keeper::{Keeper, Plan},
    worker::{Patience, Tally},
};

/// Keeps standalone workers.
#[derive(Debug)]
#[must_use = "nobody serves before it is run"]
pub struct Service {
    shared: Arc<Shared>,
    max_uptime: Option<Duration>,
}

/// Says how standalone workers are. Clones speak of the same.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

struct Shared {
    keeper: Arc<Keeper>,
    wanted: usize,
    phase: watch::Sender<Phase>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not all of them have served yet.
    Starting,
    /// All have served. Those that have ended since are being replaced.
    Serving,
    /// They take no more calls.
    Stopping,
}

/// How standalone workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How far it has come.
    pub phase: Phase,
    /// How many there are to be.
    pub wanted: usize,
    /// How many serve.
    pub serving: usize,
    /// How often one has ended without having been told to, or could not be started.
    pub losses: u64,
    /// Others are held back, because those before them have ended too soon.
    pub is_braking: bool,
}

/// Why there is an end to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was asked for.
    Asked,
    /// They have served for as long as they were to.
    Uptime,
}

impl Service {
    /// Checks what can be checked before anything is started.
    pub fn new(options: Options) -> Result<Self, PoolError> {
        options.check()?;
        let routines = Routines::of_this_program().map_err(|clash| PoolError::Invalid(clash.to_string()))?;
        if options.process.program.is_none() && routines.names().next().is_none() {
            return Err(PoolError::NoRoutines);
        }
        let local: Arc<dyn Publisher> = Arc::new(LocalDiscovery::new(&options.name)?);
        let (advertise, bind) = (options.advertise.clone(), options.bind.clone());
        let said = move |served: &str| advertise.as_ref().map(|advertise| advertise.of(served, bind.as_ref()));
        let publish = |by: &Arc<dyn Publisher>| {
            let (by, said) = (Arc::clone(by), said.clone());
            // What an address means that is everywhere is up to the publisher.
            let found = move |served: &str| said(served).unwrap_or_else(|| served.to_owned());
            Arc::new(Published { by, found }) as Arc<dyn Publisher>
        };
        let others = options.publishers.iter().map(publish).collect::<Vec<_>>();
        let found = move |served: &str| said(served).unwrap_or_else(|| nearby(served));
        let local: Arc<dyn Publisher> = Arc::new(Published { by: local, found });
        let publishers = std::iter::once(local).chain(others).collect();
        let (wanted, max_uptime) = (options.workers, options.max_uptime);
        let plan = Plan {
            size: wanted,
            quorum: wanted,
            tags: options.process.tags.clone(),
            publishers,
            start_timeout: options.start_timeout,
            limit: connection::LIMIT,
            key: PoolKey::generate(),
            credentials: options.process.credentials.clone(),
            is_called_here: false,
            make: Arc::new(move |place, _| options.worker(place)),
        };
        // Nobody calls them from here.
        let keeper = Keeper::new(plan, Context::default());
        Ok(Self { shared: Arc::new(Shared { keeper, wanted, phase: watch::Sender::new(Phase::Starting) }), max_uptime })
    }

    /// Says how they are, also while it runs.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Starts the workers, and keeps them until it is asked to stop. Returns when they are gone. If one of them cannot be started in the beginning,
    /// all are stopped again, and the error names each cause. Whoever drops this ends them at once.
    pub async fn run(self, shutdown: Shutdown) -> Result<Ended, PoolError> {
        let Shared { keeper, phase, .. } = &*self.shared;
        let _ending = Ending(&self.shared);
        keeper.begin();
        let patience = tokio::select! {
            started = keeper.started() => {
                started?;
                None
            }
            patience = shutdown.asked() => Some(patience),
        };
        let (ended, patience) = match patience {
            Some(patience) => (Ended::Asked, patience),
            None => {
                phase.send_replace(Phase::Serving);
                tokio::select! {
                    patience = shutdown.asked() => (Ended::Asked, patience),
                    () = outlived(self.max_uptime) => (Ended::Uptime, Patience::Endless),
                }
            }
        };
        phase.send_replace(Phase::Stopping);
        let hurrying = async {
            shutdown.hurried().await;
            keeper.hurry();
            std::future::pending().await
        };
        tokio::select! {
            () = keeper.stop(patience) => {}
            () = hurrying => {}
        }
        Ok(ended)
    }
}

impl Handle {
    /// Waits until all workers have served. `false` if there is an end to it before.
    pub async fn ready(&self) -> bool {
        let mut phase = self.0.phase.subscribe();
        // Who tells it is part of this.
        phase.wait_for(|phase| *phase > Phase::Starting).await.is_ok_and(|phase| *phase == Phase::Serving)
    }

    /// The workers that serve, each where it serves.
    pub fn workers(&self) -> Vec<WorkerMetadata> {
        self.0.keeper.serving()
    }

    /// How they are.
    pub fn standing(&self) -> Standing {
        let (serving, losses, is_braking) = self.0.keeper.standing();
        Standing { phase: *self.0.phase.borrow(), wanted: self.0.wanted, serving, losses, is_braking }
    }

    /// What they have done, those included that have ended. Each is asked, and has a second to answer. Of one that was killed it is what it had
    /// said when it was last asked.
    pub async fn tally(&self) -> Tally {
        self.0.keeper.tally().await
    }
}

/// Lets go of what is left, if it is dropped in the middle.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.phase.send_replace(Phase::Stopping);
        self.0.keeper.abandon();
    }
}

async fn outlived(uptime: Option<Duration>) {
    match uptime {
        Some(uptime) => sleep(uptime).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}
