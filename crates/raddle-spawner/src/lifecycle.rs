//! The lifecycle of a spawner: register, run, deregister.

use std::{path::PathBuf, sync::Arc, time::Duration};

use raddle_broker::{Broker, Result, WorkerTask};
use raddle_broker_remote as remote;
use raddle_broker_remote::{ContainerClients, ServedBroker};
use raddle_model::{
    Tid,
    worker::{WorkerInfo, kind},
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

use super::{Config, LaunchFailureCounts, Launcher, service::SpawnerService, spawner_ids};
use raddle_telemetry::metrics::{LogCounter, Metrics, SpawnerIds};
use raddle_worker::{
    Shutdown,
    registration::{LEASE, Registration, deregister},
    scheduler, worker,
};

/// How a spawner behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name in lists and titles.
    pub name: String,
    /// Kind of worker. A spawner whose workers have a
    /// [`SpawnPolicy`](raddle_model::manager::SpawnPolicy) is a manager, and this is its type.
    pub kind: String,
    /// The task that started it.
    pub parent: Option<Tid>,
    /// The task that it is.
    pub task: WorkerTask,
    /// Its settings.
    pub config: Config,
    /// Options of its workers.
    pub worker: worker::Options,
    /// Socket at which it serves the broker to its workers.
    pub socket: Option<PathBuf>,
    /// The rights of untrusted workers at the socket.
    pub container_clients: Option<ContainerClients>,
    /// Metrics of its workers. If the workers use `socket` and the broker is a
    /// [`MeteredBroker`](raddle_telemetry::metrics::MeteredBroker), that counts their tasks.
    /// Otherwise a `LogCounter` counts them from the event log.
    pub metrics: Option<Arc<Metrics>>,
    /// Length of its lease.
    pub lease: Duration,
}

/// A registered spawner that does not run yet.
pub struct Spawner {
    broker: Arc<dyn Broker>,
    options: Options,
    launcher: Box<dyn Launcher>,
    registration: Registration,
    snapshot_tx: watch::Sender<SpawnerSnapshot>,
    serving: Option<ServedBroker>,
}

/// Observes a spawner. Clones observe the same one.
#[derive(Clone, Debug)]
pub struct SpawnerHandle(watch::Receiver<SpawnerSnapshot>);

/// The current numbers of a spawner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpawnerSnapshot {
    /// Tasks that its workers could claim, when last counted.
    pub pending: u64,
    /// Workers that are starting.
    pub starting: u32,
    /// Workers that wait for a task.
    pub idle: u32,
    /// Workers that have a task.
    pub busy: u32,
    /// Idle workers that it wants.
    pub warm_pool: u32,
    /// Workers launched since it started.
    pub launched: u64,
    /// Workers that died before they were ready.
    pub failed_starts: u64,
    /// Failed launches by kind.
    pub launch_failures: LaunchFailureCounts,
    /// Whether launches are held back after failures.
    pub backing_off: bool,
}

/// How a spawner ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnerEnd {
    /// Workers that it launched.
    pub launched: u64,
}

impl Options {
    /// Default options.
    pub fn new(config: Config, worker: worker::Options) -> Self {
        let (name, kind) = (kind::SPAWNER.into(), kind::SPAWNER.into());
        Self {
            name,
            kind,
            parent: None,
            task: WorkerTask::New,
            config,
            worker,
            socket: None,
            container_clients: None,
            metrics: None,
            lease: LEASE,
        }
    }

    /// Its registration: it offers what its workers take, and runs nothing itself.
    fn info(&self) -> WorkerInfo {
        WorkerInfo {
            name: self.name.clone(),
            kind: self.kind.clone(),
            concurrency: 0,
            max_workers: self.config.max_workers(),
            parent: self.parent,
            ..self.worker.worker_info()
        }
    }
}

