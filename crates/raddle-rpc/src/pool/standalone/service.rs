//! Keeps standalone workers, from the first start to the last end.

use std::{fmt, sync::Arc, time::Duration};

use raddle_discovery::{LocalDiscovery, Publisher, WorkerMetadata};
use raddle_model::routine::Routines;
use tokio::{sync::watch, time::sleep};

use super::{Options, Shutdown, advertise::nearby, advertised_publisher::AdvertisedPublisher};
use crate::{
    PoolError,
    balancer::BalancerContext,
    connection,
    membership::PoolKey,
    pool::supervisor::{PoolPlan, PoolSupervisor},
    worker::{CallCounts, StopMode},
};

/// Keeps standalone workers.
#[derive(Debug)]
#[must_use = "nobody serves before it is run"]
pub struct StandaloneService {
    shared: Arc<ServiceState>,
    max_uptime: Option<Duration>,
}

/// Says how standalone workers are. Clones speak of the same.
#[derive(Clone, Debug)]
pub struct StandaloneHandle(Arc<ServiceState>);

struct ServiceState {
    keeper: Arc<PoolSupervisor>,
    wanted: usize,
    phase: watch::Sender<ServicePhase>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServicePhase {
    /// Not all of them have served yet.
    Starting,
    /// All have served. Those that have ended since are being replaced.
    Serving,
    /// They take no more calls.
    Stopping,
}

/// How standalone workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// How far it has come.
    pub phase: ServicePhase,
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
pub enum ServiceEnd {
    /// It was asked for.
    Asked,
    /// They have served for as long as they were to.
    Uptime,
}

impl StandaloneService {
    /// Checks what can be checked before anything is started.
    pub fn new(options: Options) -> Result<Self, PoolError> {
        options.check()?;
        let routines =
            Routines::of_this_program().map_err(|clash| PoolError::Invalid(clash.to_string()))?;
        if options.process.program.is_none() && routines.names().next().is_none() {
            return Err(PoolError::NoRoutines);
        }
        let local: Arc<dyn Publisher> = Arc::new(LocalDiscovery::new(&options.name)?);
        let (advertise, bind) = (options.advertise.clone(), options.bind.clone());
        let said = move |served: &str| {
            advertise
                .as_ref()
                .map(|advertise| advertise.of(served, bind.as_ref()))
        };
        let publish = |by: &Arc<dyn Publisher>| {
            let (by, said) = (Arc::clone(by), said.clone());
            // What an address means that is everywhere is up to the publisher.
            let found = move |served: &str| said(served).unwrap_or_else(|| served.to_owned());
            Arc::new(AdvertisedPublisher { by, found }) as Arc<dyn Publisher>
        };
        let others = options.publishers.iter().map(publish).collect::<Vec<_>>();
        let found = move |served: &str| said(served).unwrap_or_else(|| nearby(served));
        let local: Arc<dyn Publisher> = Arc::new(AdvertisedPublisher { by: local, found });
        let publishers = std::iter::once(local).chain(others).collect();
        let (wanted, max_uptime) = (options.workers, options.max_uptime);
        let plan = PoolPlan {
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
        let keeper = PoolSupervisor::new(plan, BalancerContext::default());
        Ok(Self {
            shared: Arc::new(ServiceState {
                keeper,
                wanted,
                phase: watch::Sender::new(ServicePhase::Starting),
            }),
            max_uptime,
        })
    }

    /// Says how they are, also while it runs.
    pub fn handle(&self) -> StandaloneHandle {
        StandaloneHandle(Arc::clone(&self.shared))
    }

    /// Starts the workers, and keeps them until it is asked to stop. Returns when they are gone. If one of them cannot be started in the beginning,
    /// all are stopped again, and the error names each cause. Whoever drops this ends them at once.
    pub async fn run(self, shutdown: Shutdown) -> Result<ServiceEnd, PoolError> {
        let ServiceState { keeper, phase, .. } = &*self.shared;
        let _ending = CleanupGuard(&self.shared);
        keeper.begin();
        let patience = tokio::select! {
            started = keeper.started() => {
                started?;
                None
            }
            patience = shutdown.asked() => Some(patience),
        };
        let (ended, patience) = match patience {
            Some(patience) => (ServiceEnd::Asked, patience),
            None => {
                phase.send_replace(ServicePhase::Serving);
                tokio::select! {
                    patience = shutdown.asked() => (ServiceEnd::Asked, patience),
                    () = outlived(self.max_uptime) => (ServiceEnd::Uptime, StopMode::Endless),
                }
            }
        };
        phase.send_replace(ServicePhase::Stopping);
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

impl StandaloneHandle {
    /// Waits until all workers have served. `false` if there is an end to it before.
    pub async fn ready(&self) -> bool {
        let mut phase = self.0.phase.subscribe();
        // Who tells it is part of this.
        phase
            .wait_for(|phase| *phase > ServicePhase::Starting)
            .await
            .is_ok_and(|phase| *phase == ServicePhase::Serving)
    }

    /// The workers that serve, each where it serves.
    pub fn workers(&self) -> Vec<WorkerMetadata> {
        self.0.keeper.serving()
    }

    /// How they are.
    pub fn standing(&self) -> ServiceStatus {
        let (serving, losses, is_braking) = self.0.keeper.standing();
        ServiceStatus {
            phase: *self.0.phase.borrow(),
            wanted: self.0.wanted,
            serving,
            losses,
            is_braking,
        }
    }

    /// What they have done, those included that have ended. Each is asked, and has a second to answer. Of one that was killed it is what it had
    /// said when it was last asked.
    pub async fn tally(&self) -> CallCounts {
        self.0.keeper.tally().await
    }
}

/// Lets go of what is left, if it is dropped in the middle.
struct CleanupGuard<'a>(&'a ServiceState);

impl Drop for CleanupGuard<'_> {
    fn drop(&mut self) {
        self.0.phase.send_replace(ServicePhase::Stopping);
        self.0.keeper.abandon();
    }
}

async fn outlived(uptime: Option<Duration>) {
    match uptime {
        Some(uptime) => sleep(uptime).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("keeper", &self.keeper)
            .finish_non_exhaustive()
    }
}
