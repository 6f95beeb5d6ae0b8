//! `StandaloneService`: keeps standalone workers running.

use std::{fmt, sync::Arc, time::Duration};

use raddle_discovery::{LocalDiscovery, Publisher, WorkerMetadata};
use raddle_model::routine::Routines;
use tokio::{sync::watch, time::sleep};

use super::{
    Options, Shutdown, advertise::local_address, advertised_publisher::AdvertisedPublisher,
};
use crate::{
    PoolError,
    balancer::BalancerContext,
    connection,
    membership::PoolKey,
    pool::supervisor::{PoolPlan, PoolSupervisor},
    worker::{CallCounts, StopMode},
};

/// Keeps standalone workers running.
#[derive(Debug)]
#[must_use = "workers start with `run`"]
pub struct StandaloneService {
    shared: Arc<ServiceState>,
    max_uptime: Option<Duration>,
}

/// Reports the status of standalone workers. Clones refer to the same service.
#[derive(Clone, Debug)]
pub struct StandaloneHandle(Arc<ServiceState>);

struct ServiceState {
    supervisor: Arc<PoolSupervisor>,
    wanted: usize,
    phase: watch::Sender<ServicePhase>,
}

/// Phase of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServicePhase {
    /// Some workers have not become ready yet.
    Starting,
    /// All workers were ready. Those that have ended since are being replaced.
    Serving,
    /// Workers refuse calls.
    Stopping,
}

/// Status of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The phase.
    pub phase: ServicePhase,
    /// Configured number of workers.
    pub wanted: usize,
    /// Number of ready workers.
    pub serving: usize,
    /// Number of workers that ended unasked, or could not be started.
    pub losses: u64,
    /// A crash-loop backoff delays starts.
    pub is_backing_off: bool,
}

/// Why a service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceEnd {
    /// A shutdown was requested.
    Requested,
    /// `max_uptime` was reached.
    MaxUptime,
}

impl StandaloneService {
    /// Checks what can be checked before a start.
    pub fn new(options: Options) -> Result<Self, PoolError> {
        options.check()?;
        let routines =
            Routines::of_this_program().map_err(|clash| PoolError::Invalid(clash.to_string()))?;
        if options.process.program.is_none()
            && options.process.host.is_none()
            && routines.names().next().is_none()
        {
            return Err(PoolError::NoRoutines);
        }
        let local: Arc<dyn Publisher> = Arc::new(LocalDiscovery::new(&options.name)?);
        let (advertise, bind) = (options.advertise.clone(), options.bind.clone());
        let advertised = move |served: &str| {
            advertise
                .as_ref()
                .map(|advertise| advertise.public_address(served, bind.as_ref()))
        };
        let publish = |publisher: &Arc<dyn Publisher>| {
            let (inner, advertised) = (Arc::clone(publisher), advertised.clone());
            // Publishers resolve wildcard addresses themselves.
            let map_address =
                move |served: &str| advertised(served).unwrap_or_else(|| served.to_owned());
            Arc::new(AdvertisedPublisher { inner, map_address }) as Arc<dyn Publisher>
        };
        let others = options.publishers.iter().map(publish).collect::<Vec<_>>();
        let map_address =
            move |served: &str| advertised(served).unwrap_or_else(|| local_address(served));
        let local: Arc<dyn Publisher> = Arc::new(AdvertisedPublisher {
            inner: local,
            map_address,
        });
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
            is_local_caller: false,
            make: Arc::new(move |slot, _| options.worker(slot)),
        };
        // This process makes no calls, so the context stays internal.
        let supervisor = PoolSupervisor::new(plan, BalancerContext::default());
        Ok(Self {
            shared: Arc::new(ServiceState {
                supervisor,
                wanted,
                phase: watch::Sender::new(ServicePhase::Starting),
            }),
            max_uptime,
        })
    }

    /// Reports the status, also while the service runs.
    pub fn handle(&self) -> StandaloneHandle {
        StandaloneHandle(Arc::clone(&self.shared))
    }

    /// Starts the workers, and keeps them running until a shutdown is requested. Returns when they
    /// are gone. If a worker cannot be started initially, all are stopped again, and the error
    /// names each cause. Dropping the future kills the workers.
    pub async fn run(self, shutdown: Shutdown) -> Result<ServiceEnd, PoolError> {
        let ServiceState {
            supervisor, phase, ..
        } = &*self.shared;
        let _guard = CleanupGuard(&self.shared);
        supervisor.start();
        let mode = tokio::select! {
            started = supervisor.wait_until_started() => {
                started?;
                None
            }
            mode = shutdown.requested() => Some(mode),
        };
        let (ended, mode) = match mode {
            Some(mode) => (ServiceEnd::Requested, mode),
            None => {
                phase.send_replace(ServicePhase::Serving);
                tokio::select! {
                    mode = shutdown.requested() => (ServiceEnd::Requested, mode),
                    () = sleep_until_max_uptime(self.max_uptime) => (ServiceEnd::MaxUptime, StopMode::Drain),
                }
            }
        };
        phase.send_replace(ServicePhase::Stopping);
        let escalating = async {
            shutdown.cancel_requested().await;
            supervisor.escalate_stop();
            std::future::pending().await
        };
        tokio::select! {
            () = supervisor.stop(mode) => {}
            () = escalating => {}
        }
        Ok(ended)
    }
}

impl StandaloneHandle {
    /// Waits until all workers were ready. `false` if the service stops before.
    pub async fn ready(&self) -> bool {
        let mut phase = self.0.phase.subscribe();
        // The sender is part of `self`, so the channel cannot close.
        phase
            .wait_for(|phase| *phase > ServicePhase::Starting)
            .await
            .is_ok_and(|phase| *phase == ServicePhase::Serving)
    }

    /// The ready workers, with the addresses that they listen on.
    pub fn workers(&self) -> Vec<WorkerMetadata> {
        self.0.supervisor.serving()
    }

    /// The current status.
    pub fn status(&self) -> ServiceStatus {
        let (serving, losses, is_backing_off) = self.0.supervisor.status();
        ServiceStatus {
            phase: *self.0.phase.borrow(),
            wanted: self.0.wanted,
            serving,
            losses,
            is_backing_off,
        }
    }

    /// The call counts of all workers, including those that have ended. Each is queried, and has a
    /// second to answer; a killed worker counts as of its last answer.
    pub async fn call_counts(&self) -> CallCounts {
        self.0.supervisor.call_counts().await
    }
}

/// Drops the workers if `run` is cancelled.
struct CleanupGuard<'a>(&'a ServiceState);

impl Drop for CleanupGuard<'_> {
    fn drop(&mut self) {
        self.0.phase.send_replace(ServicePhase::Stopping);
        self.0.supervisor.drop_workers();
    }
}

async fn sleep_until_max_uptime(uptime: Option<Duration>) {
    match uptime {
        Some(uptime) => sleep(uptime).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceState")
            .field("supervisor", &self.supervisor)
            .finish_non_exhaustive()
    }
}