impl Spawner {
    /// Registers a spawner, and starts to serve its workers.
    pub async fn register(
        broker: Arc<dyn Broker>,
        options: Options,
        launcher: Box<dyn Launcher>,
    ) -> Result<Self> {
        let serving = match &options.socket {
            Some(path) => {
                let serving = remote::Options::default()
                    .with_container_clients(options.container_clients.clone());
                Some(ServedBroker::start_with(path, Arc::clone(&broker), serving).await?)
            }
            None => None,
        };
        let registration =
            Registration::register(&broker, options.info(), options.lease, options.task).await?;
        let snapshot_tx = watch::Sender::new(SpawnerSnapshot::default());
        Ok(Self {
            broker,
            options,
            launcher,
            registration,
            snapshot_tx,
            serving,
        })
    }

    /// The spawner's id.
    pub fn tid(&self) -> Tid {
        self.registration.tid
    }

    /// A handle to observe it, also while it runs.
    pub fn handle(&self) -> SpawnerHandle {
        SpawnerHandle(self.snapshot_tx.subscribe())
    }

    /// Keeps workers until it is asked to stop. Then they finish their tasks, and it waits for
    /// those that it has launched.
    pub async fn run(self, shutdown: Shutdown) -> Result<SpawnerEnd> {
        let Self {
            broker,
            options,
            launcher,
            registration,
            snapshot_tx,
            serving,
        } = self;
        // Stops with this spawner. Its one-shot workers fire no schedules.
        let _scheduling = scheduler::RunningScheduler::start(Arc::clone(&broker));
        let mut service = SpawnerService::new(
            Arc::clone(&broker),
            options.clone(),
            launcher,
            registration,
            snapshot_tx,
            &shutdown,
        );
        let ids = SpawnerIds::new(service.tid());
        let counting = LogCounterTask::start(&broker, &options, service.tid(), &ids);
        let mut former = Vec::new();
        let end = loop {
            match service.run().await {
                Ok(true) => break Ok(()),
                // The lease was lost. The workers have their own leases.
                Ok(false) => {
                    former.push(service.tid());
                    let info = spawner_ids::with_old_ids(options.info(), &former);
                    match Registration::register_again(
                        &broker,
                        &info,
                        options.lease,
                        options.task,
                        Duration::MAX,
                        &shutdown,
                    )
                    .await
                    {
                        Ok(Some(registration)) => {
                            tracing::warn!(was = %service.tid(), now = %registration.tid, "the lease was lost; registered again");
                            ids.add(registration.tid);
                            service.resume(registration);
                        }
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        let (launched, tid) = (service.launched(), service.tid());
        service.close().await;
        if let Some(counting) = counting {
            counting.stop().await;
        }
        let failure = end.as_ref().err().map(ToString::to_string);
        deregister(&broker, tid, failure).await;
        // Last, because the workers use it until now. Workers that it does not wait for lose it.
        if let Some(serving) = serving {
            serving.stop().await;
        }
        end.map(|()| SpawnerEnd { launched })
    }
}

/// The tokio task that counts tasks from the event log.
struct LogCounterTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl LogCounterTask {
    fn start(
        broker: &Arc<dyn Broker>,
        options: &Options,
        tid: Tid,
        ids: &SpawnerIds,
    ) -> Option<Self> {
        let metrics = options
            .metrics
            .clone()
            .filter(|_| options.socket.is_none())?;
        let (stop, stopped) = oneshot::channel();
        let counter = LogCounter::new(Arc::clone(broker), metrics, tid, ids.clone());
        Some(Self {
            stop,
            task: tokio::spawn(counter.run(stopped)),
        })
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl SpawnerHandle {
    /// The current numbers.
    pub fn snapshot(&self) -> SpawnerSnapshot {
        *self.0.borrow()
    }

    /// Returns `true` when something has changed, `false` when the spawner is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl SpawnerSnapshot {
    /// The number of live workers.
    pub fn live(&self) -> u32 {
        self.starting + self.idle + self.busy
    }
}
